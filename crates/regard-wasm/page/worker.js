// A Web Worker around regard_wasm.wasm: one message in, answers and events out. Only this file knows the module's C ABI.
//
// in:   {id, method, target, body}                  a request of the page
//       {id, files: [{path, file}], open}           files that were dropped, and the path of the model among them
// out:  {id, event} any number of times, then {id, status, kind, bytes}

/** Bytes that are read of a file at a time. */
const PIECE = 8 << 20;

let wasm = null;
let current = 0;
let lastPanic = '';
const text = new TextDecoder();

/** Addresses above 2 GiB are negative as the module returns them. */
const bytesAt = (address, len) => new Uint8Array(wasm.memory.buffer, address >>> 0, len);

const imports = {
  tab: {
    event(address, len) {
      postMessage({ id: current, event: JSON.parse(text.decode(bytesAt(address, len).slice())) });
      return 1;
    },
    panicked(address, len) {
      lastPanic = text.decode(bytesAt(address, len).slice());
    },
  },
};

const loaded = (async () => {
  const response = await fetch('regard_wasm.wasm.gz');
  if (!response.ok) throw new Error(`regard_wasm.wasm.gz: ${response.status}`);
  // A server may say that it is compressed, and the browser has unpacked it then.
  const bytes = new Uint8Array(await response.arrayBuffer());
  const packed = bytes[0] === 0x1f && bytes[1] === 0x8b;
  const unpacked = packed ? await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'))).arrayBuffer() : bytes;
  const { instance } = await WebAssembly.instantiate(unpacked, imports);
  wasm = instance.exports;
})();

function block(bytes) {
  const address = wasm.alloc(bytes.length);
  if (!address) throw new Error('out of memory: a tab has 4 GiB at most');
  bytesAt(address, bytes.length).set(bytes);
  return address;
}

const failed = (status, message) => ({ status, kind: 0, bytes: new TextEncoder().encode(JSON.stringify({ error: message })) });

function request({ method, target, body }) {
  const bytes = new TextEncoder().encode(`${method} ${target}\n${body ?? ''}`);
  const answer = wasm.request(block(bytes), bytes.length);
  if (!answer) return failed(500, 'out of memory: use a shorter text');
  const [status, kind, len] = new Uint32Array(bytesAt(answer, 12).slice().buffer);
  const copy = bytesAt((answer >>> 0) + 12, len).slice();
  wasm.free(answer, 12 + len);
  return { status, kind, bytes: copy };
}

/** Copies a file into the module's memory, piece by piece. */
async function hand(path, file) {
  const address = wasm.alloc(file.size);
  if (!address) throw new Error(`out of memory for ${path}: a tab has 4 GiB at most; use a smaller or quantised model`);
  for (let at = 0; at < file.size; at += PIECE) {
    const piece = new Uint8Array(await file.slice(at, at + PIECE).arrayBuffer());
    bytesAt((address >>> 0) + at, piece.length).set(piece);
  }
  const name = new TextEncoder().encode(path);
  wasm.file(block(name), name.length, address, file.size);
}

async function answer(message) {
  await loaded;
  if (!message.files) return request(message);
  for (const { path, file } of message.files) await hand(path, file);
  const made = request({ method: 'POST', target: '/api/open', body: JSON.stringify({ path: message.open }) });
  // Files of no model are given up.
  if (made.status !== 200) {
    for (const { path } of message.files) {
      const name = new TextEncoder().encode(path);
      wasm.file(block(name), name.length, wasm.alloc(0), 0);
    }
  }
  return made;
}

// One message at a time, in their order: reading a file waits.
let queue = Promise.resolve();
onmessage = ({ data }) => {
  queue = queue.then(async () => {
    current = data.id;
    let made;
    try {
      made = await answer(data);
    } catch (error) {
      // After a trap the module's memory is not to be trusted: the page starts another worker.
      made = { ...failed(500, lastPanic || error.message), broken: error instanceof WebAssembly.RuntimeError };
    }
    postMessage({ id: data.id, ...made }, [made.bytes.buffer]);
  });
};
