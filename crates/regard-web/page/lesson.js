// @ts-check
// The lesson: attention in nine steps, with the reader's own text, one step per screen.
import { byId, clamp, el, label, put } from './base.js';
import { ask } from './api.js';
import { side } from './draw.js';
import { mask, products, queries, scale, tokens } from './lesson_scores.js';
import { prediction, softmax, together, values } from './lesson_outputs.js';
import { follow } from './lesson_trail.js';
import { tokenTexts } from './text.js';
import { go, runs, state } from './state.js';

/**
 * Title and content of each step, and its name in the list of steps.
 * @type {[string, (data: any, id: string) => any, string][]}
 */
const STEPS = [
  ['Tokens', tokens, 'Tokens'],
  ['Queries and keys', queries, 'Queries, keys'],
  ['Dot products', products, 'Dot products'],
  ['The scale', scale, 'Scale'],
  ['The mask', mask, 'Mask'],
  ['Softmax', softmax, 'Softmax'],
  ['A weighted sum of values', values, 'Weighted sum'],
  ['All heads together', together, 'All heads'],
  ['The prediction', prediction, 'Prediction'],
];

/**
 * The formula in parts, each with the steps that it belongs to.
 * @type {[string, number[]][]}
 */
const FORMULA = [
  ['softmax', [5]],
  [' (', []],
  ['Q Kᵀ', [1, 2]],
  [' · ', []],
  ['1/√d_k', [3]],
  [' + ', []],
  ['mask', [4]],
  [') · ', []],
  ['V', [6]],
  [' · ', []],
  ['W_O', [7]],
];

/** The formula with the part of this step marked. */
const formula = (step) =>
  el(
    'p',
    { class: 'formula' },
    FORMULA.map(([words, steps]) => (steps.includes(step) ? el('mark', {}, words) : words)),
  );

/** Steps whose numbers say where they come from. */
const HAS_TRAIL = [1, 2, 3, 4, 5, 6];

/** The head on the first tokens of the text, as the server computed it. */
let data = null;

const to = (step) => go({ step: clamp(step, 0, STEPS.length - 1) });

function show(box, focus) {
  const [title, content] = STEPS[state.step];
  const id = `${data.run} ${state.layer}.${state.head} ${state.step}`;
  const dot = ([title, , name], i) =>
    el(
      'li',
      {},
      el(
        'button',
        {
          'aria-label': `step ${i + 1}: ${name}`,
          title,
          'aria-current': i === state.step ? 'step' : null,
          onclick: () => to(i),
        },
        el('b', {}, String(i + 1)),
        el('span', {}, ` ${name}`),
      ),
    );
  const article = el('article', { class: 'lesson', 'data-step': state.step });
  put(
    box,
    put(
      article,
      el('nav', { 'aria-label': 'steps of the lesson' }, el('ol', { class: 'dots' }, STEPS.map(dot))),
      el('h2', { tabindex: -1 }, `${state.step + 1}. ${title}`),
      state.step > 0 && state.step < STEPS.length - 1 ? formula(state.step) : null,
      state.side === 'D' && state.edits ? el('p', { class: 'quiet' }, 'The lesson shows B, the edited model.') : null,
      content(data, id),
      HAS_TRAIL.includes(state.step) ? follow(article, data) : null,
      el(
        'div',
        { class: 'row turn' },
        el('button', { id: 'lesson-back', disabled: state.step === 0, onclick: () => to(state.step - 1) }, '← Back'),
        el(
          'button',
          {
            id: 'lesson-next',
            class: 'primary',
            disabled: state.step === STEPS.length - 1,
            onclick: () => to(state.step + 1),
          },
          'Next →',
        ),
      ),
    ),
  );
  if (focus) box.querySelector('h2').focus();
}

export const lessonView = {
  name: 'lesson',
  ofOneHead: true,
  title: 'Lesson',
  what:
    'Attention in nine steps, on the beginning of your text and the chosen [head]; each asks a question first. ' +
    'Next and Back, or the arrow keys.',
  controls: () => [],
  keeps: ['step', 'width'],
  follow(changes) {
    if ('step' in changes && data) show(byId('view'), true);
  },
  async render(box, current) {
    const run = side();
    const found = await ask(`/api/run/${run.run}/steps?layer=${state.layer}&head=${state.head}`);
    if (!current()) return null;
    const pieces = tokenTexts(runs.B).slice(0, found.tokens.length);
    data = {
      ...found,
      run: run.run,
      pieces,
      names: pieces.map(label),
      ids: runs.B.tokens.slice(0, pieces.length).map((token) => token.id),
    };
    show(box, false);
    const { steps } = found;
    const rows = ['raw', 'scaled', 'masked', 'weights'].flatMap((step) =>
      steps[step].flatMap((row, i) => row.map((x, j) => [step, i, pieces[i], j, pieces[j], x])),
    );
    return { table: () => ({ columns: ['step', 'query', 'query_token', 'key', 'key_token', 'value'], rows }) };
  },
};

const USES_ARROWS = 'input, textarea, select, [role=tablist], [role=listbox], dialog, .scroll';

document.addEventListener('keydown', (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step || state.view !== 'lesson' || !runs.B || event.ctrlKey || event.altKey || event.metaKey) return;
  if (document.activeElement?.closest(USES_ARROWS)) return;
  event.preventDefault();
  to(state.step + step);
});
