// @ts-check
// One head as a map of any length, zoomed and panned.
import { clamp, counted, el, label, put, short } from './base.js';
import { frozen, numbers } from './api.js';
import { shareBar } from './lesson_parts.js';
import { cellChoice, colourChoice, sinkChoice } from './controls.js';
import { cellsSvg, colourBar, difference, largest, model, ofSide, rowsOfHead, scaleWords } from './draw.js';
import { sinkWords, tile } from './draw.js';
import { LONG } from './heads_drawn.js';
import { CELLS, MapOf, rounded } from './map_tiles.js';
import { chosen, go, runs, state } from './state.js';

/** Keys of the chosen row that are listed. */
const LISTED = 12;

/** A token with its number as a bar. */
const listed =
  (map, most) =>
  ([x, j]) =>
    el(
      'li',
      { 'data-key': j, 'data-value': x },
      el('span', { class: 'piece' }, label(map.keyTexts[j])),
      shareBar(x, most, x < 0 ? 'less' : 'after'),
      el('span', { class: 'percent' }, short(x), el('small', {}, ` token ${j}`)),
    );

/** Where the chosen token looks: the largest weights of its row. */
async function showRow(box, map, n) {
  const row = Math.min(n - 1, chosen()[0] ?? n - 1);
  const weights = await rowsOfHead(state.layer, state.head, row, 1, map.m);
  if (here !== map || row !== Math.min(n - 1, chosen()[0] ?? n - 1)) return;
  const top = Array.from(weights, (x, j) => [x, j])
    .filter(([x]) => x !== 0)
    .sort((a, b) => Math.abs(b[0]) - Math.abs(a[0]))
    .slice(0, LISTED);
  const most = Math.max(...top.map(([x]) => Math.abs(x)), difference() ? 0 : 1e-12, 1e-12);
  put(
    box,
    el('h3', {}, `Where token ${row} «${label(map.texts[row])}» looks`),
    el('ol', { class: 'next two' }, top.map(listed(map, difference() ? most : 1))),
    el(
      'p',
      { class: 'quiet' },
      top.length ? `The ${top.length} largest weights of its row.` : 'No weight of its row changes.',
      ' A click in the map chooses another row.',
    ),
  );
}

/** Which tokens are looked at: what each gets from all rows, the most first. */
async function showColumns(box, map, n) {
  if (n > LONG && !box.dataset.wanted) {
    const click = () => {
      box.dataset.wanted = 'true';
      showColumns(box, map, n).catch(() => {});
    };
    put(box, el('button', { onclick: click }, 'Which tokens are looked at'));
    return;
  }
  const { heads } = model();
  const all = await ofSide((run) => numbers(`/api/run/${run.run}/columns?layer=${state.layer}`));
  if (here !== map) return;
  const keys = all.length / heads;
  const own = all.subarray(state.head * keys, (state.head + 1) * keys);
  const top = Array.from(own, (x, j) => [x, j])
    .filter(([x]) => Math.abs(x) > 1e-6)
    .sort((a, b) => Math.abs(b[0]) - Math.abs(a[0]))
    .slice(0, LISTED);
  // Of a difference that is nothing.
  if (!top.length) return;
  const most = Math.max(...top.map(([x]) => Math.abs(x)), 1e-12);
  put(
    box,
    el('h3', {}, 'Which tokens are looked at'),
    el('ol', { class: 'next two' }, top.map(listed(map, most))),
    el(
      'p',
      { class: 'quiet' },
      difference()
        ? 'The weight that a token gets from all rows, with the edits less without.'
        : `The weight that a token gets from all rows, each of which gives 1: ${n} in all.`,
    ),
  );
}

let here = null;
/** The map that is shown, for keys and tests. */
export const mapShown = () => here;

