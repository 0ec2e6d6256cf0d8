// What the model would say if it stopped behind each layer.
import { el, label, put, short } from './base.js';
import { ask } from './api.js';
import { side, table } from './draw.js';
import { chosen, runs } from './state.js';

export const lensView = {
  name: 'lens',
  title: 'Lens',
  what: 'The last norm and the head on the stream behind each layer, at the chosen token: row 0 is the embedding. The same numbers: regard lens --json',
  controls: () => [],
  async render(box, current) {
    const n = runs.B.tokens.length;
    const row = Math.min(n - 1, chosen()[0] ?? n - 1);
    const layers = await ask(`/api/run/${side().run}/lens?row=${row}`);
    if (!current()) return null;
    const columns = ['behind layer', 'entropy (nats)', 'loss of the next', ...layers[0].top.map((_, i) => `${i + 1}.`)];
    const cell = (top) => `${label(top.piece)} ${short(top.probability)}`;
    const rows = layers.map((layer) => [layer.layer, layer.entropy, layer.loss, ...layer.top.map(cell)]);
    const next = runs.B.tokens[row + 1];
    put(box, el('p', { class: 'quiet' }, `At token ${row} ${label(runs.B.tokens[row].piece)}${next ? `; what comes next is ${label(next.piece)}` : ', the last'}. Each cell: a token and its probability.`), table(columns, rows));
    return { table: () => ({ columns: ['layer', 'entropy', 'loss', 'place', 'token', 'probability'], rows: layers.flatMap((layer) => layer.top.map((top, i) => [layer.layer, layer.entropy, layer.loss, i + 1, top.piece, top.probability])) }) };
  },
};
