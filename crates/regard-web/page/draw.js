// @ts-check
// What views share: the side that is looked at, tables, cells.
import { el, short, svg } from './base.js';
import { colour, image } from './colour.js';
import { frozen, numbers } from './api.js';
import { runs, state } from './state.js';

/** The model whose heads are looked at: of an encoder-decoder, one of both. */
export const model = () => {
  const one = runs.models[state.model];
  return one?.reads && state.part === 'encoder' ? { ...one, ...one.encoder } : one;
};
/** The tokens that are looked at: of cross-attention, those that the encoder read. */
export const keysOf = (run) => run.keys ?? run.tokens;
/** Whether B − A is shown; without edits there is nothing to subtract. */
export const difference = () => state.side === 'D' && state.edits !== '';
/** Less than any difference of two weights. */
const NOTHING = 1e-11;
/** Whether the edits change none of the weights whose largest change this is. */
export const unchanged = (most) => difference() && most < NOTHING;
export const side = () => (state.side === 'A' ? runs.A : runs.B);

/** The same asked of A, of B, or of both and subtracted. */
export async function ofSide(fetch) {
  if (!difference()) return fetch(side());
  const [a, b] = await Promise.all([fetch(runs.A), fetch(runs.B)]);
  return a instanceof Float32Array ? b.map((x, i) => x - a[i]) : subtract(b, a);
}

function subtract(b, a) {
  if (typeof b === 'number' && typeof a === 'number') return b - a;
  if (Array.isArray(b)) return b.map((x, i) => subtract(x, a[i]));
  if (b && typeof b === 'object')
    return Object.fromEntries(
      Object.entries(b).map(([k, x]) => [k, k === 'layer' || k === 'head' ? x : subtract(x, a[k])]),
    );
  return b;
}

export function tilePath(run, l, h, row, rows, key, keys, step) {
  const place = `row=${row}&rows=${rows}&key=${key}&keys=${keys}&step=${step}`;
  return `/api/run/${run.run}/tile?layer=${l}&head=${h}&${place}&pool=${state.pool}&sink=${state.sink}`;
}

export const tile = (row, rows, key, keys, step) =>
  ofSide((run) => numbers(tilePath(run, state.layer, state.head, row, rows, key, keys, step)));

/** Numbers of one answer, at most. */
const MOST_NUMBERS = 1 << 18;

/** Whole rows of a head, asked for in as many pieces as it needs. */
export async function rowsOfHead(layer, head, start, rows, n) {
  const tile = (row, rows, key, keys) => ofSide((run) => numbers(tilePath(run, layer, head, row, rows, key, keys, 1)));
  // A file has the whole head in one piece.
  if (frozen) return (await tile(0, n, 0, n)).subarray(start * n, (start + rows) * n);
  const each = Math.max(1, Math.floor(MOST_NUMBERS / n));
  const starts = Array.from({ length: Math.ceil(rows / each) }, (_, i) => start + i * each);
  const parts = await Promise.all(starts.map((row) => tile(row, Math.min(each, start + rows - row), 0, n)));
  const all = new Float32Array(rows * n);
  parts.forEach((part, i) => all.set(part, i * each * n));
  return all;
}

export const largest = (list) => list.reduce((most, x) => Math.max(most, Math.abs(x)), 0);

/** A table whose columns can be sorted by; `pick` is told the row that was chosen. */
export function table(columns, rows, /** @type {Record<string, any>} */ options = {}) {
  const { sorted, sort, pick, current, caption, words = {} } = options;
  const head = columns.map((name, i) =>
    el(
      'th',
      { scope: 'col', 'aria-sort': sorted === name ? 'descending' : null },
      sort ? el('button', { onclick: () => sort(name, i) }, words[name] ?? name) : (words[name] ?? name),
    ),
  );
  const body = rows.map((row) => {
    const cells = row.map((x, i) => {
      const kind = columns[i] === 'labels' ? 'words' : null;
      return el('td', { class: kind }, typeof x === 'number' ? short(x) : (x ?? '–'));
    });
    return el('tr', { 'aria-current': current?.(row) ? 'true' : null, onclick: pick ? () => pick(row) : null }, cells);
  });
  return el(
    'div',
    { class: 'scroll', tabindex: 0, role: 'group', 'aria-label': caption ?? 'table' },
    el(
      'table',
      {},
      caption ? el('caption', { class: 'quiet' }, caption) : null,
      el('thead', {}, el('tr', {}, head)),
      el('tbody', {}, body),
    ),
  );
}

