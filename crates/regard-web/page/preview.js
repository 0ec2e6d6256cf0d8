// @ts-check
// While a long text is run: how far the run is, and the heads of the layers that are done.
import { byId, counted, el, put } from './base.js';
import { ask, endViewRequests, frozen } from './api.js';
import { colourFor, difference, model } from './draw.js';
import { Grid } from './heads_drawn.js';
import { inTab } from './tab.js';
import { state } from './state.js';
import { headEdits } from './surgery.js';

/** Milliseconds between two questions how far the run is. */
const EVERY = 250;

/**
 * The hash of a text, as the server names it.
 * @param {string} text
 */
async function hashOf(text) {
  const bytes = new TextEncoder().encode(text);
  const all = new Uint8Array(8 + bytes.length);
  new DataView(all.buffer).setBigUint64(0, BigInt(bytes.length), true);
  all.set(bytes, 8);
  const hash = new Uint8Array(await crypto.subtle.digest('SHA-256', all));
  return Array.from(hash.slice(0, 8), (byte) => byte.toString(16).padStart(2, '0')).join('');
}

/** The grid of a run under way, with the pictures of the layers that are done. */
class Preview {
  /** @param {{ run: string, tokens: number }} far */
  constructor(far) {
    this.run = far.run;
    this.drawn = 0;
    this.done = 0;
    this.drawing = false;
    this.words = el('p', { class: 'quiet', role: 'status' });
    colourFor(far.tokens);
    this.grid = new Grid(far.tokens, headEdits());
    const box = byId('view');
    box.dataset.preview = far.run;
    put(box, this.words, this.grid.node);
  }

  /** @param {{ done: number, all: number, tokens: number }} far */
  async draw(far) {
    this.done = far.done;
    put(this.words, `${counted(far.tokens, 'token')}: ${far.done} of ${counted(far.all, 'layer')} done.`);
    if (this.drawing) return;
    this.drawing = true;
    try {
      while (this.drawn < this.done) {
        if (this.grid.inSight(this.drawn)) await this.grid.load(this.drawn, (fetch) => fetch({ run: this.run }));
        this.drawn += 1;
      }
    } finally {
      this.drawing = false;
    }
  }
}

/**
 * Follow the run that is under way, until the function that is returned is called; with false, its pictures are not
 * wanted any more.
 * @param {{ far: (done: number, all: number) => void }} task
 */
export function followRun(task) {
  if (frozen || inTab || !globalThis.crypto?.subtle) return () => {};
  const { text, model: number } = state;
  const hash = hashOf(text);
  let [preview, busy, over] = [/** @type {Preview | null} */ (null), false, false];
  const look = async () => {
    if (busy || over) return;
    busy = true;
    try {
      const far = await ask('/api/running', true);
      if (over || !far || far.model !== number || far.text !== (await hash)) return;
      task.far(far.done, far.all);
      if (state.view !== 'heads' || difference() || !model() || far.done === 0) return;
      if (preview?.run !== far.run) preview = new Preview(far);
      // The number of layers is counted on while pictures are computed; the run may end before them.
      preview.draw(far).catch(() => {});
    } catch {
      /* the run ended, or was cancelled */
    } finally {
      busy = false;
    }
  };
  const timer = setInterval(look, EVERY);
  return (/** @type {boolean} */ wanted) => {
    over = true;
    clearInterval(timer);
    delete byId('view').dataset.preview;
    colourFor(null);
    if (preview && !wanted) endViewRequests();
  };
}
