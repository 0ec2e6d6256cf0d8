// @ts-check
// The map of one head: tiles of cells, their colours, labels and places.
import { clamp, label, short } from './base.js';
import { image } from './colour.js';
import { frozen } from './api.js';
import { difference, keysOf, largest, scaleKind, tile } from './draw.js';
import { drawNames } from './map_names.js';
import { keyTexts, tokenTexts } from './text.js';
import { go, runs, state } from './state.js';

/** Cells of a side of a tile. */
export const CELLS = 256;
/** Drawn tiles that are kept. */
const DRAWN = 200;

/** The next power of two: colours change rarely while the view moves. */
export const rounded = (most) => (most > 0 ? 2 ** Math.ceil(Math.log2(most)) : 1);

export class MapOf {
  constructor(canvas, say, describe) {
    this.canvas = canvas;
    this.n = runs.B.tokens.length;
    this.m = keysOf(runs.B).length;
    this.say = say;
    this.describe = describe;
    this.tiles = new Map();
    this.texts = tokenTexts(runs.B);
    this.keyTexts = keyTexts(runs.B);
    this.frame = 0;
    this.times = [];
    /** @type {number[] | null} */
    this.cursor = null;
    this.whole = true;
    this.showRow = () => {};
    this.ink = canvas.getContext('2d');
    const [x, y, z] = (state.place || '').split(',').map(Number);
    this.fit();
    // Where one looks: the token in the upper left corner, and tokens per pixel.
    if (z > 0 && [x, y, z].every(Number.isFinite)) {
      this.zoom = clamp(z, 1 / (48 * this.ratio), (2 * this.longest) / this.side);
      const within = (from, size, n) => clamp(from, -0.5 * size * this.zoom, n - 0.5 * size * this.zoom);
      Object.assign(this, { whole: false, x: within(x, this.width, this.m), y: within(y, this.height, this.n) });
    }
  }

  /** Rows or columns, which are not as many of cross-attention. */
  get longest() {
    return Math.max(this.n, this.m);
  }

  /** Pixels of the strips for labels, left of the cells and above them. */
  get room() {
    return 70 * this.ratio;
  }

  /** Pixels of the cells. */
  get width() {
    return Math.max(1, this.canvas.width - this.room);
  }

  get height() {
    return Math.max(1, this.canvas.height - this.room);
  }

  get side() {
    return Math.min(this.width, this.height);
  }

  fit() {
    const box = this.canvas.getBoundingClientRect();
    const ratio = devicePixelRatio || 1;
    [this.canvas.width, this.canvas.height] = [Math.round(box.width * ratio), Math.round(box.height * ratio)];
    this.ratio = ratio;
    // All of it, until one zooms or moves.
    if (this.whole) Object.assign(this, { x: 0, y: 0, zoom: this.longest / this.side });
  }

  get step() {
    if (frozen) return frozen.step;
    return 2 ** Math.max(0, Math.floor(Math.log2(this.zoom)));
  }

  /** Tokens on a side of a tile. */
  span(step) {
    return (frozen ? Math.ceil(this.n / step) : CELLS) * step;
  }

  /** The tile at a place of the grid of a step; requested if it is not loaded. */
  tile(step, i, j) {
    const name = `${step},${i},${j}`;
    const known = this.tiles.get(name);
    if (known) {
      // The least recently drawn tiles come first.
      this.tiles.delete(name);
      this.tiles.set(name, known);
      return known;
    }
    const span = this.span(step);
    const [row, key] = [i * span, j * span];
    const made = {
      canvas: null,
      values: null,
      rows: Math.min(span, this.n - row),
      keys: Math.min(span, this.m - key),
      row,
      key,
      step,
    };
    this.tiles.set(name, made);
    if (this.tiles.size > DRAWN) this.tiles.delete(this.tiles.keys().next().value);
    tile(row, made.rows, key, made.keys, step).then(
      (values) => {
        made.values = values;
        made.columns = Math.ceil(made.keys / step);
        made.most = largest(values);
        this.wake();
      },
      (error) => {
        this.tiles.delete(name);
        if (error.status !== 0) this.say(error.message);
      },
    );
    return made;
  }

  /** Its picture, coloured up to `most`. */
  picture(made, most) {
    const how = `${most} ${scaleKind().kind}`;
    if (made.how !== how) {
      made.canvas ??= new OffscreenCanvas(made.columns, made.values.length / made.columns);
      made.canvas
        .getContext('2d')
        .putImageData(image(made.values, made.columns, most, scaleKind(), difference()), 0, 0);
      made.how = how;
    }
    return made.canvas;
  }

