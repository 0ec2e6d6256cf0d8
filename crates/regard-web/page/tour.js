// @ts-check
// A tour of six steps, and three things to try.
import { byId, el, put } from './base.js';
import { model } from './draw.js';
import { headThatDoes } from './find.js';
import { go } from './state.js';

/** What is pointed at, a title, and a sentence. */
const STOPS = [
  ['text', 'The text', 'Type here, or choose an example: everything on the page follows each letter.'],
  ['tokens', 'The tokens', 'The model reads these pieces. Orange ones surprised it; a click on one chooses it.'],
  ['next', 'The prediction', 'The ten most likely next tokens. With an edit, the bars before it stay beside them.'],
  ['view', 'The heads', 'Each picture is one head: row by row, where each token looks. A click opens it.'],
  [
    'tabs',
    'The views',
    'Lines, map, single numbers, the prediction after every layer, and a lesson that builds it all up.',
  ],
  ['surgery', 'Surgery', 'Remove the scale, the mask or a head: the page shows both models, before and after.'],
];

let at = -1;

function end() {
  at = -1;
  byId('tour').close();
  document.querySelector('.pointed')?.classList.remove('pointed');
}

function show() {
  document.querySelector('.pointed')?.classList.remove('pointed');
  const [id, title, words] = STOPS[at];
  const target = byId(id);
  target.classList.add('pointed');
  const still = matchMedia('(prefers-reduced-motion: reduce)').matches;
  // The tour covers the lower part of a narrow screen.
  const block = matchMedia('(max-width: 960px)').matches ? 'start' : 'nearest';
  target.scrollIntoView({ block, behavior: still ? 'auto' : 'smooth' });
  const move = (step) => {
    at += step;
    show();
  };
  const last = at === STOPS.length - 1;
  put(
    byId('tour'),
    el('p', { class: 'quiet' }, `${at + 1} of ${STOPS.length}`),
    el('h2', { id: 'tour-title' }, title),
    el('p', {}, words),
    el(
      'div',
      { class: 'row' },
      el('button', { disabled: at === 0, onclick: () => move(-1) }, 'Back'),
      el(
        'button',
        { id: 'tour-next', class: 'primary', onclick: () => (last ? end() : move(1)) },
        last ? 'Done' : 'Next',
      ),
      el('button', { onclick: end }, 'Leave'),
    ),
  );
  byId('tour-next').focus();
}

export function startTour() {
  at = 0;
  byId('tour').show();
  show();
}

export function listenToTour() {
  byId('tour').addEventListener('keydown', (event) => {
    if (event.key === 'Escape') end();
    else if (event.key === 'ArrowRight' && at < STOPS.length - 1) {
      at += 1;
      show();
    } else if (event.key === 'ArrowLeft' && at > 0) {
      at -= 1;
      show();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  });
}

/** An example as a state. */
export async function follow(example) {
  put(byId('example-what'), example.what);
  const found = example.find ? await headThatDoes(example) : null;
  if (found) put(byId('example-what'), found.words);
  const { text, view, edits, side } = example;
  const { layer, head } = found ?? example;
  // Without the head, all of them.
  const shown = example.find && !found ? 'heads' : view;
  go({ text, view: shown, layer, head, edits, side, queries: '', key: '', place: '' });
  // In one column what changes is below: bars and losses of an edit, else the view.
  if (matchMedia('(max-width: 960px)').matches) byId(edits ? 'left' : 'centre').scrollIntoView({ block: 'start' });
}

/** Three examples to try: those that change something first. */
export function showTries() {
  const examples = model().examples;
  const first = [
    ...examples.filter((one) => one.edits),
    ...examples.filter((one) => !one.edits && one.title !== 'Previous token'),
  ];
  const tries = first
    .slice(0, 3)
    .map((one, i) =>
      el(
        'li',
        {},
        el('button', { id: `try-${i + 1}`, onclick: () => follow(one) }, el('b', {}, one.title), ` ${one.what}`),
      ),
    );
  byId('tries').hidden = tries.length === 0;
  put(byId('tries-list'), tries);
}
