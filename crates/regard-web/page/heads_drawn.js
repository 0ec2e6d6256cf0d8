// @ts-check
// Drawings of all heads: a scatter, and the grid of thumbnails.
import { el, put, short, svg } from './base.js';
import { frozen, numbers } from './api.js';
import { colour, image } from './colour.js';
import { difference, largest, model, ofSide, scaleKind, tilePath, unchanged } from './draw.js';
import { NAMES, nameOf } from './labels.js';
import { STATISTICS, go, state } from './state.js';

export const WORDS = {
  entropy: 'entropy (nats)',
  max_weight: 'largest weight',
  own: 'own token',
  previous: 'previous token',
  first: 'first token',
  local: 'within 3',
  distance: 'mean distance',
};

/** Dots that are labelled, at most. */
const LABELLED = 24;

/** Labels of dots `[x, y, words]`: beside, above or below, where they cover no dot, no other label and no edge. */
export function dotLabels(dots, [width, height] = [420, 249]) {
  if (dots.length > LABELLED) return [];
  const taken = dots.map(([x, y]) => [x - 5, y - 5, x + 5, y + 5]);
  const free = (/** @type {any[]} */ [l, t, r, b]) =>
    l >= 46 &&
    r <= width &&
    t >= 0 &&
    b <= height &&
    taken.every((o) => r <= o[0] || l >= o[2] || b <= o[1] || t >= o[3]);
  return dots.flatMap(([x, y, words]) => {
    const w = 6.2 * words.length;
    const ways = [
      [x + 8, y + 4],
      [x - 8 - w, y + 4],
      [x - w / 2, y - 9],
      [x - w / 2, y + 16],
      [x + 6, y - 7],
      [x + 6, y + 15],
      [x - 6 - w, y - 7],
      [x - 6 - w, y + 15],
    ];
    const box = (/** @type {any[]} */ [left, base]) => [left, base - 9, left + w, base + 1];
    const way = ways.find((one) => free(box(one)));
    if (!way) return [];
    taken.push(box(way));
    return [svg('text', { x: way[0], y: way[1], 'font-size': 10 }, words)];
  });
}

/** An end of an axis: two digits. */
const rough = (x) => (Math.abs(x) < 1e-3 ? x.toExponential(0) : String(Number(x.toPrecision(2))));

/** Every head by two statistics. */
export function scatter(heads) {
  const [xs, ys] = [heads.map((h) => h[state.scatterX]), heads.map((h) => h[state.scatterY])];
  const scale = (list) => {
    const [low, high] = [Math.min(...list), Math.max(...list)];
    return (x) => (high > low ? (x - low) / (high - low) : 0.5);
  };
  const [sx, sy] = [scale(xs), scale(ys)];
  const out = svg('svg', {
    viewBox: '0 0 420 300',
    width: 420,
    height: 300,
    role: 'img',
    'aria-label': `every head by ${WORDS[state.scatterX]} and ${WORDS[state.scatterY]}; the table has the numbers`,
  });
  out.append(svg('path', { d: 'M50 10V250H410', fill: 'none', stroke: 'currentColor' }));
  const word = (x, y, text, anchor = 'middle') => svg('text', { x, y, 'font-size': 11, 'text-anchor': anchor }, text);
  out.append(
    word(230, 285, WORDS[state.scatterX]),
    svg(
      'text',
      { transform: 'translate(12 130) rotate(-90)', 'font-size': 11, 'text-anchor': 'middle' },
      WORDS[state.scatterY],
    ),
  );
  out.append(
    word(50, 266, rough(Math.min(...xs))),
    word(400, 266, rough(Math.max(...xs))),
    word(46, 250, rough(Math.min(...ys)), 'end'),
    word(46, 20, rough(Math.max(...ys)), 'end'),
  );
  const places = heads.map((_, i) => [60 + 340 * sx(xs[i]), 242 - 224 * sy(ys[i])]);
  heads.forEach((head, i) => {
    const [x, y] = places[i];
    const here = head.layer === state.layer && head.head === state.head;
    const dot = svg(
      'circle',
      {
        cx: x,
        cy: y,
        r: here ? 7 : 5,
        fill: colour((head.layer + 1) / model().layers, 1, { kind: 'linear' }, false),
        stroke: 'currentColor',
        'stroke-width': here ? 3 : 1,
        'data-x': xs[i],
        'data-y': ys[i],
        onclick: () => go({ layer: head.layer, head: head.head, view: 'head' }),
      },
      svg('title', {}, `L${head.layer}.H${head.head}: ${short(xs[i])}, ${short(ys[i])}`),
    );
    out.append(dot);
  });
  out.append(...dotLabels(places.map(([x, y], i) => [x, y, `${heads[i].layer}.${heads[i].head}`])));
  return out;
}

