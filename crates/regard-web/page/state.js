// What is looked at, in the address: back and forward are undo and redo, and a link gives the same view.
import { ask, frozen, useToken } from './api.js';

const DEFAULTS = { m: 0, t: '', e: '', v: 'heads', l: 0, h: 0, s: 'B', q: '', k: '', sink: 'show', pool: 'mean', c: 'root', w: 0, o: 'layer', x: 'entropy', y: 'previous', at: '', d: 64 };
const NUMBERS = new Set(['m', 'l', 'h', 'w', 'd']);
/** Longer texts are named in links by their hash. */
const LONG = 1500;

export const state = { ...DEFAULTS };
/** Runs of the text: A as the model is, B with the edits. */
export const runs = { A: null, B: null, models: [], begin: '' };

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
  if (quietly) history.replaceState(step, '', address);
  else history.pushState(step, '', address);
}

/** From the address. */
export async function read(step) {
  const words = new URLSearchParams(location.hash.slice(1));
  useToken(words.get('token'));
  const fresh = { ...DEFAULTS, t: runs.begin };
  if (frozen) Object.assign(fresh, { t: frozen.text, e: frozen.edits });
  for (const [key, value] of words) {
    if (key in DEFAULTS) fresh[key] = NUMBERS.has(key) ? Number(value) || 0 : value;
  }
  if (step) Object.assign(fresh, step);
  else if (words.has('th')) {
    try { fresh.t = (await ask('/api/text/' + encodeURIComponent(words.get('th')))).text; } catch { /* said when the text is seen to be another */ }
  }
  Object.assign(state, fresh);
}
