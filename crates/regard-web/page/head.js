// @ts-check
// One head, or several: lines between tokens, and the map beside them.
import { el, label, put, short, svg } from './base.js';
import { image } from './colour.js';
import { frozen } from './api.js';
import { colourBar, difference, largest, model, rowsOfHead, scaleKind, scaleWords } from './draw.js';
import { keysOf, sinkWords, table, unchanged } from './draw.js';
import { colourChoice, sinkChoice } from './controls.js';
import { examplesBox } from './examples.js';
import { nameSpan } from './labels.js';
import { grouping, merged } from './words.js';
import { choose, keyTexts, tokenTexts } from './text.js';
import { chosen, go, runs, state } from './state.js';

/** Rows that are drawn at a time, and the height of one. */
const ROWS = 64;
const HEIGHT = 19;
/** Keys of another text that are drawn. */
const KEYS = 200;
/** Tokens that can be put together to words. */
const GROUPED = 512;
/** Colours of heads that are shown together; each has three to one against white and against black. */
const COLOURS = ['#c4610a', '#2d74c4', '#2f8a4c', '#a8489e', '#8a7416', '#5d6bd0', '#b8434e'];

/** The heads that are drawn: the chosen one, and those beside it. */
export function headsShown() {
  const { layers, heads } = model();
  const more = state.beside ? state.beside.split(',').map((at) => at.split('.').map(Number)) : [];
  const inside = more.filter(([l, h]) => l < layers && h < heads && !(l === state.layer && h === state.head));
  return [[state.layer, state.head], ...inside];
}

/** Names, and for each head weights between them; of tokens, or of words. */
async function pattern(run, n) {
  const grouped = state.words === 1 && n <= GROUPED && !run.keys;
  const width = keysOf(run).length;
  const groups = grouped ? grouping(state.text, run.tokens) : run.tokens.map((_, i) => [i]);
  const at = chosen()[0] ?? 0;
  const start = n <= ROWS || grouped ? 0 : Math.max(0, Math.min(n - ROWS, at - ROWS / 2));
  const rows = grouped ? n : Math.min(ROWS, n);
  const all = await Promise.all(headsShown().map(([l, h]) => rowsOfHead(l, h, start, rows, width)));
  const texts = tokenTexts(run);
  const names = groups.map(
    (group) =>
      group
        .map((i) => texts[i])
        .filter((text) => text !== '·')
        .join('') || '·',
  );
  const plain = (weights) =>
    Array.from({ length: rows }, (_, i) => [start + i, weights.subarray(i * width, (i + 1) * width)]);
  return {
    names,
    keyNames: run.keys ? keyTexts(run) : names,
    grouped,
    members: groups.map((group) => group[0]),
    heads: all.map(grouped ? (weights) => merged(groups, weights, n).slice(0, 200) : plain),
  };
}

