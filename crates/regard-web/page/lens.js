// @ts-check
// Logit lens: the prediction after each layer, at each token.
import { byId, byteWords, clamp, el, label, put, short, signed } from './base.js';
import { ask, frozen } from './api.js';
import { colour, inkOn } from './colour.js';
import { colourBar, difference, largest, model, side, table } from './draw.js';
import { tokenTexts } from './text.js';
import { chosen, go, runs, state } from './state.js';

/** Tokens that are shown at a time: as many as fit beside the names of the layers, and at most 24. */
const SHOWN = 24;
const LEAST = 6;
const NAMES_WIDTH = 110;
const TOKEN_WIDTH = 58;

/** The first token and the number of tokens that are shown, around the chosen one. */
export function shownTokens(n, at) {
  const fitting = Math.floor(((byId('view')?.clientWidth ?? Infinity) - NAMES_WIDTH) / TOKEN_WIDTH);
  const rows = Math.min(n, clamp(fitting, LEAST, SHOWN));
  return [clamp(at - Math.floor(rows / 2), 0, n - rows), rows];
}

const best = (cell) => cell.top[0];
const nameOfLayer = (i, last) =>
  i === 0 ? 'embedding' : i === last ? `layer ${i - 1}: the prediction` : `layer ${i - 1}`;

/** A cell: the most likely token, coloured by its probability, or by what the edits did to the loss. */
function cellOf(cell, was, here, most, pick) {
  const value = was
    ? cell.loss === null || was.loss === null
      ? cell.entropy - was.entropy
      : cell.loss - was.loss
    : best(cell).probability;
  const changed = was && best(was).id !== best(cell).id;
  const words = was
    ? `A: ${label(best(was).piece)} ${short(best(was).probability)}; B: ${label(best(cell).piece)} ` +
      `${short(best(cell).probability)}; ${signed(value)}`
    : `${label(best(cell).piece)}: ${short(best(cell).probability)}`;
  const button = el(
    'button',
    { title: words, 'aria-label': words, 'aria-pressed': here ? 'true' : 'false', onclick: pick, 'data-value': value },
    label(best(cell).piece),
    changed ? el('sup', {}, '≠') : null,
  );
  const background = colour(value, most, { kind: 'linear' }, Boolean(was));
  Object.assign(button.style, { background, color: inkOn(background) });
  return el('td', {}, button);
}

/** The ten most likely tokens of one cell. */
function listOf(cell, was, title) {
  const columns = ['token', was ? 'B' : 'probability', ...(was ? ['A'] : [])];
  const before = new Map((was?.top ?? []).map((one) => [one.id, one.probability]));
  const rows = cell.top.map((one) => [label(one.piece), one.probability, ...(was ? [before.get(one.id) ?? null] : [])]);
  const facts =
    `entropy ${short(cell.entropy)} ` +
    `nats${cell.loss === null ? '' : `, loss of the token that comes next ${short(cell.loss)} nats`}`;
  return el(
    'section',
    { class: 'cell-list' },
    el('h3', {}, title),
    el('p', { class: 'quiet' }, facts),
    table(columns, rows),
  );
}

/** Which cell's list is open: layer and token. */
let opened = null;

