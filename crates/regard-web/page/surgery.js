// Edits: sliders, masks, heads, and the string, which can be written both ways; what they cost.
import { byId, el, put, short, signed } from './base.js';
import { events, frozen } from './api.js';
import { model } from './draw.js';
import { go, runs, state } from './state.js';

const NO_EDITS = { scale: '', temp: '', mask: '', hide: false, heads: [], rest: [] };

/** Edits that the page composed itself, by their string: known before the server has parsed them. */
const composed = new Map();
const COMPOSED = 50;

/**
 * The current edits as the server parsed them: one entry each for scale, temp, mask and the first key, a map of heads, and the rest as strings.
 * A string that is not parsed yet, or that the server refused, stays whole.
 */
export function parts() {
  const known = runs.B?.edits === state.e ? runs.B.controls : composed.get(state.e);
  const found = known ?? { ...NO_EDITS, rest: state.e ? [state.e] : [] };
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
  go({ e: edits });
}

/** The edit of every head that is zeroed or replaced by its mean. */
export const headEdits = () => parts().heads;

/** Ablate a head, or restore it. */
export function toggle(layer, head, action) {
  const { heads } = parts();
  const at = `${layer}.${head}`;
  if (heads.get(at) === action) heads.delete(at);
  else heads.set(at, action);
  set({ heads });
}

let judging = null;
let writing = null;
/** Results stay until what they are of changes. */
const results = { judged: el('p', { id: 'judged', role: 'status' }), before: el('p', { id: 'before' }), after: el('p', { id: 'after' }), of: '' };

async function judge(box) {
  judging?.abort();
  judging = new AbortController();
  put(box, 'judging …');
  try {
    await events('/api/surgery', { model: state.m, edits: state.e, texts: 16, tokens: 256 }, (data) => {
      if (data.done) put(box, `text ${data.done} of ${data.all}`);
      if (!data.outcome) return;
      const { difference: d, divergence, changed } = data.outcome;
      const sure = d.least_p > 0.05 ? ' Too few texts for a significant result.' : '';
      put(box, `On ${d.texts} stories the loss changes by ${signed(d.mean)} nats a token (95 %: ${short(d.low)} to ${short(d.high)}); ${d.worse} got worse; p = ${short(d.p)}. Predictions diverge by ${short(divergence)} nats, ${short(100 * changed)} % of the most likely tokens change.${sure}`);
    }, judging.signal);
  } catch (error) {
    if (error.name !== 'AbortError') put(box, el('span', { class: 'error' }, error.message));
  }
}

async function write(sides, count) {
  writing?.abort();
  writing = new AbortController();
  sides.forEach(([box]) => put(box));
  let latest = '';
  try {
    for (const [box, edits] of sides) {
      put(box, '…');
      await events('/api/generate', { model: state.m, text: state.t, edits, count }, (data) => {
        if (data.text === undefined) return;
        latest = data.text;
        put(box, latest);
      }, writing.signal);
    }
  } catch (error) {
    if (error.name !== 'AbortError') put(sides[0][0], el('span', { class: 'error' }, error.message));
    return '';
  }
  return latest;
}

/** The text and what the edited model writes on; where the text is still the same when it is done. */
async function grow() {
  const [text, number] = [state.t, state.m];
  const written = await write([[results.before, state.e]], 20);
  if (written && state.t === text && state.m === number) go({ t: text + written });
}

