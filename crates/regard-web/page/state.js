// What is looked at, in the address: back and forward are undo and redo, and a link gives the same view.
import { ask, frozen, useToken } from './api.js';

const DEFAULTS = { m: 0, t: '', e: '', v: 'heads', l: 0, h: 0, s: 'B', q: '', k: '', sink: 'show', pool: 'mean', c: 'auto', w: 0, o: 'layer', x: 'entropy', y: 'previous', at: '', d: 64 };
const NUMBERS = new Set(['m', 'l', 'h', 'w', 'd']);
export const STATISTICS = ['entropy', 'max_weight', 'own', 'previous', 'first', 'local', 'distance'];
/** What an address may say; whatever else it says is left out. */
const ALLOWED = {
  v: ['heads', 'head', 'map', 'neuron', 'lens', 'lesson'], s: ['A', 'B', 'D'], sink: ['show', 'hide', 'renormalise'], pool: ['mean', 'max'], c: ['auto', 'linear', 'root', 'log'],
  x: STATISTICS, y: STATISTICS, o: ['layer', 'head', 'labels', ...STATISTICS], w: [0, 1], d: Array.from({ length: 11 }, (_, i) => 2 ** i),
};
const SHAPES = { q: /^(\d{1,9}(,\d{1,9})*)?$/, k: /^(\d{1,9})?$/, at: /^(-?[\d.e+-]+,-?[\d.e+-]+,[\d.e+-]+)?$/ };

function understood(key, text) {
  const value = NUMBERS.has(key) ? Math.trunc(Number(text)) || 0 : text;
  if (Object.hasOwn(ALLOWED, key) && !ALLOWED[key].includes(value)) return undefined;
  if (Object.hasOwn(SHAPES, key) && !SHAPES[key].test(value)) return undefined;
  return NUMBERS.has(key) ? Math.max(0, value) : value;
}

/** Whether an address says anything that is ours. */
export const isOurs = () => [...new URLSearchParams(location.hash.slice(1)).keys()].some((key) => Object.hasOwn(DEFAULTS, key) || key === 'token' || key === 'th');
/** Longer texts are named in links by their hash. */
const LONG = 1500;

export const state = { ...DEFAULTS };
/** Runs of the text: A as the model is, B with the edits. */
export const runs = { A: null, B: null, models: [], lost: '' };

/** Query tokens that are chosen. */
export const chosen = () => state.q === '' ? [] : state.q.split(',').map(Number).filter((i) => runs.B && i < runs.B.tokens.length);

function written() {
  const out = new URLSearchParams();
  for (const [key, value] of Object.entries(state)) {
    if (value === DEFAULTS[key]) continue;
    if (key === 't' && encodeURIComponent(value).length > LONG) {
      if (runs.B?.of === value) out.set('th', runs.B.text);
    } else out.set(key, value);
  }
  return out.toString();
}

export const link = () => location.href.split('#')[0] + '#' + written();

let changed = () => {};
export function whenChanged(action) { changed = action; }

/** Change what is looked at; `quietly` without a step to go back to. */
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
  } catch { /* browsers refuse too many in a short time: the view goes on, the address follows later */ }
}

/** From the address. */
export async function read(step) {
  const words = new URLSearchParams(location.hash.slice(1));
  useToken(words.get('token'));
  const fresh = { ...DEFAULTS };
  if (frozen) fresh.e = frozen.edits;
  // Every model has an example that fits it.
  fresh.t = frozen ? frozen.text : runs.models[understood('m', words.get('m') ?? '0')]?.begin ?? runs.models[0]?.begin ?? '';
  for (const [key, value] of words) {
    if (!Object.hasOwn(DEFAULTS, key)) continue;
    const said = understood(key, value);
    if (said !== undefined) fresh[key] = said;
  }
  if (step) Object.assign(fresh, step);
  else if (words.has('th')) {
    try { fresh.t = (await ask('/api/text/' + encodeURIComponent(words.get('th')))).text; } catch { runs.lost = 'The text of this link is no longer kept by the server: another one is shown.'; }
  }
  Object.assign(state, fresh);
}