export const lensView = {
  name: 'lens',
  title: 'Lens',
  what:
    'The [lens]: what the model would predict after each [layer] (rows), at each [token] (columns). ' +
    'A click on a cell lists its ten most likely tokens.',
  controls: () => [],
  async render(box, current) {
    if (!model().has_head) {
      put(box, el('p', {}, 'This model has no output head: there is nothing to predict after a layer.'));
      return null;
    }
    const n = runs.B.tokens.length;
    const [from, rows] = frozen ? [n - Math.min(n, SHOWN), Math.min(n, SHOWN)] : shownTokens(n, chosen()[0] ?? n - 1);
    const of = (run) => ask(`/api/run/${run.run}/lens?row=${from}&rows=${rows}`);
    const [layers, before] = await Promise.all([of(side()), difference() ? of(runs.A) : null]);
    if (!current()) return null;
    const texts = tokenTexts(runs.B).slice(from, from + rows);
    const last = layers.length - 1;
    const marked = new Set(chosen());
    opened = opened && opened[0] <= last ? opened : [last, Math.min(n - 1, chosen()[0] ?? n - 1)];
    if (opened[1] < from || opened[1] >= from + rows) opened = [opened[0], from + rows - 1];
    const losses = before
      ? layers.flatMap((cells, l) =>
          cells.map((cell, i) => (cell.loss ?? cell.entropy) - (before[l][i].loss ?? before[l][i].entropy)),
        )
      : null;
    const most = losses ? Math.max(largest(losses), 1e-12) : 1;
    const list = el('div', { id: 'lens-list', 'aria-live': 'polite' });
    const open = (l, i) => {
      opened = [l, from + i];
      const title = `${nameOfLayer(l, last)}, after token ${from + i} ${label(texts[i])}`;
      put(list, listOf(layers[l][i], before?.[l][i], title));
      grid.querySelectorAll('button[aria-pressed]').forEach((button) => button.setAttribute('aria-pressed', 'false'));
      grid.querySelector(`tr[data-layer="${l}"] td:nth-of-type(${i + 1}) button`)?.setAttribute('aria-pressed', 'true');
    };
    const line = (l) =>
      el(
        'tr',
        { 'data-layer': l },
        el('th', { scope: 'row' }, nameOfLayer(l, last)),
        layers[l].map((cell, i) => cellOf(cell, before?.[l][i], false, most, () => open(l, i))),
      );
    const heading = texts.map((text, i) =>
      el('th', { scope: 'col', 'aria-current': marked.has(from + i) ? 'true' : null }, label(text)),
    );
    const grid = el(
      'table',
      { class: 'lens' },
      el('thead', {}, el('tr', {}, el('th', { scope: 'col' }, 'after'), heading)),
      el(
        'tbody',
        {},
        layers.map((_, l) => line(last - l)),
      ),
    );
    const move = (step) => go({ queries: String(clamp(from + Math.floor(rows / 2) + step * rows, 0, n - 1)) });
    const next = runs.B.tokens.slice(from + 1, from + rows + 1);
    put(
      box,
      el(
        'p',
        { class: 'quiet' },
        before
          ? 'B − A: blue where the edits lower the loss, orange where they raise it; ≠ where another ' +
              'token comes first. '
          : 'Colour: the probability of the most likely token, dark for 0 and bright for 1. ',
        `Tokens ${from} to ${from + rows - 1} of ${n}.`,
        byteWords(layers.flatMap((cells) => cells.map((cell) => best(cell).piece))),
      ),
      before ? null : colourBar(1),
      n > rows && !frozen
        ? el(
            'div',
            { class: 'row' },
            el('button', { disabled: from === 0, onclick: () => move(-1) }, 'earlier tokens'),
            el('button', { disabled: from + rows >= n, onclick: () => move(1) }, 'later tokens'),
          )
        : null,
      el(
        'div',
        { class: 'scroll', tabindex: 0, role: 'group', 'aria-label': 'predictions after each layer at each token' },
        grid,
      ),
      list,
    );
    open(opened[0], opened[1] - from);
    // In the window of the grid alone: the page does not move.
    const sight = grid.parentElement;
    const cell = grid.querySelector('button[aria-pressed=true]').parentElement;
    sight.scrollLeft = cell.offsetLeft + cell.offsetWidth - sight.clientWidth;
    const columns = [
      'layer',
      'token',
      'token_text',
      'next_text',
      'entropy',
      'loss',
      'place',
      'predicted',
      'probability',
    ];
    const all = layers.flatMap((cells, l) =>
      cells.flatMap((cell, i) =>
        cell.top.map((top, place) => [
          l,
          from + i,
          texts[i],
          next[i]?.piece ?? '',
          cell.entropy,
          cell.loss,
          place + 1,
          top.piece,
          top.probability,
        ]),
      ),
    );
    return { table: () => ({ columns, rows: all }) };
  },
};
