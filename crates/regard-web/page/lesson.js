// The story of attention with the reader's own text, every step in numbers; and what the scale is for.
import { el, label, put, short, svg } from './base.js';
import { colour } from './colour.js';
import { ask } from './api.js';
import { difference, largest, model, ofSide, table } from './draw.js';
import { go, state } from './state.js';

function matrix(values, rowNames, columnNames, most) {
  const cell = (x) => {
    const td = el('td', {}, x === null ? 'hidden' : short(x));
    if (x !== null && most) {
      td.style.background = colour(x, most, { kind: 'root' }, difference());
      const strength = Math.sqrt(Math.abs(x) / most);
      td.style.color = difference() ? (strength > 0.7 ? '#fff' : '#111') : strength > 0.62 ? '#111' : '#fff';
    }
    return td;
  };
  const headline = el('tr', {}, el('th', {}, ''), columnNames.map((name) => el('th', { scope: 'col' }, name)));
  return el('div', { class: 'scroll', tabindex: 0, role: 'group', 'aria-label': 'numbers' }, el('table', { class: 'steps' }, el('thead', {}, headline), el('tbody', {}, values.map((row, i) => el('tr', {}, el('th', { scope: 'row' }, rowNames[i]), row.map(cell))))));
}

const stepBox = (number, title, words, content) => el('section', { class: 'step' }, el('h3', {}, `${number}. ${title}`), el('p', { class: 'quiet' }, words), content);

let latest = 0;

const WIDTHS = Array.from({ length: 11 }, (_, i) => 2 ** i);
const DRAWS = 200;
const KINDS = [['largest weight', 'mean_max_weight'], ['entropy (nats; ln 8 is 2.079)', 'mean_entropy'], ['gradient of the median row of Q', 'row_dq_median'], ['norm of the gradient on Q', 'grad_norm_q']];

/** Sweeps by d_k: each is fetched once. */
const sweeps = new Map();

function sweep(d) {
  if (!sweeps.has(d)) {
    const asked = ask(`/api/sweep?d_k=${d}&seq=8&seeds=${DRAWS}&seed=42`).then(([found]) => found.rows);
    asked.catch(() => sweeps.delete(d));
    sweeps.set(d, asked);
  }
  return sweeps.get(d);
}

/** One number against d_k, without and with the scale, with its interval. */
function curveOf(title, name, all, d) {
  const [w, h] = [230, 150];
  const out = svg('svg', { viewBox: `0 0 ${w} ${h}`, width: w, height: h, role: 'img', 'aria-label': `${title} against d_k; the table has the numbers` });
  const most = Math.max(...all.flatMap((rows) => rows.map((row) => row[`${name}_high`])), 1e-12);
  const x = (width) => 48 + (Math.log2(width) / 10) * (w - 58);
  const y = (value) => h - 26 - (Math.max(0, value) / most) * (h - 50);
  out.append(svg('text', { x: 4, y: 12, 'font-size': 11 }, title), svg('path', { d: `M48 18V${h - 26}H${w - 8}`, fill: 'none', stroke: 'currentColor', 'stroke-opacity': 0.5 }), svg('text', { x: 44, y: 26, 'font-size': 9, 'text-anchor': 'end' }, short(most)), svg('text', { x: 44, y: h - 26, 'font-size': 9, 'text-anchor': 'end' }, '0'));
  [1, 32, 1024].forEach((width) => out.append(svg('text', { x: x(width), y: h - 12, 'font-size': 9, 'text-anchor': 'middle' }, width)));
  out.append(svg('line', { x1: x(d), x2: x(d), y1: 18, y2: h - 26, stroke: 'currentColor', 'stroke-dasharray': '3 3' }));
  [['#c4610a', 'without'], ['#2d74c4', 'with']].forEach(([stroke, word], i) => {
    const points = all.map((rows, j) => [x(WIDTHS[j]), y(rows[i][name]), rows[i]]);
    points.forEach(([px, , row]) => out.append(svg('line', { x1: px, x2: px, y1: y(row[`${name}_low`]), y2: y(row[`${name}_high`]), stroke })));
    out.append(svg('polyline', { points: points.map(([px, py]) => `${px},${py}`).join(' '), fill: 'none', stroke, 'stroke-width': 2, 'data-name': `${name} ${word}` }));
    const [px, py] = points.at(-1);
    out.append(svg('text', { x: px - 2, y: py - 5, 'font-size': 10, 'text-anchor': 'end' }, word));
  });
  return out;
}

