// The story of attention with the reader's own text, every step in numbers; and what the scale is for.
import { el, label, put, short } from './base.js';
import { colour } from './colour.js';
import { ask } from './api.js';
import { side, table } from './draw.js';
import { go, state } from './state.js';

function matrix(values, rowNames, columnNames, most) {
  const cell = (x) => {
    const td = el('td', {}, x === null ? 'hidden' : short(x));
    if (x !== null && most) {
      td.style.background = colour(x, most, 'root', false);
      td.style.color = Math.sqrt(Math.abs(x) / most) > 0.62 ? '#111' : '#fff';
    }
    return td;
  };
  const head = el('tr', {}, el('th', {}, ''), columnNames.map((name) => el('th', { scope: 'col' }, name)));
  return el('div', { class: 'scroll', tabindex: 0, role: 'group', 'aria-label': 'numbers' }, el('table', { class: 'steps' }, el('thead', {}, head), el('tbody', {}, values.map((row, i) => el('tr', {}, el('th', { scope: 'row' }, rowNames[i]), row.map(cell))))));
}

const stepBox = (number, title, words, content) => el('section', { class: 'step' }, el('h3', {}, `${number}. ${title}`), el('p', { class: 'quiet' }, words), content);

let latest = 0;

/** The laboratory's sweep at this d_k: what the scale does to the weights and to the gradient. */
async function showSweep(box, d) {
  const mine = ++latest;
  const [found] = await ask(`/api/sweep?d_k=${d}&seq=8&seeds=200&seed=42`);
  if (mine !== latest) return;
  const one = (row, name) => `${short(row[name])} (${short(row[`${name}_low`])} to ${short(row[`${name}_high`])})`;
  const of = (title, name) => [title, ...found.rows.map((row) => one(row, name))];
  const rows = [of('largest weight', 'mean_max_weight'), of('entropy (nats; ln 8 is 2.079)', 'mean_entropy'), of('median row of the gradient on Q', 'row_dq_median'), of('spread of the scores', 'score_std')];
  put(box, table(['d_k = ' + d, 'without the scale', 'with 1/√d_k'], rows), el('p', { class: 'quiet' }, 'Means over 200 draws of 8 queries and keys, with 95 % intervals; the same numbers: ', el('code', {}, `regard sweep --d-k ${d} --seeds 200 --numbers regard --loss unit`)));
}

export const lessonView = {
  name: 'lesson',
  title: 'Lesson',
  what: 'softmax(Q Kᵀ / √d_k) V, step by step, on the first tokens of your text and the head that is chosen. Side A or B is shown: pull the scale out on the right and watch.',
  controls: () => [],
  async render(box, current) {
    const { tokens, steps } = await ask(`/api/run/${side().run}/steps?layer=${state.l}&head=${state.h}`);
    if (!current()) return null;
    const names = tokens.map(label);
    const wide = Math.min(8, steps.v[0].length);
    const cut = (rows) => rows.map((row) => row.slice(0, wide));
    const dims = Array.from({ length: wide }, (_, i) => `v${i}`);
    const sweep = el('div', {});
    const slider = el('input', { type: 'range', min: 0, max: 10, step: 1, value: Math.log2(Math.max(1, state.d)), 'aria-label': 'd_k, as a power of two', oninput: (event) => { go({ d: 2 ** Number(event.target.value) }, true); showSweep(sweep, state.d).catch((error) => put(sweep, error.message)); } });
    const more = steps.v[0].length > wide ? ` (the first ${wide} of ${steps.v[0].length} numbers)` : '';
    put(box,
      stepBox(1, 'Raw scores: q · k', 'Each token asks (row) and each answers (column): a dot product says how well they fit.', matrix(steps.raw, names, names)),
      stepBox(2, 'The scale', 'Dot products grow with √d_k; the scale takes that back, so that the softmax does not saturate.', matrix(steps.scaled, names, names)),
      stepBox(3, 'The mask', 'What may not be seen is hidden before the softmax: a model that writes must not read ahead.', matrix(steps.masked, names, names)),
      stepBox(4, 'Softmax: the weights', 'Every row becomes positive and sums to one.', matrix(steps.weights, names, names, 1)),
      stepBox(5, 'Times V', `Each token takes the weighted mean of the values${more}.`, el('div', {}, el('p', { class: 'quiet' }, 'values'), matrix(cut(steps.v), names, dims), el('p', { class: 'quiet' }, 'result'), matrix(cut(steps.out), names, dims))),
      stepBox(6, 'Why the scale', 'Random queries and keys of any width: pull d_k up, and watch the largest weight go to one and the gradient vanish without the scale.', el('div', {}, el('label', {}, 'd_k ', slider), sweep)));
    showSweep(sweep, state.d).catch((error) => put(sweep, error.message));
    const rows = ['raw', 'scaled', 'masked', 'weights'].flatMap((step) => steps[step].flatMap((row, i) => row.map((x, j) => [step, i, tokens[i], j, tokens[j], x])));
    return { table: () => ({ columns: ['step', 'query', 'query_token', 'key', 'key_token', 'value'], rows }) };
  },
};
