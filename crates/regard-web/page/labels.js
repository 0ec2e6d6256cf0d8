// @ts-check
// Names of heads in plain words.
import { el } from './base.js';
import { events, frozen } from './api.js';
import { model } from './draw.js';
import { state } from './state.js';

/** What the labels of `regard classify` mean, as a thumbnail says it. */
const PLAIN = {
  previous: 'previous token',
  own: 'own token',
  first: 'first token',
  local: 'nearby',
  duplicate: 'same token',
  induction: 'repeats',
  repeated: 'repeats',
  delimiter: 'punctuation',
};
export const NAMES = [...new Set(Object.values(PLAIN)), 'mixed'];
/** Models of at most this number of parameters are labelled at once. */
const SMALL = 2e6;

let redraw = () => {};
export function whenNamed(action) {
  redraw = action;
}

/** Labels of every head, by model. */
const known = new Map();

/** A head's labels in plain words, the most telling first; none before they are known. */
export function plain(labels) {
  const names = [...new Set(labels.map((label) => PLAIN[label] ?? label))];
  // A head of the previous token is near by definition.
  const telling = names.length > 1 ? names.filter((name) => name !== 'nearby') : names;
  return telling.join(', ') || 'mixed';
}

export const namesKnown = () => known.has(state.model);
export const nameOf = (layer, head) => known.get(state.model)?.[layer * model().heads + head];

/** The name of a head in parentheses; filled in when the names come. */
export function nameSpan(layer, head) {
  const name = nameOf(layer, head);
  return el('span', { 'data-name-of': `${layer}.${head}` }, name ? ` (${name})` : '');
}

function fillNames() {
  document.querySelectorAll('[data-name-of]').forEach((span) => {
    const [layer, head] = span.getAttribute('data-name-of').split('.').map(Number);
    span.replaceWith(nameSpan(layer, head));
  });
}

/** Labels on 16 stories, as `regard classify` gives them; `far` is told the number of texts. */
export async function nameHeads(/** @type {(done: number, all: number) => void} */ far = () => {}) {
  const number = state.model;
  await events('/api/labels', { model: number }, (data) => {
    if (data.done) far(data.done, data.all);
    if (data.heads)
      known.set(
        number,
        data.heads.map((head) => plain(head.labels)),
      );
  });
  fillNames();
  redraw();
}

const begun = new Set();

/** Whether the names come without being asked. */
export const namesComing = () => !known.has(state.model) && model().parameters <= SMALL && !model().reads;

/** A small model has its names without being asked. */
export function nameWhenSmall() {
  if (frozen || begun.has(state.model) || !namesComing()) return;
  begun.add(state.model);
  nameHeads().catch(() => begun.delete(state.model));
}
