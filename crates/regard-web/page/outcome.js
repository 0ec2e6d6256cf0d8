// @ts-check
// What the edits cost: losses, judged on stories, texts before and after, and the same by the command.
import { el, label, put, short, signed } from './base.js';
import { events } from './api.js';
import { LONG_COMMAND, commandLine, reading } from './command.js';
import { model } from './draw.js';
import { barRow, barsOf } from './next.js';
import { term } from './terms.js';
import { go, runs, state } from './state.js';

let judging = null;
let writing = null;
/** Results stay until what they are of changes. */
const results = {
  judged: el('p', { id: 'judged', role: 'status' }),
  before: el('p', { id: 'before' }),
  after: el('p', { id: 'after' }),
  of: '',
};

async function judge(box) {
  judging?.abort();
  judging = new AbortController();
  put(box, 'judging …');
  try {
    await events(
      '/api/surgery',
      { model: state.model, edits: state.edits, texts: 16, tokens: 256 },
      (data) => {
        if (data.done) put(box, `text ${data.done} of ${data.all}`);
        if (!data.outcome) return;
        const { difference: d, divergence, changed } = data.outcome;
        const sure = d.least_p > 0.05 ? ' Too few texts for a significant result.' : '';
        put(
          box,
          `On ${d.texts} stories the loss changes by ${signed(d.mean)} nats a token (95 %: ` +
            `${short(d.low)} to ${short(d.high)}); ${d.worse} got worse; p = ${short(d.p)}. Predictions ` +
            `diverge by ${short(divergence)} nats, ${short(100 * changed)} % of the most likely tokens ` +
            `change.${sure}`,
        );
      },
      judging.signal,
    );
  } catch (error) {
    if (error.name !== 'AbortError') put(box, el('span', { class: 'error' }, error.message));
  }
}

async function write(sides, count) {
  writing?.abort();
  writing = new AbortController();
  sides.forEach(([box]) => put(box));
  let latest = '';
  try {
    for (const [box, edits] of sides) {
      put(box, '…');
      await events(
        '/api/generate',
        { model: state.model, text: state.text, edits, count, ...(model().reads ? { source: state.source } : {}) },
        (data) => {
          if (data.text === undefined) return;
          latest = data.text;
          put(box, latest);
        },
        writing.signal,
      );
    }
  } catch (error) {
    if (error.name !== 'AbortError') put(sides[0][0], el('span', { class: 'error' }, error.message));
    return '';
  }
  return latest;
}

/** The text and what the edited model writes on; where the text is still the same when it is done. */
async function grow() {
  const [text, number] = [state.text, state.model];
  const written = await write([[results.before, state.edits]], 20);
  if (written && state.text === text && state.model === number) go({ text: text + written });
}

function losses() {
  const { A: a, B: b } = runs;
  if (a.loss === null) {
    const why = model().writes
      ? 'One token has nothing after it to predict: type a text.'
      : 'This model does not predict the next token: there is no loss.';
    return el('p', { class: 'quiet' }, why);
  }
  const first = (run) => (run.next ? label(run.next[0].piece) : '–');
  const edited = a.run !== b.run;
  const value = (id, x, words, change = 0) =>
    el('td', {}, el('b', { id, class: change > 0 ? 'worse' : null, 'data-value': x }, words));
  const line = (name, ...cells) => el('tr', {}, el('th', { scope: 'row' }, name), cells);
  return el(
    'table',
    { class: 'card' },
    el(
      'thead',
      {},
      el(
        'tr',
        {},
        el('td', {}),
        ['before', 'after', 'change'].map((name) => el('th', { scope: 'col' }, name)),
      ),
    ),
    el(
      'tbody',
      {},
      line(
        term('loss'),
        value('loss-a', a.loss, short(a.loss)),
        value('loss-b', b.loss, short(b.loss)),
        value('loss-d', b.loss - a.loss, signed(b.loss - a.loss), b.loss - a.loss),
      ),
      line(
        'next token',
        el('td', {}, first(a)),
        el('td', {}, first(b)),
        el('td', {}, !edited ? '' : first(a) === first(b) ? '=' : '≠'),
      ),
    ),
  );
}

/** Next tokens that the card shows. */
const CARD_BARS = 3;

/** The most likely next tokens with the edits, and what they were before. */
const cardBars = (before, after) =>
  el(
    'ol',
    { class: 'next two' },
    barsOf(before, after)
      .slice(0, CARD_BARS)
      .map((one) => barRow(one, true)),
  );

/** Loss, prediction and text before and after the edits, and the command that gives them. */
export function outcomeCard() {
  const { A: a, B: b } = runs;
  const { judged, before, after } = results;
  const of = JSON.stringify([state.model, state.text, state.edits]);
  if (results.of !== of) {
    [judged, before, after].forEach((box) => put(box));
    judging?.abort();
    writing?.abort();
    results.of = of;
  }
  const same = state.edits && a.run !== b.run && a.loss !== null && a.loss === b.loss;
  const both = () =>
    write(
      state.edits
        ? [
            [before, ''],
            [after, state.edits],
          ]
        : [[before, '']],
      60,
    );
  const long = state.text.length > LONG_COMMAND;
  return el(
    'section',
    { class: 'outcome', 'aria-label': 'before and after' },
    el('h3', {}, 'Before and after'),
    losses(),
    a.run !== b.run && a.next ? cardBars(a.next, b.next) : null,
    same ? el('p', { class: 'quiet' }, 'The edits change nothing, not one bit of a loss.') : null,
    el(
      'div',
      { class: 'row' },
      el(
        'button',
        {
          id: 'judge',
          disabled: !state.edits || a.loss === null || Boolean(model().reads),
          title: model().reads ? 'not of encoder-decoders' : state.edits ? null : 'make an edit first',
          onclick: () => judge(judged),
        },
        'Judge on 16 stories',
      ),
    ),
    judged,
    model().writes
      ? el(
          'div',
          { class: 'texts' },
          el(
            'div',
            { class: 'row' },
            el('button', { id: 'write', onclick: both }, `Continue the text${state.edits ? ': before and after' : ''}`),
            el(
              'button',
              { id: 'grow', title: 'with the edits; the text grows, and the view with it', onclick: grow },
              'Grow the text',
            ),
          ),
          el('h4', {}, state.edits ? 'before' : 'continued'),
          before,
          state.edits ? [el('h4', {}, 'after'), after] : null,
        )
      : null,
    el(
      'p',
      { class: 'quiet' },
      long ? 'The same by the command, with the text in the file text.txt: ' : 'The same by the command: ',
      el('code', { id: 'command' }, commandLine(model().argument, state.text, state.edits, reading())),
    ),
  );
}
