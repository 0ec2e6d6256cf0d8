// One head as a map of any length: tiles of cells, zoomed and panned.
import { clamp, el, label, put, short } from './base.js';
import { image } from './colour.js';
import { frozen } from './api.js';
import { cellsSvg, difference, largest, scaleWords, sinkWords, tile } from './draw.js';
import { go, runs, state } from './state.js';

/** Cells of a side of a tile. */
const CELLS = 256;
/** Drawn tiles that are kept. */
const DRAWN = 200;

/** Colours reach a power of two, so that they change rarely. */
const rounded = (most) => (most > 0 ? 2 ** Math.ceil(Math.log2(most)) : 1);

class MapOf {
  constructor(canvas, n, say) {
    Object.assign(this, { canvas, n, say, tiles: new Map(), most: new Map(), frame: 0, cursor: null, times: [] });
    this.ink = canvas.getContext('2d');
    const [x, y, z] = (state.at || '').split(',').map(Number);
    this.fit();
    // Where one looks: the token in the upper left corner, and tokens per pixel.
    if (z > 0 && [x, y, z].every(Number.isFinite)) {
      this.zoom = clamp(z, 1 / (48 * this.ratio), (2 * n) / Math.min(this.canvas.width, this.canvas.height));
      const within = (from, size) => clamp(from, -0.5 * size * this.zoom, n - 0.5 * size * this.zoom);
      Object.assign(this, { x: within(x, this.canvas.width), y: within(y, this.canvas.height) });
    }
  }

  fit() {
    const box = this.canvas.getBoundingClientRect();
    const ratio = devicePixelRatio || 1;
    [this.canvas.width, this.canvas.height] = [Math.round(box.width * ratio), Math.round(box.height * ratio)];
    this.ratio = ratio;
    if (!this.zoom) Object.assign(this, { x: 0, y: 0, zoom: this.n / Math.min(this.canvas.width, this.canvas.height) });
  }

  get step() {
    if (frozen) return frozen.step;
    return 2 ** Math.max(0, Math.floor(Math.log2(this.zoom)));
  }

  /** The tile at a place of the grid of a step, if it is there; asked for if not. */
  tile(step, i, j) {
    const name = `${step},${i},${j}`;
    const known = this.tiles.get(name);
    if (known) return known;
    const span = (frozen ? Math.ceil(this.n / step) : CELLS) * step;
    const [row, key] = [i * span, j * span];
    const made = { canvas: null, values: null, rows: Math.min(span, this.n - row), keys: Math.min(span, this.n - key), row, key, step };
    this.tiles.set(name, made);
    if (this.tiles.size > DRAWN) {
      for (const [old, { step: of }] of this.tiles) if (of !== step && this.tiles.size > DRAWN / 2) this.tiles.delete(old);
    }
    tile(row, made.rows, key, made.keys, step).then((values) => {
      made.values = values;
      made.columns = Math.ceil(made.keys / step);
      const most = rounded(largest(values));
      if (most > (this.most.get(step) ?? 0)) this.most.set(step, most);
      this.wake();
    }, (error) => {
      this.tiles.delete(name);
      if (error.status !== 0) this.say(error.message);
    });
    return made;
  }

  /** Its picture in the colours of now. */
  picture(made) {
    const most = this.most.get(made.step);
    const how = `${most} ${state.c}`;
    if (made.how !== how) {
      made.canvas ??= new OffscreenCanvas(made.columns, made.values.length / made.columns);
      made.canvas.getContext('2d').putImageData(image(made.values, made.columns, most, state.c, difference()), 0, 0);
      made.how = how;
    }
    return made.canvas;
  }

  wake() {
    this.frame ||= requestAnimationFrame(() => { this.frame = 0; this.draw(); });
  }

  paint(made) {
    if (!made.values) return;
    const at = (token, origin) => (token - origin) / this.zoom;
    const [w, h] = [Math.ceil(made.keys / made.step) * made.step, Math.ceil(made.rows / made.step) * made.step];
    this.ink.drawImage(this.picture(made), at(made.key, this.x), at(made.row, this.y), w / this.zoom, h / this.zoom);
  }

