// @ts-check
// The last steps of the lesson: softmax, values, heads together, the prediction. Every number is the library's.
import { el, label, put, short } from './base.js';
import { among, atLargest, dims, matrix, norm, others, pairAt, paragraph, question, quoted } from './lesson_parts.js';
import { shareBar, shownNumber, strip } from './lesson_parts.js';
import { flowPicture } from './lesson_pictures.js';
import { nameOf } from './labels.js';
import { explained } from './terms.js';
import { runs } from './state.js';

/** Softmax of a row in single precision, as a computer does it: with and without subtracting the maximum. */
export function softmaxOf(scores, shift) {
  const f = Math.fround;
  const moved = scores.map((x) => f(x + shift));
  const top = Math.max(...moved);
  const [plain, safe] = [moved.map((x) => f(Math.exp(x))), moved.map((x) => f(Math.exp(f(x - top))))];
  const total = (list) => list.reduce((sum, x) => f(sum + x), 0);
  return { moved, plain, safe, without: plain.map((x) => x / total(plain)), withMax: safe.map((x) => x / total(safe)) };
}

export function softmax({ names, pieces, steps }, id) {
  const n = names.length;
  const visible = steps.masked[n - 1].map((x, j) => [x, j]).filter(([x]) => x !== null);
  const weights = steps.weights[n - 1];
  const options = [
    ['Nothing: the weights stay the same', true],
    ['All weights grow', false],
    ['The largest takes everything', false],
  ];
  const asked = `Add 100 to every score in the row of ${quoted(pieces[n - 1])}. What happens to its weights?`;
  const word = (x) => (Number.isNaN(x) ? 'NaN' : x === Infinity ? '∞' : short(x));
  return [
    paragraph(
      explained(
        'The [softmax] makes the scores of a row positive and lets them add up to 1: exp(score) divided by their sum.',
      ),
    ),
    question(id, asked, options, () => {
      const box = el('div', { class: 'scroll', tabindex: 0, role: 'group', 'aria-label': 'softmax of the last row' });
      const draw = (shift) => {
        const { moved, plain, safe, without, withMax } = softmaxOf(
          visible.map(([x]) => x),
          shift,
        );
        const heading = [
          'key',
          'score',
          'exp(score)',
          'exp(score − max)',
          'weight, plain',
          'weight, max subtracted',
          'weight in this model',
          'as a bar',
        ];
        const line = ([, j], i) =>
          el(
            'tr',
            {},
            el('th', { scope: 'row' }, names[j]),
            [moved[i], plain[i], safe[i], without[i], withMax[i]].map((x) => el('td', {}, word(x))),
            el('td', { 'data-value': weights[j], 'data-weight': j, ...pairAt(n - 1, j) }, short(weights[j])),
            el('td', { class: 'wide' }, shareBar(weights[j], 1)),
          );
        put(
          box,
          el(
            'table',
            {},
            el(
              'thead',
              {},
              el(
                'tr',
                {},
                heading.map((name) => el('th', { scope: 'col' }, name)),
              ),
            ),
            el('tbody', {}, visible.map(line)),
          ),
        );
      };
      draw(0);
      const slider = el('input', {
        type: 'range',
        id: 'lesson-shift',
        min: 0,
        max: 120,
        step: 10,
        value: 0,
        'aria-valuetext': '0 added',
      });
      slider.addEventListener('input', () => {
        slider.setAttribute('aria-valuetext', `${slider.value} added`);
        draw(Number(slider.value));
      });
      return el(
        'div',
        {},
        paragraph(
          'A common factor of all exponentials cancels. But in single precision exp(89) is infinite: so ' +
            'every implementation subtracts the largest score first.',
        ),
        el('label', { class: 'row' }, 'add to every score, from 0 to 120 ', slider),
        box,
      );
    }),
  ];
}

export function values({ names, pieces, steps }, id) {
  const n = names.length;
  const weights = steps.weights[n - 1];
  const parts = weights.map((w, j) => w * norm(steps.v[j]));
  const right = atLargest(parts);
  const options = among(pieces, right, others(n, right), (piece, i) => `${quoted(piece)} (token ${i})`);
  const most = Math.max(...steps.v.flat().map(Math.abs), 1e-12);
  const seen = weights.map((w, j) => [w, j]).filter(([w]) => w > 0);
  const line = ([w, j], i) =>
    el(
      'tr',
      { 'data-key-row': j },
      el('th', { scope: 'row' }, names[j]),
      el('td', pairAt(n - 1, j), shownNumber(w)),
      el('td', { class: 'wide' }, shareBar(w, 1)),
      el('td', {}, strip(steps.v[j], most, `value of ${names[j]}`, 'v', j)),
      i === 0 ? el('td', { class: 'flows', rowspan: seen.length }, flowPicture(seen.map(([x]) => x))) : null,
      i === 0 ? el('td', { rowspan: seen.length }, strip(steps.out[n - 1], most, 'output', 'out', n - 1)) : null,
    );
  const heading = ['key', 'weight', 'as a bar', 'value', 'weight × value', 'sum: the output'];
  const title = { name: 'output of the head', kind: 'out', first: n - 1 };
  return [
    paragraph(
      explained('What a token takes with it is the mean of the [value|values] of all tokens, by their weights.'),
    ),
    question(
      id,
      `Which token gives most to the output of the last one, ${quoted(pieces[n - 1])} (weight times ` +
        `length of its value)?`,
      options,
      () =>
        el(
          'div',
          {},
          el(
            'div',
            { class: 'scroll', tabindex: 0, role: 'group', 'aria-label': 'weighted values' },
            el(
              'table',
              { class: 'values' },
              el(
                'thead',
                {},
                el(
                  'tr',
                  {},
                  heading.map((name) => el('th', { scope: 'col' }, name)),
                ),
              ),
              el('tbody', {}, seen.map(line)),
            ),
          ),
          paragraph('The output in numbers, coordinate by coordinate:'),
          matrix([steps.out[n - 1]], ['output'], dims(steps.out[0], 'z'), title),
        ),
    ),
  ];
}

