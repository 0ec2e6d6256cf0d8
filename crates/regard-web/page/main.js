// The page: a text, its runs, and the view that is looked at.
import { byId, clamp, el, put } from './base.js';
import { ask, frozen, send, useToken, whenLost } from './api.js';
import { go, isOurs, keepInAddress, link, read, runs, state, whenChanged } from './state.js';
import { model } from './draw.js';
import { exportView } from './export.js';
import { listenToTokens, showText } from './text.js';
import { headsView, whenNamed } from './heads.js';
import { headView } from './head.js';
import { mapView } from './map.js';
import { neuronView } from './neuron.js';
import { lensView } from './lens.js';
import { lessonView } from './lesson.js';
import { inTab, keepOffline, listenToDrops } from './tab.js';
import { showSurgery, toggle } from './surgery.js';

/** A file has the views whose data is in it. */
const VIEWS = [headsView, headView, mapView, neuronView, lensView, lessonView].filter((view) => !frozen || frozen.views.includes(view.name));
const viewOf = (name) => VIEWS.find((view) => view.name === name) ?? headsView;

const KEYS = [[`1 to ${VIEWS.length}`, 'views'], ['h, l', 'head before, after'], ['j, k', 'layer below, above'], ['z, m', 'ablate the head: zero; mean'], ['u', 'undo (the browser\'s back)'], ['b', 'A, B, B − A'], ['s', 'first token: show, hide, renormalise'], ['/', 'the text'], ['g', 'go to a head, as L1.H2'], ['arrows, + and -', 'cell of the map; tokens'], ['e', 'save this view'], ['?', 'these keys']];

function say(words) {
  put(byId('status'), words);
}

function banner(words, ...more) {
  const box = byId('banner');
  box.hidden = !words;
  put(box, words ?? '', ...more);
}

// ---- runs: the last text wins ----

let asked = 0;
let working = Promise.resolve();

/** The request that is under way: aborting it cancels the work on the server. */
let runRequest = { abort() {}, begun: 0 };
/** A request that took longer is aborted when the text or the edits change. */
const ABORT_AFTER = 500;

async function run(edits) {
  const [text, number, controller] = [state.t, state.m, new AbortController()];
  runRequest = { abort: () => controller.abort(), begun: performance.now() };
  const made = await send('/api/run', { model: number, text, edits }, controller.signal);
  return Object.assign(made, { of: text, asked: edits });
}

/** Why the edits could not be made. */
let wrongEdits = '';

/** Runs for what is in the state. */
async function runBoth() {
  const same = (one, words) => one && one.of === state.t && one.asked === words && one.model === state.m;
  // A file has one run: what it is of, and nothing to compare it with.
  if (frozen) {
    const only = runs.B ?? await run(frozen.edits);
    return [only, only];
  }
  const a = same(runs.A, '') ? runs.A : await run('');
  wrongEdits = '';
  if (state.e === '') return [a, a];
  try {
    return [a, same(runs.B, state.e) ? runs.B : await run(state.e)];
  } catch (error) {
    if (error.status !== 422) throw error;
    // Edits that cannot be made are said where they are written; the model as it is can be looked at.
    wrongEdits = error.message;
    return [a, a];
  }
}

/** One at a time, and then the latest; false when something newer is wanted. */
async function prepare() {
  const mine = ++asked;
  const slow = setTimeout(() => runRequest.abort(), Math.max(0, runRequest.begun + ABORT_AFTER - performance.now()));
  await working;
  clearTimeout(slow);
  if (mine !== asked) return false;
  const now = runBoth();
  working = now.then(() => {}, () => {});
  try {
    const [A, B] = await now;
    if (mine !== asked) return false;
    Object.assign(runs, { A, B });
    banner(wrongEdits || runs.lost || null);
    runs.lost = '';
    return true;
  } catch (error) {
    if (mine !== asked) return false;
    // Another tab was quicker: it is our turn a little later.
    if (error.status === 409) {
      await new Promise((wait) => setTimeout(wait, 200 + 300 * Math.random()));
      return mine === asked ? prepare() : false;
    }
    if (error.status === 401) askForToken();
    else if (error.status !== 0) banner(error.message);
    return false;
  }
}

