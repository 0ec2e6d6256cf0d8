// @ts-check
// What is shown. The state has names; the address has short keys. Back and forward are undo and redo, and a link
// gives the same view.
import { ask, frozen, useToken } from './api.js';

export const STATISTICS = ['entropy', 'max_weight', 'own', 'previous', 'first', 'local', 'distance'];
export const VIEW_NAMES = ['heads', 'head', 'map', 'neuron', 'lens', 'lesson'];
const WIDTHS = Array.from({ length: 11 }, (_, i) => 2 ** i);

/**
 * By name: the key in the address, the default, and what an address may say (a list, or a pattern).
 * @type {Record<string, [string, any, any?]>}
 */
const FIELDS = {
  model: ['m', 0],
  text: ['t', ''],
  source: ['src', '', /^[^]{0,4000}$/],
  part: ['p', 'decoder', ['decoder', 'encoder', 'cross']],
  edits: ['e', ''],
  view: ['v', 'heads', VIEW_NAMES],
  layer: ['l', 0],
  head: ['h', 0],
  side: ['s', 'B', ['A', 'B', 'D']],
  queries: ['q', '', /^(\d{1,9}(,\d{1,9})*)?$/],
  key: ['k', '', /^(\d{1,9})?$/],
  sink: ['sink', 'show', ['show', 'hide', 'renormalise']],
  pool: ['pool', 'mean', ['mean', 'max']],
  colour: ['c', 'auto', ['auto', 'linear', 'root', 'log']],
  words: ['w', 0, [0, 1]],
  order: ['o', 'layer', ['layer', 'head', 'labels', ...STATISTICS]],
  only: ['f', '', /^[a-z]{0,12}$/],
  scatterX: ['x', 'entropy', STATISTICS],
  scatterY: ['y', 'previous', STATISTICS],
  other: ['t2', '', /^[^]{0,4000}$/],
  beside: ['hs', '', /^(\d{1,4}\.\d{1,4}(,\d{1,4}\.\d{1,4}){0,6})?$/],
  place: ['at', '', /^(-?[\d.e+-]+,-?[\d.e+-]+,[\d.e+-]+)?$/],
  width: ['d', 64, WIDTHS],
  step: ['n', 0, [0, 1, 2, 3, 4, 5, 6, 7, 8]],
};
const NAME_OF = new Map(Object.entries(FIELDS).map(([name, [key]]) => [key, name]));
const DEFAULTS = Object.fromEntries(Object.entries(FIELDS).map(([name, [, value]]) => [name, value]));

/** The value of a field as an address says it; undefined for what is not allowed. */
export function understood(name, words) {
  const [, fallback, allowed] = FIELDS[name];
  const value = typeof fallback === 'number' ? Math.max(0, Math.trunc(Number(words)) || 0) : words;
  if (Array.isArray(allowed) && !allowed.includes(value)) return undefined;
  if (allowed instanceof RegExp && !allowed.test(value)) return undefined;
  return value;
}

/** Whether an address says anything that is ours. */
export const isOurs = () =>
  [...new URLSearchParams(location.hash.slice(1)).keys()].some(
    (key) => NAME_OF.has(key) || key === 'token' || key === 'th',
  );
/** Longer texts are named in links by their hash. */
const LONG = 1500;

/** @type {Record<string, any>} */
export const state = { ...DEFAULTS };
/** Runs of the text: A as the model is, B with the edits. */
/** @type {Record<string, any>} */
export const runs = { A: null, B: null, models: [], lost: '' };

/** Query tokens that are chosen. */
export const chosen = () =>
  state.queries === ''
    ? []
    : state.queries
        .split(',')
        .map(Number)
        .filter((i) => runs.B && i < runs.B.tokens.length);

function written() {
  const out = new URLSearchParams();
  for (const [name, [key, fallback]] of Object.entries(FIELDS)) {
    const value = state[name];
    if (value === fallback) continue;
    if (name === 'text' && encodeURIComponent(value).length > LONG) {
      if (runs.B?.given.text === value) out.set('th', runs.B.text);
    } else out.set(key, value);
  }
  return out.toString();
}

export const link = () => location.href.split('#')[0] + '#' + written();

let changed = (/** @type {any} */ _) => {};
export function whenChanged(action) {
  changed = action;
}

/** Change what is shown; `quietly` without a step to go back to. */
export function go(changes, quietly = false) {
  const before = JSON.stringify(state);
  Object.assign(state, changes);
  if (JSON.stringify(state) === before) return;
  keepInAddress(quietly);
  changed(changes);
}

export function keepInAddress(quietly = true) {
  const address = '#' + written();
  // Long texts are kept by the step itself.
  const step = { ...state };
  try {
    if (quietly) history.replaceState(step, '', address);
    else history.pushState(step, '', address);
  } catch {
    /* browsers refuse too many in a short time: the address follows later */
  }
}

/** The state of an address, or of a step of the history. */
export async function read(step) {
  const words = new URLSearchParams(location.hash.slice(1));
  useToken(words.get('token'));
  const fresh = { ...DEFAULTS };
  if (frozen) Object.assign(fresh, { edits: frozen.edits }, frozen.head);
  // Every model has an example that fits it.
  const number = understood('model', words.get('m') ?? '0');
  fresh.text = frozen ? frozen.text : (runs.models[number]?.begin ?? runs.models[0]?.begin ?? '');
  fresh.source = frozen ? '' : (runs.models[number]?.source ?? '');
  for (const [key, value] of words) {
    const said = NAME_OF.has(key) ? understood(NAME_OF.get(key), value) : undefined;
    if (said !== undefined) fresh[NAME_OF.get(key)] = said;
  }
  if (step) Object.assign(fresh, step);
  else if (words.has('th')) {
    try {
      fresh.text = (await ask('/api/text/' + encodeURIComponent(words.get('th')), true)).text;
    } catch {
      runs.lost = 'The text of this link is no longer kept by the server: another one is shown.';
    }
  }
  Object.assign(state, fresh);
}
