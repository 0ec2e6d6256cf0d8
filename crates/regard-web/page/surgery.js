// Edits: sliders, masks, heads, and the string, which can be written both ways; what they cost.
import { byId, el, put, short, signed } from './base.js';
import { events, frozen } from './api.js';
import { model } from './draw.js';
import { go, runs, state } from './state.js';

/** The string taken apart: one entry each for scale, temp, mask and the sink, heads one by one, and the rest as it is. */
export function parts(edits) {
  const out = { scale: '', temp: '', mask: '', hide: false, heads: new Map(), rest: [] };
  const list = (set) => set.split(',').flatMap((item) => { const [a, b] = item.split('-').map(Number); return Array.from({ length: (b ?? a) - a + 1 }, (_, i) => a + i); });
  for (const edit of edits.split('/').filter(Boolean)) {
    const [target, action = ''] = edit.split(/=(.*)/s);
    const heads = /^L([\d,-]+)\.H([\d,-]+)$/.exec(target);
    if (['scale', 'temp', 'mask'].includes(target) && !action.includes('@')) out[target] = action;
    else if (edit === 'heads=hide:first') out.hide = true;
    else if (heads && (action === 'zero' || action === 'mean')) for (const l of list(heads[1])) for (const h of list(heads[2])) out.heads.set(`${l}.${h}`, action);
    else out.rest.push(edit);
  }
  return out;
}

export function joined({ scale, temp, mask, hide, heads, rest }) {
  const list = [];
  if (scale) list.push(`scale=${scale}`);
  if (temp) list.push(`temp=${temp}`);
  if (mask) list.push(`mask=${mask}`);
  if (hide) list.push('heads=hide:first');
  for (const [at, action] of [...heads].sort()) list.push(`L${at.replace('.', '.H')}=${action}`);
  return [...list, ...rest].join('/');
}

export const editOf = (layer, head) => parts(state.e).heads.get(`${layer}.${head}`) ?? '';

/** Take a head out, or put it back. */
export function toggle(layer, head, action) {
  const now = parts(state.e);
  const at = `${layer}.${head}`;
  if (now.heads.get(at) === action) now.heads.delete(at);
  else now.heads.set(at, action);
  go({ e: joined(now) });
}

const set = (changes) => go({ e: joined({ ...parts(state.e), ...changes }) });

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
      const sure = d.least_p > 0.05 ? ' So few texts cannot make sure.' : '';
      put(box, `On ${d.texts} stories the loss changes by ${signed(d.mean)} nats a token (95 %: ${short(d.low)} to ${short(d.high)}); ${d.worse} got worse; p = ${short(d.p)}. Predictions diverge by ${short(divergence)} nats, ${short(100 * changed)} % of the likeliest tokens change.${sure}`);
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

