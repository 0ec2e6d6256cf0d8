// @ts-check
// Two texts in the same heads: one statistic of each, and the change.
import { el, short, svg } from './base.js';
import { ask, numbers, send, viewSignal } from './api.js';
import { image } from './colour.js';
import { model, scaleKind, side, table } from './draw.js';
import { choice } from './controls.js';
import { WORDS, dotLabels } from './heads_drawn.js';
import { STATISTICS, go, state } from './state.js';

/** The field for the second text. */
export function otherField() {
  const field = el('input', { id: 'other', value: state.other, placeholder: 'a second text', maxlength: 4000 });
  field.addEventListener('change', () => go({ other: field.value }));
  return el('label', { class: 'other' }, 'compare with ', field);
}

/** Means and thumbnails of the second text, with the edits of the side that is shown. */
export async function otherText() {
  const run = await send('/api/run', { model: state.model, text: state.other, edits: side().edits }, viewSignal());
  const layers = Array.from({ length: model().layers }, (_, layer) => layer);
  const path = (layer) => `/api/run/${run.run}/thumbnails?layer=${layer}&pool=${state.pool}&sink=${state.sink}`;
  const [means, pictures] = await Promise.all([
    Promise.all(layers.map((layer) => ask(`/api/run/${run.run}/heads?layer=${layer}`))),
    Promise.all(layers.map((layer) => numbers(path(layer)))),
  ]);
  return { n: run.tokens.length, means: means.flat(), pictures };
}

/** A second picture in every button of the grid. */
export function addPictures(buttons, { n, pictures }, most) {
  const { heads } = model();
  const columns = Math.ceil(n / Math.ceil(n / 32));
  buttons.forEach((button, i) => {
    const values = pictures[Math.floor(i / heads)];
    const cells = values.length / heads;
    const own = values.subarray((i % heads) * cells, ((i % heads) + 1) * cells);
    const canvas = el('canvas', { class: 'second', width: columns, height: cells / columns, 'aria-hidden': 'true' });
    canvas.getContext('2d').putImageData(image(own, columns, most, scaleKind(), false), 0, 0);
    button.querySelector('canvas').after(canvas);
  });
}

/** Heads with a statistic on both texts and its change, the largest change first. */
export function changes(first, second, name) {
  const rows = first.map((mean, i) => [mean.layer, mean.head, mean[name], second[i][name]]);
  return rows
    .map((row) => [...row, row[3] - row[2]])
    .sort((a, b) => Math.abs(b[4]) - Math.abs(a[4]) || a[0] - b[0] || a[1] - b[1]);
}

/** Each head by the statistic on the first text (across) and on the second (up); on the diagonal nothing changes. */
function drawing(rows, name) {
  const values = rows.flatMap((row) => [row[2], row[3]]);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const at = (x) => (high > low ? (x - low) / (high - low) : 0.5);
  const [px, py] = [(x) => 60 + 330 * at(x), (x) => 242 - 224 * at(x)];
  const title = `${WORDS[name]} of every head on both texts; the table has the numbers`;
  const out = svg('svg', { viewBox: '0 0 420 300', width: 420, height: 300, role: 'img', 'aria-label': title });
  const word = (x, y, text, anchor = 'middle') => svg('text', { x, y, 'font-size': 11, 'text-anchor': anchor }, text);
  out.append(
    svg('path', { d: 'M50 10V250H410', fill: 'none', stroke: 'currentColor' }),
    svg('path', {
      d: `M${px(low)} ${py(low)}L${px(high)} ${py(high)}`,
      stroke: 'currentColor',
      'stroke-dasharray': '4 4',
    }),
    word(230, 285, `${WORDS[name]}, this text`),
    svg(
      'text',
      { transform: 'translate(12 130) rotate(-90)', 'font-size': 11, 'text-anchor': 'middle' },
      'second text',
    ),
    word(60, 266, short(low)),
    word(400, 266, short(high)),
  );
  for (const [layer, head, x, y] of rows) {
    out.append(
      svg(
        'circle',
        { cx: px(x), cy: py(y), r: 5, fill: '#2d74c4', onclick: () => go({ layer, head, view: 'head' }) },
        svg('title', {}, `head ${layer}.${head}: ${short(x)}, then ${short(y)}`),
      ),
    );
  }
  out.append(...dotLabels(rows.map(([layer, head, x, y]) => [px(x), py(y), `${layer}.${head}`])));
  return out;
}

export function comparison(first, second) {
  const name = state.scatterX;
  const rows = changes(first, second.means, name);
  return {
    columns: ['layer', 'head', 'this text', 'second text', 'change'],
    rows,
    nodes: el(
      'section',
      { id: 'comparison', 'aria-label': 'comparison of two texts' },
      el('h3', {}, 'The same heads on both texts'),
      el(
        'div',
        { class: 'row' },
        choice(
          'scatterX',
          STATISTICS.map((one) => [one, WORDS[one]]),
          'statistic',
        ),
      ),
      el(
        'div',
        { class: 'side-by-side' },
        table(['layer', 'head', 'this text', 'second text', 'change'], rows, {
          pick: (row) => go({ layer: row[0], head: row[1], view: 'head' }),
          caption: `${WORDS[name]}: the largest change first`,
        }),
        drawing(rows, name),
      ),
    ),
  };
}
