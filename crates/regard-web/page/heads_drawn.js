// @ts-check
// Drawings of all heads: a scatter, and the thumbnails as one picture.
import { short, svg } from './base.js';
import { colour } from './colour.js';
import { difference, model, scaleKind } from './draw.js';
import { go, state } from './state.js';

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
export function dotLabels(dots, [width, height] = [420, 270]) {
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
    word(50, 266, short(Math.min(...xs))),
    word(400, 266, short(Math.max(...xs))),
    word(46, 250, short(Math.min(...ys)), 'end'),
    word(46, 20, short(Math.max(...ys)), 'end'),
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

/** All thumbnails in one drawing, every cell with its number. */
export function gridSvg(layers, columns, most, heads) {
  const pictures = layers.flatMap((values) =>
    Array.from({ length: heads }, (_, h) =>
      values.subarray((h * values.length) / heads, ((h + 1) * values.length) / heads),
    ),
  );
  const [size, gap] = [3, 14];
  const side = columns * size;
  const rows = Math.ceil(pictures.length / heads);
  const out = svg('svg', {
    viewBox: `0 0 ${heads * (side + gap)} ${rows * (side + gap)}`,
    width: heads * (side + gap),
    height: rows * (side + gap),
  });
  pictures.forEach((values, i) => {
    const [x, y] = [(i % heads) * (side + gap), Math.floor(i / heads) * (side + gap)];
    const group = svg('g', {
      transform: `translate(${x} ${y + 11})`,
      'data-head': `${Math.floor(i / heads)}.${i % heads}`,
    });
    group.append(svg('text', { x: 0, y: -2, 'font-size': 9 }, `${Math.floor(i / heads)}.${i % heads}`));
    values.forEach((value, j) => {
      if (value !== 0)
        group.append(
          svg('rect', {
            x: (j % columns) * size,
            y: Math.floor(j / columns) * size,
            width: size,
            height: size,
            fill: colour(value, most, scaleKind(), difference()),
            'data-value': value,
          }),
        );
    });
    out.append(group);
  });
  return out;
}