export const mapView = {
  name: 'map',
  ofOneHead: true,
  title: 'Map',
  what:
    'The weights of one head: rows are queries, columns are keys. The wheel zooms, dragging moves, a ' +
    'click chooses the query; arrows move a cell, + and - zoom. Zoomed in, each cell is one weight.',
  controls: () => [],
  options: (option) => [sinkChoice(option), cellChoice(option), colourChoice(option)],
  keeps: ['place', 'queries', 'key'],
  follow(changes) {
    if ('queries' in changes) here?.showRow();
  },
  async render(box) {
    const n = runs.B.tokens.length;
    const canvas = el('canvas', {
      class: 'map',
      tabindex: 0,
      role: 'img',
      'aria-label':
        `map of the weights of layer ${state.layer}, head ${state.head}, ${n} tokens: arrows ` +
        `move a cell, whose number is said below; saved as CSV it is a table`,
    });
    const said = el('p', { role: 'status', class: 'quiet' }, '');
    const words = el('p', { class: 'quiet', id: 'map-words' });
    const bar = el('div', { id: 'map-bar' });
    const row = el('section', { 'aria-label': 'the chosen row' });
    const columns = el('section', { id: 'columns', 'aria-label': 'tokens that are looked at' });
    const lists = el('div', { class: 'row-list' }, row, columns);
    put(
      box,
      words,
      bar,
      el('div', { class: n <= CELLS && !runs.B.keys ? 'map-and-row small' : 'map-and-row' }, canvas, lists),
      said,
    );
    let described = '';
    const describe = (most, step) => {
      const now = `${most} ${step}`;
      if (now === described) return;
      described = now;
      const cells = step > 1 ? `; each cell is ${step} x ${step} tokens (${state.pool})` : '; each cell is one weight';
      put(
        words,
        `Layer ${state.layer}, head ${state.head}, ${counted(n, 'token')}${cells}; ${scaleWords(most)}.${sinkWords()}`,
      );
      put(bar, colourBar(most));
    };
    const map = new MapOf(canvas, (text) => put(said, text), describe);
    here = map;
    map.showRow = () => showRow(row, map, n).catch(() => {});
    // The first picture is there when this is done.
    const coarse = frozen ? frozen.step : 2 ** Math.max(0, Math.ceil(Math.log2(map.longest / CELLS)));
    const whole = await tile(0, n, 0, map.m, coarse);
    const mostOfAll = rounded(largest(whole));
    map.draw();
    map.showRow();
    showColumns(columns, map, n).catch(() => {});
    let drag = null;
    canvas.addEventListener('pointerdown', (event) => {
      drag = [event.clientX, event.clientY, false];
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener('pointermove', (event) => {
      if (drag) {
        const [dx, dy] = [drag[0] - event.clientX, drag[1] - event.clientY];
        if (drag[2] || Math.hypot(dx, dy) > 3) {
          map.move(dx * map.ratio, dy * map.ratio);
          drag = [event.clientX, event.clientY, true];
        }
        return;
      }
      const cell = map.under(event.offsetX, event.offsetY);
      put(said, cell ? map.words(...cell) : '');
    });
    canvas.addEventListener('pointerup', (event) => {
      const cell = drag && !drag[2] ? map.under(event.offsetX, event.offsetY) : null;
      drag = null;
      if (cell) {
        map.cursor = cell;
        map.wake();
        go({ queries: String(cell[0]), key: String(cell[1]) });
      }
    });
    canvas.addEventListener(
      'wheel',
      (event) => {
        event.preventDefault();
        map.zoomAt(event.offsetX * map.ratio, event.offsetY * map.ratio, 1.2 ** (event.deltaY / 100));
      },
      { passive: false },
    );
    canvas.addEventListener('keydown', (event) => {
      const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
      if (event.key === '+' || event.key === '=' || event.key === '-')
        map.zoomAt(canvas.width / 2, canvas.height / 2, event.key === '-' ? 1.5 : 1 / 1.5);
      else if (event.key === 'Enter' && map.cursor) go({ queries: String(map.cursor[0]), key: String(map.cursor[1]) });
      else if (step) {
        const [i, j] = map.cursor ?? [Math.max(0, Math.floor(map.y)), Math.max(0, Math.floor(map.x))];
        map.cursor = [clamp(i + step[0] * map.step, 0, n - 1), clamp(j + step[1] * map.step, 0, map.m - 1)];
        put(said, map.words(...map.cursor));
        map.wake();
      } else return;
      event.preventDefault();
      event.stopPropagation();
    });
    new ResizeObserver(() => {
      // Another view, or another map, took its place.
      if (here !== map || !canvas.isConnected) return;
      map.fit();
      map.wake();
    }).observe(canvas);
    // Saved is what is seen, in cells of now.
    const seen = () => {
      const made = [...map.tiles.values()].filter((t) => t.values && t.step === map.step);
      const rows = made.flatMap((t) =>
        Array.from(t.values, (x, i) => [
          t.row + Math.floor(i / t.columns) * t.step,
          t.key + (i % t.columns) * t.step,
          x,
        ]),
      );
      return { columns: ['query', 'key', 'weight'], rows };
    };
    const drawn = () => {
      const names = (texts) => (map.longest <= CELLS ? texts.map(label) : null);
      return cellsSvg(whole, Math.ceil(map.m / coarse), mostOfAll, {
        rowNames: names(map.texts),
        columnNames: names(map.keyTexts),
        title: `layer ${state.layer}, head ${state.head}`,
      });
    };
    return { table: seen, svg: drawn };
  },
};
