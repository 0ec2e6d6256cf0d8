// The text, token by token, coloured by loss.
import { byId, el, put, short, shown, signed } from './base.js';
import { lossColour } from './colour.js';
import { chosen, go, runs, state } from './state.js';

/** Tokens that are shown at a time. */
const SHOWN = 1500;

/** The loss of each token: how surprising it was to what came before. */
function lossOf(run, i) {
  return i > 0 && run.losses.length ? run.losses[i - 1] : null;
}

export function choose(i, more) {
  const now = chosen();
  const next = more ? (now.includes(i) ? now.filter((j) => j !== i) : [...now, i]) : now.length === 1 && now[0] === i ? [] : [i];
  go({ q: next.join(',') });
}

/** Where the window of shown tokens begins. */
function first(n) {
  const at = chosen()[0] ?? 0;
  return n <= SHOWN ? 0 : Math.max(0, Math.min(n - SHOWN, at - SHOWN / 2));
}

export function showText() {
  const { A: a, B: b } = runs;
  const run = state.s === 'A' ? a : b;
  const [marked, from] = [new Set(chosen()), first(run.tokens.length)];
  const spans = run.tokens.slice(from, from + SHOWN).map((token, offset) => {
    const i = from + offset;
    const loss = state.s === 'D' && i > 0 && b.losses.length ? b.losses[i - 1] - a.losses[i - 1] : lossOf(run, i);
    const said = loss === null ? 'no loss' : state.s === 'D' ? `loss ${signed(loss)} nats` : `loss ${short(loss)} nats`;
    const title = `token ${i}: ${JSON.stringify(token.piece)}, id ${token.id}${token.added ? ', added by the tokenizer' : ''}; ${said}`;
    const span = el('span', { role: 'option', id: `token-${i}`, title, 'aria-label': title, 'aria-selected': marked.has(i) ? 'true' : 'false', 'data-token': i }, shown(token.piece) || '∅');
    span.style.background = loss === null ? '#e4e6ea' : lossColour(Math.abs(loss) * (state.s === 'D' ? 6 : 1));
    return span;
  });
  const box = byId('tokens');
  put(box, spans);
  if (from > 0 || from + SHOWN < run.tokens.length) box.append(el('p', { class: 'quiet' }, `tokens ${from} to ${Math.min(run.tokens.length, from + SHOWN) - 1} of ${run.tokens.length}`));
  put(byId('about-text'), `${run.tokens.length} tokens`, run.loss === null ? '' : `, loss ${short(run.loss)} nats a token`, run.warning ? `. ${run.warning}` : '');
  put(byId('legend'), b.losses.length ? 'Pale: expected; orange: a surprise of six nats and more. Click: choose; shift: several.' : 'This model predicts no next tokens: there is no loss.');
}

export function listenToTokens() {
  const box = byId('tokens');
  box.addEventListener('click', (event) => {
    const at = event.target.dataset?.token;
    if (at !== undefined) choose(Number(at), event.shiftKey);
  });
  box.addEventListener('keydown', (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || !runs.B) return;
    event.preventDefault();
    event.stopPropagation();
    const at = (chosen().at(-1) ?? -step) + step;
    if (at >= 0 && at < runs.B.tokens.length) {
      go({ q: String(at) }, true);
      byId(`token-${at}`)?.scrollIntoView({ block: 'nearest' });
    }
  });
}
