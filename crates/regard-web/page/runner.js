// @ts-check
// Runs of the text: one at a time, and then the latest.
import { counted } from './base.js';
import { frozen, send } from './api.js';
import { begin } from './busy.js';
import { followRun } from './preview.js';
import { runs, state } from './state.js';

/** The request that is under way: aborting it cancels the work on the server. */
let runRequest = { abort() {}, begun: 0 };
/** A request that took longer is aborted when the text or the edits change. */
const ABORT_AFTER = 500;

async function run(edits) {
  const { text, source, part, model: number } = state;
  const controller = new AbortController();
  runRequest = { abort: () => controller.abort(), begun: performance.now() };
  const read = runs.models[number].reads ? { source, part } : {};
  const made = await send('/api/run', { model: number, text, edits, ...read }, controller.signal);
  // Tokens are of the text; those of an encoder, of what it reads.
  return Object.assign(made, {
    of: read.part === 'encoder' ? source : text,
    asked: edits,
    given: { text, source, part },
  });
}

/** Runs for what is in the state, and why the edits could not be made. */
async function runBoth() {
  const given = (one) => Object.entries(one.given).every(([name, value]) => state[name] === value);
  const same = (one, words) => one && given(one) && one.asked === words && one.model === state.model;
  // A file has one run: what it is of, and nothing to compare it with.
  if (frozen) {
    const only = runs.B ?? (await run(frozen.edits));
    return [only, only, ''];
  }
  const a = same(runs.A, '') ? runs.A : await run('');
  if (state.edits === '') return [a, a, ''];
  try {
    return [a, same(runs.B, state.edits) ? runs.B : await run(state.edits), ''];
  } catch (error) {
    if (error.status !== 422) throw error;
    // Refused edits are named where they are written; the model as it is can be looked at.
    return [a, a, error.message];
  }
}

let asked = 0;
let working = Promise.resolve();

/**
 * The runs for the state: `{ wrong }` with the reason of refused edits, `{ cancelled: true }`, or null when
 * something newer is wanted.
 */
export async function prepare() {
  const mine = ++asked;
  const slow = setTimeout(() => runRequest.abort(), Math.max(0, runRequest.begun + ABORT_AFTER - performance.now()));
  await working;
  clearTimeout(slow);
  if (mine !== asked) return null;
  let cancelled = false;
  const cancel = () => {
    cancelled = true;
    runRequest.abort();
  };
  const task = begin(
    `The model reads ${counted(state.text.length, 'character')}, layer by layer`,
    frozen ? null : cancel,
  );
  const stopFollowing = followRun(task);
  let wanted = false;
  const now = runBoth();
  working = now.then(
    () => {},
    () => {},
  );
  try {
    const [A, B, wrong] = await now;
    if (mine !== asked) return null;
    wanted = true;
    Object.assign(runs, { A, B });
    return { wrong };
  } catch (error) {
    if (cancelled && mine === asked) return { cancelled };
    if (mine !== asked || error.name === 'AbortError') return null;
    // Another tab was quicker: this one retries a little later.
    if (error.status === 409) {
      await new Promise((wait) => setTimeout(wait, 200 + 300 * Math.random()));
      return mine === asked ? prepare() : null;
    }
    throw error;
  } finally {
    stopFollowing(wanted);
    task.end();
  }
}
