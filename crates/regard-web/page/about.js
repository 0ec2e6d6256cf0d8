// @ts-check
// What the page is of: the model, its examples, or a file.
import { byId, el, put } from './base.js';
import { frozen } from './api.js';
import { model } from './draw.js';
import { showTries } from './tour.js';

/** The header and the examples of the model. */
export function describe() {
  const one = model();
  put(
    byId('example'),
    el('option', { value: '' }, 'choose …'),
    one.examples.map((example, i) => el('option', { value: i }, example.title)),
  );
  byId('example').closest('label').hidden = Boolean(frozen) || one.examples.length === 0;
  byId('model').title = one.name;
  byId('reads').hidden = one.reads !== 'text';
  const shared = one.kv_heads < one.heads ? ` (${one.kv_heads} for keys and values)` : '';
  const size = `${(one.parameters / 1e6).toPrecision(3)} M parameters`;
  const heads = `${one.heads} heads${shared} in each of ${one.layers} layers`;
  put(byId('about'), `${one.family}: ${heads}, d_k = ${one.head_dim}, ${size}`);
  if (frozen) return;
  put(
    byId('intro'),
    one.reads
      ? 'An encoder-decoder reads one text and writes another: the encoder looks within what it reads, the ' +
          'decoder within what it has written, and cross-attention from what is written to what was read.'
      : one.writes
        ? 'A language model reads your text and predicts what comes next: each picture shows which earlier tokens ' +
          'one of its attention heads looks at, and every change under Surgery shows what that part is worth.'
        : 'A language model reads your text in both directions and turns each token into a vector: each picture ' +
          'shows which tokens one of its attention heads looks at, and Surgery changes them.',
  );
  showTries();
}

/** A file says what it is, and hides what it has not. */
export function showFile() {
  document.body.dataset.frozen = 'true';
  document.title = frozen.title;
  put(byId('intro'), el('b', {}, frozen.title), frozen.note ? ` ${frozen.note}` : null);
  const facts = [
    ['model', frozen.model],
    ['text', `SHA-256 ${frozen.text_hash}`],
    ['edits', frozen.edits || 'none'],
    ['made', `${frozen.date} by regard ${frozen.version}`],
    ['command', el('code', {}, frozen.command)],
  ];
  put(
    byId('footer'),
    el(
      'dl',
      {},
      facts.flatMap(([name, words]) => [el('dt', {}, name), el('dd', {}, words)]),
    ),
  );
  byId('text').readOnly = true;
}
