// @ts-check
// Keys of the whole page.
import { byId, el, put } from './base.js';
import { frozen } from './api.js';
import { model } from './draw.js';
import { toggle } from './surgery.js';
import { go, runs, state } from './state.js';

const TYPING = new Set(['INPUT', 'TEXTAREA', 'SELECT']);

const KEYS = [
  ['1 to 6', 'views'],
  ['h, l', 'head before, after'],
  ['j, k', 'layer below, above'],
  ['z, m', 'ablate the head: zero; mean'],
  ['u', "undo (the browser's back)"],
  ['b', 'A, B, B − A'],
  ['s', 'first token: show, hide, renormalise'],
  ['/', 'the text'],
  ['g', 'go to a head, as L1.H2'],
  ['arrows, + and -', 'cell of the map; tokens; steps of the lesson'],
  ['e', 'save this view'],
  ['?', 'these keys'],
];

export function showKeys() {
  const dialog = byId('keys');
  const rows = KEYS.map(([key, words]) => el('tr', {}, el('td', {}, key), el('td', {}, words)));
  put(dialog, el('h2', {}, 'Keys'), el('table', {}, rows), el('button', { onclick: () => dialog.close() }, 'Close'));
  dialog.showModal();
}

function ablate(action, say) {
  if (frozen) say('Edits are not in the file: use `regard serve`.');
  else toggle(state.layer, state.head, action);
}

function goToHead() {
  const at = /L?(\d+)\D+(\d+)/i.exec(prompt('Which head? As L1.H2') ?? '');
  if (!at) return;
  go({ layer: Number(at[1]), head: Number(at[2]), view: state.view === 'heads' ? 'head' : state.view });
}

/** What each key does; `views` are those of the page. */
function actions(say) {
  const { layers, heads } = model();
  const turn = (list, now) => list[(list.indexOf(now) + 1) % list.length];
  return {
    h: () => go({ head: (state.head + heads - 1) % heads }),
    l: () => go({ head: (state.head + 1) % heads }),
    j: () => go({ layer: (state.layer + layers - 1) % layers }),
    k: () => go({ layer: (state.layer + 1) % layers }),
    z: () => ablate('zero', say),
    m: () => ablate('mean', say),
    u: () => history.back(),
    b: () => frozen || go({ side: turn(['A', 'B', 'D'], state.side) }),
    s: () => go({ sink: turn(['show', 'hide', 'renormalise'], state.sink) }),
    '/': () => byId('text').focus(),
    e: () => byId('export').focus(),
    '?': showKeys,
    g: goToHead,
  };
}

export function listenToKeys(views, say) {
  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || byId('keys').open) return;
    const active = /** @type {any} */ (document.activeElement);
    const typing = TYPING.has(active?.tagName) && !['range', 'checkbox'].includes(active.type);
    if (event.key === 'Escape') active?.blur();
    if (typing || !runs.B) return;
    const digit = Number(event.key);
    const view = digit >= 1 && digit <= views.length ? views[digit - 1] : null;
    const action = view ? () => go({ view: view.name }) : actions(say)[event.key];
    if (!action) return;
    event.preventDefault();
    action();
    say(`layer ${state.layer}, head ${state.head}${state.edits ? `, edits ${state.edits}` : ''}`);
  });
}
