// @ts-check
// The first steps of the lesson: tokens, queries and keys, dot products, the scale, the mask. Every number is the
// library's.
import { el, label, put, short } from './base.js';
import { model } from './draw.js';
import {
  among,
  atLargest,
  count,
  dims,
  matrix,
  others,
  paragraph,
  question,
  quoted,
  shownNumber,
} from './lesson_parts.js';
import { productPicture } from './lesson_pictures.js';
import { scaleBox, sweep } from './lesson_scale.js';
import { explained } from './terms.js';
import { runs, state } from './state.js';

/** What is said of a model whose scores are multiplied by something else. */
function otherScale(d) {
  const { scale } = model();
  if (scale === undefined || Math.abs(scale * Math.sqrt(d) - 1) < 1e-6) return '';
  return ` This model multiplies its scores by ${short(scale)} instead.`;
}

export function tokens({ pieces, ids }, id) {
  const n = pieces.length;
  const own = runs.B.tokens.slice(0, n).filter((token) => !token.added);
  const text = new TextDecoder().decode(
    new TextEncoder().encode(runs.B.of).slice(own[0]?.from ?? 0, own.at(-1)?.to ?? 0),
  );
  const words = text.trim().split(/\s+/).length;
  const options = count([words, n, [...text].length, n + 3]).map((x) => [String(x), x === n]);
  return [
    paragraph(
      'The model does not read letters or words, but numbered pieces: ',
      explained('[token|tokens]'),
      '. This lesson follows the beginning of your text: ',
      el('b', {}, text),
    ),
    question(id, 'How many tokens is this for the model?', options, () =>
      el(
        'div',
        {},
        el(
          'ol',
          { class: 'pieces' },
          pieces.map((piece, i) =>
            el('li', {}, el('b', {}, label(piece)), el('small', { 'data-value': ids[i] }, ids[i])),
          ),
        ),
        paragraph(
          `Below each piece is its number in a vocabulary of ${model().vocab}. ` +
            `${runs.B.tokens[0].added ? `${quoted(pieces[0])} marks the beginning of a text.` : ''}`,
        ),
      ),
    ),
  ];
}

export function queries({ names, steps }, id) {
  const d = steps.q[0].length;
  const options = count([d, 2 * d, model().width === d ? 4 * d : model().width]).map((x) => [String(x), x === d]);
  const shown = (rows, kind, word) =>
    matrix(rows, names, dims(rows[0], kind), { name: `${word} of every token`, kind });
  return [
    paragraph(
      explained(
        `Layer ${state.layer}, head ${state.head} turns every token into a [query] (what it looks for) ` +
          `and a [key] (what it offers).`,
      ),
    ),
    question(id, 'How many numbers has each query and each key of this head?', options, () =>
      el(
        'div',
        {},
        el('h3', {}, 'queries'),
        shown(steps.q, 'q', 'queries'),
        el('h3', {}, 'keys'),
        shown(steps.k, 'k', 'keys'),
        paragraph(
          `d_k = ${d}. Blue is negative, orange ` +
            `positive.${model().rotary ? ' The position of the token is already turned into them.' : ''}`,
        ),
      ),
    ),
  ];
}

/** How one score comes about: a picture, and the beginning of the sum in numbers. */
function product(steps, names, i, j) {
  const picture = productPicture(steps.q[i], steps.k[j], [names[i], names[j]], steps.raw[i][j]);
  return [picture, el('p', {}, inNumbers(steps, names, i, j))];
}

function inNumbers(steps, names, i, j) {
  const terms = steps.q[i].map((x, c) => [x, steps.k[j][c]]);
  const first = terms
    .slice(0, 4)
    .map(([a, b]) => `${short(a)} · ${short(b)}`)
    .join(' + ');
  return [
    `${names[i]} · ${names[j]} = ${first}${terms.length > 4 ? ` + ${terms.length - 4} more` : ''} = `,
    shownNumber(steps.raw[i][j]),
  ];
}

