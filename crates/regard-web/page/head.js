// One head: lines between tokens.
import { el, label, put, short, svg } from './base.js';
import { difference, sinkWords, table, wholeRows } from './draw.js';
import { choose, tokenTexts } from './text.js';
import { chosen, go, runs, state } from './state.js';

/** Rows that are drawn at a time, and the height of one. */
const ROWS = 64;
const HEIGHT = 19;
/** Tokens that can be put together to words. */
const GROUPED = 512;

/** Words of the text as lists of tokens: what the browser takes for words, in any script. */
function words(run) {
  const text = new TextEncoder().encode(state.t);
  const ends = [];
  const segments = new Intl.Segmenter(undefined, { granularity: 'word' });
  let bytes = 0;
  for (const part of segments.segment(new TextDecoder().decode(text))) {
    bytes += new TextEncoder().encode(part.segment).length;
    ends.push([bytes, part.isWordLike]);
  }
  const groups = [];
  let word = 0;
  let last = -1;
  run.tokens.forEach((token, i) => {
    if (token.added) {
      groups.push([i]);
      last = -1;
      return;
    }
    // A token belongs to the word that its last letter is in.
    while (word < ends.length - 1 && ends[word][0] < token.to) word += 1;
    if (last === word && ends[word]?.[1]) groups.at(-1).push(i);
    else groups.push([i]);
    last = word;
  });
  return groups;
}

/** What is drawn: names, and weights between them; tokens, or words of tokens. */
async function pattern(run, n) {
  const grouped = state.w === 1 && n <= GROUPED;
  const groups = grouped ? words(run) : run.tokens.map((_, i) => [i]);
  const at = chosen()[0] ?? 0;
  const start = n <= ROWS || grouped ? 0 : Math.max(0, Math.min(n - ROWS, at - ROWS / 2));
  const rows = grouped ? n : Math.min(ROWS, n);
  const weights = await wholeRows(start, rows, n);
  const texts = tokenTexts(run);
  const names = groups.map((group) => group.map((i) => texts[i]).filter((text) => text !== '·').join('') || '·');
  const members = groups.map((group) => group[0]);
  if (!grouped) return { names, grouped, members, rows: Array.from({ length: rows }, (_, i) => [start + i, weights.subarray(i * n, (i + 1) * n)]) };
  const merged = groups.map((queries, g) => {
    const row = groups.map((keys) => queries.reduce((sum, i) => sum + keys.reduce((inner, j) => inner + weights[i * n + j], 0), 0) / queries.length);
    return [g, row];
  });
  return { names, grouped, members, rows: merged.slice(0, 200) };
}

function lines({ names, rows, grouped, members }, only) {
  const first = grouped || names.length <= ROWS ? 0 : rows[0][0];
  const last = rows.at(-1)[0];
  const keys = names.slice(first, last + 1);
  const height = (Math.max(keys.length, rows.length) + 1.5) * HEIGHT;
  const out = svg('svg', { viewBox: `0 0 560 ${height}`, width: 560, height, role: 'img', 'aria-label': 'lines from queries on the left to keys on the right; the table below has the numbers' });
  const y = (i) => (i - first + 1.2) * HEIGHT;
  const drawn = [];
  for (const [i, row] of rows) {
    if (only.length && !only.includes(i)) continue;
    row.forEach((weight, j) => {
      if (j < first || j > last || Math.abs(weight) < 0.02) return;
      const stroke = difference() && weight < 0 ? '#2d74c4' : '#c4610a';
      drawn.push(svg('line', { x1: 205, y1: y(i) - 4, x2: 355, y2: y(j) - 4, stroke, 'stroke-width': 0.5 + 4 * Math.abs(weight), 'stroke-opacity': 0.15 + 0.85 * Math.min(1, Math.abs(weight)), 'data-query': i, 'data-key': j, 'data-value': weight }, svg('title', {}, `${label(names[i])} → ${label(names[j])}: ${short(weight)}`)));
    });
    // What lies above the drawn keys is not lost.
    const above = row.slice(0, first).reduce((sum, x) => sum + x, 0);
    if (Math.abs(above) >= 0.02) drawn.push(svg('text', { x: 360, y: 12, 'font-size': 10 }, `↑ earlier keys: ${short(above)} of token ${i}`));
  }
  out.append(...drawn);
  for (const [i] of rows) {
    const strong = only.includes(i);
    out.append(svg('text', { x: 200, y: y(i), 'font-size': 12, 'text-anchor': 'end', 'font-weight': strong ? 700 : 400, class: 'choose', 'data-token': i, onclick: (event) => choose(members[i], event.shiftKey) }, label(names[i])));
  }
  keys.forEach((name, j) => out.append(svg('text', { x: 360, y: y(first + j), 'font-size': 12 }, label(name))));
  return out;
}

export const headView = {
  name: 'head',
  ofOneHead: true,
  title: 'Head',
  what: 'Lines from a query (left) to the keys it attends to (right), as wide as their weights; weights below 0.02 are not drawn. A click on a token chooses it.',
  controls: (option, check) => [option('sink', ['show', 'hide', 'renormalise'], 'first token'), check('w', 'words instead of tokens')],
  async render(box, current) {
    const run = runs.B;
    const drawn = await pattern(run, run.tokens.length);
    if (!current()) return null;
    const { names, rows, grouped, members } = drawn;
    // A word is chosen by any of its tokens.
    const wordOf = (i) => members.findLastIndex((first) => first <= i);
    const only = grouped ? [...new Set(chosen().map(wordOf))] : chosen();
    const drawing = lines(drawn, only);
    const picked = only.length ? rows.filter(([i]) => only.includes(i)) : rows;
    const sum = names.map((name, j) => [j, name, picked.reduce((total, [, row]) => total + row[j], 0) / Math.max(1, picked.length)]);
    const top = sum.filter(([, , x]) => Math.abs(x) > 0).sort((a, b) => Math.abs(b[2]) - Math.abs(a[2]));
    const who = only.length ? `${grouped ? 'word' : 'token'}${only.length > 1 ? 's' : ''} ${only.map((i) => `${i} ${label(names[i])}`).join(', ')}` : 'all drawn rows';
    put(box,
      el('p', { class: 'quiet' }, `Layer ${state.l}, head ${state.h}: ${who}${only.length > 1 ? ' (their mean)' : ''}.${sinkWords()} A click on a ${grouped ? 'word' : 'token'} chooses it, shift chooses several.${state.w && !grouped ? ` Texts of more than ${GROUPED} tokens are shown by tokens.` : ''}`),
      drawing,
      el('details', { open: only.length > 0 }, el('summary', {}, `Where ${who} look${only.length === 1 ? 's' : ''}`), table(['key', 'token', 'mean weight'], top.slice(0, 200).map(([j, name, x]) => [j, label(name), x]), { pick: (row) => go({ k: String(row[0]) }) })));
    const all = () => rows.flatMap(([i, row]) => Array.from(row, (x, j) => [i, names[i], j, names[j], x]));
    return { svg: () => drawing, table: () => ({ columns: ['query', 'query_token', 'key', 'key_token', 'weight'], rows: all() }) };
  },
};
