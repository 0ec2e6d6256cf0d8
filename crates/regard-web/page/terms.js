// @ts-check
// The glossary: every term in one sentence, on hover where it is used, and as a list.
import { byId, el, put } from './base.js';

export const TERMS = {
  token: 'A piece of text that the model reads as one unit: a word, a part of a word, or a letter.',
  head: 'One of several attention patterns of a layer. Each head has queries, keys and values of its own.',
  layer:
    'One step of the model: its heads exchange information between tokens, then a small network changes each token.',
  query: 'The vector of a token that asks: what am I looking for?',
  key: 'The vector of a token that answers: what do I offer?',
  value: 'The vector of a token that is passed on to those that attend to it.',
  weight: 'How much a query attends to a key: between 0 and 1, and 1 in sum over the keys of a query.',
  score: 'Query times key (a dot product), times the scale: the softmax turns scores into weights.',
  scale: 'The factor 1/√d_k on every score. It keeps scores as spread for long queries and keys as for short ones.',
  d_k: 'The number of coordinates of a query and of a key.',
  mask: 'Which keys a query may see. A causal mask hides all later tokens.',
  softmax: 'exp(score) divided by the sum over the row: positive numbers that add up to 1.',
  temperature: 'Scores are divided by it before the softmax: above 1 weights become more even, below 1 sharper.',
  loss: 'How surprised the model is by the token that comes next, in nats: −ln(probability). 0 is certain.',
  nat: 'A unit of information: 1 nat is 1.44 bits. A loss of 0.69 nats is a probability of one half.',
  entropy: 'How spread out the weights of a row are, in nats: 0 for one key, ln(n) for n keys with equal weights.',
  ablate: 'Replace what a head writes by zero, or by its mean, to see what the model loses.',
  induction: 'A head that finds an earlier copy of the token and attends to what followed it: it repeats.',
  'attention sink': 'A head that puts its weight on the first token when there is nothing to attend to.',
  logit: 'The score of a possible next token, before the softmax over the vocabulary.',
  'residual stream': 'The vector of each token that all layers read from and add to.',
  W_O: 'The matrix that adds what the heads found to the residual stream.',
  lens: 'The prediction that the model would make if it stopped after a layer.',
};

/** A term with its meaning on hover. */
export function term(name, words = name) {
  return el('abbr', { class: 'term', title: TERMS[name], onclick: () => showGlossary(name) }, words);
}

/** A sentence in which `[term]` and `[term|words]` are explained on hover. */
export function explained(sentence) {
  return sentence.split(/(\[[^\]]+\])/).map((part) => {
    if (!part.startsWith('[')) return part;
    const [name, words] = part.slice(1, -1).split('|');
    return term(name, words ?? name);
  });
}

/** The list, opened at a term when one was clicked. */
export function showGlossary(name = '') {
  const dialog = byId('keys');
  const list = Object.entries(TERMS).flatMap(([term, meaning]) => [
    el('dt', { 'data-term': term }, term),
    el('dd', {}, meaning),
  ]);
  const close = el('button', { onclick: () => dialog.close() }, 'Close');
  put(dialog, el('h2', { tabindex: -1, autofocus: true }, 'Glossary'), el('dl', {}, list), close);
  dialog.showModal();
  dialog.querySelector(`[data-term="${name}"]`)?.scrollIntoView({ block: 'center' });
}
