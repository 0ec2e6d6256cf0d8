// @ts-check
// The page without a server: requests are answered by Web Workers of this tab (`cargo xtask site`).
import { byId, el } from './base.js';

/** A site says so in its index. */
export const inTab = document.querySelector('meta[name="regard-tab"]') !== null;

/** Bytes of dropped files in all: addresses end at 4 GiB, and runs need some. */
const MOST_BYTES = 2e9;
/** What the tab cannot do. */
export const TAB_LIMITS =
  'This page computes in your browser, on one thread; nothing leaves this computer. It does not train, ' +
  'and it reads model files of 2 GB in all at most: `regard serve` on your computer has neither limit, ' +
  'and is several times as fast.';

/** Surgery, labels and generation have a worker of their own: typing goes on beside them. */
const OPERATIONS = new Set(['/api/labels', '/api/surgery', '/api/generate']);

/** Models that were openedModels, for workers that start later. */
const openedModels = [];
let lastRequest = 0;

class Engine {
  constructor() {
    this.waiting = new Map();
    this.known = 0;
    this.worker = null;
  }

  start() {
    this.worker = new Worker('worker.js');
    this.known = 0;
    this.worker.onmessage = ({ data }) => this.receive(data);
    this.worker.onerror = (event) => this.end(event.message || 'the worker did not start');
  }

  receive(data) {
    const waiting = this.waiting.get(data.id);
    if (data.event) {
      waiting?.event(data.event);
      return;
    }
    this.waiting.delete(data.id);
    waiting?.done(data);
    if (data.broken) this.end('the computation ended: ask again');
  }

  /** Ends the worker, and with it everything that waits. */
  end(reason) {
    this.worker?.terminate();
    this.worker = null;
    const bytes = new TextEncoder().encode(JSON.stringify({ error: reason }));
    for (const { done } of this.waiting.values()) done({ status: 500, kind: 0, bytes });
    this.waiting.clear();
  }

  post(message, event) {
    if (!this.worker) this.start();
    // A worker that started later, or again, reads the models first.
    while (this.known < openedModels.length) {
      this.known += 1;
      this.enqueue(openedModels[this.known - 1]);
    }
    return this.enqueue(message, event);
  }

  enqueue(message, event = () => {}) {
    lastRequest += 1;
    const id = lastRequest;
    return new Promise((done) => {
      this.waiting.set(id, { done, event });
      this.worker.postMessage({ ...message, id });
    });
  }
}

const viewEngine = new Engine();
const operationEngine = new Engine();

const abortError = () => new DOMException('aborted', 'AbortError');

/** What `fetch` would give. */
export async function answeredHere(target, /** @type {RequestInit} */ { method = 'GET', body, signal } = {}) {
  if (signal?.aborted) throw abortError();
  const path = target.split('?')[0];
  if (!OPERATIONS.has(path)) {
    const made = viewEngine.post({ method, target, body });
    const ended = new Promise((_, fail) => signal?.addEventListener('abort', () => fail(abortError())));
    const { status, bytes } = await Promise.race([made, ended]);
    return new Response(bytes, { status });
  }
  // A module cannot be interrupted: an operation is aborted by ending its worker.
  if (operationEngine.waiting.size > 0) operationEngine.end('superseded by a newer request');
  let controller;
  let open = true;
  const stream = new ReadableStream({
    start(given) {
      controller = given;
    },
  });
  const encoder = new TextEncoder();
  const emit = (value) => controller.enqueue(encoder.encode(`data: ${JSON.stringify(value)}\n\n`));
  const made = operationEngine.post({ method, target, body }, emit);
  signal?.addEventListener('abort', () => {
    if (!open) return;
    open = false;
    controller.error(abortError());
    operationEngine.end('aborted');
  });
  made.then(({ bytes }) => {
    if (!open) return;
    open = false;
    emit(JSON.parse(new TextDecoder().decode(bytes)));
    controller.close();
  });
  return new Response(stream, { status: 200 });
}

// ---- models that are dropped into the window ----

