// @ts-check
// Every head: a thumbnail each, a table, a scatter.
import { counted, el, put, short, svg } from './base.js';
import { image, colour } from './colour.js';
import { ask, frozen, numbers } from './api.js';
import { colourBar, difference, largest, model, ofSide, scaleKind, scaleWords, sinkWords, table } from './draw.js';
import { NAMES, nameHeads, nameOf, namesComing, namesKnown } from './labels.js';
import { cellChoice, choice, colourChoice, sinkChoice } from './controls.js';
import { addPictures, comparison, otherField, otherText } from './compare.js';
import { gridSvg, scatter, WORDS } from './heads_drawn.js';
import { STATISTICS, go, runs, state } from './state.js';
import { headEdits } from './surgery.js';

/** Longer texts are computed layer by layer, as they come into sight. */
const LONG = 4096;

/** One tab stop for all thumbnails: arrows move between them. */
function moveFocus(event, grid, heads) {
  const all = [...grid.querySelectorAll('button')];
  const at = all.indexOf(document.activeElement);
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: heads, ArrowUp: -heads, Home: -at, End: all.length - 1 - at }[
    event.key
  ];
  const next = all[at + step];
  if (at < 0 || !next) return;
  event.preventDefault();
  event.stopPropagation();
  all[at].tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

const statisticsOf = (layer) => ofSide((run) => ask(`/api/run/${run.run}/heads?layer=${layer}`));
const thumbnailsOf = (layer) =>
  ofSide((run) => numbers(`/api/run/${run.run}/thumbnails?layer=${layer}&pool=${state.pool}&sink=${state.sink}`));

/** One head of the grid, empty at first. */
function headButton(layer, head, edit) {
  const name = nameOf(layer, head);
  const here = layer === state.layer && head === state.head;
  return el(
    'button',
    {
      'aria-pressed': here ? 'true' : 'false',
      'data-head': `${layer}.${head}`,
      'data-edit': edit || null,
      tabindex: here ? 0 : -1,
      onclick: () => go({ layer, head, view: 'head' }),
    },
    el('canvas', { width: 1, height: 1, 'aria-hidden': 'true' }),
    el('span', { class: 'at' }, `${layer}.${head}`),
    name ? el('span', { class: 'label' }, name) : null,
  );
}

/** Cells of a thumbnail on a side. */
export const cellsAcross = (n) => Math.ceil(n / Math.ceil(n / 32));

/** The grid of all heads: layers come as they are ready, in the colours of the largest weight so far. */
export class Grid {
  constructor(columns) {
    const { layers, heads } = model();
    const edited = headEdits();
    this.columns = columns;
    this.loaded = new Map();
    this.most = 1e-12;
    this.buttons = Array.from({ length: layers * heads }, (_, i) => {
      const [layer, head] = [Math.floor(i / heads), i % heads];
      return headButton(layer, head, edited.get(`${layer}.${head}`) ?? '');
    });
    this.node = el('div', { class: 'heads', role: 'group', 'aria-label': 'thumbnails of every head' }, this.buttons);
    const widest = layers * heads <= 16 ? 'min(200px, 17vh)' : '110px';
    this.node.style.gridTemplateColumns = `repeat(${heads}, minmax(48px, ${widest}))`;
    this.node.addEventListener('keydown', (event) => moveFocus(event, this.node, heads));
  }

  paint(layer) {
    const values = this.loaded.get(layer);
    const { heads } = model();
    const cells = values.length / heads;
    for (let head = 0; head < heads; head++) {
      const own = values.subarray(head * cells, (head + 1) * cells);
      const canvas = this.buttons[layer * heads + head].querySelector('canvas');
      Object.assign(canvas, { width: this.columns, height: cells / this.columns });
      canvas.getContext('2d').putImageData(image(own, this.columns, this.most, scaleKind(), difference()), 0, 0);
    }
  }

