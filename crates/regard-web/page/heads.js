// Every head: a thumbnail each, a table, a scatter.
import { counted, el, put, short, svg } from './base.js';
import { image, colour } from './colour.js';
import { ask, events, numbers } from './api.js';
import { colourBar, difference, largest, model, ofSide, scaleKind, scaleWords, sinkWords, table } from './draw.js';
import { STATISTICS, go, runs, state } from './state.js';
import { headEdits } from './surgery.js';

const WORDS = { entropy: 'entropy (nats)', max_weight: 'largest weight', own: 'own token', previous: 'previous token', first: 'first token', local: 'within 3', distance: 'mean distance' };

let redraw = () => {};
export function whenNamed(action) { redraw = action; }

/** What every head is called, by model; asked for once. */
const named = new Map();

async function nameHeads(button) {
  button.disabled = true;
  const number = state.m;
  try {
    await events('/api/labels', { model: number }, (data) => {
      if (data.done) put(button, `text ${data.done} of ${data.all}`);
      if (data.heads) named.set(number, data.heads.map((head) => head.labels.join(' ') || 'mixed'));
    });
    redraw();
  } catch (error) {
    put(button, error.message);
  }
}

/** One tab stop for all thumbnails: arrows move between them. */
function moveFocus(event, grid, heads) {
  const all = [...grid.children];
  const at = all.indexOf(document.activeElement);
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: heads, ArrowUp: -heads, Home: -at, End: all.length - 1 - at }[event.key];
  const next = all[at + step];
  if (at < 0 || !next) return;
  event.preventDefault();
  all[at].tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

async function statistics() {
  const layers = await Promise.all(Array.from({ length: model().layers }, (_, layer) => ofSide((run) => ask(`/api/run/${run.run}/heads?layer=${layer}`))));
  return layers.flat();
}

function thumbnail(values, columns, most) {
  const canvas = el('canvas', { width: columns, height: values.length / columns, 'aria-hidden': 'true' });
  canvas.getContext('2d').putImageData(image(values, columns, most, scaleKind(), difference()), 0, 0);
  return canvas;
}

function scatter(heads) {
  const [xs, ys] = [heads.map((h) => h[state.x]), heads.map((h) => h[state.y])];
  const scale = (list) => { const [low, high] = [Math.min(...list), Math.max(...list)]; return (x) => (high > low ? (x - low) / (high - low) : 0.5); };
  const [sx, sy] = [scale(xs), scale(ys)];
  const out = svg('svg', { viewBox: '0 0 420 300', width: 420, height: 300, role: 'img', 'aria-label': `every head by ${WORDS[state.x]} and ${WORDS[state.y]}; the table has the numbers` });
  out.append(svg('path', { d: 'M50 10V250H410', fill: 'none', stroke: 'currentColor' }));
  const word = (x, y, text, anchor = 'middle') => svg('text', { x, y, 'font-size': 11, 'text-anchor': anchor }, text);
  out.append(word(230, 285, WORDS[state.x]), svg('text', { transform: 'translate(12 130) rotate(-90)', 'font-size': 11, 'text-anchor': 'middle' }, WORDS[state.y]));
  out.append(word(50, 266, short(Math.min(...xs))), word(400, 266, short(Math.max(...xs))), word(46, 250, short(Math.min(...ys)), 'end'), word(46, 20, short(Math.max(...ys)), 'end'));
  heads.forEach((head, i) => {
    const [x, y] = [60 + 340 * sx(xs[i]), 242 - 224 * sy(ys[i])];
    const here = head.layer === state.l && head.head === state.h;
    const dot = svg('circle', { cx: x, cy: y, r: here ? 7 : 5, fill: colour((head.layer + 1) / model().layers, 1, { kind: 'linear' }, false), stroke: 'currentColor', 'stroke-width': here ? 3 : 1, 'data-x': xs[i], 'data-y': ys[i], onclick: () => go({ l: head.layer, h: head.head, v: 'head' }) }, svg('title', {}, `L${head.layer}.H${head.head}: ${short(xs[i])}, ${short(ys[i])}`));
    out.append(dot);
    if (heads.length <= 24) out.append(svg('text', { x: x + 8, y: y + 4, 'font-size': 10 }, `${head.layer}.${head.head}`));
  });
  return out;
}

