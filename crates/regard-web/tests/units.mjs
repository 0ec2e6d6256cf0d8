// Pure functions of the page, under node.
import assert from 'node:assert/strict';

globalThis.document = { getElementById: () => null, querySelector: () => null, addEventListener() {} };
const page = (name) => import(new URL(`../page/${name}.js`, import.meta.url));

const { short, counted, signed, label, clamp } = await page('base');
assert.deepEqual([short(0), short(null), short(1 / 3), short(123456), short(2e-5)], ['0', '–', '0.3333', '1.23e+5', '2.00e-5']);
assert.deepEqual([counted(1, 'token'), counted(2, 'token')], ['1 token', '2 tokens']);
assert.deepEqual([signed(0.5), signed(-0.5)], ['+0.5', '-0.5']);
assert.deepEqual([label(' the'), label('\n'), label('')], ['␣the', '↵', '∅']);
assert.deepEqual([clamp(5, 0, 3), clamp(-1, 0, 3)], [3, 0]);

const { quoted, commandLine } = await page('command');
assert.equal(quoted("it's"), "'it'\\''s'");
assert.equal(commandLine('', 'a b', ''), "regard look --text 'a b'");
assert.equal(commandLine('m/model.bin', 'a', 'scale=off'), 'regard look m/model.bin --text a --edits scale=off');
assert.ok(commandLine('', 'x'.repeat(401), '').includes('--file text.txt'));

const { curve, colour, inkOn } = await page('colour');
assert.deepEqual([curve(0.25, { kind: 'root' }), curve(0, { kind: 'log', decades: 4 })], [0.5, 0]);
assert.ok(Math.abs(curve(0.01, { kind: 'log', decades: 4 }) - 0.5) < 1e-12);
assert.equal(inkOn('rgb(255,255,255)'), '#000000');
assert.equal(inkOn('rgb(0,32,76)'), '#ffffff');
// Letters on every colour have a contrast of at least 4.5.
const channel = (c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
for (let x = -1; x <= 1; x += 0.01) {
  for (const difference of [false, true]) {
    const back = colour(x, 1, { kind: 'linear' }, difference);
    const [a, b] = [luminance(back.match(/\d+/g).map(Number)), inkOn(back) === '#ffffff' ? 1 : 0];
    assert.ok((Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) >= 4.5, `${back} ${inkOn(back)}`);
  }
}

const { grouping, merged } = await page('words');
const tokens = [{ added: true }, { to: 2 }, { to: 3 }, { to: 4 }, { to: 7 }];
assert.deepEqual(grouping('Leo and', tokens), [[0], [1, 2], [3], [4]]);
assert.deepEqual(merged([[0, 1], [2]], [1, 0, 0, 0.5, 0.5, 0, 0.2, 0.2, 0.6], 3), [[0, [1, 0]], [1, [0.4, 0.6]]]);

const { understood } = await page('state');
assert.deepEqual([understood('layer', '-3'), understood('view', '__proto__'), understood('width', '3')], [0, undefined, undefined]);
assert.deepEqual([understood('queries', '1,2'), understood('queries', '1;2'), understood('beside', '1.2,0.3')], ['1,2', undefined, '1.2,0.3']);

const { plain } = await page('labels');
assert.deepEqual([plain(['previous', 'local']), plain([]), plain(['local']), plain(['induction', 'repeated'])], ['previous token', 'mixed', 'nearby', 'repeats']);

const { barsOf } = await page('next');
const bars = barsOf([{ id: 1, probability: 0.5 }], [{ id: 2, probability: 0.7 }, { id: 1, probability: 0.2 }]);
assert.deepEqual(bars.map((bar) => bar.before), [null, 0.5]);

const { softmaxOf } = await page('lesson_outputs');
const still = softmaxOf([1, 2, 3], 0);
const moved = softmaxOf([1, 2, 3], 100);
assert.ok(moved.plain.every((x) => x === Infinity) && moved.without.every(Number.isNaN));
still.withMax.forEach((x, i) => assert.ok(Math.abs(x - moved.withMax[i]) < 1e-6));
assert.ok(Math.abs(still.withMax.reduce((sum, x) => sum + x, 0) - 1) < 1e-6);

const { relation, trail } = await page('lesson_trail');
assert.deepEqual([relation(['raw', 2, 1], ['q', 2, 0]), relation(['raw', 2, 1], ['k', 1, 3]), relation(['raw', 2, 1], ['k', 2, 3])], ['from', 'from', null]);
assert.deepEqual([relation(['raw', 2, 1], ['scaled', 2, 1]), relation(['raw', 2, 1], ['scaled', 1, 2])], ['to', null]);
assert.deepEqual([relation(['weights', 2, 1], ['masked', 2, 0]), relation(['v', 1, 3], ['out', 9, 3]), relation(['out', 9, 3], ['v', 1, 2])], ['from', 'to', null]);
const small = { names: ['a', 'b'], steps: { raw: [[1, 2], [3, 4]], scaled: [[0.5, 1], [1.5, 2]], masked: [[0.5, null], [1.5, 2]], weights: [[1, 0], [0.25, 0.75]] } };
assert.ok(trail(['raw', 1, 0], small)[2].includes('1.5') && trail(['scaled', 0, 1], small)[2].startsWith('hidden'));

const { around } = await page('examples');
assert.deepEqual(around(30, [[2, 0.5], [29, 0.2]], 32).slice(0, 5), [1, 2, 3, 12, 13]);
assert.equal(around(30, [[2, 0.5]], 32).at(-1), 31);

const { followers } = await page('find');
assert.deepEqual(followers([7, 8, 9, 7, 8, 9]), [[3, 1], [4, 2], [5, 3]]);
assert.deepEqual(followers([5, 5, 5]), []);

const { natsPerByte } = await page('fitting');
assert.equal(natsPerByte({ of: 'äb', losses: [1, 2] }), 1);

const { byteWords } = await page('base');
assert.deepEqual([byteWords(['a', '<0x9D>']).length > 0, byteWords(['a', '<0x9D']), byteWords([])], [true, '', '']);

const { changes } = await page('compare');
const mean = (layer, head, entropy) => ({ layer, head, entropy });
assert.deepEqual(changes([mean(0, 0, 1), mean(0, 1, 2)], [mean(0, 0, 1.25), mean(0, 1, 1)], 'entropy'), [[0, 1, 2, 1, -1], [0, 0, 1, 1.25, 0.25]]);

const { TERMS } = await page('terms');
const { readdirSync, readFileSync } = await import('node:fs');
const folder = new URL('../page/', import.meta.url);
for (const file of readdirSync(folder).filter((name) => name.endsWith('.js'))) {
  const text = readFileSync(new URL(file, folder), 'utf8');
  // Every term that a sentence explains is in the glossary.
  for (const [, name] of text.matchAll(/what: '[^']*?\[([a-zA-Z_ ]+)(?:\|[^\]]*)?\]/g)) assert.ok(TERMS[name], `${file}: ${name}`);
  for (const [, name] of text.matchAll(/\bterm\('([^']+)'/g)) assert.ok(TERMS[name], `${file}: ${name}`);
}