/** A picture of numbers as SVG: each cell has its number. */
export function cellsSvg(values, columns, most, /** @type {Record<string, any>} */ options = {}) {
  const { rowNames, columnNames, title } = options;
  const rows = values.length / columns;
  const size = Math.max(3, Math.min(16, Math.floor(900 / Math.max(rows, columns))));
  const room = rowNames ? 110 : 10;
  const out = svg('svg', {
    xmlns: 'http://www.w3.org/2000/svg',
    viewBox: `0 0 ${room + columns * size + 10} ${room + rows * size + 10}`,
    width: room + columns * size + 10,
    height: room + rows * size + 10,
    role: 'img',
    'aria-label': title ?? '',
  });
  out.append(svg('title', {}, title ?? ''));
  for (let i = 0; i < values.length; i++) {
    const [r, c] = [Math.floor(i / columns), i % columns];
    out.append(
      svg('rect', {
        x: room + c * size,
        y: room + r * size,
        width: size,
        height: size,
        fill: colour(values[i], most, scaleKind(), difference()),
        'data-row': r,
        'data-key': c,
        'data-value': values[i],
      }),
    );
  }
  if (rowNames && size >= 8) {
    rowNames.forEach((name, r) =>
      out.append(
        svg(
          'text',
          { x: room - 4, y: room + (r + 0.75) * size, 'font-size': Math.min(11, size), 'text-anchor': 'end' },
          name,
        ),
      ),
    );
    columnNames.forEach((name, c) =>
      out.append(
        svg(
          'text',
          {
            transform: `translate(${room + (c + 0.75) * size} ${room - 4}) rotate(-90)`,
            'font-size': Math.min(11, size),
          },
          name,
        ),
      ),
    );
  }
  return out;
}

/** Texts that are longer have logarithmic colours. */
const LONG_TEXT = 256;

/** The number of tokens that colours are for, while it is not that of the run. */
let coloursFor = null;
export function colourFor(n) {
  coloursFor = n;
}

/** How weights become colours. Logarithms reach a tenth of the uniform weight. */
export function scaleKind() {
  const n = coloursFor ?? runs.B?.tokens.length ?? 1;
  const kind = state.colour !== 'auto' ? state.colour : n > LONG_TEXT && !difference() ? 'log' : 'root';
  return { kind, decades: Math.max(4, Math.ceil(Math.log10(10 * n))) };
}

/** A bar of colours with the numbers at its ends; none where nothing changes. */
export function colourBar(most) {
  if (unchanged(most)) return null;
  const { kind, decades } = scaleKind();
  const canvas = el('canvas', { width: 256, height: 1, 'aria-hidden': 'true' });
  const at = (i) =>
    (kind === 'log' ? 10 ** (decades * (i / 255 - 1)) : kind === 'root' ? (i / 255) ** 2 : i / 255) * most;
  const values = Float32Array.from({ length: 256 }, (_, i) =>
    difference() ? (i < 128 ? -at(255 - 2 * i) : at(2 * i - 255)) : at(i),
  );
  canvas.getContext('2d').putImageData(image(values, 256, most, scaleKind(), difference()), 0, 0);
  const low = difference() ? -most : kind === 'log' ? most * 10 ** -decades : 0;
  return el(
    'span',
    { class: 'bar', role: 'img', 'aria-label': `colours from ${short(low)} to ${short(most)}` },
    short(low),
    canvas,
    short(most),
  );
}

/** What the colours mean. */
export function scaleWords(most) {
  if (unchanged(most)) return 'the edits change none of these weights: they act later in the model';
  const { kind, decades } = scaleKind();
  const how = { linear: 'linear', root: 'by square root', log: `logarithmic, ${decades} decades` }[kind];
  return difference()
    ? `blue: less with the edits, orange: more; full colour at ±${short(most)}; colours ${how}`
    : `dark: a weight of 0, bright: ${short(most)}; colours ${how}`;
}

export function sinkWords() {
  return {
    show: '',
    hide: ' The first token is left out.',
    renormalise: ' The first token is left out, and the rest divided by what remains.',
  }[state.sink];
}