  draw() {
    const begun = performance.now();
    const { ink, canvas, n, zoom, step } = this;
    ink.imageSmoothingEnabled = false;
    ink.clearRect(0, 0, canvas.width, canvas.height);
    const coarsest = frozen ? step : 2 ** Math.max(0, Math.ceil(Math.log2(n / CELLS)));
    // The whole, coarsely, behind what is not there yet.
    if (coarsest > step) this.paint(this.tile(coarsest, 0, 0));
    const span = (frozen ? Math.ceil(n / step) : CELLS) * step;
    const last = Math.ceil(n / span) - 1;
    const range = (from, size) => [clamp(Math.floor(from / span), 0, last), clamp(Math.floor((from + size * zoom) / span), 0, last)];
    const [[top, bottom], [left, right]] = [range(this.y, canvas.height), range(this.x, canvas.width)];
    for (let i = top; i <= bottom; i++) for (let j = left; j <= right; j++) this.paint(this.tile(step, i, j));
    if (this.cursor) {
      const [i, j] = this.cursor;
      ink.strokeStyle = '#d23c00';
      ink.lineWidth = 2;
      ink.strokeRect((j - this.x) / zoom, (i - this.y) / zoom, Math.max(4, 1 / zoom), Math.max(4, 1 / zoom));
    }
    this.names();
    this.times.push(performance.now() - begun);
  }

  /** Tokens at the edges, where there is room. */
  names() {
    const size = 1 / this.zoom;
    if (size < 13 * this.ratio) return;
    const { ink } = this;
    ink.font = `${11 * this.ratio}px monospace`;
    const name = (i) => label(runs.B.tokens[i].piece);
    const room = 70 * this.ratio;
    ink.fillStyle = getComputedStyle(document.body).backgroundColor === 'rgba(0, 0, 0, 0)' ? getComputedStyle(document.documentElement).backgroundColor : getComputedStyle(document.body).backgroundColor;
    ink.globalAlpha = 0.85;
    ink.fillRect(0, 0, room, this.canvas.height);
    ink.fillRect(0, 0, this.canvas.width, room);
    ink.globalAlpha = 1;
    ink.fillStyle = getComputedStyle(this.canvas).color;
    for (let i = Math.max(0, Math.floor(this.y)); i < Math.min(this.n, this.y + this.canvas.height * this.zoom); i++) {
      const y = (i + 0.7 - this.y) * size;
      if (y > room) ink.fillText(name(i), 3, y, room - 6);
    }
    for (let j = Math.max(0, Math.floor(this.x)); j < Math.min(this.n, this.x + this.canvas.width * this.zoom); j++) {
      const x = (j + 0.7 - this.x) * size;
      if (x <= room) continue;
      ink.save();
      ink.translate(x, room - 4);
      ink.rotate(-Math.PI / 2);
      ink.fillText(name(j), 0, 0, room - 8);
      ink.restore();
    }
  }

  /** What is under a place of the canvas: tokens and the cell's number. */
  under(px, py) {
    const [j, i] = [Math.floor(this.x + px * this.ratio * this.zoom), Math.floor(this.y + py * this.ratio * this.zoom)];
    return i >= 0 && j >= 0 && i < this.n && j < this.n ? [i, j] : null;
  }

  value(i, j) {
    const { step } = this;
    const span = (frozen ? Math.ceil(this.n / step) : CELLS) * step;
    const made = this.tiles.get(`${step},${Math.floor(i / span)},${Math.floor(j / span)}`);
    if (!made?.values) return null;
    return made.values[Math.floor((i - made.row) / step) * made.columns + Math.floor((j - made.key) / step)];
  }

  words(i, j) {
    const value = this.value(i, j);
    const tokens = runs.B.tokens;
    const cell = this.step > 1 ? ` (a cell of ${this.step} x ${this.step}, ${state.pool})` : '';
    return `query ${i} ${label(tokens[i].piece)} → key ${j} ${label(tokens[j].piece)}: ${value === null ? '…' : short(value)}${cell}`;
  }

  move(dx, dy) {
    this.x += dx * this.zoom;
    this.y += dy * this.zoom;
    this.settle();
  }

  zoomAt(px, py, factor) {
    const [x, y] = [this.x + px * this.zoom, this.y + py * this.zoom];
    this.zoom = clamp(this.zoom * factor, 1 / (48 * this.ratio), (2 * this.n) / Math.min(this.canvas.width, this.canvas.height));
    [this.x, this.y] = [x - px * this.zoom, y - py * this.zoom];
    this.settle();
  }

  settle() {
    const edge = (size) => size * this.zoom * 0.5;
    this.x = clamp(this.x, -edge(this.canvas.width), this.n - edge(this.canvas.width));
    this.y = clamp(this.y, -edge(this.canvas.height), this.n - edge(this.canvas.height));
    this.wake();
    clearTimeout(this.kept);
    this.kept = setTimeout(() => go({ at: [this.x, this.y, this.zoom].map((x) => Number(x.toPrecision(8))).join(',') }, true), 300);
  }
}

