// @ts-check
// Names of rows and columns beside a map.
import { label } from './base.js';

/** Tokens at the edges where there is room, else the numbers of some of them. */
export function drawNames(map) {
  const size = 1 / map.zoom;
  const { ink, room } = map;
  const line = 13 * map.ratio;
  const every = size >= 8 * map.ratio ? 1 : 10 ** Math.ceil(Math.log10((4 * line) / size));
  const name = (i, texts) => (every === 1 ? label(texts[i]) : String(i));
  ink.font = `${Math.min(11 * map.ratio, every === 1 ? size : Infinity)}px monospace`;
  ink.fillStyle = getComputedStyle(map.canvas).color;
  const shown = (from, pixels, n) => {
    const [first, last] = [Math.max(0, Math.ceil(from / every) * every), Math.min(n - 1, from + pixels * map.zoom - 1)];
    return Array.from({ length: Math.max(0, Math.floor((last - first) / every) + 1) }, (_, i) => first + i * every);
  };
  const middle = every === 1 ? 0.7 : 0.5;
  ink.textAlign = 'right';
  ['keys →', 'queries ↓'].forEach((words, i) => ink.fillText(words, room - 6, room + (i - 1.5) * line));
  for (const i of shown(map.y, map.height, map.n))
    ink.fillText(
      name(i, map.texts),
      room - 4,
      room + (i + middle - map.y) * size + (every === 1 ? 0 : line / 3),
      room - 8,
    );
  ink.textAlign = 'left';
  for (const j of shown(map.x, map.width, map.m)) {
    ink.save();
    ink.translate(room + (j + middle - map.x) * size, room - 4);
    // Numbers are short enough to stand upright.
    if (every === 1) ink.rotate(-Math.PI / 2);
    ink.fillText(name(j, map.keyTexts), 0, 0, room - 8);
    ink.restore();
  }
}
