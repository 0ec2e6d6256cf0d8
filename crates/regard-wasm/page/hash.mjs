// node hash.mjs regard_wasm.wasm.gz: prints [hash, largest error] of attention on this engine, from two instances of the module.
import { readFile } from 'node:fs/promises';
import { gunzipSync } from 'node:zlib';

const bytes = gunzipSync(await readFile(process.argv[2]));

async function hash() {
  const { instance } = await WebAssembly.instantiate(bytes, { tab: { event: () => 1, panicked: () => {} } });
  const { alloc, free, memory, request } = instance.exports;
  const line = new TextEncoder().encode('GET /api/hash\n');
  const address = alloc(line.length);
  new Uint8Array(memory.buffer, address, line.length).set(line);
  const answer = request(address, line.length);
  const [status, , len] = new Uint32Array(memory.buffer.slice(answer, answer + 12));
  const said = new TextDecoder().decode(memory.buffer.slice(answer + 12, answer + 12 + len));
  free(answer, 12 + len);
  if (status !== 200) throw new Error(said);
  return said;
}

const [one, two] = [await hash(), await hash()];
if (one !== two) throw new Error(`two instances differ: ${one} and ${two}`);
console.log(one);
