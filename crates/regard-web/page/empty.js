// @ts-check
// What a view shows when the text has too few tokens for it.
import { el } from './base.js';
import { model } from './draw.js';
import { go, runs } from './state.js';

const says = (words) => el('div', { class: 'empty', id: 'empty' }, words);

/**
 * Why a view has nothing to draw, and what to do; null where it has. The lens predicts from one token, too.
 * @param {{ name: string }} view
 */
export function emptyState(view) {
  if (runs.B.keys && ['neuron', 'lesson'].includes(view.name)) {
    return says('Not of cross-attention: choose the decoder or the encoder above.');
  }
  if (runs.B.keys || runs.B.tokens.length > 1 || view.name === 'lens') return null;
  if (model().reads) {
    return says('One token has no other to look at: let the model write on the left, or type a text.');
  }
  const example = () => go({ text: model().begin, queries: '', key: '', place: '' });
  return el(
    'div',
    { class: 'empty', id: 'empty' },
    el('p', {}, 'One token has no other to look at: type a text on the left, or begin with an example.'),
    el('button', { class: 'primary', onclick: example }, 'Use the first example'),
  );
}
