// @ts-check
// One query and one key, coordinate by coordinate.
import { clamp, el, label, put, short, signed, svg } from './base.js';
import { ask } from './api.js';
import { difference, model, side, table } from './draw.js';
import { chosen, go, runs, state } from './state.js';
import { tokenTexts } from './text.js';

/** Pixels of the drawing, at most and at least, and of its names and numbers. */
const [MOST, LEAST, NAMES_WIDTH, NUMBERS_WIDTH] = [640, 340, 100, 62];

function bars(values, name, y, x0, width) {
  const most = Math.max(...values.map(Math.abs), 1e-12);
  const step = width / values.length;
  const group = svg('g', { transform: `translate(${x0} ${y})` });
  group.append(
    svg('text', { x: -6, y: 4, 'font-size': 11, 'text-anchor': 'end' }, name),
    svg('line', { x1: 0, x2: width, y1: 0, y2: 0, stroke: 'currentColor', 'stroke-opacity': 0.4 }),
  );
  values.forEach((value, i) => {
    const height = (22 * Math.abs(value)) / most;
    group.append(
      svg(
        'rect',
        {
          x: i * step,
          y: value < 0 ? 0 : -height,
          width: Math.max(1, step - 1),
          height,
          fill: value < 0 ? '#2d74c4' : '#c4610a',
          'data-value': value,
        },
        svg('title', {}, `${name}, coordinate ${i}: ${short(value)}`),
      ),
    );
  });
  group.append(svg('text', { x: width + 4, y: 4, 'font-size': 10 }, `±${short(most)}`));
  return group;
}

const NAMES = {
  'q before': 'q, no position',
  'k before': 'k, no position',
  sum: 'running sum',
};

export const neuronView = {
  name: 'neuron',
  ofOneHead: true,
  title: 'Neuron',
  what:
    'One [query] and one [key], coordinate by coordinate: their products, and the running sum, which ends at the ' +
    'dot product q · k. The [scale] and the [softmax] make the [weight] of it.',
  controls: () => [],
  async render(box, current) {
    const n = runs.B.tokens.length;
    const texts = tokenTexts(runs.B);
    const query = Math.min(n - 1, chosen()[0] ?? n - 1);
    const key = Math.min(n - 1, state.key === '' ? Math.max(0, query - 1) : Number(state.key));
    const of = (run) =>
      ask(`/api/run/${run.run}/neuron?layer=${state.layer}&head=${state.head}&query=${query}&key=${key}`);
    const [data, before] = await Promise.all([of(side()), difference() ? of(runs.A) : null]);
    if (!current()) return null;
    const named = (i) => `${i} ${label(texts[i])}`;
    const pick = (word, value, then) =>
      el(
        'label',
        {},
        `${word} `,
        el('input', {
          type: 'number',
          min: 0,
          max: n - 1,
          value,
          onchange: (event) => then(String(Math.min(n - 1, Math.max(0, Number(event.target.value) || 0)))),
        }),
        ` ${label(texts[value])}`,
      );
    const at = data.keys[key];
    const kinds = [
      ['q before', data.q_before],
      ['k before', data.k_before],
      ['q', data.q],
      ['k', data.k],
      ['q × k', data.products],
      ['sum', data.sums],
    ];
    const wide = clamp(box.clientWidth, LEAST, MOST);
    const drawing = svg('svg', {
      viewBox: `0 0 ${wide} 340`,
      width: wide,
      height: 340,
      role: 'img',
      'aria-label': 'bars of every coordinate; the table below has the numbers',
    });
    // Without rotary positions the first two are the same as the next.
    const drawn = model().rotary ? kinds : kinds.slice(2);
    drawn.forEach(([name, values], i) =>
      drawing.append(bars(values, NAMES[name] ?? name, 34 + i * 54, NAMES_WIDTH, wide - NAMES_WIDTH - NUMBERS_WIDTH)),
    );
    const rows = data.products.map((_, i) => [i, ...kinds.map(([, values]) => values[i])]);
    const columns = ['coordinate', ...kinds.map(([name]) => name)];
    const row = data.keys
      .map((k, j) => [j, label(texts[j]), k.dot, k.scaled, k.score, k.weight])
      .filter((r) => r[4] !== null)
      .sort((a, b) => b[5] - a[5]);
    const was = before?.keys[key];
    const soft = `into the softmax ${short(at.score)}; weight ${short(at.weight)}`;
    const less = (name) => (was[name] === null || at[name] === null ? '–' : signed(at[name] - was[name]));
    put(
      box,
      was
        ? el(
            'p',
            {},
            `B − A: q · k ${less('dot')}; times the scale ${less('scaled')}; into the softmax ` +
              `${less('score')}; weight ${less('weight')}. Bars and tables are of B.`,
          )
        : null,
      el(
        'div',
        { class: 'row' },
        pick('query', query, (queries) => go({ queries })),
        pick('key', key, (at) => go({ key: at })),
      ),
      el(
        'p',
        {},
        `q · k = ${short(at.dot)}; times the scale ${short(at.scaled)}; ` +
          `${at.score === null ? 'the key is hidden by the mask' : soft}.`,
      ),
      el(
        'div',
        { class: 'side-by-side' },
        drawing,
        el(
          'details',
          { open: true, class: 'beside' },
          el('summary', {}, `Every key of query ${named(query)}`),
          table(['key', 'token', 'q · k', 'scaled', 'score', 'weight'], row.slice(0, 300), {
            pick: (r) => go({ key: String(r[0]) }),
            current: (r) => r[0] === key,
          }),
        ),
      ),
      el('details', {}, el('summary', {}, 'Every coordinate as a table'), table(columns, rows)),
    );
    return { svg: () => drawing, table: () => ({ columns, rows }) };
  },
};
