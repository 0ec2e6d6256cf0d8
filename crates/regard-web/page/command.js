// @ts-check
// Commands that give what the page shows.
import { byId, el, put } from './base.js';
import { frozen } from './api.js';
import { shownTokens } from './lens.js';
import { chosen, runs, state } from './state.js';

/** A word as a POSIX shell reads it. */
export const quoted = (word) => (/^[\w./:=,@%+-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

/** Texts that are longer are given to the command as a file. */
export const LONG_COMMAND = 400;

/** The command that gives the losses of a text, with the edits or without, and what else it is asked for. */
export function commandLine(argument, text, edits, more = [], command = 'look') {
  const named = argument ? [argument] : [];
  const given = text.length > LONG_COMMAND ? ['--file', 'text.txt'] : ['--text', text];
  return ['regard', command, ...named, ...given, ...(edits ? ['--edits', edits] : []), ...more].map(quoted).join(' ');
}

/** What an encoder-decoder is told beside the text. */
export function reading() {
  const { model, source, part } = state;
  if (!runs.models[model].reads) return [];
  return ['--source', source, ...(part === 'decoder' ? [] : ['--part', part])];
}

/** Tokens of the lesson. */
const LESSON = 12;

/** Where the text of the first tokens ends. */
function beginning(run) {
  const bytes = new TextEncoder().encode(run.of);
  return new TextDecoder().decode(bytes.slice(0, run.tokens[Math.min(LESSON, run.tokens.length) - 1].to));
}

/** What the numbers of a view are, and the command that gives the same ones; null where no command has them. */
export function sameAsView() {
  const { argument } = runs.models[state.model];
  const [run, edits] = state.side === 'A' ? [runs.A, ''] : [runs.B, runs.B.edits];
  const sink = state.sink === 'show' ? [] : ['--sink', state.sink];
  const of = ['--head', `${state.layer}.${state.head}`];
  const read = reading();
  const line = (...more) => commandLine(argument, state.text, edits, [...read, ...more.flat()]);
  const n = run.tokens.length;
  switch (state.view) {
    case 'heads':
      return ['The statistics of every head', line()];
    case 'head':
    case 'map':
      return ['The weights of this head', line(of, sink)];
    case 'neuron': {
      const query = Math.min(n - 1, chosen()[0] ?? n - 1);
      const key = Math.min(n - 1, state.key === '' ? Math.max(0, query - 1) : Number(state.key));
      return ['This pair', line(of, ['--neuron', `${query},${key}`])];
    }
    case 'lens': {
      const [from, rows] = shownTokens(n, chosen()[0] ?? n - 1);
      if (read.length || state.text.length > LONG_COMMAND || from + rows < n) return null;
      return ['The last column', commandLine(argument, state.text, edits, [], 'lens')];
    }
    default:
      return ['The weights of these tokens', commandLine(argument, beginning(run), edits, [...read, ...of])];
  }
}

/** The line below a view: the command that gives its numbers. */
export function showSame() {
  const box = byId('same');
  const same = frozen || !runs.B ? null : sameAsView();
  box.hidden = !same;
  if (same) put(box, `${same[0]} by the command: `, el('code', { id: 'same-command' }, same[1]));
}
