// @ts-check
// The head of a model that does one thing most on a text: looks at the token before, rests on the first, or looks up
// what followed the same token earlier.
import { ask, numbers, send } from './api.js';
import { begin } from './busy.js';
import { model, tilePath } from './draw.js';
import { state } from './state.js';

/** Tokens of a text whose thumbnails are its weights. */
const SINGLE = 32;
/** A head with less of its weight there does not do it. */
const CLEAR = 0.3;

const WORDS = {
  previous: 'looks at the token before',
  first: 'looks at the first token',
  repeats: 'looks at what followed the same token earlier',
};

/** Rows whose token was there before, each with the place after its latest occurrence. */
export function followers(ids) {
  const last = new Map();
  const pairs = [];
  ids.forEach((id, i) => {
    if (last.has(id) && last.get(id) + 1 < i) pairs.push([i, last.get(id) + 1]);
    last.set(id, i);
  });
  return pairs;
}

/** The mean weight of pairs of tokens, for every head of a layer. */
async function weightsOf(run, layer, pairs) {
  const { heads } = model();
  const n = run.tokens.length;
  const mean = (cells) => pairs.reduce((sum, [i, j]) => sum + cells[i * n + j], 0) / pairs.length;
  if (n <= SINGLE) {
    const path = `/api/run/${run.run}/thumbnails?layer=${layer}&pool=${state.pool}&sink=show`;
    const all = await numbers(path);
    return Array.from({ length: heads }, (_, head) => mean(all.subarray(head * n * n, (head + 1) * n * n)));
  }
  const path = (head) => tilePath(run, layer, head, 0, n, 0, n, 1).replace(/sink=\w+/, 'sink=show');
  return Promise.all(Array.from({ length: heads }, async (_, head) => mean(await numbers(path(head)))));
}

async function search(run, kind, far) {
  const { layers } = model();
  const pairs = followers(run.tokens.map((token) => token.id));
  let best = { layer: 0, head: 0, weight: -1 };
  for (let layer = 0; layer < layers; layer++) {
    far(layer, layers);
    const weights =
      kind === 'repeats'
        ? await weightsOf(run, layer, pairs)
        : (await ask(`/api/run/${run.run}/heads?layer=${layer}`, true)).map((mean) => mean[kind]);
    weights.forEach((weight, head) => {
      if (weight > best.weight) best = { layer, head, weight };
    });
  }
  return best;
}

/**
 * The head that does what an example shows, and a sentence about it; null where it was not found.
 * @param {{ text: string, find: string }} example
 */
export async function headThatDoes({ text, find }) {
  const number = state.model;
  const ended = new AbortController();
  const task = begin(`The head of this model that ${WORDS[find]}`, () => ended.abort());
  try {
    const run = await send('/api/run', { model: number, text, edits: '' }, ended.signal);
    const { layer, head, weight } = await search(run, find, (done, all) => task.far(done, all));
    if (ended.signal.aborted || number !== state.model) return null;
    const share = `${Math.round(100 * weight)} % of its weight on average`;
    const words =
      weight >= CLEAR
        ? `Of all heads of this model, head ${layer}.${head} most ${WORDS[find]}: ${share}.`
        : `No head of this model clearly ${WORDS[find]}; head ${layer}.${head} does it most: ${share}.`;
    return { layer, head, words };
  } catch {
    // The text is shown on all heads instead; what is wrong is said by its own run.
    return null;
  } finally {
    task.end();
  }
}