function lines({ names, keyNames, heads, grouped, members }, only) {
  const rows = heads[0];
  // Tokens of another text are all drawn, as far as there is room.
  const crossed = keyNames !== names;
  const first = grouped || crossed || names.length <= ROWS ? 0 : rows[0][0];
  const last = crossed ? Math.min(keyNames.length, KEYS) - 1 : rows.at(-1)[0];
  const keys = keyNames.slice(first, last + 1);
  const height = (Math.max(keys.length, rows.length) + 1.5) * HEIGHT;
  // As wide as the longest label needs.
  const drawn = crossed ? [...keys, ...rows.map(([i]) => names[i])] : keys;
  const room = Math.min(190, 12 + 7.5 * Math.max(...drawn.map((name) => label(name).length), 4));
  const [left, right, width] = [room + 5, room + 155, 2 * room + 160];
  const title = 'lines from queries on the left to keys on the right; the table below has the numbers';
  const out = svg('svg', {
    viewBox: `0 0 ${width} ${height}`,
    width,
    height,
    role: 'img',
    'aria-label': title,
    class: 'lines',
  });
  const y = (i) => (i - first + 1.2) * HEIGHT;
  const yRow = (i) => y(crossed ? i - rows[0][0] : i);
  const line = (i, j, weight, which) => {
    const stroke = difference() && weight < 0 ? '#2d74c4' : COLOURS[which % COLOURS.length];
    return svg(
      'line',
      {
        x1: left,
        y1: yRow(i) - 4,
        x2: right,
        y2: y(j) - 4,
        stroke,
        'stroke-width': 0.5 + 4 * Math.abs(weight),
        'stroke-opacity': 0.15 + 0.85 * Math.min(1, Math.abs(weight)),
        'data-query': i,
        'data-key': j,
        'data-value': weight,
        'data-which': which,
      },
      svg('title', {}, `${label(names[i])} → ${label(keyNames[j])}: ${short(weight)}`),
    );
  };
  heads.forEach((ofHead, which) => {
    for (const [i, row] of ofHead) {
      if (only.length && !only.includes(i)) continue;
      row.forEach((weight, j) => {
        if (j >= first && j <= last && Math.abs(weight) >= 0.02) out.append(line(i, j, weight, which));
      });
      // What lies above the drawn keys is not lost.
      const above = row.slice(0, first).reduce((sum, x) => sum + x, 0);
      if (Math.abs(above) >= 0.02)
        out.append(
          svg('text', { x: right + 5, y: 12, 'font-size': 10 }, `↑ earlier keys: ${short(above)} of token ${i}`),
        );
    }
  });
  for (const [i] of rows) {
    const strong = only.includes(i);
    out.append(
      svg(
        'text',
        {
          x: left - 5,
          y: yRow(i),
          'font-size': 12,
          'text-anchor': 'end',
          'font-weight': strong ? 700 : 400,
          class: 'choose',
          'data-token': i,
          onclick: (event) => choose(members[i], event.shiftKey),
        },
        label(names[i]),
      ),
    );
  }
  keys.forEach((name, j) =>
    out.append(
      svg('text', { x: right + 5, y: y(first + j), 'font-size': 12, 'data-key-name': first + j }, label(name)),
    ),
  );
  highlight(out);
  return out;
}

/** Hovering a token leaves its lines alone. */
function highlight(drawing) {
  drawing.addEventListener('pointerover', (event) => {
    const { token, keyName } = event.target.dataset;
    if (token === undefined && keyName === undefined) return;
    for (const line of drawing.querySelectorAll('line')) {
      const own = token !== undefined ? line.dataset.query === token : line.dataset.key === keyName;
      line.classList.toggle('faint', !own);
    }
  });
  drawing.addEventListener('pointerout', () =>
    drawing.querySelectorAll('.faint').forEach((line) => line.classList.remove('faint')),
  );
}

/** The same weights as a small map. */
function smallMap(rows) {
  const columns = rows[0][1].length;
  const values = Float32Array.from(rows.flatMap(([, row]) => Array.from(row)));
  const most = Math.max(largest(values), 1e-12);
  if (unchanged(most)) return el('p', { class: 'beside' }, `Nothing to draw: ${scaleWords(most)}.`);
  const canvas = el('canvas', { class: 'small-map', width: columns, height: rows.length, 'aria-hidden': 'true' });
  canvas.getContext('2d').putImageData(image(values, columns, most, scaleKind(), difference()), 0, 0);
  const [l, h] = headsShown()[0];
  return el(
    'div',
    { class: 'beside' },
    canvas,
    colourBar(most),
    el('p', { class: 'quiet' }, `Head ${l}.${h}: queries down, keys across.`),
    frozen && !frozen.views.includes('map')
      ? null
      : el('button', { onclick: () => go({ view: 'map' }) }, 'open the map'),
  );
}

