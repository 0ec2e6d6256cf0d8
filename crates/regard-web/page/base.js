// @ts-check
// Elements and numbers. Texts become text nodes, never markup.

export function put(node, ...children) {
  node.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

function attribute(node, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
  else if (name === 'value' || name === 'checked') node[name] = value;
  else node.setAttribute(name, value === true ? '' : value);
}

/** @returns {any} */
export function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (key !== 'value') attribute(node, key, value);
  put(node, ...children);
  // A list is chosen from when it is filled.
  if ('value' in attributes) node.value = attributes.value;
  return node;
}

export function svg(name, attributes = {}, ...children) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) attribute(node, key, value);
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** @type {(id: string) => any} */
export const byId = (id) => document.getElementById(id);

/** A number for people; tables that are saved have all digits. */
export function short(x) {
  if (x === null || x === undefined || Number.isNaN(x)) return '–';
  if (x === 0) return '0';
  const size = Math.abs(x);
  if (size >= 1e5 || size < 1e-4) return x.toExponential(2);
  return String(Number(x.toPrecision(4)));
}

/** A number with its noun. */
export const counted = (n, noun) => `${n} ${noun}${n === 1 ? '' : 's'}`;

export const signed = (x) => (x > 0 ? '+' : '') + short(x);

/** A token as it is shown: what cannot be seen is made visible. */
export function shown(piece) {
  const text = piece
    .replace(/\n/g, '↵')
    .replace(/\t/g, '⇥')
    .replace(/[\u0000-\u001f\u007f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, '·');
  return text.length > 24 ? text.slice(0, 23) + '…' : text;
}

/** What stands for a byte in a list of tokens is explained there. */
export const byteWords = (pieces) =>
  pieces.some((piece) => /^<0x[0-9A-F]{2}>$/.test(piece)) ? ' A token such as <0x9D> is a single byte.' : '';

/** The same in a column, where a space is nothing. */
export const label = (piece) => shown(piece).replace(/^ | $/g, '␣') || '∅';

export const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
