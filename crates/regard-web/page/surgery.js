// @ts-check
// Edits: sliders, masks, heads, and the string, which can be written both ways; what they cost.
import { byId, el, put, short } from './base.js';
import { frozen } from './api.js';
import { model } from './draw.js';
import { outcomeCard } from './outcome.js';
import { explained, term } from './terms.js';
import { go, runs, state } from './state.js';

const NO_EDITS = { scale: '', temp: '', mask: '', hide: false, heads: [], rest: [] };

/** Edits that the page composed itself, by their string: known before the server has parsed them. */
const composed = new Map();
const COMPOSED = 50;

/**
 * The current edits as the server parsed them: one entry each for scale, temp, mask and the first key, a map of
 * heads, and the rest as strings.
 * A string that is not parsed yet, or that the server refused, stays whole.
 */
export function parts() {
  const known = runs.B?.edits === state.edits ? runs.B.controls : composed.get(state.edits);
  const found = known ?? { ...NO_EDITS, rest: state.edits ? [state.edits] : [] };
  return { ...found, heads: new Map(found.heads.map(([layer, head, action]) => [`${layer}.${head}`, action])) };
}

function joined({ scale, temp, mask, hide, heads, rest }) {
  const list = [];
  if (scale) list.push(`scale=${scale}`);
  if (temp) list.push(`temp=${temp}`);
  if (mask) list.push(`mask=${mask}`);
  if (hide) list.push('heads=hide:first');
  for (const [at, action] of [...heads].sort()) list.push(`L${at.replace('.', '.H')}=${action}`);
  return [...list, ...rest].join('/');
}

/** Change the edits; all of them, or some of their parts. */
function set(changes) {
  const all = { ...parts(), ...changes };
  const edits = joined(all);
  composed.set(edits, { ...all, heads: [...all.heads].map(([at, action]) => [...at.split('.').map(Number), action]) });
  if (composed.size > COMPOSED) composed.delete(composed.keys().next().value);
  go({ edits });
}

/** Heads that are looked at can be edited: those of a decoder, not its encoder's and not cross-attention. */
const editable = () => !model().reads || state.part === 'decoder';

/** The edit of every head that is zeroed or replaced by its mean. */
export const headEdits = () => (editable() ? parts().heads : new Map());

/** Ablate a head, or restore it. */
export function toggle(layer, head, action) {
  if (!editable()) return;
  const { heads } = parts();
  const at = `${layer}.${head}`;
  if (heads.get(at) === action) heads.delete(at);
  else heads.set(at, action);
  set({ heads });
}

/** A slider of powers of two. */
function range(id, words, value, [low, high], then) {
  const slider = { id, 'aria-valuetext': words, type: 'range', min: low, max: high, step: 0.05, value };
  return el(
    'div',
    { class: 'row' },
    el('label', { for: id }, words),
    el('input', { ...slider, onchange: (event) => then(Number(event.target.value)) }),
  );
}

function scaleControls(now) {
  const { scale: own, head_dim } = model();
  const usual = Math.abs(own * Math.sqrt(head_dim) - 1) < 1e-6;
  const name = usual ? ` = 1/√${head_dim}` : own === 1 ? ': this model has none' : ", the model's own";
  const scale = now.scale === '' ? own : now.scale === 'off' ? 1 : Number(now.scale);
  const temp = now.temp === '' ? 1 : Number(now.temp);
  const words = now.scale === 'off' ? 'scale: off (1)' : `scale: ${short(scale)}${now.scale ? '' : name}`;
  const near = (x, value) => (Math.abs(x) < 0.03 ? '' : String(Number(value.toPrecision(4))));
  return [
    range('scale', words, Math.log2(scale / own), [-4, 6], (x) => set({ scale: near(x, own * 2 ** x) })),
    el(
      'label',
      {},
      el('input', {
        id: 'scale-off',
        type: 'checkbox',
        checked: now.scale === 'off',
        disabled: own === 1,
        onchange: (event) => set({ scale: event.target.checked ? 'off' : '' }),
      }),
      ' remove the ',
      term('scale'),
    ),
    range('temp', `temperature of the scores: ${short(temp)}`, Math.log2(temp), [-3, 3], (x) =>
      set({ temp: near(x, 2 ** x) }),
    ),
  ];
}

const MASKS = {
  '': "the model's own",
  causal: 'causal',
  full: 'full: everything is seen',
  reverse: 'reverse',
  window: 'a window',
};

