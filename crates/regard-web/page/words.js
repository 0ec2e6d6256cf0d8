// @ts-check
// Words of a text as lists of tokens.

/** Words as the browser takes them, in any script. */
export function grouping(text, tokens) {
  const encoder = new TextEncoder();
  const segments = new Intl.Segmenter(undefined, { granularity: 'word' });
  const ends = [];
  let bytes = 0;
  for (const part of segments.segment(text.toWellFormed?.() ?? text)) {
    bytes += encoder.encode(part.segment).length;
    ends.push([bytes, part.isWordLike]);
  }
  const groups = [];
  let word = 0;
  let last = -1;
  tokens.forEach((token, i) => {
    if (token.added) {
      groups.push([i]);
      last = -1;
      return;
    }
    // A token belongs to the word that its last letter is in.
    while (word < ends.length - 1 && ends[word][0] < token.to) word += 1;
    if (last === word && ends[word]?.[1]) groups.at(-1).push(i);
    else groups.push([i]);
    last = word;
  });
  return groups;
}

/** Weights between words: the mean over the tokens of a query, the sum over those of a key. */
export function merged(groups, weights, n) {
  return groups.map((queries, g) => {
    const ofKeys = (i, keys) => keys.reduce((sum, j) => sum + weights[i * n + j], 0);
    return [g, groups.map((keys) => queries.reduce((sum, i) => sum + ofKeys(i, keys), 0) / queries.length)];
  });
}
