// @ts-check
// Exactly the view, as a file.
import { el, svg } from './base.js';
import { colour } from './colour.js';
import { difference, scaleKind } from './draw.js';
import { runs, state } from './state.js';

function save(name, blob) {
  const address = URL.createObjectURL(blob);
  const anchor = el('a', { href: address, download: name });
  document.body.append(anchor);
  anchor.click();
  anchor.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

const field = (x) => (/[",\n\r]/.test(String(x)) ? `"${String(x).replace(/"/g, '""')}"` : String(x ?? ''));

/** The numbers of a view with what they are of. */
function facts() {
  return {
    model: runs.models[state.model]?.name,
    edits: state.side === 'A' ? '' : state.edits,
    side: state.side,
    layer: state.layer,
    head: state.head,
    sink: state.sink,
    pool: state.pool,
  };
}

export function csvOf({ columns, rows }) {
  return [columns, ...rows].map((row) => row.map(field).join(',')).join('\n') + '\n';
}

export function jsonOf({ columns, rows }) {
  return JSON.stringify({ ...facts(), text: state.text, columns, rows }, null, 1);
}

/** An SVG with the colours of its letters in it. */
export function svgText(drawing) {
  const copy = drawing.cloneNode(true);
  copy.setAttribute('xmlns', 'http://www.w3.org/2000/svg');
  copy.querySelectorAll('text').forEach((text) => {
    text.setAttribute('fill', '#1a1c20');
    text.setAttribute('font-family', 'monospace');
  });
  const desc = document.createElementNS('http://www.w3.org/2000/svg', 'desc');
  desc.textContent = JSON.stringify(facts());
  copy.prepend(desc);
  return new XMLSerializer().serializeToString(copy);
}

async function pngOf(text, drawing) {
  const box = drawing.viewBox.baseVal;
  const picture = new Image();
  picture.src = 'data:image/svg+xml;charset=utf-8,' + encodeURIComponent(text);
  await picture.decode();
  const canvas = el('canvas', { width: box.width * 2, height: box.height * 2 });
  const ink = canvas.getContext('2d');
  ink.fillStyle = '#ffffff';
  ink.fillRect(0, 0, canvas.width, canvas.height);
  ink.drawImage(picture, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, 'image/png'));
}

export async function exportView(kind, view) {
  const name = `regard-${state.view}-L${state.layer}.H${state.head}.${kind.toLowerCase()}`;
  if (kind === 'CSV') return save(name, new Blob([csvOf(view.table())], { type: 'text/csv' }));
  if (kind === 'JSON') return save(name, new Blob([jsonOf(view.table())], { type: 'application/json' }));
  const drawing = view.svg?.();
  if (!drawing) throw new Error('this view is a table: save it as CSV or JSON');
  const text = svgText(drawing);
  if (kind === 'SVG') return save(name, new Blob([text], { type: 'image/svg+xml' }));
  return save(name, await pngOf(text, drawing));
}

/** All thumbnails in one drawing, every cell with its number. */
export function gridSvg(pictures, columns, most, heads) {
  const [size, gap] = [3, 14];
  const side = columns * size;
  const rows = Math.ceil(pictures.length / heads);
  const out = svg('svg', {
    viewBox: `0 0 ${heads * (side + gap)} ${rows * (side + gap)}`,
    width: heads * (side + gap),
    height: rows * (side + gap),
  });
  pictures.forEach((values, i) => {
    const [x, y] = [(i % heads) * (side + gap), Math.floor(i / heads) * (side + gap)];
    const group = svg('g', {
      transform: `translate(${x} ${y + 11})`,
      'data-head': `${Math.floor(i / heads)}.${i % heads}`,
    });
    group.append(svg('text', { x: 0, y: -2, 'font-size': 9 }, `${Math.floor(i / heads)}.${i % heads}`));
    values.forEach((value, j) => {
      if (value !== 0)
        group.append(
          svg('rect', {
            x: (j % columns) * size,
            y: Math.floor(j / columns) * size,
            width: size,
            height: size,
            fill: colour(value, most, scaleKind(), difference()),
            'data-value': value,
          }),
        );
    });
    out.append(group);
  });
  return out;
}