function maskControls(now) {
  const window = /^window:(\d+),0$/.exec(now.mask);
  const kind = window ? 'window' : now.mask in MASKS ? now.mask : 'other';
  const options = Object.entries(MASKS).map(([value, words]) => el('option', { value }, words));
  const chosen = (event) => set({ mask: event.target.value === 'window' ? 'window:7,0' : event.target.value });
  const masks = el(
    'select',
    { id: 'mask', value: kind, onchange: chosen },
    options,
    kind === 'other' ? el('option', { value: 'other' }, now.mask) : null,
  );
  const size = (event) => set({ mask: `window:${Math.max(0, Number(event.target.value) | 0)},0` });
  const width = window
    ? el('input', {
        type: 'number',
        min: 0,
        max: 4096,
        value: window[1],
        'aria-label': 'keys before the query that are seen',
        onchange: size,
      })
    : null;
  const hide = {
    id: 'hide',
    type: 'checkbox',
    checked: now.hide,
    onchange: (event) => set({ hide: event.target.checked }),
  };
  return [
    el('div', { class: 'row' }, el('label', { for: 'mask' }, 'mask '), masks, width),
    el('label', {}, el('input', hide), ' hide the first token from later ones'),
  ];
}

/** Each edit, with a button that removes it. */
function chips() {
  const each = runs.B.edits === state.edits ? (runs.B.each ?? []) : [];
  const without = (i) => go({ edits: each.filter((_, j) => j !== i).join('/') });
  if (!each.length) return null;
  return el(
    'ul',
    { class: 'chips', 'aria-label': 'edits' },
    each.map((edit, i) =>
      el(
        'li',
        {},
        edit,
        el('button', { 'aria-label': `remove ${edit}`, title: `remove ${edit}`, onclick: () => without(i) }, '×'),
      ),
    ),
  );
}

function editsField() {
  const { A: a, B: b } = runs;
  const wrong = state.edits && a.run === b.run && a.asked === '' && b.edits !== state.edits;
  return el(
    'div',
    { class: 'row' },
    el('label', { for: 'edits' }, 'edits as a string'),
    el('input', {
      id: 'edits',
      value: state.edits,
      spellcheck: 'false',
      placeholder: 'L1.H2=zero/scale=off',
      'aria-invalid': wrong ? 'true' : null,
      onchange: (event) => go({ edits: event.target.value.trim() }),
    }),
    el('button', { id: 'undo', onclick: () => history.back(), title: "u: the browser's back" }, 'undo'),
    el('button', { id: 'intact', disabled: !state.edits, onclick: () => go({ edits: '' }) }, 'remove all edits'),
  );
}

function showFrozen(box) {
  const only = runs.B;
  put(
    box,
    el('p', {}, only.explained || 'The model as it is.'),
    only.loss === null ? null : el('p', {}, `loss ${short(only.loss)} nats a token`),
    el(
      'p',
      { class: 'quiet' },
      'This is a file: what is in it can be looked at. `regard serve` makes edits and runs other texts.',
    ),
  );
}

export function showSurgery() {
  const box = byId('surgery');
  if (frozen) {
    showFrozen(box);
    return;
  }
  const now = parts();
  const focus = box.contains(document.activeElement) ? document.activeElement.id : null;
  const { layer, head } = state;
  const action = (words, key, kind) =>
    el(
      'button',
      {
        id: `do-${kind}`,
        'aria-pressed': now.heads.get(`${layer}.${head}`) === kind ? 'true' : 'false',
        onclick: () => toggle(layer, head, kind),
        title: key,
      },
      words,
    );
  put(
    box,
    el('p', { class: 'quiet' }, explained('Change the model, and compare: A is as it was trained, B has your edits.')),
    editable()
      ? el(
          'div',
          { class: 'row' },
          el('span', {}, term('ablate', 'Ablate'), ` head ${layer}.${head}: `),
          action('zero', 'key z: what this head writes becomes zero', 'zero'),
          action('mean', 'key m: what this head writes becomes its mean over other texts', 'mean'),
        )
      : el('p', { class: 'quiet' }, "Edits change the decoder's own attention, which is not what is shown."),
    scaleControls(now),
    maskControls(now),
    chips(),
    editsField(),
    runs.B.explained ? el('p', { class: 'quiet' }, runs.B.explained) : null,
    outcomeCard(),
  );
  if (focus) byId(focus)?.focus();
}
