// @ts-check
// Tabs, sides and controls above the view.
import { byId, clamp, el, put } from './base.js';
import { frozen } from './api.js';
import { model } from './draw.js';
import { partButtons } from './reads.js';
import { go, runs, state } from './state.js';

/** The first token in pictures, cells that stand for several tokens, and colours; a file has one of the first two. */
export const sinkChoice = (option) =>
  !frozen &&
  option(
    'sink',
    [
      ['show', 'shown'],
      ['hide', 'left out'],
      ['renormalise', 'left out, the rest rescaled'],
    ],
    'first token',
  );
export const cellChoice = (option) =>
  !frozen &&
  option(
    'pool',
    [
      ['mean', 'their mean'],
      ['max', 'the largest'],
    ],
    'several weights in a cell',
  );
export const colourChoice = (option) =>
  option(
    'colour',
    [
      ['auto', 'automatic'],
      ['linear', 'linear'],
      ['root', 'square root'],
      ['log', 'logarithmic'],
    ],
    'colours',
  );

/** A list of values for a field of the state. */
export function choice(name, values, words) {
  const options = values.map((value) =>
    Array.isArray(value) ? el('option', { value: value[0] }, value[1]) : el('option', { value }, value),
  );
  return el(
    'label',
    {},
    `${words} `,
    el(
      'select',
      { value: state[name], 'data-field': name, onchange: (event) => go({ [name]: event.target.value }) },
      options,
    ),
  );
}

const check = (name, words) =>
  el(
    'label',
    {},
    el('input', {
      type: 'checkbox',
      checked: state[name] === 1,
      onchange: (event) => go({ [name]: event.target.checked ? 1 : 0 }),
    }),
    ` ${words}`,
  );

function numberField(name, most) {
  const set = (event) => go({ [name]: clamp(Number(event.target.value) || 0, 0, most - 1) });
  return el(
    'label',
    {},
    `${name} `,
    el('input', { type: 'number', min: 0, max: most - 1, value: state[name], onchange: set }),
  );
}

/** Buttons for A, B and B − A. Without edits, or with refused ones, there is one model to look at. */
function sides() {
  const alone = runs.A?.run === runs.B?.run;
  const side = alone ? 'A' : state.side;
  const button = ([value, words]) =>
    el(
      'button',
      {
        id: `side-${value}`,
        'aria-pressed': side === value ? 'true' : 'false',
        disabled: alone && value !== 'A',
        title: alone && value !== 'A' ? 'make an edit on the right first' : null,
        onclick: () => go({ side: value }),
      },
      words,
    );
  return el(
    'span',
    { role: 'group', 'aria-label': 'side', class: 'sides' },
    [
      ['A', 'A: as it is'],
      ['B', 'B: edited'],
      ['D', 'B − A'],
    ].map(button),
  );
}

/** Whether the further options are open. */
let unfolded = false;

/** Options that few need, folded away. */
function further(options) {
  const shown = options.filter(Boolean);
  if (!shown.length) return null;
  const more = el('details', { class: 'further', open: unfolded }, el('summary', {}, 'Options'), el('div', {}, shown));
  more.addEventListener('toggle', () => {
    unfolded = more.open;
  });
  return more;
}

/** Controls of a view. */
export function showControls(view) {
  const box = byId('controls');
  // A field that is in use stays in use.
  const fields = () => [...box.querySelectorAll('button, input, select')];
  const focus = box.contains(document.activeElement) ? fields().indexOf(document.activeElement) : -1;
  const { layers, heads } = model();
  put(
    box,
    frozen ? null : sides(),
    partButtons(),
    view.ofOneHead ? [numberField('layer', layers), numberField('head', heads)] : null,
    view.controls(choice, check),
    further(view.options?.(choice, check) ?? []),
  );
  if (focus >= 0) fields()[focus]?.focus();
}

/** Tabs of the views. */
export function showTabs(views) {
  document.body.dataset.view = state.view;
  const tabs = views.map((view, i) =>
    el(
      'button',
      {
        role: 'tab',
        id: `tab-${view.name}`,
        'aria-selected': state.view === view.name ? 'true' : 'false',
        'aria-controls': 'view',
        tabindex: state.view === view.name ? 0 : -1,
        title: `key ${i + 1}`,
        onclick: () => {
          go({ view: view.name });
          // In one column the view is below the text.
          if (matchMedia('(max-width: 960px)').matches) byId('centre').scrollIntoView({ block: 'start' });
        },
      },
      view.title,
    ),
  );
  const focused = byId('tabs').contains(document.activeElement);
  put(byId('tabs'), tabs);
  if (focused) byId(`tab-${state.view}`)?.focus();
}