export function showSurgery() {
  if (frozen) {
    const only = runs.B;
    put(byId('surgery'), el('p', {}, only.explained || 'The model as it is.'), only.loss === null ? null : el('p', {}, `loss ${short(only.loss)} nats a token`), el('p', { class: 'quiet' }, 'This is a file: what is in it can be looked at. `regard serve` makes edits and runs other texts.'));
    return;
  }
  const now = parts(state.e);
  const { A: a, B: b } = runs;
  const own = 1 / Math.sqrt(model().head_dim);
  const scale = now.scale === '' ? own : now.scale === 'off' ? 1 : Number(now.scale);
  const temp = now.temp === '' ? 1 : Number(now.temp);
  const box = byId('surgery');
  const focus = box.contains(document.activeElement) ? document.activeElement.id : null;
  const range = (id, words, value, low, high, then) => el('div', { class: 'row' }, el('label', { for: id }, words), el('input', { id, type: 'range', min: low, max: high, step: 0.05, value, onchange: (event) => then(Number(event.target.value)) }));
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
  const losses = a.loss === null ? el('p', { class: 'quiet' }, 'This model predicts no next tokens: there is no loss.') : el('div', { class: 'losses' }, 'A, as it is', el('b', { id: 'loss-a', 'data-value': a.loss }, short(a.loss)), 'B, with the edits', el('b', { id: 'loss-b', 'data-value': b.loss }, short(b.loss)), 'B − A', el('b', { id: 'loss-d', 'data-value': b.loss - a.loss }, signed(b.loss - a.loss)));
  const action = (words, key, kind) => el('button', { id: `do-${kind}`, 'aria-pressed': editOf(state.l, state.h) === kind ? 'true' : 'false', onclick: () => toggle(state.l, state.h, kind), title: key }, words);
  put(box,
    el('div', { class: 'row' }, `Head ${state.l}.${state.h}: `, action('take out', 'z', 'zero'), action('put its mean', 'm', 'mean')),
    range('scale', now.scale === 'off' ? 'scale: off (1)' : `scale: ${short(scale)}${now.scale ? '' : `, 1/√${model().head_dim}`}`, Math.log2(scale / own), -4, 6, (x) => set({ scale: Math.abs(x) < 0.03 ? '' : String(Number((own * 2 ** x).toPrecision(4))) })),
    el('label', {}, el('input', { id: 'scale-off', type: 'checkbox', checked: now.scale === 'off', onchange: (event) => set({ scale: event.target.checked ? 'off' : '' }) }), ' pull the scale out'),
    range('temp', `temperature: ${short(temp)}`, Math.log2(temp), -3, 3, (x) => set({ temp: Math.abs(x) < 0.03 ? '' : String(Number((2 ** x).toPrecision(4))) })),
    el('div', { class: 'row' }, el('label', { for: 'mask' }, 'mask '), masks, window ? el('input', { type: 'number', min: 0, max: 4096, value: window[1], 'aria-label': 'keys before the query that are seen', onchange: (event) => set({ mask: `window:${Math.max(0, Number(event.target.value) | 0)},0` }) }) : null),
    el('label', {}, el('input', { id: 'hide', type: 'checkbox', checked: now.hide, onchange: (event) => set({ hide: event.target.checked }) }), ' nobody sees the first token'),
    el('div', { class: 'row' }, el('label', { for: 'edits' }, 'edits'), el('input', { id: 'edits', value: state.e, spellcheck: 'false', placeholder: 'L1.H2=zero/scale=off', 'aria-invalid': state.e && a.run === b.run && a.asked === '' && b.edits !== state.e ? 'true' : null, onchange: (event) => go({ e: event.target.value.trim() }) }), el('button', { id: 'undo', onclick: () => history.back(), title: 'u: the browser\'s back' }, 'undo'), el('button', { id: 'intact', disabled: !state.e, onclick: () => go({ e: '' }) }, 'put all back')),
    b.explained ? el('p', { class: 'quiet' }, b.explained) : null,
    losses,
    state.e && a.run !== b.run && a.loss !== null && a.loss === b.loss ? el('p', { class: 'quiet' }, 'The edits change nothing, not one bit of a loss.') : null,
    el('div', { class: 'row' }, el('button', { id: 'judge', disabled: !state.e || a.loss === null, onclick: () => judge(judged) }, 'Judge on 16 stories')),
    judged,
    model().writes ? el('div', { class: 'texts' },
      el('div', { class: 'row' }, el('button', { id: 'write', onclick: () => write(state.e ? [[before, ''], [after, state.e]] : [[before, '']], 60) }, 'Write on: before and after'), el('button', { id: 'grow', title: 'with the edits; the text grows, and the view with it', onclick: grow }, 'Grow the text')),
      el('h3', {}, 'before'), before, state.e ? [el('h3', {}, 'after'), after] : null) : null,
    el('p', { class: 'quiet' }, 'The same by the command: ', el('code', {}, `regard surgery "${state.e || 'scale=off'}"`)));
  if (focus) byId(focus)?.focus();
}