/** The token is missing: a link was opened, or the tab was closed. */
function askForToken() {
  const field = el('input', { 'aria-label': 'address or token', placeholder: 'http://127.0.0.1:…/#token=…' });
  const use = async () => {
    const given = field.value.trim().split('token=').pop();
    useToken(given);
    banner(null);
    await begin();
  };
  field.addEventListener('keydown', (event) => { if (event.key === 'Enter') use(); });
  banner('This page needs the token of its server: paste the address that `regard serve` printed. ', field, ' ', el('button', { onclick: use }, 'Use it'));
  field.focus();
}

// ---- the view ----

let drawn = null;
let drawing = 0;
/** Runs that the server let go are made again once, not for ever. */
let again = 0;

function choice(name, values, words) {
  const list = el('select', { value: state[name], onchange: (event) => go({ [name]: event.target.value }) }, values.map((value) => el('option', { value }, value)));
  list.value = state[name];
  return el('label', {}, `${words} `, list);
}

const check = (name, words) => el('label', {}, el('input', { type: 'checkbox', checked: state[name] === 1, onchange: (event) => go({ [name]: event.target.checked ? 1 : 0 }) }), ` ${words}`);

function showControls(view) {
  const { layers, heads } = model();
  const number = (name, words, most) => el('label', {}, `${words} `, el('input', { type: 'number', min: 0, max: most - 1, value: state[name], onchange: (event) => go({ [name]: clamp(Number(event.target.value) || 0, 0, most - 1) }) }));
  // Without edits, or with edits that were refused, there is one model to look at.
  const alone = runs.A?.run === runs.B?.run;
  const side = alone ? 'A' : state.s;
  const sides = el('span', { role: 'group', 'aria-label': 'side' }, [['A', 'A: as it is'], ['B', 'B: edited'], ['D', 'B − A']].map(([value, words]) => el('button', { id: `side-${value}`, 'aria-pressed': side === value ? 'true' : 'false', disabled: alone && value !== 'A', title: alone && value !== 'A' ? 'make an edit on the right first' : null, onclick: () => go({ s: value }) }, words)));
  // A field that is in use stays in use.
  const focus = byId('controls').contains(document.activeElement) ? [...byId('controls').querySelectorAll('button, input, select')].indexOf(document.activeElement) : -1;
  put(byId('controls'), frozen ? null : sides, view.ofOneHead ? [number('l', 'layer', layers), number('h', 'head', heads)] : null, view.controls(choice, check));
  if (focus >= 0) byId('controls').querySelectorAll('button, input, select')[focus]?.focus();
}

function showTabs() {
  const tabs = VIEWS.map((view, i) => el('button', { role: 'tab', id: `tab-${view.name}`, 'aria-selected': state.v === view.name ? 'true' : 'false', 'aria-controls': 'view', tabindex: state.v === view.name ? 0 : -1, title: `key ${i + 1}`, onclick: () => go({ v: view.name }) }, view.title));
  const focused = byId('tabs').contains(document.activeElement);
  put(byId('tabs'), tabs);
  if (focused) byId(`tab-${state.v}`)?.focus();
}

async function showView() {
  const mine = ++drawing;
  const view = viewOf(state.v);
  drawn = null;
  showTabs();
  showControls(view);
  put(byId('what'), view.what);
  const box = byId('view');
  box.setAttribute('aria-busy', 'true');
  const begun = performance.now();
  try {
    const made = await view.render(box, () => mine === drawing);
    if (mine !== drawing) return;
    drawn = made;
    again = 0;
    box.dataset.run = `${runs.A.run} ${runs.B.run}`;
    box.dataset.drawn = String(mine);
    document.documentElement.dataset.milliseconds = String(Math.round(performance.now() - begun));
  } catch (error) {
    if (mine !== drawing || error.name === 'AbortError') return;
    if (error.status === 410 && again === 0) {
      again += 1;
      Object.assign(runs, { A: null, B: null });
      await update({});
    } else if (error.status !== 0) put(box, el('p', { class: 'error' }, error.message));
  } finally {
    if (mine === drawing) box.setAttribute('aria-busy', 'false');
  }
}