export function products({ names, pieces, steps }, id) {
  const n = names.length;
  const row = steps.raw[n - 1];
  const right = atLargest(row);
  const options = among(pieces, right, others(n, right), (piece, i) => `${quoted(piece)} (token ${i})`);
  const said = el('div', { role: 'status', id: 'product', class: 'scroll' });
  return [
    paragraph(
      explained(
        'A [score] begins as the dot product of a query and a key: the more alike the two vectors, the larger.',
      ),
    ),
    question(id, `Whose key matches the query of the last token, ${quoted(pieces[n - 1])}, best?`, options, () => {
      put(said, product(steps, names, n - 1, right));
      return el(
        'div',
        {},
        said,
        paragraph('All of them: rows are queries, columns are keys. Point at a number to see how it comes about.'),
        matrix(steps.raw, names, names, {
          name: 'dot products: rows are queries, columns keys',
          kind: 'raw',
          hover: (i, j) => put(said, product(steps, names, i, j)),
        }),
      );
    }),
  ];
}

export function scale({ names, steps }, id) {
  const options = [
    ['It disappears', true],
    ['It stays the same', false],
    ['It grows', false],
  ];
  const numbers = el('p', { id: 'gradients' });
  const d = steps.q[0].length;
  const between = (row) => ` (95 %: ${short(row.row_dq_median_low)} to ${short(row.row_dq_median_high)})`;
  sweep(1024).then(
    ([without, scaled]) =>
      put(
        numbers,
        'At d_k = 1024 the median row of Q has a gradient of ',
        shownNumber(without.row_dq_median),
        between(without),
        ' without the scale, and ',
        shownNumber(scaled.row_dq_median),
        between(scaled),
        ' with it. The norm over all rows does not disappear: ',
        shownNumber(without.grad_norm_q),
        ' without, ',
        shownNumber(scaled.grad_norm_q),
        ' with. A few rows carry all of it, and most tokens learn nothing.',
      ),
    () => {},
  );
  return [
    paragraph(
      explained(
        `Dot products of longer vectors are larger. The [scale] 1/√d_k = 1/√${d} takes that back, so that ` +
          `the [softmax] is not driven to a single key.${otherScale(d)}`,
      ),
    ),
    question(
      id,
      `This head has d_k = ${d}. Give its queries and keys 1024 coordinates, and leave the scale out: what ` +
        `happens to the gradient of most rows?`,
      options,
      () =>
        el(
          'div',
          {},
          numbers,
          scaleBox(),
          el('h3', {}, 'Your text, after the scale'),
          matrix(steps.scaled, names, names, { name: 'scaled scores', kind: 'scaled' }),
        ),
    ),
  ];
}

/** What the mask of the model does; of the edited one, when an edit changes it. */
function maskWords(all) {
  if (all && model().causal)
    return 'An edit took the mask away: every token sees the later ones, which this model has never learned to use.';
  if (all) return 'This model reads in both directions: no token is hidden.';
  if (!model().causal) return 'This model reads in both directions; an edit hides some tokens.';
  return 'Later tokens are hidden: a model that predicts the next token must not read ahead.';
}

export function mask({ names, steps }, id) {
  const n = names.length;
  const seen = steps.masked.flat().filter((x) => x !== null).length;
  const options = count([n, seen, n * n, (n * (n + 1)) / 2]).map((x) => [String(x), x === seen]);
  const words = maskWords(seen === n * n);
  return [
    paragraph(explained('The [mask] says which keys a query may see.'), ` There are ${n} × ${n} = ${n * n} scores.`),
    question(id, 'How many of them go into the softmax?', options, () => {
      const box = el('div', {});
      const slider = el('input', { type: 'range', id: 'lesson-mask', min: 0, max: n, step: 1, value: n });
      const draw = () => {
        const rows = Number(slider.value);
        const shown = steps.scaled.map((row, i) => (i < rows ? steps.masked[i] : row));
        const visible = shown.flat().filter((x) => x !== null).length;
        const said = `the mask is on ${rows} of ${n} rows: ${visible} scores are seen`;
        slider.setAttribute('aria-valuetext', said);
        const all = rows === n;
        const name = all ? 'scores after the mask' : 'scores, the first rows after the mask';
        put(
          box,
          el('p', { class: 'quiet', id: 'mask-said' }, `${said[0].toUpperCase()}${said.slice(1)}.`),
          matrix(shown, names, names, { name, kind: all ? 'masked' : 'scaled' }),
        );
      };
      draw();
      slider.addEventListener('input', draw);
      return el(
        'div',
        {},
        paragraph(words),
        el('label', { class: 'row' }, 'drag the mask off and on, row by row ', slider),
        box,
      );
    }),
  ];
}
