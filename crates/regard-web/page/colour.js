// @ts-check
// Colours for all kinds of colour vision: cividis for weights, blue to orange for differences.

const CIVIDIS = [
  [0, 32, 76],
  [0, 42, 102],
  [31, 56, 110],
  [60, 71, 108],
  [83, 87, 109],
  [104, 104, 113],
  [123, 122, 119],
  [144, 140, 120],
  [166, 159, 115],
  [190, 179, 104],
  [214, 200, 87],
  [238, 221, 63],
  [255, 234, 70],
];
const DIVERGING = [
  [11, 66, 140],
  [52, 117, 190],
  [128, 174, 222],
  [238, 240, 242],
  [244, 177, 110],
  [214, 113, 32],
  [140, 60, 5],
];

function along(stops, t) {
  const x = Math.min(1, Math.max(0, t)) * (stops.length - 1);
  const i = Math.min(stops.length - 2, Math.floor(x));
  const f = x - i;
  return stops[i].map((c, j) => Math.round(c + (stops[i + 1][j] - c) * f));
}

function ramp(stops) {
  const bytes = new Uint8ClampedArray(256 * 4);
  for (let i = 0; i < 256; i++) bytes.set([...along(stops, i / 255), 255], i * 4);
  return new Uint32Array(bytes.buffer);
}

const WEIGHTS = ramp(CIVIDIS);
const CHANGES = ramp(DIVERGING);

/** From a share of the largest value to a place on the ramp, 0 to 1. */
export function curve(x, { kind, decades }) {
  if (kind === 'log') return x <= 0 ? 0 : Math.max(0, 1 + Math.log10(x) / decades);
  return kind === 'root' ? Math.sqrt(x) : x;
}

function place(x, most, scale, difference) {
  const t = most > 0 ? curve(Math.min(1, Math.abs(x) / most), scale) : 0;
  return Math.round(255 * (difference ? 0.5 + (x < 0 ? -t : t) / 2 : t));
}

/** A colour for CSS. */
export function colour(x, most, scale, difference) {
  const i = place(x, most, scale, difference);
  const word = (difference ? CHANGES : WEIGHTS)[i];
  return `rgb(${word & 255},${(word >> 8) & 255},${(word >> 16) & 255})`;
}

/** An image of numbers, row by row. */
export function image(numbers, columns, most, scale, difference) {
  const rows = numbers.length / columns;
  const out = new ImageData(columns, Math.max(1, rows));
  const words = new Uint32Array(out.data.buffer);
  const table = difference ? CHANGES : WEIGHTS;
  for (let i = 0; i < numbers.length; i++) words[i] = table[place(numbers[i], most, scale, difference)];
  return out;
}

/** Blue for a lower loss, orange for a higher one, under dark letters; full colour at one nat. */
export function changeColour(x) {
  const [r, g, b] = along(
    [
      [128, 174, 222],
      [238, 240, 242],
      [244, 177, 110],
    ],
    0.5 + x / 2,
  );
  return `rgb(${r},${g},${b})`;
}

/** Pale to strong, for losses under dark letters. */
export function lossColour(x) {
  const t = Math.min(1, Math.max(0, x / 6));
  const [r, g, b] = along(
    [
      [234, 242, 250],
      [250, 224, 160],
      [244, 165, 100],
    ],
    t,
  );
  return `rgb(${r},${g},${b})`;
}

const light = (c) => (c <= 10.31475 ? c / 3294.6 : ((c / 255 + 0.055) / 1.055) ** 2.4);

/** Letters that can be read on a colour `rgb(r,g,b)`: the darker or the lighter, whichever has more contrast. */
export function inkOn(background) {
  const [r, g, b] = background.match(/\d+/g).map(Number);
  const luminance = 0.2126 * light(r) + 0.7152 * light(g) + 0.0722 * light(b);
  return 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 ? '#ffffff' : '#000000';
}