/** What has to be drawn anew after a change; all of it, where nothing is said. */
async function update(changes) {
  state.m = clamp(state.m, 0, runs.models.length - 1);
  const { layers, heads } = model();
  Object.assign(state, { l: clamp(state.l, 0, layers - 1), h: clamp(state.h, 0, heads - 1) });
  if (byId('text').value !== state.t) byId('text').value = state.t;
  if (byId('model').value !== String(state.m)) byId('model').value = String(state.m);
  if (!(await prepare())) return;
  // The string has one form.
  if (!frozen && runs.B.edits !== state.e && runs.B.asked === state.e) {
    runs.B.asked = state.e = runs.B.edits;
    keepInAddress();
  }
  showText();
  showSurgery();
  const keys = Object.keys(changes ?? {});
  // A map remembers its own place.
  if (keys.length && viewOf(state.v).keepsPlace && keys.every((key) => ['at', 'q', 'k'].includes(key))) return;
  if (keys.length === 1 && keys[0] === 'd') return;
  await showView();
}

// ---- the server comes and goes ----

let gone = false;

async function comeBack() {
  if (gone) return;
  gone = true;
  banner('The server does not answer. The page goes on when it is back: start `regard serve` again, on the same port, and paste its address here if it asks.');
  for (;;) {
    await new Promise((wait) => setTimeout(wait, 1000));
    try {
      const response = await fetch('/', { cache: 'no-store' });
      if (response.ok) break;
    } catch { /* still gone */ }
  }
  gone = false;
  Object.assign(runs, { A: null, B: null });
  banner(null);
  await begin();
}

// ---- hands ----

const TYPING = new Set(['INPUT', 'TEXTAREA', 'SELECT']);

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (byId('keys').open) return;
  const typing = TYPING.has(document.activeElement?.tagName) && !['range', 'checkbox'].includes(document.activeElement.type);
  if (event.key === 'Escape') document.activeElement?.blur();
  if (typing || !runs.B) return;
  const { layers, heads } = model();
  const turn = (list, now) => list[(list.indexOf(now) + 1) % list.length];
  const actions = {
    h: () => go({ h: (state.h + heads - 1) % heads }), l: () => go({ h: (state.h + 1) % heads }),
    j: () => go({ l: (state.l + layers - 1) % layers }), k: () => go({ l: (state.l + 1) % layers }),
    z: () => ablate('zero'), m: () => ablate('mean'),
    u: () => history.back(), b: () => frozen || go({ s: turn(['A', 'B', 'D'], state.s) }), s: () => go({ sink: turn(['show', 'hide', 'renormalise'], state.sink) }),
    '/': () => byId('text').focus(), e: () => byId('export').focus(), '?': showKeys,
    g: () => { const at = /L?(\d+)\D+(\d+)/i.exec(prompt('Which head? As L1.H2') ?? ''); if (at) go({ l: Number(at[1]), h: Number(at[2]), v: state.v === 'heads' ? 'head' : state.v }); },
  };
  const digit = Number(event.key);
  const action = digit >= 1 && digit <= VIEWS.length ? () => go({ v: VIEWS[digit - 1].name }) : actions[event.key];
  if (!action) return;
  event.preventDefault();
  action();
  say(`layer ${state.l}, head ${state.h}${state.e ? `, edits ${state.e}` : ''}`);
}

function ablate(action) {
  if (frozen) say('Edits are not in the file: use `regard serve`.');
  else toggle(state.l, state.h, action);
}

function showKeys() {
  const dialog = byId('keys');
  put(dialog, el('h2', {}, 'Keys'), el('table', {}, KEYS.map(([key, words]) => el('tr', {}, el('td', {}, key), el('td', {}, words)))), el('button', { onclick: () => dialog.close() }, 'Close'));
  dialog.showModal();
}

