// @ts-check
// Encoder-decoders: what the encoder reads, whose attention is looked at, and a first text that the model writes.
import { byId, el } from './base.js';
import { events } from './api.js';
import { banner, begin } from './busy.js';
import { go, runs, state } from './state.js';

/** Tokens that the model writes. */
const COUNT = 60;

const loaded = () => runs.models[state.model];

/** Buttons for the three attentions; none of other models. */
export function partButtons() {
  if (!loaded()?.reads) return null;
  const parts = [
    ['encoder', 'Encoder', 'tokens of the source look at each other'],
    ['decoder', 'Decoder', 'tokens that are written look at earlier ones'],
    ['cross', 'Cross', 'tokens that are written look at the source'],
  ];
  return el(
    'span',
    { role: 'group', 'aria-label': 'which attention', class: 'sides' },
    parts.map(([part, words, title]) =>
      el(
        'button',
        {
          id: `part-${part}`,
          title,
          'aria-pressed': state.part === part ? 'true' : 'false',
          onclick: () => go({ part, layer: 0, head: 0, queries: '', key: '', place: '', beside: '' }),
        },
        words,
      ),
    ),
  );
}

/** The source as the state has it. */
export function showSource() {
  if (byId('source').value !== state.source) byId('source').value = state.source;
}

let writing = false;

/** The model writes what comes of the source; whether there is a text now. */
async function write(quietly) {
  const { model, source, edits } = state;
  const ended = new AbortController();
  const task = begin('The model writes', () => ended.abort());
  writing = true;
  let text = '';
  try {
    const asked = { model, text: '', edits, source, count: COUNT };
    await events('/api/generate', asked, (data) => (text = data.text ?? text), ended.signal);
  } catch (error) {
    if (error.name !== 'AbortError') banner(error.message);
    return false;
  } finally {
    writing = false;
    task.end();
  }
  if (!text || state.model !== model || state.source !== source) return false;
  go({ text, queries: '', key: '', place: '' }, quietly);
  return true;
}

const tried = new Set();

/** The model is chosen anew. */
export const chooseModel = (number) => tried.delete(number);

/** Where nothing is written yet, the model writes; once after it is chosen. */
export async function writeFirstText() {
  if (loaded()?.reads !== 'text' || state.text || writing || tried.has(state.model)) return false;
  tried.add(state.model);
  return write(true);
}

export function listenToSource() {
  byId('source').addEventListener('input', (event) => go({ source: event.target.value, key: '', place: '' }, true));
  byId('write-own').addEventListener('click', () => {
    if (!writing) write(false);
  });
}