  wake() {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  paint(made, most) {
    if (!made.values) return;
    const at = (token, origin) => this.room + (token - origin) / this.zoom;
    const [w, h] = [Math.ceil(made.keys / made.step) * made.step, Math.ceil(made.rows / made.step) * made.step];
    this.ink.drawImage(
      this.picture(made, most),
      at(made.key, this.x),
      at(made.row, this.y),
      w / this.zoom,
      h / this.zoom,
    );
  }

  draw() {
    const begun = performance.now();
    const { ink, canvas, zoom, step } = this;
    ink.imageSmoothingEnabled = false;
    ink.clearRect(0, 0, canvas.width, canvas.height);
    const coarsest = frozen ? step : 2 ** Math.max(0, Math.ceil(Math.log2(this.longest / CELLS)));
    ink.save();
    ink.beginPath();
    ink.rect(this.room, this.room, this.width, this.height);
    ink.clip();
    // The whole, coarsely, behind tiles that are not loaded yet.
    if (coarsest > step) {
      const whole = this.tile(coarsest, 0, 0);
      this.paint(whole, rounded(whole.most));
    }
    const span = this.span(step);
    const range = (from, size, n) =>
      [from, from + size * zoom].map((at) => clamp(Math.floor(at / span), 0, Math.ceil(n / span) - 1));
    const [[top, bottom], [left, right]] = [range(this.y, this.height, this.n), range(this.x, this.width, this.m)];
    const visible = [];
    for (let i = top; i <= bottom; i++) for (let j = left; j <= right; j++) visible.push(this.tile(step, i, j));
    // Colours reach the largest visible weight.
    const most = visible.reduce((most, made) => Math.max(most, this.largestVisible(made)), 0);
    this.top = rounded(most);
    for (const made of visible) this.paint(made, this.top);
    if (this.cursor) {
      const [i, j] = this.cursor;
      ink.strokeStyle = '#d23c00';
      ink.lineWidth = 2;
      ink.strokeRect(
        this.room + (j - this.x) / zoom,
        this.room + (i - this.y) / zoom,
        Math.max(4, 1 / zoom),
        Math.max(4, 1 / zoom),
      );
    }
    ink.restore();
    drawNames(this);
    this.describe(most === 0 && visible.every((made) => made.values) ? 0 : this.top, step);
    if (this.times.push(performance.now() - begun) > 2000) this.times.splice(0, 1000);
  }

  /** The largest weight of a tile's cells that are on the screen; all of them while it moves across its edge. */
  largestVisible(made) {
    if (!made.values) return 0;
    const { step, row, key, columns } = made;
    const rows = made.values.length / columns;
    const cells = (from, size, origin, count) => [
      clamp(Math.floor((from - origin) / step), 0, count),
      clamp(Math.ceil((from + size * this.zoom - origin) / step), 0, count),
    ];
    const [[top, bottom], [left, right]] = [
      cells(this.y, this.height, row, rows),
      cells(this.x, this.width, key, columns),
    ];
    if (bottom - top === rows && right - left === columns) return made.most;
    let most = 0;
    for (let i = top; i < bottom; i++)
      for (let j = left; j < right; j++) most = Math.max(most, Math.abs(made.values[i * columns + j]));
    return most;
  }

  /** What is under a place of the canvas: tokens and the cell's number. */
  under(px, py) {
    const at = (pixels, origin) => Math.floor(origin + (pixels * this.ratio - this.room) * this.zoom);
    if (px * this.ratio < this.room || py * this.ratio < this.room) return null;
    const [j, i] = [at(px, this.x), at(py, this.y)];
    return i >= 0 && j >= 0 && i < this.n && j < this.m ? [i, j] : null;
  }

  value(i, j) {
    const { step } = this;
    const span = this.span(step);
    const made = this.tiles.get(`${step},${Math.floor(i / span)},${Math.floor(j / span)}`);
    if (!made?.values) return null;
    return made.values[Math.floor((i - made.row) / step) * made.columns + Math.floor((j - made.key) / step)];
  }

  words(i, j) {
    const value = this.value(i, j);
    const cell = this.step > 1 ? ` (a cell of ${this.step} x ${this.step}, ${state.pool})` : '';
    return (
      `query ${i} ${label(this.texts[i])} → key ${j} ${label(this.keyTexts[j])}: ` +
      `${value === null ? '…' : short(value)}${cell}`
    );
  }

  move(dx, dy) {
    this.x += dx * this.zoom;
    this.y += dy * this.zoom;
    this.settle();
  }

  zoomAt(px, py, factor) {
    const [dx, dy] = [Math.max(0, px - this.room), Math.max(0, py - this.room)];
    const [x, y] = [this.x + dx * this.zoom, this.y + dy * this.zoom];
    this.zoom = clamp(this.zoom * factor, 1 / (48 * this.ratio), (2 * this.longest) / this.side);
    [this.x, this.y] = [x - dx * this.zoom, y - dy * this.zoom];
    this.settle();
  }

  settle() {
    this.whole = false;
    const edge = (size) => size * this.zoom * 0.5;
    this.x = clamp(this.x, -edge(this.width), this.m - edge(this.width));
    this.y = clamp(this.y, -edge(this.height), this.n - edge(this.height));
    this.wake();
    clearTimeout(this.kept);
    this.kept = setTimeout(
      () => go({ place: [this.x, this.y, this.zoom].map((x) => Number(x.toPrecision(8))).join(',') }, true),
      300,
    );
  }
}