  /** Whether the first head of a layer is on the screen. */
  inSight(layer) {
    const { top, bottom } = this.buttons[layer * model().heads].getBoundingClientRect();
    return bottom > 0 && top < innerHeight;
  }

  async load(layer, asked = thumbnailsOf(layer)) {
    const values = await asked;
    this.loaded.set(layer, values);
    const most = largest(values);
    if (most > this.most) {
      this.most = most;
      [...this.loaded.keys()].forEach((known) => this.paint(known));
    } else this.paint(layer);
  }

  /** Sorted by a statistic, and only the heads of a name. */
  arrange(means) {
    const { heads } = model();
    const wanted = NAMES.find((name) => name.replace(/[^a-z]/g, '') === state.only);
    const score = (mean) => (STATISTICS.includes(state.order) ? -mean[state.order] : 0);
    const order = [...means].sort((a, b) => score(a) - score(b) || a.layer - b.layer || a.head - b.head);
    const shown = order.filter((mean) => !wanted || nameOf(mean.layer, mean.head)?.includes(wanted));
    put(
      this.node,
      shown.map((mean) => this.buttons[mean.layer * heads + mean.head]),
    );
    if (!this.node.querySelector('[tabindex="0"]') && this.node.firstChild) this.node.firstChild.tabIndex = 0;
    return order;
  }

  describe(means) {
    for (const mean of means) {
      const button = this.buttons[mean.layer * model().heads + mean.head];
      const words = STATISTICS.map((name) => `${WORDS[name]} ${short(mean[name])}`).join(', ');
      button.title = words;
    }
  }

  /** The layers that are in sight, one after the other; the others when they come into sight. */
  async loadVisible(current, task) {
    const { heads } = model();
    const wanted = new Set();
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries)
        if (entry.isIntersecting) wanted.add(Number(entry.target.getAttribute('data-head').split('.')[0]));
    });
    this.buttons.filter((_, i) => i % heads === 0).forEach((button) => seen.observe(button));
    await new Promise(requestAnimationFrame);
    await new Promise(requestAnimationFrame);
    let working = false;
    const work = async () => {
      if (working) return;
      working = true;
      try {
        for (;;) {
          const next = [...wanted].filter((layer) => !this.loaded.has(layer)).sort((a, b) => a - b)[0];
          if (next === undefined || !current()) return;
          task.far(this.loaded.size, wanted.size);
          await this.load(next);
        }
      } finally {
        working = false;
      }
    };
    await work();
    const again = setInterval(() => {
      if (!current() || this.loaded.size === model().layers) clearInterval(again);
      else work().catch(() => {});
    }, 300);
  }
}

/** Table and scatter of the statistics of all heads. */
function statisticsShown(grid, means) {
  const names = ['layer', 'head', ...(namesKnown() ? ['labels'] : []), ...STATISTICS];
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
    drawing: el(
      'div',
      {},
      el('div', { class: 'row' }, choice('scatterX', named(), 'every head by'), choice('scatterY', named(), 'and')),
      scatter(means),
      el('p', { class: 'quiet' }, 'Each dot is a head; the lighter, the later its layer.'),
    ),
  };
}

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
  options: (option) => [sinkChoice(option), cellChoice(option), colourChoice(option), frozen ? null : otherField()],
  async render(box, current, task) {
    const { layers, heads } = model();
    const n = runs.B.tokens.length;
    const grid = new Grid(cellsAcross(n));
    const side = difference() ? ', with the edits less without' : '';
    const words = () => [
      el(
        'p',
        { class: 'quiet' },
        `${counted(layers * heads, 'head')} on ${counted(n, 'token')}${side}: ${scaleWords(grid.most)}.${sinkWords()}`,
      ),
      colourBar(grid.most),
      namesKnown() || namesComing() || frozen ? null : nameButton(),
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
    const pictures = () => all.map((at) => grid.loaded.get(at));
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
