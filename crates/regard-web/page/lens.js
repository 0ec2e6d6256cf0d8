// Logit lens: predictions after each layer.
import { el, label, put, short, signed } from './base.js';
import { ask } from './api.js';
import { difference, side, table } from './draw.js';
import { chosen, runs, state } from './state.js';

/** A and B side by side. */
function sideBySide(box, row, [a, b], current) {
  if (!current()) return null;
  const best = (layer) => `${label(layer.top[0].piece)} ${short(layer.top[0].probability)}`;
  const columns = ['after layer', 'most likely in A', 'most likely in B', 'entropy, B − A', 'loss of the next, B − A'];
  const less = (x, y) => (x === null || y === null ? null : x - y);
  const rows = b.map((layer, i) => [layer.layer, best(a[i]), best(layer), less(layer.entropy, a[i].entropy), less(layer.loss, a[i].loss)]);
  const shown = rows.map((cells) => cells.map((x, i) => (i > 2 && x !== null ? signed(x) : x)));
  put(box, el('p', { class: 'quiet' }, `At token ${row} ${label(runs.B.tokens[row].piece)}: what the edits change after each layer.`), table(columns, shown));
  return { table: () => ({ columns, rows }) };
}

export const lensView = {
  name: 'lens',
  title: 'Lens',
  what: 'The predictions that the residual stream after each layer gives, through the last norm and the output head, at the chosen token; row 0 is the embedding. A click on a token of the text chooses it.',
  controls: () => [],
  async render(box, current) {
    const n = runs.B.tokens.length;
    const row = Math.min(n - 1, chosen()[0] ?? n - 1);
    const of = (run) => ask(`/api/run/${run.run}/lens?row=${row}`);
    if (difference()) return sideBySide(box, row, await Promise.all([of(runs.A), of(runs.B)]), current);
    const layers = await of(side());
    if (!current()) return null;
    const columns = ['after layer', 'entropy (nats)', 'loss of the next', ...layers[0].top.map((_, i) => `${i + 1}.`)];
    const cell = (top) => `${label(top.piece)} ${short(top.probability)}`;
    const rows = layers.map((layer) => [layer.layer, layer.entropy, layer.loss, ...layer.top.map(cell)]);
    const next = runs.B.tokens[row + 1];
    put(box, el('p', { class: 'quiet' }, `At token ${row} ${label(runs.B.tokens[row].piece)}${next ? `; what comes next is ${label(next.piece)}` : ', the last'}. Each cell: a token and its probability.`), table(columns, rows));
    return { table: () => ({ columns: ['layer', 'entropy', 'loss', 'place', 'token', 'probability'], rows: layers.flatMap((layer) => layer.top.map((top, i) => [layer.layer, layer.entropy, layer.loss, i + 1, top.piece, top.probability])) }) };
  },
};
