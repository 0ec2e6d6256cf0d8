// @ts-check
// What the page reports: work with a button that ends it, a line of status, and a banner for what is wrong.
import { byId, put } from './base.js';

/** Work that is done earlier shows no sign. */
const SHOWN_AFTER = 100;

const tasks = new Set();
let timer = null;

function show() {
  const now = performance.now();
  const shown = [...tasks].filter((task) => now - task.begun >= SHOWN_AFTER).at(-1);
  byId('busy').hidden = !shown;
  for (const id of ['tokens', 'next', 'view']) byId(id).setAttribute('aria-busy', shown ? 'true' : 'false');
  if (shown) {
    const seconds = (now - shown.begun) / 1000;
    const far = shown.all ? `, ${shown.done} of ${shown.all}` : '';
    put(byId('busy-words'), `${shown.words}${far}${seconds >= 1 ? `, ${Math.floor(seconds)} s` : ''}`);
    const bar = byId('busy-bar');
    if (shown.all) Object.assign(bar, { max: shown.all, value: shown.done });
    else bar.removeAttribute('value');
    byId('cancel').hidden = !shown.cancel;
    byId('cancel').onclick = shown.cancel ?? null;
  }
  if (!tasks.size && timer) {
    clearInterval(timer);
    timer = null;
  }
}

/** Begin a task; `cancel` ends it. Returns how far it is, and its end. */
export function begin(words, cancel = null) {
  const task = { words, cancel, begun: performance.now(), done: 0, all: 0 };
  tasks.add(task);
  timer ??= setInterval(show, 40);
  return {
    far(done, all) {
      Object.assign(task, { done, all });
    },
    end() {
      tasks.delete(task);
      show();
    },
  };
}

export const say = (words) => put(byId('status'), words);

/** What is wrong, and what to do about it; nothing with `null`. */
export function banner(words, ...more) {
  const box = byId('banner');
  box.hidden = !words;
  put(box, words ?? '', ...more);
}
