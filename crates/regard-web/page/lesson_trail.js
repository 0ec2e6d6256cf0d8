// @ts-check
// Where a number of the lesson comes from, and where it goes: its relatives on the screen are marked, the others named.
import { el, put, short } from './base.js';

/** Number of the step that shows each kind, counted from 1. */
const STEP = { q: 2, k: 2, raw: 3, scaled: 4, masked: 5, weights: 6, v: 7, out: 7 };

/**
 * How the second number is related to the first: 'from' when the first is computed from it, 'to' when it is computed
 * from the first, or null. A number is `[kind, row, column]`: tokens for pairs, a token and a coordinate for vectors.
 */
export function relation([kind, a, b], [other, c, d]) {
  const ways = {
    q: { raw: a === c && 'to' },
    k: { raw: a === d && 'to' },
    raw: { q: a === c && 'from', k: b === c && 'from', scaled: a === c && b === d && 'to' },
    scaled: { raw: a === c && b === d && 'from', masked: a === c && b === d && 'to' },
    masked: { scaled: a === c && b === d && 'from', weights: a === c && 'to' },
    weights: { masked: a === c && 'from', out: a === c && 'to' },
    v: { out: b === d && 'to' },
    out: { weights: a === c && 'from', v: b === d && 'from' },
  };
  return ways[kind]?.[other] || null;
}

const NOUN = { q: 'query', k: 'key', v: 'value', out: 'output' };

/** Sentences about a number: where it comes from, and where it goes. */
export function trail([kind, a, b], { names, steps }) {
  const pair = (what) => `${what} of ${names[a]} with ${names[b]}`;
  const value = (what) => {
    const x = steps[what][a][b];
    return x === null ? 'hidden' : short(x);
  };
  const vector = `coordinate ${b} of the ${NOUN[kind]} of ${names[a]}`;
  switch (kind) {
    case 'q':
      return [vector, 'the embedding of the token', `every dot product in its row (step ${STEP.raw})`];
    case 'k':
      return [vector, 'the embedding of the token', `every dot product in its column (step ${STEP.raw})`];
    case 'raw':
      return [pair('dot product'), `the query of ${names[a]} and the key of ${names[b]} (step ${STEP.q})`, scaledTo()];
    case 'scaled':
      return [
        pair('scaled score'),
        `the dot product ${value('raw')} (step ${STEP.raw})`,
        `${value('masked')} after the mask (step ${STEP.masked})`,
      ];
    case 'masked':
      return [
        pair('score'),
        `the scaled score ${value('scaled')} (step ${STEP.scaled})`,
        `every weight in the row of ${names[a]}; its own is ${value('weights')} (step ${STEP.weights})`,
      ];
    case 'weights':
      return [
        pair('weight'),
        `all visible scores in the row of ${names[a]}; its own is ${value('masked')} (step ${STEP.masked})`,
        `every coordinate of the output of ${names[a]} (step ${STEP.out})`,
      ];
    case 'v':
      return [vector, 'the embedding of the token', `coordinate ${b} of every output that sees it (step ${STEP.out})`];
    default:
      return [vector, `coordinate ${b} of all values, by their weights (step ${STEP.v})`, 'W_O (step 8)'];
  }
  function scaledTo() {
    return `the scaled score ${value('scaled')} (step ${STEP.scaled})`;
  }
}

/** @type {(node: any) => [string, number, number]} */
const place = (node) => {
  const { kind, row, column } = node.dataset;
  return [kind, Number(row), Number(column)];
};

/** Marks relatives of the number under the pointer or in focus, and says the rest in words. */
export function follow(article, data) {
  const hint = 'Point at a number: its sources are framed in green, what it goes into is dashed.';
  const said = el('p', { class: 'trail', role: 'status', id: 'trail' }, hint);
  const point = (event) => {
    const at = event.target.closest?.('[data-kind]');
    if (!at) return;
    article.querySelectorAll('.from, .to').forEach((node) => node.classList.remove('from', 'to'));
    const here = place(at);
    for (const node of article.querySelectorAll('[data-kind]')) {
      const how = relation(here, place(node));
      if (how) node.classList.add(how);
    }
    const [what, from, to] = trail(here, data);
    const x = data.steps[here[0]]?.[here[1]]?.[here[2]];
    put(said, el('b', {}, `${what}: ${x === null ? 'hidden' : short(x)}`), ` ← ${from} → ${to}.`);
  };
  article.addEventListener('pointerover', point);
  article.addEventListener('focusin', point);
  return said;
}
