// @ts-check
// The ten most likely next tokens, before and after the edits.
import { byId, byteWords, el, label, put, short } from './base.js';
import { ask } from './api.js';
import { model } from './draw.js';
import { term } from './terms.js';
import { chosen, runs, state } from './state.js';

let latest = 0;

/** A probability in words. */
const percent = (p) =>
  p >= 0.0995 ? `${(100 * p).toFixed(0)} %` : p >= 0.001 ? `${(100 * p).toFixed(1)} %` : '< 0.1 %';

/** What a run predicts after a token: the last one comes with the run. */
async function predicted(run, row) {
  if (row === run.tokens.length - 1) return run.next;
  return ask(`/api/run/${run.run}/next?row=${row}`, true);
}

/** Rows of the bars: the tokens after the edits, with what they were before them. */
export function barsOf(before, after) {
  const known = new Map(before.map((one) => [one.id, one.probability]));
  return after.map((one) => ({ ...one, before: known.get(one.id) ?? null }));
}

function bar(kind, probability) {
  const filled = el('span', { class: `fill ${kind}` });
  filled.style.width = `${100 * probability}%`;
  return filled;
}

/** One token with its bar; with edits, the bar from before them below it. */
export function barRow(one, edited) {
  const was = one.before === null ? 'not among the first ten' : percent(one.before);
  const words = `${label(one.piece)}: ${percent(one.probability)}${edited ? `, before the edits ${was}` : ''}`;
  return el(
    'li',
    { title: words, 'data-id': one.id, 'data-probability': one.probability, 'data-before': one.before },
    el('span', { class: 'piece' }, label(one.piece)),
    el(
      'span',
      { class: 'track', 'aria-hidden': 'true' },
      bar('after', one.probability),
      edited && one.before !== null ? bar('before', one.before) : null,
    ),
    el(
      'span',
      { class: 'percent' },
      percent(one.probability),
      edited ? el('small', {}, one.before === null ? ' –' : ` ${percent(one.before)}`) : null,
    ),
  );
}

export async function showNext() {
  const mine = ++latest;
  const box = byId('next');
  const { A, B } = runs;
  box.hidden = !model().writes || !B.next;
  if (box.hidden) return;
  const n = B.tokens.length;
  const at = Math.min(n - 1, chosen()[0] ?? n - 1);
  const edited = A.run !== B.run;
  let lists;
  try {
    lists = await Promise.all([predicted(A, at), predicted(B, at)]);
  } catch (error) {
    // A file has the prediction at the end of the text.
    if (mine === latest) put(box, el('h2', {}, 'Next token'), el('p', { class: 'quiet' }, error.message));
    return;
  }
  if (mine !== latest) return;
  const rows = barsOf(...lists);
  const place = at === n - 1 ? 'the text' : `token ${at} ${label(B.tokens[at].piece)}`;
  put(
    box,
    el('h2', {}, 'Next ', term('token')),
    el(
      'p',
      { class: 'quiet' },
      `What the model expects after ${place}: its ten most likely tokens`,
      edited
        ? [
            ': ',
            el('span', { class: 'key after' }),
            ' with the edits, ',
            el('span', { class: 'key before' }),
            ' without.',
          ]
        : '.',
      rows.some((one) => /^ | $/.test(one.piece)) ? ' ␣ is a space.' : '',
      rows.some((one) => one.piece.includes('\n')) ? ' ↵ is a new line.' : '',
      byteWords(rows.map((one) => one.piece)),
    ),
    el(
      'ol',
      { class: edited ? 'next two' : 'next', 'data-run': B.run },
      rows.map((one) => barRow(one, edited)),
    ),
    edited && state.side === 'A' ? el('p', { class: 'quiet' }, 'The views show A, the model as it is.') : null,
  );
  box.dataset.sum = short(rows.reduce((sum, one) => sum + one.probability, 0));
}