/** The laboratory's sweep: what the scale does to the weights and to the gradient, at this d_k and at every power of two. */
async function showSweep(box, d) {
  const mine = ++latest;
  const all = await Promise.all(WIDTHS.map(sweep));
  if (mine !== latest) return;
  const rows = all[Math.round(Math.log2(d))];
  const one = (row, name) => `${short(row[name])} (${short(row[`${name}_low`])} to ${short(row[`${name}_high`])})`;
  const lines = [...KINDS, ['spread of the scores', 'score_std']].map(([title, name]) => [title, ...rows.map((row) => one(row, name))]);
  put(box,
    el('div', { class: 'row' }, KINDS.map(([title, name]) => curveOf(title, name, all, d))),
    table(['d_k = ' + d, 'without the scale', 'with 1/√d_k'], lines),
    el('p', { class: 'quiet' }, `Means over ${DRAWS} draws of 8 queries and keys, with 95 % intervals; the same numbers: `, el('code', {}, `regard lab sweep --d-k ${d} --seeds ${DRAWS} --numbers regard --loss unit`)));
}

export const lessonView = {
  name: 'lesson',
  ofOneHead: true,
  title: 'Lesson',
  what: 'softmax(Q Kᵀ / √d_k) V, step by step, on the first tokens of your text and the head that is chosen. Pull the scale out on the right and watch; B − A shows what it changes at each step.',
  controls: () => [],
  async render(box, current) {
    const { tokens, steps } = await ofSide((run) => ask(`/api/run/${run.run}/steps?layer=${state.l}&head=${state.h}`));
    if (!current()) return null;
    const names = tokens.map(label);
    const wide = Math.min(8, steps.v[0].length);
    const cut = (rows) => rows.map((row) => row.slice(0, wide));
    const dims = Array.from({ length: wide }, (_, i) => `v${i}`);
    const swept = el('div', {});
    const slider = el('input', { type: 'range', min: 0, max: 10, step: 1, value: Math.log2(Math.max(1, state.d)), 'aria-label': 'd_k, as a power of two', 'aria-valuetext': `d_k = ${state.d}`, oninput: (event) => { go({ d: 2 ** Number(event.target.value) }, true); event.target.setAttribute('aria-valuetext', `d_k = ${state.d}`); showSweep(swept, state.d).catch((error) => put(swept, error.message)); } });
    const more = steps.v[0].length > wide ? ` (the first ${wide} of ${steps.v[0].length} numbers)` : '';
    put(box,
      stepBox(1, 'Raw scores: q · k', 'The query of each token (row) times the key of each token (column): the larger the dot product, the better they match.', matrix(steps.raw, names, names)),
      stepBox(2, 'The scale', 'Dot products grow with √d_k; the scale takes that back, so that the softmax does not saturate.', matrix(steps.scaled, names, names)),
      stepBox(3, 'The mask', model().causal ? 'Later tokens are hidden before the softmax: a model that predicts the next token must not read ahead.' : 'This model reads in both directions: no token is hidden, unless an edit hides it.', matrix(steps.masked, names, names)),
      stepBox(4, 'Softmax: the weights', 'Every row becomes positive and sums to one.', matrix(steps.weights, names, names, difference() ? largest(steps.weights.flat()) : 1)),
      stepBox(5, 'Times V', `Each token takes the weighted mean of the values${more}.`, el('div', {}, el('p', { class: 'quiet' }, 'values'), matrix(cut(steps.v), names, dims), el('p', { class: 'quiet' }, 'result'), matrix(cut(steps.out), names, dims))),
      stepBox(6, 'Why the scale', 'Random queries and keys of any width. Without the scale, a larger d_k drives the largest weight to one: the gradient of the median row vanishes, while the norm over all rows grows, because a few rows carry it. With the scale all of these stay the same.', el('div', {}, el('label', {}, 'd_k ', slider), swept)));
    showSweep(swept, state.d).catch((error) => put(swept, error.message));
    const rows = ['raw', 'scaled', 'masked', 'weights'].flatMap((step) => steps[step].flatMap((row, i) => row.map((x, j) => [step, i, tokens[i], j, tokens[j], x])));
    return { table: () => ({ columns: ['step', 'query', 'query_token', 'key', 'key_token', 'value'], rows }) };
  },
};