export const headsView = {
  name: 'heads',
  title: 'Heads',
  what: 'Means over the rows of each head, and its weights in at most 32 x 32 cells: rows are queries, columns are keys. A click opens a head; arrow keys move between heads.',
  controls: (option) => [option('sink', ['show', 'hide', 'renormalise'], 'first token'), option('pool', ['mean', 'max'], 'cells'), option('c', ['auto', 'linear', 'root', 'log'], 'colour'), option('x', STATISTICS, 'scatter by'), option('y', STATISTICS, 'and')],
  async render(box, current) {
    const { layers, heads } = model();
    const n = runs.B.tokens.length;
    const columns = Math.ceil(n / Math.ceil(n / 32));
    const pictures = [];
    const grid = el('div', { class: 'heads', role: 'group', 'aria-label': 'thumbnails of every head' });
    grid.style.gridTemplateColumns = `repeat(${heads}, minmax(48px, ${layers * heads <= 16 ? 150 : 110}px))`;
    const all = Promise.all(Array.from({ length: layers }, (_, layer) => ofSide((run) => numbers(`/api/run/${run.run}/thumbnails?layer=${layer}&pool=${state.pool}&sink=${state.sink}`))));
    const [means, thumbnails] = await Promise.all([statistics(), all]);
    if (!current()) return null;
    const edited = headEdits();
    const called = named.get(state.m);
    const most = Math.max(...thumbnails.map((layer) => largest(layer)), 1e-12);
    thumbnails.forEach((values, layer) => {
      const cells = values.length / heads;
      for (let head = 0; head < heads; head++) {
        const own = values.subarray(head * cells, (head + 1) * cells);
        pictures.push(own);
        const mean = means[layer * heads + head];
        const words = STATISTICS.map((name) => `${WORDS[name]} ${short(mean[name])}`).join(', ');
        const edit = edited.get(`${layer}.${head}`) ?? '';
        grid.append(el('button', { 'aria-label': `layer ${layer} head ${head}${edit ? `, ${edit}` : ''}${named.has(state.m) ? `, ${named.get(state.m)[layer * heads + head]}` : ''}: ${words}`, title: words, 'aria-pressed': layer === state.l && head === state.h ? 'true' : 'false', 'data-head': `${layer}.${head}`, 'data-edit': edit || null, tabindex: layer === state.l && head === state.h ? 0 : -1, onclick: () => go({ l: layer, h: head, v: 'head' }) }, thumbnail(own, columns, most), `${layer}.${head}`, called ? el('span', { class: 'label' }, called[layer * heads + head]) : null));
      }
    });
    grid.addEventListener('keydown', (event) => moveFocus(event, grid, heads));
    const order = [...means].sort((a, b) => (!STATISTICS.includes(state.o) ? a.layer - b.layer || a.head - b.head : b[state.o] - a[state.o]));
    const names = ['layer', 'head', ...STATISTICS, ...(called ? ['labels'] : [])];
    const rows = order.map((head) => names.map((name) => (name === 'labels' ? called[head.layer * heads + head.head] : head[name])));
    const ask16 = el('button', { id: 'label', title: 'previous token, induction, first token ...: as regard classify says, on 16 stories', onclick: (event) => nameHeads(event.target) }, 'Name the heads');
    const drawn = scatter(means);
    put(box,
      el('p', { class: 'quiet' }, `${layers * heads} heads on ${counted(n, 'token')}${difference() ? ', with the edits less without' : ''}: ${scaleWords(most)}.${sinkWords()}`),
      colourBar(most),
      called ? null : ask16,
      grid,
      table(names, rows, { sorted: state.o, sort: (name) => go({ o: name }), pick: (row) => go({ l: row[0], h: row[1], v: 'head' }), current: (row) => row[0] === state.l && row[1] === state.h, caption: 'Means over the rows of each head; a click on a column sorts' }),
      drawn,
      el('p', { class: 'quiet' }, 'Each dot is a head; the brighter, the later its layer.'));
    return { table: () => ({ columns: names, rows }), svg: () => gridSvg(pictures, columns, most, heads) };
  },
};

/** All thumbnails in one drawing, every cell with its number. */
function gridSvg(pictures, columns, most, heads) {
  const [size, gap] = [3, 14];
  const side = columns * size;
  const rows = Math.ceil(pictures.length / heads);
  const out = svg('svg', { viewBox: `0 0 ${heads * (side + gap)} ${rows * (side + gap)}`, width: heads * (side + gap), height: rows * (side + gap) });
  pictures.forEach((values, i) => {
    const [x, y] = [(i % heads) * (side + gap), Math.floor(i / heads) * (side + gap)];
    const group = svg('g', { transform: `translate(${x} ${y + 11})`, 'data-head': `${Math.floor(i / heads)}.${i % heads}` });
    group.append(svg('text', { x: 0, y: -2, 'font-size': 9 }, `${Math.floor(i / heads)}.${i % heads}`));
    values.forEach((value, j) => {
      if (value !== 0) group.append(svg('rect', { x: (j % columns) * size, y: Math.floor(j / columns) * size, width: size, height: size, fill: colour(value, most, scaleKind(), difference()), 'data-value': value }));
    });
    out.append(group);
  });
  return out;
}
