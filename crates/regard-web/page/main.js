// @ts-check
// The page: a text, its runs, and the view that is shown.
import { byId, clamp, el, put } from './base.js';
import { ask, endViewRequests, frozen, useToken, whenLost } from './api.js';
import { banner, begin as beginTask, say } from './busy.js';
import { go, isOurs, keepInAddress, link, read, runs, state, whenChanged } from './state.js';
import { model } from './draw.js';
import { exportView } from './export.js';
import { listenToTokens, showText } from './text.js';
import { showNext } from './next.js';
import { follow, listenToTour, startTour } from './tour.js';
import { describe, showFile } from './about.js';
import { explained, showGlossary } from './terms.js';
import { listenToKeys, showKeys } from './keyboard.js';
import { showSame } from './command.js';
import { prepare } from './runner.js';
import { showControls, showTabs } from './controls.js';
import { headsView } from './heads.js';
import { nameWhenSmall, whenNamed } from './labels.js';
import { fitFirstText } from './fitting.js';
import { headView } from './head.js';
import { mapView } from './map.js';
import { neuronView } from './neuron.js';
import { lensView } from './lens.js';
import { lessonView } from './lesson.js';
import { emptyState } from './empty.js';
import { askForToken, comeBack } from './lost.js';
import { chooseModel, listenToSource, showSource, writeFirstText } from './reads.js';
import { inTab, keepOffline, listenToDrops } from './tab.js';
import { showSurgery } from './surgery.js';

/** A file has the views whose data is in it. */
const VIEWS = [headsView, headView, mapView, neuronView, lensView, lessonView].filter(
  (view) => !frozen || frozen.views.includes(view.name),
);
const viewOf = (name) => VIEWS.find((view) => view.name === name) ?? headsView;

// ---- the view ----

let drawn = null;
let drawing = 0;
/** Runs that the server evicted are computed again once. */
let again = 0;

async function showView() {
  const mine = ++drawing;
  const view = viewOf(state.view);
  drawn = null;
  endViewRequests();
  showTabs(VIEWS);
  showControls(view);
  showSame();
  put(byId('what'), explained(view.what));
  const box = byId('view');
  const begun = performance.now();
  let cancelled = false;
  const task = beginTask(`${view.title}: ${runs.B.tokens.length} tokens`, () => {
    cancelled = true;
    endViewRequests();
  });
  try {
    const empty = emptyState(view);
    if (empty) put(box, empty);
    const made = empty ? null : await view.render(box, () => mine === drawing, task);
    if (mine !== drawing) return;
    drawn = made;
    again = 0;
    box.dataset.run = `${runs.A.run} ${runs.B.run}`;
    box.dataset.drawn = String(mine);
    document.documentElement.dataset.milliseconds = String(Math.round(performance.now() - begun));
  } catch (error) {
    if (mine !== drawing) return;
    if (cancelled) put(box, el('p', {}, 'Cancelled. ', el('button', { onclick: showView }, 'Compute this view')));
    else if (error.name === 'AbortError') return;
    else if (error.status === 410 && again === 0) {
      again += 1;
      Object.assign(runs, { A: null, B: null });
      await update({});
    } else if (error.status !== 0) put(box, el('p', { class: 'error' }, error.message));
  } finally {
    task.end();
  }
}

/** The text and the edits that the picture is of come back. */
function undoCancelled() {
  if (!runs.B) {
    banner('Cancelled: type a text, or choose an example.');
    return;
  }
  say('Cancelled: this is the text from before.');
  go({ ...runs.A.given, edits: runs.B.asked, model: runs.A.model }, true);
}

/** Draws anew after a change; all of it, where nothing is said. */
async function update(changes) {
  state.model = clamp(state.model, 0, runs.models.length - 1);
  const { layers, heads } = model();
  Object.assign(state, { layer: clamp(state.layer, 0, layers - 1), head: clamp(state.head, 0, heads - 1) });
  if (byId('text').value !== state.text) byId('text').value = state.text;
  if (byId('model').value !== String(state.model)) byId('model').value = String(state.model);
  let ready;
  try {
    ready = await prepare();
  } catch (error) {
    // What is shown is of another text.
    document.body.dataset.stale = 'true';
    if (error.status === 401) askForToken(begin);
    else if (error.status !== 0 && !(await fitFirstText())) banner(error.message);
    return;
  }
  if (!ready) return;
  delete document.body.dataset.stale;
  if (ready.cancelled) {
    undoCancelled();
    return;
  }
  banner(ready.wrong || runs.lost || null);
  runs.lost = '';
  // The string has one form.
  if (!frozen && runs.B.edits !== state.edits && runs.B.asked === state.edits) {
    runs.B.asked = state.edits = runs.B.edits;
    keepInAddress();
  }
  showSource();
  showText();
  showNext();
  showSurgery();
  const names = Object.keys(changes ?? {});
  const view = viewOf(state.view);
  // Some views follow these by themselves.
  if (names.length && view.keeps && names.every((name) => view.keeps.includes(name)) && !emptyState(view)) {
    view.follow?.(changes);
    showSame();
    return;
  }
  await showView();
  if ((await fitFirstText()) || (await writeFirstText())) return;
  nameWhenSmall();
}