/** A part of the model in words. */
const partName = (part) =>
  part
    .replace(/^L(\d+)\.H(\d+)$/, (_, l, h) => {
      const name = nameOf(Number(l), Number(h));
      return `head ${l}.${h}${name ? `, ${name}` : ''}`;
    })
    .replace(/^L(\d+)\.mlp$/, 'network of layer $1')
    .replace(/^L(\d+)\.bias$/, 'bias of layer $1')
    .replace(/^last$/, 'constant of the output')
    .replace('embedding', 'the token itself');

export function together({ pieces, attribution, next }, id) {
  const intro = paragraph(
    explained(
      `All heads of a layer work side by side. The matrix [W_O] adds what they found to the [residual ` +
        `stream], which the next layer reads; at the end it becomes one [logit] per possible token.`,
    ),
  );
  if (!attribution)
    return [
      intro,
      paragraph('The norms or the output head of this model are not linear: its logits have no parts that add up.'),
    ];
  const { parts, writes, logit } = attribution;
  const right = atLargest(writes);
  const order = writes.map((x, i) => [x, i]).sort((a, b) => b[0] - a[0]);
  const options = among(
    parts,
    right,
    [order[2]?.[1], order.at(-1)[1], 0].filter((i) => i !== right && i !== undefined),
    partName,
  );
  const most = Math.max(...writes.map(Math.abs), 1e-12);
  const line = ([x, i]) =>
    el(
      'li',
      { title: parts[i] },
      el('span', { class: 'piece' }, partName(parts[i])),
      shareBar(x, most, x < 0 ? 'less' : 'after'),
      el('span', { class: 'percent' }, shownNumber(x)),
    );
  return [
    intro,
    question(
      id,
      `After ${quoted(pieces.at(-1))} the model expects ${quoted(next[0].piece)}. Which part of the model raises ` +
        `the logit of ${quoted(next[0].piece)} most?`,
      options,
      () =>
        el(
          'div',
          {},
          el('ol', { class: 'next writes' }, order.map(line)),
          paragraph('Orange bars lower it. All parts add up to the logit, ', shownNumber(logit), '.'),
        ),
    ),
  ];
}

const EXERCISES = [
  ['similarity', 'dot products'],
  ['softmax', 'a softmax that does not overflow'],
  ['attention', 'the weighted sum'],
  ['scaled_attention', 'the scale'],
  ['causal_attention', 'the mask'],
  ['multi_head', 'heads together'],
];

export function prediction({ pieces, next }, id) {
  if (!next)
    return [
      paragraph(
        'This model does not predict the next token: what its heads found goes into a representation of the text.',
      ),
      ending(),
    ];
  // Words rather than bytes, and not the second best, which may be as good.
  const lettered = [...next.keys()].filter((i) => /^[^<]*\p{L}/u.test(next[i].piece) && i > 0);
  const options = among(
    next,
    0,
    [...lettered.slice(1), 2, 4, 8].filter((i) => i > 0 && i < next.length),
    (one) => quoted(one.piece),
  ).sort((a, b) => a[0].localeCompare(b[0]));
  const following = runs.B.tokens[pieces.length];
  const line = (one) =>
    el(
      'li',
      {},
      el('span', { class: 'piece' }, label(one.piece)),
      shareBar(one.probability, 1),
      el('span', { class: 'percent' }, shownNumber(one.probability)),
    );
  return [
    paragraph(explained('A last [softmax] turns the [logit|logits] of the whole vocabulary into probabilities.')),
    question(id, `What does the model expect after ${quoted(pieces.at(-1))}?`, options, () =>
      el(
        'div',
        {},
        el('ol', { class: 'next' }, next.map(line)),
        paragraph(
          following
            ? `In your text ${quoted(following.piece)} comes next.`
            : 'Here your text ends: what would you write?',
        ),
        ending(),
      ),
    ),
  ];
}

function ending() {
  return el(
    'section',
    { class: 'ending' },
    el('h3', {}, 'Now write it yourself'),
    paragraph(
      'Exercises, with a judge that names the mistake: ',
      el('code', {}, 'regard learn'),
      '. Those of this lesson: ',
      EXERCISES.flatMap(([name, words], i) => [i ? ', ' : '', el('code', {}, `regard learn ${name}`), ` (${words})`]),
      '.',
    ),
  );
}