function listen() {
  let pause = null;
  byId('text').addEventListener('input', (event) => {
    // One step to go back to for a burst of typing.
    go({ t: event.target.value, q: '', k: '', at: '' }, pause !== null);
    clearTimeout(pause);
    pause = setTimeout(() => { pause = null; }, 1500);
  });
  byId('model').addEventListener('change', (event) => {
    const number = Number(event.target.value);
    // The example of one model is not the language of another.
    const text = state.t === model().begin ? runs.models[number].begin : state.t;
    go({ m: number, t: text, e: '', l: 0, h: 0, q: '', k: '', at: '' });
    describe();
  });
  byId('example').addEventListener('change', (event) => {
    const chosen = model().examples[Number(event.target.value)];
    event.target.value = '';
    if (!chosen) return;
    put(byId('example-what'), chosen.what);
    go({ t: chosen.text, v: chosen.view, l: chosen.layer, h: chosen.head, e: chosen.edits, s: chosen.side, q: '', k: '', at: '' });
  });
  byId('export').addEventListener('change', async (event) => {
    const kind = event.target.value;
    event.target.value = '';
    if (!kind) return;
    if (!drawn) {
      say('There is nothing to save yet.');
      return;
    }
    try { await exportView(kind, drawn); say(`saved as ${kind}`); } catch (error) { say(error.message); }
  });
  byId('link').addEventListener('click', async () => {
    try { await navigator.clipboard.writeText(link()); say(inTab ? 'The link is copied.' : 'The link is copied; opening it needs the token of a running server.'); } catch { prompt('The link:', link()); }
  });
  byId('help').addEventListener('click', showKeys);
  byId('tabs').addEventListener('keydown', (event) => {
    const step = { ArrowRight: 1, ArrowLeft: VIEWS.length - 1 }[event.key];
    if (step) go({ v: VIEWS[(VIEWS.indexOf(viewOf(state.v)) + step) % VIEWS.length].name });
  });
  document.addEventListener('keydown', onKey);
  addEventListener('popstate', async (event) => { if (event.state || isOurs()) { await read(event.state); await update({}); } });
  addEventListener('hashchange', async () => { if (!history.state && isOurs()) { await read(null); await update({}); } });
  document.querySelector('.skip').addEventListener('click', (event) => { event.preventDefault(); byId('view').focus(); });
  listenToTokens();
  whenChanged((changes) => { update(changes); });
  whenLost(comeBack);
  whenNamed(() => { if (runs.B) showView(); });
}

function describe() {
  const one = model();
  put(byId('example'), el('option', { value: '' }, 'choose …'), one.examples.map((example, i) => el('option', { value: i }, example.title)));
  byId('example').closest('label').hidden = Boolean(frozen) || one.examples.length === 0;
  put(byId('about'), `${one.family}, ${one.layers} layers of ${one.heads} heads of ${one.head_dim}${one.kv_heads < one.heads ? ` (${one.kv_heads} for keys and values)` : ''}, ${(one.parameters / 1e6).toPrecision(3)} M parameters`);
}

async function begin() {
  try {
    const known = await ask('/api/models');
    runs.models = known.models;
  } catch (error) {
    if (error.status === 401) askForToken();
    else if (error.status !== 0) banner(error.message);
    return;
  }
  if (!begun) await read(history.state?.t === undefined ? null : history.state);
  begun = true;
  keepInAddress();
  put(byId('model'), runs.models.map((one) => el('option', { value: one.number }, one.name)));
  if (!runs.models[state.m]) state.m = 0;
  describe();
  await update(null);
}

let begun = false;
useToken(new URLSearchParams(location.hash.slice(1)).get('token'));
listen();
if (frozen) {
  document.body.dataset.frozen = 'true';
  document.title = `Regard: ${frozen.answers['/api/models'].models[0].name}: ${frozen.text.slice(0, 40)}`;
  put(byId('intro'), `Attention of ${frozen.answers['/api/models'].models[0].name} on one text${frozen.edits ? `, with the edits ${frozen.edits}` : ''}. `, 'Written by ', el('code', {}, 'regard look --html'), `, version ${frozen.answers['/api/models'].version}, ${document.lastModified}.`);
  byId('text').readOnly = true;
}
if (inTab) {
  listenToDrops(banner, async (number) => {
    await begin();
    byId('model').value = String(number);
    byId('model').dispatchEvent(new Event('change'));
  });
}
await begin();
if (inTab) keepOffline();
