// @ts-check
// Where a head attends unlike itself: the most unusual rows of a corpus, each with a link into its text.
import { counted, el, label, put, short } from './base.js';
import { events, frozen } from './api.js';
import { begin } from './busy.js';
import { inkOn, colour } from './colour.js';
import { tokenTexts } from './text.js';
import { go, state } from './state.js';

/** Tokens of an example that are shown before and after its row. */
const BEFORE = 18;
const AFTER = 3;

/** What was found, by model, head and corpus; a few are kept. */
const found = new Map();
const KEPT = 20;
/** The corpus: a file's name and text, or none for the built-in stories. */
let corpus = null;

const keyOf = () => `${state.model} ${state.layer}.${state.head} ${corpus ? corpus.name + corpus.text.length : ''}`;

/** The tokens around a row and its keys: places in the text, with gaps left out. */
export function around(row, keys, n) {
  const places = new Set();
  for (let i = Math.max(0, row - BEFORE); i <= Math.min(n - 1, row + AFTER); i++) places.add(i);
  for (const [key] of keys) for (let i = Math.max(0, key - 1); i <= Math.min(n - 1, key + 1); i++) places.add(i);
  return [...places].sort((a, b) => a - b);
}

/** One example: its tokens, the row framed, the keys coloured by their weight. */
function passage({ text, tokens, row, keys }) {
  const texts = tokenTexts({ of: text, tokens });
  const weights = new Map(keys);
  let last = -1;
  return around(row, keys, tokens.length).flatMap((i) => {
    const weight = weights.get(i);
    const mark = i === row ? 'looking' : weight === undefined ? null : 'looked-at';
    const span = el(
      'span',
      { class: mark, title: weight === undefined ? null : `weight ${short(weight)}`, 'data-at': i },
      texts[i],
    );
    if (weight !== undefined) {
      span.style.background = colour(weight, 1, { kind: 'root' }, false);
      span.style.color = inkOn(span.style.background);
    }
    const gap = last >= 0 && i > last + 1 ? [el('span', { class: 'quiet' }, ' … ')] : [];
    last = i;
    return [...gap, span];
  });
}

function example(one) {
  const texts = tokenTexts({ of: one.text, tokens: one.tokens });
  const looks = one.keys
    .filter(([, weight]) => weight >= 0.02)
    .map(([key, weight]) => `«${label(texts[key])}» ${short(weight)}`)
    .join(', ');
  const open = () => go({ text: one.text, view: 'head', queries: String(one.row), key: '', place: '', words: 0 });
  return el(
    'li',
    { 'data-surprise': one.surprise, 'data-row': one.row },
    el('p', { class: 'passage' }, passage(one)),
    el(
      'p',
      { class: 'quiet' },
      `«${label(texts[one.row])}» looks at ${looks}; ${short(one.surprise)} nats from usual. `,
      el('button', { class: 'open', onclick: open }, 'Open in the text'),
    ),
  );
}

function list({ texts, rows, usual, examples }) {
  const places = usual.slice(0, 3).map(([name, share]) => `${name} ${short(share)}`);
  return [
    el(
      'p',
      { class: 'quiet' },
      `Over ${counted(rows, 'token')} of ${counted(texts, 'text')} this head's weight is usually on: ` +
        `${places.join(', ')}. Below are the tokens where it is elsewhere, the most unusual first (relative entropy, ` +
        `one for each pair of tokens). Framed: the token that looks; coloured: where it looks.`,
    ),
    el('ol', { class: 'examples' }, examples.map(example)),
  ];
}

async function search(box) {
  const key = keyOf();
  const { model, layer, head } = state;
  const ended = new AbortController();
  const task = begin(`Unusual examples of head ${layer}.${head}`, () => ended.abort());
  try {
    const each = (data) => {
      if (data.done) task.far(data.done, data.all);
      if (data.examples) found.set(key, data);
    };
    await events('/api/examples', { model, layer, head, text: corpus?.text ?? null }, each, ended.signal);
    if (found.size > KEPT) found.delete(found.keys().next().value);
    if (key === keyOf()) fill(box);
  } catch (error) {
    put(box, el('p', { class: 'error' }, error.name === 'AbortError' ? 'Cancelled.' : error.message), fields(box));
  } finally {
    task.end();
  }
}

function fields(box) {
  const file = el('input', { type: 'file', accept: '.txt,.md,text/*', 'aria-label': 'a text file as corpus' });
  file.addEventListener('change', async () => {
    const [one] = file.files;
    corpus = one ? { name: one.name, text: (await one.text()).slice(0, 400000) } : null;
    fill(box);
  });
  return el(
    'div',
    { class: 'row' },
    el('button', { id: 'find-examples', onclick: () => search(box) }, 'Find unusual examples'),
    el('span', { class: 'quiet' }, corpus ? `in ${corpus.name}` : 'in 16 built-in stories, or in a file:'),
    file,
  );
}

function fill(box) {
  const known = found.get(keyOf());
  put(box, fields(box), known ? list(known) : null);
}

/** The examples of the chosen head; a file has none. */
export function examplesBox() {
  if (frozen) return null;
  const box = el('section', { id: 'examples', 'aria-label': 'unusual examples' });
  fill(box);
  return el('div', {}, el('h3', {}, 'Where this head does something unusual'), box);
}
