// @ts-check
// What the scale is for: the laboratory's draws and exact expectations, against d_k and against the scale.
import { el, put, short, svg } from './base.js';
import { ask } from './api.js';
import { table } from './draw.js';
import { go, state } from './state.js';

export const WIDTHS = Array.from({ length: 11 }, (_, i) => 2 ** i);
const DRAWS = 200;
const TOKENS = 8;
const KINDS = [
  ['spread of the scores', 'score_std'],
  ['entropy (nats; ln 8 is 2.079)', 'mean_entropy'],
  ['largest weight', 'mean_max_weight'],
  ['gradient of the median row of Q', 'row_dq_median'],
  ['norm of the gradient on Q', 'grad_norm_q'],
];

/** The colour of each side, in the order of the sweep's rows. */
const SIDES = [
  ['#c4610a', 'without'],
  ['#2d74c4', 'with'],
];

function square(colour) {
  const node = el('span', { class: 'square' });
  node.style.background = colour;
  return node;
}

/** Answers by path: each is fetched once. */
const known = new Map();

function once(path) {
  if (!known.has(path)) {
    const asked = ask(path, true);
    asked.catch(() => known.delete(path));
    known.set(path, asked);
  }
  return known.get(path);
}

/** Rows of the sweep at a d_k: without the scale, with it. */
export const sweep = (d) =>
  once(`/api/sweep?d_k=${d}&seq=${TOKENS}&seeds=${DRAWS}&seed=42`).then(([found]) => found.rows);
const expectation = (d, scale) => once(`/api/expectation?d_k=${d}&seq=${TOKENS}&scale=${scale}`);

/**
 * One number against d_k, without and with the scale: means with intervals, and exact expectations where they are
 * known.
 */
function curveOf(title, name, all, exact, d) {
  const [w, h] = [230, 150];
  const out = svg('svg', {
    viewBox: `0 0 ${w} ${h}`,
    width: w,
    height: h,
    role: 'img',
    'aria-label': `${title} against d_k; the table has the numbers`,
  });
  const most = Math.max(...all.flatMap((rows) => rows.map((row) => row[`${name}_high`])), 1e-12);
  const x = (width) => 48 + (Math.log2(width) / 10) * (w - 58);
  const y = (value) => h - 26 - (Math.max(0, value) / most) * (h - 50);
  const word = (at, up, text, size = 9, anchor = 'end') =>
    svg('text', { x: at, y: up, 'font-size': size, 'text-anchor': anchor }, text);
  out.append(
    word(4, 12, title, 11, 'start'),
    svg('path', { d: `M48 18V${h - 26}H${w - 8}`, fill: 'none', stroke: 'currentColor', 'stroke-opacity': 0.5 }),
    word(44, 26, short(most)),
    word(44, h - 26, '0'),
  );
  [1, 32, 1024].forEach((width) => out.append(word(x(width), h - 12, width, 9, 'middle')));
  out.append(
    svg('line', { x1: x(d), x2: x(d), y1: 18, y2: h - 26, stroke: 'currentColor', 'stroke-dasharray': '3 3' }),
  );
  SIDES.forEach(([stroke, which], i) => {
    const points = all.map((rows, j) => [x(WIDTHS[j]), y(rows[i][name]), rows[i]]);
    points.forEach(([px, , row]) =>
      out.append(svg('line', { x1: px, x2: px, y1: y(row[`${name}_low`]), y2: y(row[`${name}_high`]), stroke })),
    );
    out.append(
      svg('polyline', {
        points: points.map(([px, py]) => `${px},${py}`).join(' '),
        fill: 'none',
        stroke,
        'stroke-width': 2,
        'data-name': `${name} ${which}`,
      }),
    );
    exact.forEach((both, j) => {
      if (both[i][name] !== undefined)
        out.append(
          svg(
            'circle',
            { cx: x(WIDTHS[j]), cy: y(both[i][name]), r: 2.5, fill: 'none', stroke: 'currentColor' },
            svg('title', {}, `exact: ${short(both[i][name])}`),
          ),
        );
    });
  });
  return out;
}