async function walkEntry(entry, path, found) {
  if (entry.isFile) {
    found.push({ path: `${path}${entry.name}`, file: await new Promise((done, fail) => entry.file(done, fail)) });
    return;
  }
  const reader = entry.createReader();
  for (;;) {
    const some = await new Promise((done, fail) => reader.readEntries(done, fail));
    if (some.length === 0) return;
    for (const one of some) await walkEntry(one, `${path}${entry.name}/`, found);
  }
}

async function openModel(files, say, done) {
  const bytes = files.reduce((sum, { file }) => sum + file.size, 0);
  if (files.length === 0) {
    say('There are no files in what was dropped: drop a model file, or a folder with one.');
    return;
  }
  if (bytes > MOST_BYTES) {
    say(
      `These files have ${(bytes / 1e9).toPrecision(3)} GB; a tab can hold 2 GB: use a smaller or ` +
        `quantised model, or \`regard serve\`.`,
    );
    return;
  }
  const names = files.map(({ path }) => path.split('/').pop());
  if (names.includes('model.json') && !names.includes('config.json')) {
    say('A tab does not read folders of `regard train`: open it with `regard serve` and the name of the folder.');
    return;
  }
  const what = files.length === 1 ? files[0].path : `${files.length} files`;
  say(`Reading ${what}, ${(bytes / 1e6).toPrecision(3)} MB …`);
  // Files of one drop are a folder; a name of its own for each drop.
  const folder = files[0].path.includes('/') ? '' : `dropped-${openedModels.length + 1}/`;
  const named = files.map(({ path, file }) => ({ path: folder + path, file }));
  const weights = named.filter(
    ({ path }) => /\.(gguf|safetensors|bin|pt|pth)$/.test(path) && !path.endsWith('tokenizer.bin'),
  );
  const one = weights.length === 1 ? weights[0] : named.length === 1 ? named[0] : null;
  const path = one?.path ?? named[0].path.split('/')[0];
  const message = { files: named, open: path };
  const { status, bytes: said } = await viewEngine.post(message);
  const made = JSON.parse(new TextDecoder().decode(said));
  if (status !== 200) {
    // The folder's name is ours: the visitor has not seen it.
    say(folder ? made.error.replaceAll(folder, '').replaceAll(folder.slice(0, -1), 'what was dropped') : made.error);
    return;
  }
  openedModels.push(message);
  viewEngine.known = openedModels.length;
  say(null);
  await done(made.number);
}

/** The controls of the tab: what it cannot do, and a place for model files. */
export function listenToDrops(say, done) {
  byId('starting')?.remove();
  const picker = el('input', { type: 'file', id: 'open-model', multiple: true, 'aria-label': 'open a model file' });
  const pick = (list) =>
    openModel(
      [...list].map((file) => ({ path: file.webkitRelativePath || file.name, file })),
      say,
      done,
    );
  picker.addEventListener('change', () => pick(picker.files));
  // A text that is dragged goes where it is dropped.
  const hasFiles = (event) => event.dataTransfer.types.includes('Files');
  addEventListener('dragover', (event) => {
    if (hasFiles(event)) event.preventDefault();
  });
  addEventListener('drop', async (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
    const found = [];
    try {
      for (const entry of entries) await walkEntry(entry, '', found);
    } catch (error) {
      say(`The files cannot be read: ${error.message}`);
      return;
    }
    await openModel(found, say, done);
  });
  const about = el(
    'p',
    { id: 'tab', class: 'quiet' },
    TAB_LIMITS,
    ' ',
    el(
      'label',
      {},
      'Open a model, or drop its files here (GGUF; a folder with safetensors; llama2.c with tokenizer.bin): ',
      picker,
    ),
  );
  byId('intro').after(about);
}

/** The site opens without a network from now on; says so where the browser does not keep it. */
export async function keepOffline(say) {
  try {
    if (!navigator.serviceWorker) throw new Error('the address is neither https nor of this computer');
    await navigator.serviceWorker.register('offline.js');
  } catch (error) {
    say(`This page will not open without a network: ${error.message}`);
  }
}