/** A word as a POSIX shell reads it. */
const quoted = (word) => (/^[\w./:=,@%+-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

/** Texts that are longer are given to the command as a file. */
const LONG_COMMAND = 400;

/** The command that gives the losses of this text: with the edits, or without. */
export function commandLine() {
  const words = ['regard', 'look', ...(model().argument ? [model().argument] : []), ...(state.t.length > LONG_COMMAND ? ['--file', 'text.txt'] : ['--text', state.t]), ...(state.e ? ['--edits', state.e] : [])];
  return words.map(quoted).join(' ');
}

export function showSurgery() {
  if (frozen) {
    const only = runs.B;
    put(byId('surgery'), el('p', {}, only.explained || 'The model as it is.'), only.loss === null ? null : el('p', {}, `loss ${short(only.loss)} nats a token`), el('p', { class: 'quiet' }, 'This is a file: what is in it can be looked at. `regard serve` makes edits and runs other texts.'));
    return;
  }
  const now = parts();
  const { A: a, B: b } = runs;
  const own = 1 / Math.sqrt(model().head_dim);
  const scale = now.scale === '' ? own : now.scale === 'off' ? 1 : Number(now.scale);
  const temp = now.temp === '' ? 1 : Number(now.temp);
  const box = byId('surgery');
  const focus = box.contains(document.activeElement) ? document.activeElement.id : null;
  const range = (id, words, value, low, high, then) => el('div', { class: 'row' }, el('label', { for: id }, words), el('input', { id, 'aria-valuetext': words, type: 'range', min: low, max: high, step: 0.05, value, onchange: (event) => then(Number(event.target.value)) }));
  const kinds = { '': "the model's own", causal: 'causal', full: 'full: everything is seen', reverse: 'reverse', window: 'a window' };
  const window = /^window:(\d+),0$/.exec(now.mask);
  const kind = window ? 'window' : now.mask in kinds ? now.mask : 'other';
  const masks = el('select', { id: 'mask', value: kind, onchange: (event) => set({ mask: event.target.value === 'window' ? 'window:7,0' : event.target.value }) }, Object.entries(kinds).map(([value, words]) => el('option', { value }, words)), kind === 'other' ? el('option', { value: 'other' }, now.mask) : null);
  masks.value = kind;
  const { judged, before, after } = results;
  const of = JSON.stringify([state.m, state.t, state.e]);
  if (results.of !== of) {
    [judged, before, after].forEach((box) => put(box));
    judging?.abort();
    writing?.abort();
    results.of = of;
  }
  const losses = a.loss === null ? el('p', { class: 'quiet' }, model().writes ? 'One token has nothing after it to predict: type a text.' : 'This model does not predict the next token: there is no loss.') : el('div', { class: 'losses' }, 'A, as it is', el('b', { id: 'loss-a', 'data-value': a.loss }, short(a.loss)), 'B, with the edits', el('b', { id: 'loss-b', 'data-value': b.loss }, short(b.loss)), 'B − A', el('b', { id: 'loss-d', 'data-value': b.loss - a.loss }, signed(b.loss - a.loss)));
  const action = (words, key, kind) => el('button', { id: `do-${kind}`, 'aria-pressed': now.heads.get(`${state.l}.${state.h}`) === kind ? 'true' : 'false', onclick: () => toggle(state.l, state.h, kind), title: key }, words);
  put(box,
    el('div', { class: 'row' }, `Ablate head ${state.l}.${state.h}: `, action('zero', 'z', 'zero'), action('mean', 'm', 'mean')),
    range('scale', now.scale === 'off' ? 'scale: off (1)' : `scale: ${short(scale)}${now.scale ? '' : `, 1/√${model().head_dim}`}`, Math.log2(scale / own), -4, 6, (x) => set({ scale: Math.abs(x) < 0.03 ? '' : String(Number((own * 2 ** x).toPrecision(4))) })),
    el('label', {}, el('input', { id: 'scale-off', type: 'checkbox', checked: now.scale === 'off', onchange: (event) => set({ scale: event.target.checked ? 'off' : '' }) }), ' remove the scale'),
    range('temp', `temperature of the scores: ${short(temp)}`, Math.log2(temp), -3, 3, (x) => set({ temp: Math.abs(x) < 0.03 ? '' : String(Number((2 ** x).toPrecision(4))) })),
    el('div', { class: 'row' }, el('label', { for: 'mask' }, 'mask '), masks, window ? el('input', { type: 'number', min: 0, max: 4096, value: window[1], 'aria-label': 'keys before the query that are seen', onchange: (event) => set({ mask: `window:${Math.max(0, Number(event.target.value) | 0)},0` }) }) : null),
    el('label', {}, el('input', { id: 'hide', type: 'checkbox', checked: now.hide, onchange: (event) => set({ hide: event.target.checked }) }), ' hide the first token from later ones'),
    el('div', { class: 'row' }, el('label', { for: 'edits' }, 'edits'), el('input', { id: 'edits', value: state.e, spellcheck: 'false', placeholder: 'L1.H2=zero/scale=off', 'aria-invalid': state.e && a.run === b.run && a.asked === '' && b.edits !== state.e ? 'true' : null, onchange: (event) => go({ e: event.target.value.trim() }) }), el('button', { id: 'undo', onclick: () => history.back(), title: 'u: the browser\'s back' }, 'undo'), el('button', { id: 'intact', disabled: !state.e, onclick: () => go({ e: '' }) }, 'remove all edits')),
    b.explained ? el('p', { class: 'quiet' }, b.explained) : null,
    losses,
    state.e && a.run !== b.run && a.loss !== null && a.loss === b.loss ? el('p', { class: 'quiet' }, 'The edits change nothing, not one bit of a loss.') : null,
    el('div', { class: 'row' }, el('button', { id: 'judge', disabled: !state.e || a.loss === null, onclick: () => judge(judged) }, 'Judge on 16 stories')),
    judged,
    model().writes ? el('div', { class: 'texts' },
      el('div', { class: 'row' }, el('button', { id: 'write', onclick: () => write(state.e ? [[before, ''], [after, state.e]] : [[before, '']], 60) }, 'Continue the text: before and after'), el('button', { id: 'grow', title: 'with the edits; the text grows, and the view with it', onclick: grow }, 'Grow the text')),
      el('h3', {}, 'before'), before, state.e ? [el('h3', {}, 'after'), after] : null) : null,
    el('p', { class: 'quiet' }, state.t.length > LONG_COMMAND ? 'The same by the command, with the text in the file text.txt: ' : 'The same by the command: ', el('code', { id: 'command' }, commandLine())));
  if (focus) byId(focus)?.focus();
}
