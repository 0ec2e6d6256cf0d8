// @ts-check
// What is asked of the server, or of the data in the file.
import { byId } from './base.js';
import { answeredHere, inTab } from './tab.js';

const element = byId('frozen');
export const frozen = element ? JSON.parse(element.textContent) : null;

/** The token stands after # in the printed address; it is kept by the tab and taken out of the address. */
let token = '';

export function useToken(given) {
  // Nothing else is a token; a header could not carry it.
  if (given && /^[0-9a-f]{32}$/.test(given)) {
    token = given;
    try {
      sessionStorage.setItem('token', given);
    } catch {
      /* not allowed: the tab forgets it */
    }
  } else {
    try {
      token = sessionStorage.getItem('token') ?? '';
    } catch {
      token = '';
    }
  }
}

export class Failure extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** What to do when the server does not answer. */
let lost = () => {};
export function whenLost(action) {
  lost = action;
}

async function request(path, options) {
  let response;
  try {
    response = inTab
      ? await answeredHere(path, options)
      : await fetch(path, { ...options, headers: { 'x-regard-token': token, ...options.headers } });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    lost();
    throw new Failure(0, 'the server does not answer');
  }
  if (response.ok) return response;
  const said = await response.text();
  let reason = said;
  try {
    reason = JSON.parse(said).error ?? said;
  } catch {
    /* not JSON */
  }
  throw new Failure(response.status, reason || `the server says ${response.status}`);
}

const posted = (body) => ({
  method: 'POST',
  body: JSON.stringify(body),
  headers: { 'content-type': 'application/json' },
});

const missing = () => new Failure(404, 'this is not in the file: `regard serve` has it');

/** Requests of the view that is shown: they end when another view is wanted. */
let viewRequests = new AbortController();

/** Ends the requests of the view, and with them the work of the server. */
export function endViewRequests() {
  const ended = viewRequests;
  viewRequests = new AbortController();
  for (const path of pending) kept.delete(path);
  pending.clear();
  ended.abort();
}

export const viewSignal = () => viewRequests.signal;

/** A GET of JSON; `lasting` ones go on when the view changes. */
export async function ask(path, lasting = false) {
  if (frozen) {
    if (path in frozen.answers) return frozen.answers[path];
    throw missing();
  }
  return (await request(path, lasting ? {} : { signal: viewRequests.signal })).json();
}

export async function send(path, body, signal) {
  if (frozen) {
    if (path === '/api/run' && body.edits === frozen.edits) return frozen.answers[path];
    throw missing();
  }
  return (await request(path, { ...posted(body), signal })).json();
}

/** Numbers by path: a few hundred answers are kept. */
const kept = new Map();
const KEPT = 300;
/** Paths that are not answered yet. */
const pending = new Set();

export function numbers(path) {
  const known = kept.get(path);
  if (known) {
    kept.delete(path);
    kept.set(path, known);
    return known;
  }
  const asked = (async () => {
    if (frozen) {
      const packed = frozen.answers[path];
      if (!packed) throw missing();
      const bytes = Uint8Array.from(atob(packed.f32), (c) => c.charCodeAt(0));
      return new Float32Array(bytes.buffer);
    }
    return new Float32Array(await (await request(path, { signal: viewRequests.signal })).arrayBuffer());
  })();
  kept.set(path, asked);
  pending.add(path);
  const settled = (failed) => {
    if (kept.get(path) !== asked) return;
    pending.delete(path);
    if (failed) kept.delete(path);
  };
  asked.then(
    () => settled(false),
    () => settled(true),
  );
  if (kept.size > KEPT) kept.delete(kept.keys().next().value);
  return asked;
}

/** Server-sent events, with the token in a header, which EventSource cannot send. */
export async function events(path, body, each, signal) {
  if (frozen) throw missing();
  const reader = (await request(path, { ...posted(body), signal })).body
    .pipeThrough(new TextDecoderStream())
    .getReader();
  let rest = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split('\n\n');
    rest = parts.pop();
    for (const part of parts) {
      const data = JSON.parse(part.replace(/^data: /, ''));
      if (data.error) throw new Failure(422, data.error);
      each(data);
    }
  }
}
