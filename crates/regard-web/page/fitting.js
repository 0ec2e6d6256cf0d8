// @ts-check
// A first text in the model's own language: where it does not expect the English one, the model writes it.
import { byId, put, short } from './base.js';
import { events, frozen } from './api.js';
import { begin } from './busy.js';
import { model } from './draw.js';
import { go, runs, state } from './state.js';

/** Nats a byte from which a text is not the model's language; small models of English have 0.2 to 0.8. */
const FOREIGN = 1.5;
/** What the model is asked to write, and how. */
const WRITTEN = { edits: '', count: 40, temperature: 0.7, seed: 1 };

/** What it writes on from: nothing, or what stands before a sentence. */
const BEGINNINGS = ['', '.', '\n', ' '];

/** Characters of it that stand twice, where an example repeats itself. */
const HALF = 60;

const tried = new Set();

/** The loss of a text per byte. */
export const natsPerByte = (run) =>
  run.losses.reduce((sum, loss) => sum + loss, 0) / Math.max(1, new TextEncoder().encode(run.of).length);

/** Whether the model begins with a text that it neither expects nor can read. */
function foreign() {
  if (frozen || !model().writes || model().reads || model().argument === '' || tried.has(state.model)) return false;
  if (state.text !== model().begin || state.edits) return false;
  return !runs.A || runs.A.of !== state.text || natsPerByte(runs.A) >= FOREIGN;
}

/** Takes a text of the model's own as its first one; whether there is one now. */
export async function fitFirstText() {
  if (!foreign()) return false;
  const [number, before] = [state.model, state.text];
  tried.add(number);
  const read = runs.A?.of === before;
  const task = begin('The model writes a text of its own');
  let text = '';
  for (const beginning of BEGINNINGS) {
    const asked = { model: number, text: beginning, ...WRITTEN };
    try {
      await events('/api/generate', asked, (data) => (text = data.text ?? text));
    } catch {
      // It has no token for this beginning.
    }
    if (text.trim()) break;
  }
  task.end();
  text = text.trim();
  if (!text || state.model !== number || state.text !== before) return false;
  const one = model();
  const half = text.slice(0, HALF).trim();
  for (const example of one.examples) example.text = example.text === before ? text : `${half} ${half}`;
  one.begin = text;
  const why = read
    ? `This model does not expect English (${short(natsPerByte(runs.A))} nats a byte)`
    : 'This model cannot read the English text';
  put(byId('example-what'), `${why}: it wrote the text below itself.`);
  go({ text }, true);
  return true;
}
