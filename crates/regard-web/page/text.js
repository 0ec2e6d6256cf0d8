// @ts-check
// The text, token by token, coloured by loss.
import { byId, counted, el, put, short, shown, signed } from './base.js';
import { changeColour, lossColour } from './colour.js';
import { model } from './draw.js';
import { chosen, go, runs, state } from './state.js';

/** Tokens that are shown at a time. */
const SHOWN = 1000;

/** The loss of each token: how surprising it was to what came before. */
function lossOf(run, i) {
  return i > 0 && run.losses.length ? run.losses[i - 1] : null;
}

/** What the colours of the tokens mean. */
function legend(run, changes) {
  if (!model().writes) return 'This model does not predict the next token: there is no loss.';
  if (!run.losses.length) return 'One token has nothing after it to predict: type a text.';
  if (changes) return 'Blue: the edits lower the loss of this token; orange: they raise it; full colour at one nat.';
  return 'Pale: expected; orange: a surprise of six nats and more.';
}

/**
 * The text of every token. A token of a model on bytes may be a part of a character: its first part shows the
 * character, the others a dot. Tokenizers say of such parts where they are, or where the whole character is.
 */
export function tokenTexts(run) {
  const bytes = new TextEncoder().encode(run.of ?? '');
  const whole = new TextDecoder('utf-8', { fatal: true });
  const starts = (at) => at >= bytes.length || (bytes[at] & 0xc0) !== 0x80;
  return run.tokens.map((token, i) => {
    const { from, to, added } = token;
    if (added) return token.piece.trim() || token.piece;
    if (to <= from || to > bytes.length) return token.piece;
    const [before, after] = [run.tokens[i - 1], run.tokens[i + 1]];
    if (!starts(from) || (before && !before.added && before.to > from && before.from < to)) return '·';
    const shared = after && !after.added && after.from < to && after.to > from;
    if (starts(to) && !shared) return token.piece;
    let end = to;
    while (!starts(end)) end += 1;
    try {
      return whole.decode(bytes.subarray(from, end));
    } catch {
      return token.piece;
    }
  });
}

/** The same of the tokens that are looked at. */
export const keyTexts = (run) => (run.keys ? tokenTexts({ of: run.given.source, tokens: run.keys }) : tokenTexts(run));

export function choose(i, more) {
  const now = chosen();
  const next = more
    ? now.includes(i)
      ? now.filter((j) => j !== i)
      : [...now, i]
    : now.length === 1 && now[0] === i
      ? []
      : [i];
  go({ queries: next.join(',') });
}

/** Where the window of shown tokens begins. */
function first(n) {
  const at = chosen()[0] ?? 0;
  return n <= SHOWN ? 0 : Math.max(0, Math.min(n - SHOWN, at - SHOWN / 2));
}

export function showText() {
  const { A: a, B: b } = runs;
  const run = state.side === 'A' ? a : b;
  const changes = state.side === 'D' && state.edits !== '';
  const texts = tokenTexts(run);
  const [marked, from] = [new Set(chosen()), first(run.tokens.length)];
  const spans = run.tokens.slice(from, from + SHOWN).map((token, offset) => {
    const i = from + offset;
    const loss = changes && i > 0 && b.losses.length ? b.losses[i - 1] - a.losses[i - 1] : lossOf(run, i);
    const said = loss === null ? 'no loss' : changes ? `loss ${signed(loss)} nats` : `loss ${short(loss)} nats`;
    const title =
      `token ${i}: ${JSON.stringify(token.piece)}, id ` +
      `${token.id}${token.added ? ', added by the tokenizer' : ''}; ${said}`;
    const span = el(
      'span',
      {
        role: 'option',
        id: `token-${i}`,
        title,
        'aria-label': title,
        'aria-selected': marked.has(i) ? 'true' : 'false',
        'data-token': i,
      },
      shown(texts[i]) || '∅',
    );
    // Some tokenizers leave spaces out.
    if (i > from && token.from > run.tokens[i - 1].to) span.className = 'apart';
    span.style.background = loss === null ? '#e4e6ea' : changes ? changeColour(loss) : lossColour(loss);
    return span;
  });
  const box = byId('tokens');
  put(box, spans);
  if (from > 0 || from + SHOWN < run.tokens.length)
    box.append(
      el(
        'p',
        { class: 'quiet' },
        `tokens ${from} to ${Math.min(run.tokens.length, from + SHOWN) - 1} of ${run.tokens.length}`,
      ),
    );
  put(
    byId('about-text'),
    counted(run.tokens.length, 'token'),
    run.loss === null ? '' : `, loss ${short(run.loss)} nats a token`,
    run.loss === null || a.run === run.run ? '' : ` (${short(a.loss)} without the edits)`,
    run.warning ? `. ${run.warning}` : '',
  );
  const start = run.tokens[0]?.added && texts[0] ? ` ${shown(texts[0])} marks the beginning.` : '';
  put(byId('legend'), legend(run, changes), start, ' Click: choose a token; shift: several.');
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
      go({ queries: String(at) }, true);
      byId(`token-${at}`)?.scrollIntoView({ block: 'nearest' });
    }
  });
}
