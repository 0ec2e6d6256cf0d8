// @ts-check
// Every head: a thumbnail each, a table, a scatter.
import { counted, el, put } from './base.js';
import { ask, frozen } from './api.js';
import { colourBar, difference, keysOf, model, ofSide, scaleWords, sinkWords, table } from './draw.js';
import { NAMES, nameHeads, nameOf, namesComing, namesKnown } from './labels.js';
import { cellChoice, choice, colourChoice, sinkChoice } from './controls.js';
import { addPictures, comparison, otherField, otherText } from './compare.js';
import { gridSvg } from './export.js';
import { Grid, LONG, WORDS, scatter } from './heads_drawn.js';
import { STATISTICS, go, runs, state } from './state.js';
import { headEdits } from './surgery.js';

const statisticsOf = (layer) => ofSide((run) => ask(`/api/run/${run.run}/heads?layer=${layer}`));

/** Table and scatter of the statistics of all heads. */
function statisticsShown(grid, means) {
  const names = ['layer', 'head', ...(namesKnown() ? ['labels'] : []), ...measured()];
  const rows = grid
    .arrange(means)
    .map((mean) => names.map((name) => (name === 'labels' ? nameOf(mean.layer, mean.head) : mean[name])));
  const shown = table(names, rows, {
    sorted: state.order,
    sort: (name) => go({ order: name }),
    pick: (row) => go({ layer: row[0], head: row[1], view: 'head' }),
    current: (row) => row[0] === state.layer && row[1] === state.head,
    caption: 'Means over the rows of each head; a click on a column sorts',
    words: WORDS,
  });
  return {
    names,
    rows,
    shown,
    drawing: runs.B.keys
      ? null
      : el(
          'div',
          {},
          el('div', { class: 'row' }, choice('scatterX', named(), 'every head by'), choice('scatterY', named(), 'and')),
          scatter(means),
          el('p', { class: 'quiet' }, 'Each dot is a head; the lighter, the later its layer.'),
        ),
  };
}

/** Statistics that mean something: tokens of two texts are neither the same nor apart. */
const measured = () => (runs.B.keys ? ['entropy', 'max_weight', 'first'] : STATISTICS);

const named = () => STATISTICS.map((name) => [name, WORDS[name]]);

function nameButton() {
  const click = async (event) => {
    const button = event.target;
    button.disabled = true;
    try {
      await nameHeads((done, all) => put(button, `text ${done} of ${all}`));
    } catch (error) {
      put(button, error.message);
    }
  };
  const title = 'previous token, repeats, first token ...: as regard classify says, on 16 stories';
  return el('button', { id: 'label', title, onclick: click }, 'Name the heads: what each does on 16 stories');
}

const secondWords = ({ n }) =>
  el('p', { class: 'quiet' }, `Left: this text; right: the second text (${counted(n, 'token')}), in the same colours.`);

const byName = () => [['', 'all'], ...NAMES.map((name) => [name.replace(/[^a-z]/g, ''), name])];

export const headsView = {
  name: 'heads',
  title: 'Heads',
  what:
    'Each picture is one [head]; 1.2 is [layer] 1, head 2. Its rows are tokens that look ([query|queries]), its ' +
    'columns those looked at ([key|keys]), its colours the [weight|weights]. A click opens it.',
  controls: (option) => [
    option(
      'order',
      ['layer', ...STATISTICS].map((name) => [name, WORDS[name] ?? name]),
      'order',
    ),
    namesKnown() ? option('only', byName(), 'show') : null,
  ],
  options: (option) => [
    sinkChoice(option),
    cellChoice(option),
    colourChoice(option),
    frozen || model().reads ? null : otherField(),
  ],
  async render(box, current, task) {
    const { layers, heads } = model();
    const n = runs.B.tokens.length;
    const keys = keysOf(runs.B).length;
    const grid = new Grid(n, headEdits(), keys);
    const side = difference() ? ', with the edits less without' : '';
    const over = runs.B.keys ? ` that look at ${counted(keys, 'token')} of the source` : '';
    const on = `${counted(n, 'token')}${over}${side}`;
    const words = () => [
      el(
        'p',
        { class: 'quiet' },
        `${counted(layers * heads, 'head')} on ${on}: ${scaleWords(grid.most)}.${sinkWords()}`,
      ),
      colourBar(grid.most),
      namesKnown() || namesComing() || frozen || model().reads ? null : nameButton(),
    ];
    const sortable = n <= LONG || state.order !== 'layer';
    const all = Array.from({ length: layers }, (_, layer) => layer);
    if (!sortable) {
      const more = el(
        'details',
        { ontoggle: () => showMeans(more).catch(() => {}) },
        el('summary', {}, 'Statistics of every head: computes all of them'),
      );
      put(box, el('div', { id: 'heads-words' }), grid.node, more);
      await grid.loadVisible(current, task);
      if (current()) put(box.querySelector('#heads-words'), words());
      return {
        table: () => ({
          columns: ['layer', 'head'],
          rows: all.flatMap((l) => Array.from({ length: heads }, (_, h) => [l, h])),
        }),
      };
    }
    let done = 0;
    const layer = async (at) => {
      const [means] = await Promise.all([statisticsOf(at), grid.load(at)]);
      task.far(++done, layers);
      return means;
    };
    const means = (await Promise.all(all.map(layer))).flat();
    if (!current()) return null;
    grid.describe(means);
    const second = state.other && !frozen && !difference() ? await otherText() : null;
    if (!current()) return null;
    if (second) addPictures(grid.buttons, second, grid.most);
    const { names, rows, shown, drawing } = statisticsShown(grid, means);
    const compared = second ? comparison(means, second) : null;
    const together = el('div', { class: 'all-heads' }, grid.node, compared?.nodes ?? drawing, shown);
    put(box, words(), second ? secondWords(second) : null, together);
    const pictures = () => all.flatMap((at) => grid.loaded.get(at));
    const saved = compared ?? { columns: names, rows };
    const { columns, rows: cells } = saved;
    return { table: () => ({ columns, rows: cells }), svg: () => gridSvg(pictures(), grid.columns, grid.most, heads) };
  },
};

/** Statistics of a long text, when they are asked for. */
async function showMeans(box) {
  if (!box.open || box.dataset.begun) return;
  box.dataset.begun = 'true';
  const rows = [];
  for (let layer = 0; layer < model().layers; layer++) rows.push(...(await statisticsOf(layer)));
  const names = ['layer', 'head', ...STATISTICS];
  box.append(
    table(
      names,
      rows.map((mean) => names.map((name) => mean[name])),
    ),
  );
}