// ---- events ----

async function save(event) {
  const kind = event.target.value;
  event.target.value = '';
  if (!kind) return;
  if (!drawn) {
    say('There is nothing to save yet.');
    return;
  }
  try {
    await exportView(kind, drawn);
    say(`saved as ${kind}`);
  } catch (error) {
    say(error.message);
  }
}

async function copyLink() {
  try {
    await navigator.clipboard.writeText(link());
    say(inTab ? 'The link is copied.' : 'The link is copied; opening it needs the token of a running server.');
  } catch {
    prompt('The link:', link());
  }
}

function listenToText() {
  let pause = null;
  byId('text').addEventListener('input', (event) => {
    // One step to go back to for a burst of typing.
    go({ text: event.target.value, queries: '', key: '', place: '' }, pause !== null);
    clearTimeout(pause);
    pause = setTimeout(() => {
      pause = null;
    }, 1500);
  });
  byId('model').addEventListener('change', (event) => {
    const number = Number(event.target.value);
    // The example of one model is not the language of another.
    const other = runs.models[number];
    chooseModel(number);
    const text = other.reads ? '' : state.text === model().begin || model().reads ? other.begin : state.text;
    const fresh = { model: number, text, source: other.source, part: 'decoder' };
    go({ ...fresh, edits: '', layer: 0, head: 0, queries: '', key: '', place: '', beside: '' });
    describe();
  });
  byId('example').addEventListener('change', (event) => {
    const example = model().examples[Number(event.target.value)];
    event.target.value = '';
    if (example) follow(example);
  });
}

function listen() {
  listenToText();
  byId('export').addEventListener('change', save);
  byId('link').addEventListener('click', copyLink);
  byId('help').addEventListener('click', showKeys);
  byId('glossary').addEventListener('click', () => showGlossary());
  byId('start-tour').addEventListener('click', startTour);
  byId('tabs').addEventListener('keydown', (event) => {
    const step = { ArrowRight: 1, ArrowLeft: VIEWS.length - 1 }[event.key];
    if (!step) return;
    event.stopPropagation();
    go({ view: VIEWS[(VIEWS.indexOf(viewOf(state.view)) + step) % VIEWS.length].name });
  });
  addEventListener('popstate', async (event) => {
    if (!event.state && !isOurs()) return;
    await read(event.state);
    await update({});
  });
  addEventListener('hashchange', async () => {
    if (history.state || !isOurs()) return;
    await read(null);
    await update({});
  });
  document.querySelector('.skip').addEventListener('click', (event) => {
    event.preventDefault();
    byId('view').focus();
  });
  listenToKeys(VIEWS, say);
  listenToTokens();
  listenToTour();
  listenToSource();
  whenChanged((changes) => {
    update(changes);
  });
  whenLost(() => comeBack(begin));
  whenNamed(() => {
    if (runs.B && state.view === 'heads') showView();
  });
}

let begun = false;

async function begin() {
  try {
    runs.models = (await ask('/api/models', true)).models;
  } catch (error) {
    if (error.status === 401) askForToken(begin);
    else if (error.status !== 0) banner(error.message);
    return;
  }
  if (!begun) await read(history.state?.text === undefined ? null : history.state);
  begun = true;
  keepInAddress();
  put(
    byId('model'),
    runs.models.map((one) => el('option', { value: one.number }, one.name)),
  );
  if (!runs.models[state.model]) state.model = 0;
  describe();
  await update(null);
}

useToken(new URLSearchParams(location.hash.slice(1)).get('token'));
listen();
if (frozen) showFile();
if (inTab) {
  listenToDrops(banner, async (number) => {
    await begin();
    byId('model').value = String(number);
    byId('model').dispatchEvent(new Event('change'));
  });
}
await begin();
if (inTab) keepOffline(say);
