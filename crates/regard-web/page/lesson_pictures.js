// @ts-check
// Pictures of the lesson: how a dot product comes about, and how values flow into the output.
import { short, svg } from './base.js';
import { colour } from './colour.js';

/** Height of a row of the weighted sum, as the style sheet has it. */
const ROW = 26;
/** Weights below this have no moving line. */
const SEEN = 0.01;

/**
 * A vector as a row of coloured cells in a drawing.
 * @param {number[]} values
 * @param {string} name
 * @param {number} y
 * @param {{ left: number, width: number, most: number }} place
 */
function cells(values, name, y, { left, width, most }) {
  const step = width / values.length;
  const rects = values.map((x, i) =>
    svg(
      'rect',
      {
        x: left + i * step,
        y,
        width: Math.max(1, step - 1),
        height: 18,
        fill: colour(x, most, { kind: 'linear' }, true),
      },
      svg('title', {}, `${name}, coordinate ${i}: ${short(x)}`),
    ),
  );
  const words = svg('text', { x: left - 8, y: y + 13, 'font-size': 12, 'text-anchor': 'end' }, name);
  return [words, ...rects];
}

/**
 * Query, key, and their products coordinate by coordinate; the sum of the products is the dot product.
 * @param {number[]} q
 * @param {number[]} k
 * @param {[string, string]} names
 * @param {number} sum
 */
export function productPicture(q, k, [query, key], sum) {
  const [left, width] = [150, 560];
  const products = q.map((x, i) => x * k[i]);
  const most = Math.max(...q.concat(k).map(Math.abs), 1e-12);
  const longest = Math.max(...products.map(Math.abs), 1e-12);
  const out = svg('svg', {
    viewBox: '0 0 800 150',
    width: 800,
    height: 150,
    role: 'img',
    class: 'product-picture',
    'aria-label': `query of ${query}, key of ${key}, and their products, which add up to ${short(sum)}`,
  });
  out.append(
    ...cells(q, `query of ${query}`, 6, { left, width, most }),
    ...cells(k, `key of ${key}`, 30, { left, width, most }),
    svg('text', { x: left - 8, y: 103, 'font-size': 12, 'text-anchor': 'end' }, 'products'),
    svg('line', { x1: left, x2: left + width, y1: 99, y2: 99, stroke: 'currentColor', 'stroke-opacity': 0.4 }),
  );
  const step = width / q.length;
  products.forEach((x, i) => {
    const height = (42 * Math.abs(x)) / longest;
    const place = { x: left + i * step, y: x < 0 ? 99 : 99 - height, width: Math.max(1, step - 1), height };
    const title = svg('title', {}, `coordinate ${i}: ${short(q[i])} · ${short(k[i])} = ${short(x)}`);
    out.append(svg('rect', { ...place, fill: x < 0 ? '#2d74c4' : '#c4610a', class: 'grow' }, title));
  });
  out.append(
    svg('text', { x: left + width + 8, y: 90, 'font-size': 12 }, 'sum'),
    svg('text', { x: left + width + 8, y: 108, 'font-size': 14, 'font-weight': 700 }, short(sum)),
  );
  return out;
}

/**
 * Lines from each value to the output, as wide as the weights; they move where motion is not reduced.
 * @param {number[]} weights
 */
export function flowPicture(weights) {
  const [width, height] = [150, Math.max(1, weights.length) * ROW];
  const out = svg('svg', {
    viewBox: `0 0 ${width} ${height}`,
    width,
    height,
    role: 'img',
    class: 'flow',
    'aria-label': 'lines from the values to the output, as wide as the weights in their column',
  });
  weights.forEach((weight, i) => {
    const from = (i + 0.5) * ROW;
    const d = `M0 ${from}C${width * 0.55} ${from} ${width * 0.45} ${height / 2} ${width} ${height / 2}`;
    const line = { d, fill: 'none', 'stroke-width': 0.5 + 19 * weight, 'data-weight-of': i };
    out.append(svg('path', { ...line, class: 'pipe', 'stroke-opacity': 0.15 + 0.55 * Math.sqrt(weight) }));
    if (weight >= SEEN)
      out.append(svg('path', { ...line, class: 'moving', 'stroke-width': Math.max(1.5, 5 * weight) }));
  });
  return out;
}