/** A list of heads to draw beside the chosen one. */
function besideField() {
  const set = (event) =>
    go({
      beside: [...event.target.value.matchAll(/(\d{1,4})\D+(\d{1,4})/g)]
        .slice(0, 6)
        .map((at) => `${at[1]}.${at[2]}`)
        .join(','),
    });
  return el(
    'label',
    {},
    'together with heads ',
    el('input', {
      id: 'beside',
      value: state.beside.replaceAll(',', ' '),
      placeholder: '1.0 2.3',
      size: 9,
      onchange: set,
    }),
  );
}

function colourKey() {
  const shown = headsShown();
  if (shown.length === 1) return null;
  return el(
    'p',
    { class: 'row' },
    shown.map(([l, h], which) => {
      const square = el('span', { class: 'square' });
      square.style.background = COLOURS[which % COLOURS.length];
      return el('span', {}, square, ` ${l}.${h}`, nameSpan(l, h));
    }),
  );
}

export const headView = {
  name: 'head',
  ofOneHead: true,
  title: 'Head',
  what:
    'Lines from a [query] (left) to the keys it attends to (right), as wide as their ' +
    '[weight|weights]; weights below 0.02 are not drawn. Hover or click a token; several heads have several colours.',
  controls: (option, check) => [
    frozen ? null : besideField(),
    runs.B?.keys ? null : check('words', 'words instead of tokens'),
  ],
  options: (option) => [sinkChoice(option), colourChoice(option)],
  async render(box, current) {
    const run = runs.B;
    const drawn = await pattern(run, run.tokens.length);
    if (!current()) return null;
    const { names, keyNames, heads, grouped, members } = drawn;
    const rows = heads[0];
    // A word is chosen by any of its tokens.
    const wordOf = (i) => members.findLastIndex((first) => first <= i);
    const only = grouped ? [...new Set(chosen().map(wordOf))] : chosen();
    const drawing = lines(drawn, only);
    const picked = only.length ? rows.filter(([i]) => only.includes(i)) : rows;
    const sum = keyNames.map((name, j) => [
      j,
      name,
      picked.reduce((total, [, row]) => total + row[j], 0) / Math.max(1, picked.length),
    ]);
    const top = sum.filter(([, , x]) => Math.abs(x) > 0).sort((a, b) => Math.abs(b[2]) - Math.abs(a[2]));
    const noun = `${grouped ? 'word' : 'token'}${only.length > 1 ? 's' : ''}`;
    const who = only.length ? `${noun} ${only.map((i) => `${i} ${label(names[i])}`).join(', ')}` : 'all drawn rows';
    const tooLong = state.words && !grouped ? ` Texts of more than ${GROUPED} tokens are shown by tokens.` : '';
    put(
      box,
      el(
        'p',
        { class: 'quiet' },
        `Layer ${state.layer}, head ${state.head}`,
        nameSpan(state.layer, state.head),
        `: ${who}${only.length > 1 ? ' (their mean)' : ''}.${sinkWords()}${tooLong}`,
      ),
      colourKey(),
      el('div', { class: 'side-by-side' }, drawing, smallMap(rows)),
      el(
        'details',
        { open: only.length > 0 },
        el('summary', {}, only.length ? `Where ${who} look${only.length === 1 ? 's' : ''}` : 'The mean row as a table'),
        table(
          ['key', 'token', only.length === 1 ? 'weight' : 'mean weight'],
          top.slice(0, 200).map(([j, key, x]) => [j, label(key), x]),
          { pick: (row) => go({ key: String(row[0]) }) },
        ),
      ),
      model().reads ? null : examplesBox(),
    );
    if (only.length) drawing.querySelector(`[data-token="${only[0]}"]`)?.scrollIntoView({ block: 'nearest' });
    const all = () => rows.flatMap(([i, row]) => Array.from(row, (x, j) => [i, names[i], j, keyNames[j], x]));
    return {
      svg: () => drawing,
      table: () => ({ columns: ['query', 'query_token', 'key', 'key_token', 'weight'], rows: all() }),
    };
  },
};
