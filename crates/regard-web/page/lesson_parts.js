// @ts-check
// Parts of the lesson: numbers, matrices that highlight where a number comes from, vectors, questions.
import { el, label, put, short } from './base.js';
import { colour, inkOn } from './colour.js';

/** A number of the library, as it is printed. */
export const shownNumber = (x) => el('span', { class: 'number', 'data-value': x }, x === null ? 'hidden' : short(x));

/** A background for a number, and letters that can be read on it. */
function paint(node, x, most, signed) {
  const background = colour(x, most, { kind: signed ? 'linear' : 'root' }, signed);
  Object.assign(node.style, { background, color: inkOn(background) });
  return node;
}

const largest = (rows) => rows.flat().reduce((most, x) => Math.max(most, Math.abs(x ?? 0)), 1e-12);

/**
 * A matrix of numbers. `hover(i, j)` is told the cell under the pointer or in focus; its row and column are
 * highlighted.
 */
export function matrix(
  values,
  rowNames,
  columnNames,
  /** @type {Record<string, any>} */ options,
) {
  const { name, signed = true, most = largest(values), hover, hidden = 'hidden', kind = null, first = 0 } = options;
  const cell = (x, i, j) => {
    const td = el(
      'td',
      {
        'data-row': first + i,
        'data-column': j,
        'data-kind': kind,
        'data-value': x,
        tabindex: hover && i === values.length - 1 ? 0 : null,
      },
      x === null ? hidden : short(x),
    );
    return x === null ? Object.assign(td, { className: 'unseen' }) : paint(td, x, most, signed);
  };
  const head = el(
    'tr',
    {},
    el('td', {}),
    columnNames.map((word, j) => el('th', { scope: 'col', 'data-column': j }, word)),
  );
  const body = values.map((row, i) =>
    el(
      'tr',
      {},
      el('th', { scope: 'row', 'data-row': first + i }, rowNames[i]),
      row.map((x, j) => cell(x, i, j)),
    ),
  );
  const table = el('table', { class: 'steps' }, el('thead', {}, head), el('tbody', {}, body));
  const point = (event) => {
    const at = event.target.closest('td[data-row]');
    table.querySelectorAll('.hot').forEach((node) => node.classList.remove('hot'));
    if (!at) return;
    const { row, column } = at.dataset;
    table
      .querySelectorAll(`th[data-row="${row}"], th[data-column="${column}"]`)
      .forEach((node) => node.classList.add('hot'));
    at.classList.add('hot');
    hover?.(Number(row), Number(column));
  };
  table.addEventListener('pointerover', point);
  table.addEventListener('focusin', point);
  return el('div', { class: 'scroll', tabindex: 0, role: 'group', 'aria-label': name }, table);
}

/** A weight, as the trail knows it. */
export const pairAt = (row, column) => ({ 'data-kind': 'weights', 'data-row': row, 'data-column': column });

/** A vector as a strip of coloured cells. */
export function strip(values, most, name, kind = null, row = null) {
  const cells = values.map((x, i) => {
    const place = { 'data-kind': kind, 'data-row': row, 'data-column': kind ? i : null };
    const cell = el('i', { title: `${name}, coordinate ${i}: ${short(x)}`, 'data-value': x, ...place });
    cell.style.background = colour(x, most, { kind: 'linear' }, true);
    return cell;
  });
  return el('span', { class: 'strip', role: 'img', 'aria-label': `${name}: ${values.length} coordinates` }, cells);
}

/** A bar of a share, with its number. */
export function shareBar(x, most, kind = 'after') {
  const fill = el('span', { class: `fill ${kind}` });
  fill.style.width = `${(100 * Math.abs(x)) / most}%`;
  return el('span', { class: 'track', 'aria-hidden': 'true' }, fill);
}

/** Answers that were given, by question. */
const given = new Map();

/**
 * One question before its answer: `options` are `[words, right]`; `answer()` is shown after a choice.
 */
export function question(id, words, options, answer) {
  const box = el('section', { class: 'question', 'aria-label': 'question' });
  const choose = (i) => {
    given.set(id, i);
    show();
    box.querySelector('.verdict')?.focus();
  };
  const show = () => {
    const mine = given.get(id);
    const button = ([option, right], i) =>
      el(
        'button',
        {
          class: mine === undefined ? null : right ? 'right' : i === mine ? 'wrong' : null,
          'aria-pressed': mine === i ? 'true' : 'false',
          onclick: () => choose(i),
        },
        option,
      );
    const right = options.find((option) => option[1])[0];
    const verdict =
      mine === undefined
        ? null
        : mine >= 0 && options[mine][1]
          ? 'Right.'
          : mine >= 0
            ? `No: ${right}.`
            : `The answer: ${right}.`;
    put(
      box,
      el('p', {}, el('b', {}, words)),
      el(
        'div',
        { class: 'row' },
        options.map(button),
        mine === undefined ? el('button', { class: 'plain', onclick: () => choose(-1) }, 'show me') : null,
      ),
      verdict ? el('p', { class: 'verdict', role: 'status', tabindex: -1 }, verdict) : null,
      mine === undefined ? null : answer(),
    );
  };
  show();
  return box;
}

/** The right option among others, in the order of the text: no place gives it away. */
export function among(all, rightAt, others, words) {
  const picked = [...new Set([rightAt, ...others])].slice(0, 3).sort((a, b) => a - b);
  return picked.map((i) => [words(all[i], i), i === rightAt]);
}

export const atLargest = (list) =>
  list.reduce((best, x, i) => (x !== null && (list[best] === null || x > list[best]) ? i : best), 0);
export const norm = (vector) => Math.sqrt(vector.reduce((sum, x) => sum + x * x, 0));
export const quoted = (piece) => `«${label(piece)}»`;

/** A paragraph. */
export const paragraph = (...words) => el('p', {}, ...words);
/** Different numbers in order. */
export const count = (values) => [...new Set(values)].sort((a, b) => a - b);
/** Names of coordinates. */
export const dims = (vector, letter) => vector.map((_, i) => `${letter}${i}`);
/** Some other places than this one, near the end of a list. */
export const others = (n, at) => [n - 1, Math.floor(n / 2), 0, n - 2, 1].filter((i) => i !== at && i >= 0 && i < n);