let here = null;
/** The map that is shown, for keys and tests. */
export const mapShown = () => here;

export const mapView = {
  name: 'map',
  title: 'Map',
  what: 'The weights of one head: rows are queries, columns are keys. The wheel zooms, dragging moves, a click chooses the query; arrows move a cell, + and - zoom. Zoomed in, each cell is one weight.',
  controls: (option) => [option('sink', ['show', 'hide', 'renormalise'], 'first token'), option('pool', ['mean', 'max'], 'cells'), option('c', ['linear', 'root', 'log'], 'colour')],
  keepsPlace: true,
  async render(box) {
    const n = runs.B.tokens.length;
    const canvas = el('canvas', { class: 'map', tabindex: 0, role: 'img', 'aria-label': `map of the weights of layer ${state.l}, head ${state.h}, ${n} tokens: arrows move a cell, whose number is said below; saved as CSV it is a table` });
    const said = el('p', { role: 'status', class: 'quiet' }, '');
    const words = el('p', { class: 'quiet' }, `Layer ${state.l}, head ${state.h}, ${n} tokens.${sinkWords()}`);
    put(box, words, canvas, said);
    const map = new MapOf(canvas, n, (text) => put(said, text));
    here = map;
    // The first picture is there when this is done.
    const coarse = frozen ? frozen.step : 2 ** Math.max(0, Math.ceil(Math.log2(n / CELLS)));
    const whole = await tile(0, n, 0, n, coarse);
    map.most.set(coarse, rounded(largest(whole)));
    put(words, `Layer ${state.l}, head ${state.h}, ${n} tokens; ${scaleWords(map.most.get(coarse))} in cells of ${coarse}; finer cells have their own.${sinkWords()}`);
    map.draw();
    let drag = null;
    canvas.addEventListener('pointerdown', (event) => { drag = [event.clientX, event.clientY, false]; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener('pointermove', (event) => {
      if (drag) {
        const [dx, dy] = [drag[0] - event.clientX, drag[1] - event.clientY];
        if (drag[2] || Math.hypot(dx, dy) > 3) {
          map.move(dx * map.ratio, dy * map.ratio);
          drag = [event.clientX, event.clientY, true];
        }
        return;
      }
      const cell = map.under(event.offsetX, event.offsetY);
      put(said, cell ? map.words(...cell) : '');
    });
    canvas.addEventListener('pointerup', (event) => {
      const cell = drag && !drag[2] ? map.under(event.offsetX, event.offsetY) : null;
      drag = null;
      if (cell) {
        map.cursor = cell;
        map.wake();
        go({ q: String(cell[0]), k: String(cell[1]) });
      }
    });
    canvas.addEventListener('wheel', (event) => {
      event.preventDefault();
      map.zoomAt(event.offsetX * map.ratio, event.offsetY * map.ratio, 1.2 ** (event.deltaY / 100));
    }, { passive: false });
    canvas.addEventListener('keydown', (event) => {
      const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
      if (event.key === '+' || event.key === '=' || event.key === '-') map.zoomAt(canvas.width / 2, canvas.height / 2, event.key === '-' ? 1.5 : 1 / 1.5);
      else if (event.key === 'Enter' && map.cursor) go({ q: String(map.cursor[0]), k: String(map.cursor[1]) });
      else if (step) {
        const [i, j] = map.cursor ?? [Math.max(0, Math.floor(map.y)), Math.max(0, Math.floor(map.x))];
        map.cursor = [clamp(i + step[0] * map.step, 0, n - 1), clamp(j + step[1] * map.step, 0, n - 1)];
        put(said, map.words(...map.cursor));
        map.wake();
      } else return;
      event.preventDefault();
      event.stopPropagation();
    });
    new ResizeObserver(() => { map.fit(); map.wake(); }).observe(canvas);
    // Saved is what is seen, in cells of now.
    const seen = () => {
      const made = [...map.tiles.values()].filter((t) => t.values && t.step === map.step);
      const rows = made.flatMap((t) => Array.from(t.values, (x, i) => [t.row + Math.floor(i / t.columns) * t.step, t.key + (i % t.columns) * t.step, x]));
      return { columns: ['query', 'key', 'weight'], rows };
    };
    const drawn = () => {
      const names = n <= CELLS ? runs.B.tokens.map((token) => label(token.piece)) : null;
      return cellsSvg(whole, Math.ceil(n / coarse), map.most.get(coarse), { rowNames: names, columnNames: names, title: `layer ${state.l}, head ${state.h}` });
    };
    return { table: seen, svg: drawn };
  },
};