let latest = 0;

/** Curves and table at this d_k. */
async function showSweep(box, d) {
  const mine = ++latest;
  const all = await Promise.all(WIDTHS.map(sweep));
  const exact = await Promise.all(
    WIDTHS.map((width) => Promise.all([expectation(width, 1), expectation(width, 1 / Math.sqrt(width))])),
  );
  if (mine !== latest) return;
  const at = Math.round(Math.log2(d));
  const measured = (row, name) => `${short(row[name])} (${short(row[`${name}_low`])} to ${short(row[`${name}_high`])})`;
  const lines = KINDS.flatMap(([title, name]) => {
    const line = [[title, ...all[at].map((row) => measured(row, name))]];
    return exact[at][0][name] === undefined
      ? line
      : [...line, [`${title}, exact`, ...exact[at].map((one) => short(one[name]))]];
  });
  put(
    box,
    el('p', { class: 'quiet' }, ...SIDES.map(([stroke, which]) => [square(stroke), ` ${which} the scale `]).flat()),
    el(
      'div',
      { class: 'row curves' },
      KINDS.map(([title, name]) => curveOf(title, name, all, exact, d)),
    ),
    table([`d_k = ${d}`, 'without the scale', 'with 1/√d_k'], lines),
    el(
      'p',
      { class: 'quiet' },
      `Lines: means over ${DRAWS} draws of ${TOKENS} queries and keys, with 95 % intervals. Circles: ` +
        `exact expectations. The same numbers: `,
      el('code', { id: 'sweep-command' }, `regard lab sweep --d-k ${d} --seeds ${DRAWS} --numbers regard --loss unit`),
    ),
  );
}

/** Any scale: exact expectations of a row. */
async function showScale(box, d, power) {
  const scale = d ** -power;
  const one = await expectation(d, scale);
  put(
    box,
    `Scale ${short(scale)} = d_k^−${short(power)}: the scores spread by ${short(one.score_std)}, the ` +
      `entropy of a row is ${short(one.mean_entropy)} nats, its largest weight ` +
      `${short(one.mean_max_weight)} (exact expectations).`,
  );
}

/** Sliders of d_k and of the scale. */
export function scaleBox() {
  const [swept, said] = [
    el('div', { class: 'swept' }, el('p', { class: 'quiet' }, 'The laboratory draws …')),
    el('p', { id: 'scale-said', role: 'status' }),
  ];
  const failed = (error) => {
    if (error.name !== 'AbortError') put(swept, error.message);
  };
  let power = 0.5;
  const show = () => {
    showSweep(swept, state.width).catch(failed);
    showScale(said, state.width, power).catch(failed);
  };
  const width = el('input', {
    type: 'range',
    id: 'lesson-width',
    min: 0,
    max: 10,
    step: 1,
    value: Math.log2(Math.max(1, state.width)),
    'aria-valuetext': `d_k = ${state.width}`,
  });
  width.addEventListener('input', () => {
    go({ width: 2 ** Number(width.value) }, true);
    width.setAttribute('aria-valuetext', `d_k = ${state.width}`);
    show();
  });
  const scale = el('input', {
    type: 'range',
    id: 'lesson-scale',
    min: 0,
    max: 1,
    step: 0.05,
    value: power,
    'aria-valuetext': `d_k to the power of −${power}`,
  });
  scale.addEventListener('input', () => {
    power = Number(scale.value);
    scale.setAttribute('aria-valuetext', `d_k to the power of −${power}`);
    showScale(said, state.width, power).catch(failed);
  });
  show();
  return el(
    'div',
    {},
    el('label', { class: 'row' }, 'd_k, from 1 to 1024 ', width),
    swept,
    el('label', { class: 'row' }, 'scale, from 1 (none) by 1/√d_k (the middle) to 1/d_k ', scale),
    said,
  );
}