/** Longer texts are computed layer by layer, as they come into sight. */
export const LONG = 4096;

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
const CELLS = 32;

/** The grid of all heads: layers come as they are ready, in the colours of the largest weight so far. */
export class Grid {
  constructor(n, edited, keys = n) {
    const { layers, heads } = model();
    this.n = n;
    this.keys = keys;
    this.step = Math.ceil(Math.max(n, keys) / CELLS);
    this.columns = Math.ceil(keys / this.step);
    /** Pictures by layer and head, and the layers that have all of them. */
    this.loaded = new Map();
    this.done = new Set();
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

  paint(layer, head) {
    const values = this.loaded.get(layer)[head];
    if (!values) return;
    const canvas = this.buttons[layer * model().heads + head].querySelector('canvas');
    Object.assign(canvas, { width: this.columns, height: values.length / this.columns });
    if (this.keys !== this.n) canvas.style.aspectRatio = `${canvas.width} / ${canvas.height}`;
    canvas.getContext('2d').putImageData(image(values, this.columns, this.most, scaleKind(), difference()), 0, 0);
  }

  /** The largest cell. The last row and column may stand for fewer tokens than the others: they do not count then. */
  largest(values) {
    const whole = this.n % this.step === 0 && this.keys % this.step === 0;
    const edge = (i) => i % this.columns === this.columns - 1 || i >= values.length - this.columns;
    return whole ? largest(values) : largest(values.filter((_, i) => !edge(i)));
  }

  /** Draws one head; all of them in other colours, where its weights are larger. */
  show(layer, head, values) {
    if (!this.loaded.has(layer)) this.loaded.set(layer, []);
    this.loaded.get(layer)[head] = values;
    const most = this.largest(values);
    this.buttons[layer * model().heads + head].toggleAttribute('data-unchanged', unchanged(most));
    if (most <= this.most) {
      this.paint(layer, head);
      return;
    }
    this.most = most;
    for (const [at, heads] of this.loaded) heads.forEach((_, h) => this.paint(at, h));
  }

  /** Whether the first head of a layer is on the screen. */
  inSight(layer) {
    const { top, bottom } = this.buttons[layer * model().heads].getBoundingClientRect();
    return bottom > 0 && top < innerHeight;
  }

  /** Pictures of a layer. Those of a long text come head by head: each is drawn as soon as it is there. */
  async load(layer, of = ofSide) {
    const { heads } = model();
    const look = `pool=${state.pool}&sink=${state.sink}`;
    if (this.n <= LONG || frozen) {
      const all = await of((run) => numbers(`/api/run/${run.run}/thumbnails?layer=${layer}&${look}`));
      const cells = all.length / heads;
      for (let head = 0; head < heads; head++) this.show(layer, head, all.subarray(head * cells, (head + 1) * cells));
    } else {
      for (let head = 0; head < heads; head++) {
        const own = await of((run) => numbers(tilePath(run, layer, head, 0, this.n, 0, this.keys, this.step)));
        this.show(layer, head, own);
      }
    }
    this.done.add(layer);
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
          const next = [...wanted].filter((layer) => !this.done.has(layer)).sort((a, b) => a - b)[0];
          if (next === undefined || !current()) return;
          task.far(this.done.size, wanted.size);
          await this.load(next);
        }
      } finally {
        working = false;
      }
    };
    await work();
    const again = setInterval(() => {
      if (!current() || this.done.size === model().layers) clearInterval(again);
      else work().catch(() => {});
    }, 300);
  }
}
