// @ts-check
// The server comes and goes: a missing token, and a server that does not answer.
import { el } from './base.js';
import { useToken } from './api.js';
import { banner } from './busy.js';
import { runs } from './state.js';

/**
 * The token is missing: a link was opened, or the tab was closed.
 * @param {() => Promise<void>} begin
 */
export function askForToken(begin) {
  const field = el('input', { 'aria-label': 'address or token', placeholder: 'http://127.0.0.1:…/#token=…' });
  const use = async () => {
    useToken(field.value.trim().split('token=').pop());
    banner(null);
    await begin();
  };
  field.addEventListener('keydown', (event) => {
    if (event.key === 'Enter') use();
  });
  banner(
    'This page needs the token of its server: paste the address that `regard serve` printed. ',
    field,
    ' ',
    el('button', { onclick: use }, 'Use it'),
  );
  field.focus();
}

let gone = false;

/**
 * Waits until the server answers again, and begins anew.
 * @param {() => Promise<void>} begin
 */
export async function comeBack(begin) {
  if (gone) return;
  gone = true;
  banner(
    'The server does not answer. The page goes on when it is back: start `regard serve` again, on the same port, ' +
      'and paste its address here if it asks.',
  );
  for (;;) {
    await new Promise((wait) => setTimeout(wait, 1000));
    try {
      const response = await fetch('/', { cache: 'no-store' });
      if (response.ok) break;
    } catch {
      /* still gone */
    }
  }
  gone = false;
  Object.assign(runs, { A: null, B: null });
  banner(null);
  await begin();
}
