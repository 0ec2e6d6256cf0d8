"""The microscope on real models against transformers: logits, ids, weights, losses of surgery, greedy text, and speed in the same run.

    cargo xtask microscope

Small random models of every family and format come first, then what was fetched. Everything is said as it comes, and once more as a table at the end. Exits
with 1 when a limit of exactness is not kept; speeds and memory are printed beside what is hoped for, and not judged: other programs may be running. llama.cpp
takes part where the package `xllamacpp` is installed.
"""

import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "crates/regard-model/tests/golden"))

NEEDED = ["numpy", "torch", "transformers", "gguf", "safetensors", "regard"]
absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
if absent:
    sys.exit(f"{sys.executable} has no {', '.join(absent)}: run `cargo xtask microscope` without --python, or install them there")

import activations  # noqa: E402
import circuits  # noqa: E402
import faults  # noqa: E402
import make  # noqa: E402
import numpy as np  # noqa: E402
import oracle  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from fetch import fetch  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402

import regard  # noqa: E402

TEXT = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw a big, red ball in the sky. It was the "
    "sun! She thought it was so pretty. Lily wanted to play with the ball, but it was too high up in the sky. She tried to jump and reach it, but she "
    "couldn't. Then, Lily had an idea. She would use a stick to knock the ball down. Numbers 12345 and 3.14; caf\u00e9 na\u00efve \u4f60\u597d \U0001f600."
)
ODD = {
    "one token": "a",
    "other scripts": "na\u00efve \u2014 \u4f60\u597d\uff0c\u4e16\u754c \U0001f600\U0001f469\u200d\U0001f467 \u03a9\u2248 e\u0301 \u202eabc\u202c \u041f\u0440\u0438\u0432\u0435\u0442\t\u0645\u0631\u062d\u0628\u0627\n\nZ",
    "repeated words": "the cat the cat the cat " * 12,
    "runs": "aaaa    bbbb\n\n\n\nno no no no no!!!!! 1234567 0.5",
}
SMILES = "CC(=O)OCC.[Na+].[OH-]>>CC(=O)O.c1ccccc1Br"
GGUF_TYPES = "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS".split()
failures, table = [], []


def judge(what, value, limit):
    kept = value <= limit
    print(f"  {what:<40} {value:.2e}  limit {limit:.0e}  {'ok' if kept else 'NOT KEPT'}", flush=True)
    table.append((what, f"{value:.2e}", f"at most {limit:.0e}", "ok" if kept else "NOT KEPT"))
    if not kept:
        failures.append(what)


def measured(what, value, unit, hoped):
    print(f"  {what:<40} {value:.2f} {unit}  (hoped for: {hoped})", flush=True)
    table.append((what, f"{value:.2f} {unit}", hoped, ""))


def best(times, call):
    """The shortest of several runs, in seconds."""
    def once():
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin

    return min(once() for _ in range(times))


def compare(name, model, hf, ids, head=True):
    print(f"{name}: {len(ids)} tokens")
    run, theirs = model.run(ids), oracle.edited(hf, ids, keep=True)
    weights = dict(oracle.STATE["weights"])
    want = (theirs.logits if head else theirs.last_hidden_state)[0].numpy()
    judge(f"{name} {'logits' if head else 'hidden states'}", float(np.abs((run.logits if head else run.hidden) - want).max()), 2e-3)
    worst = max(float(np.abs(run.weights(l, h) - weights[l][h].numpy()).max()) for l in range(model.layers) for h in range(model.heads))
    judge(f"{name} weights of all heads", worst, 2e-4)


def hooks(name, model, hf, ids, head=True):
    """Activations and their gradients against hooks and autograd in f64, and texts together against each alone."""
    count, results = activations.compare(model, hf, ids, head)
    for what, (ours, f32) in results.items():
        judge(f"{name} {what} {count} activations, relative (f32 {f32:.1e})", ours, max(1e-4, 1.25 * f32))
    judge(f"{name} activations with other bits in a batch", activations.bits_that_differ(model, [TEXT, "a", "The cat sat on the mat.", TEXT[:99]]), 0)


def f32_spread(hf, ids, options):
    """What a loss is in f64, and how far f32 comes from it when the embeddings are changed by half of their last bit: the model's own uncertainty in f32."""
    table, losses = hf.get_input_embeddings().weight, []
    kept = table.data.clone()
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        table.data = kept * (1 + (torch.randint(0, 2, kept.shape, generator=generator) - 0.5) * 2.0**-23)
        losses.append(oracle.loss(oracle.edited(hf, ids, **options).logits, ids))
    table.data = kept
    # Models out of a GGUF refuse `float()` of their own, which is about files of 4 bits.
    torch.nn.Module.double(hf)
    exact = oracle.loss(oracle.edited(hf, ids, **options).logits, ids)
    torch.nn.Module.float(hf)
    return exact, max(abs(loss - exact) for loss in losses)


def surgery(name, model, hf, ids):
    def module(layer):
        return hf.model.layers[layer].self_attn.o_proj

    edits = [
        ("", {}, 2e-4), ("scale=off", {"scale": 1.0}, 1e-3), ("mask=full", {"mask": ("full",)}, 1e-3),
        ("mask=window:15,0", {"mask": ("window", 15, 0)}, 1e-3), ("mask=causal", {"mask": ("causal",)}, 1e-3),
        ("heads=hide:first", {"mode": "hide"}, 1e-3), ("heads=uniform", {"mode": "uniform"}, 1e-3),
        ("L1.H5=zero", {"zero": (module(1), 5, model.head_dim)}, 1e-3),
    ]
    for edit, options, limit in edits:
        theirs, ours = oracle.loss(oracle.edited(hf, ids, **options).logits, ids), model.run(ids, edit).loss
        if edit == "scale=off" and abs(ours - theirs) > limit:
            # Without its scale a model may be so sensitive that f32 itself is the larger error.
            exact, spread = f32_spread(hf, ids, options)
            print(f"  {name} without the scale: f64 {exact:.5f}, transformers in f32 {theirs:.5f} and, begun half a bit off, up to {spread:.1e} from f64")
            table.append((f"{name} loss, {edit}, from transformers in f32", f"{abs(ours - theirs):.2e}", f"hoped for {limit:.0e}", "chaotic"))
            theirs, limit = exact, max(limit, spread)
        judge(f"{name} loss, {edit or 'intact'} ({theirs:.5f})", abs(ours - theirs), limit)


def odd(name, model, hf, longest):
    """Texts that are not as texts are, and one as long as the context allows."""
    texts = {label: model.tokens(text) for label, text in ODD.items()}
    texts["long"] = (model.tokens(TEXT) * (longest // 50 + 1))[:longest]
    for label, ids in texts.items():
        compare(f"{name}, {label}", model, hf, ids)
        if len(ids) > 1:
            theirs = oracle.loss(oracle.edited(hf, ids).logits, ids)
            judge(f"{name}, {label}: loss ({theirs:.5f})", abs(model.run(ids).loss - theirs), 2e-4)


def of_circuits(path, hf):
    """Edges against TransformerLens, which the last version before 4 allows."""
    try:
        count, (attribution, exact), *times = circuits.compare(path, hf)
    except ImportError as missing:
        print(f"  edges of circuits: not compared: {missing}")
        return table.append(("stories15M edges against TransformerLens", "not compared", "at most 1e-03", "pip install 'transformer-lens<4'"))
    judge(f"stories15M attribution of {count} edges against TransformerLens", attribution, 1e-3)
    judge(f"stories15M exact effect of {circuits.EXACT} edges", exact, 1e-3)
    for what, (ours, theirs) in zip(("attribution, with loading", "exact effects"), times):
        measured(f"stories15M {what}: CPU time of TransformerLens over ours", theirs / ours, "times", "")


def of_faults(hf):
    count, missed, unnamed, differ = faults.judged(hf)
    judge(f"{count} planted faults that diff does not find", len(missed), 0)
    judge(f"{count} planted faults without their cause", len(unnamed), 1)
    judge("identical files that differ", len(differ), 0)


def greedy(name, model, hf, ids, n):
    hf.set_attn_implementation("sdpa")
    begin = time.perf_counter()
    ours = model.generate(ids, n)
    between = time.perf_counter()
    theirs = hf.generate(torch.tensor([ids]), max_new_tokens=n, do_sample=False)[0, len(ids) :].tolist()
    end = time.perf_counter()
    differs = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), None)
    gap = 0.0 if len(ours) == len(theirs) else float("inf")
    if differs is not None:
        with torch.no_grad():
            logits = hf(torch.tensor([ids + theirs[:differs]])).logits[0, -1]
        gap = float(logits[theirs[differs]] - logits[ours[differs]])
    judge(f"{name} greedy text, logits between what differs", gap, 2e-3)
    ours_rate, their_rate = len(ours) / (between - begin), len(theirs) / (end - between)
    measured(f"{name} decoding, regard", ours_rate, "tokens/s", "")
    measured(f"{name} decoding against transformers", ours_rate / their_rate, "times", "2" if name == "SmolLM2" else "")
    return ours_rate


def made(folder):
    """Small random models of every family and format, and a GGUF file of every type."""
    make.HERE = folder
    torch.manual_seed(23)
    make.families()
    make.llama2c("llama2c")
    for kind in GGUF_TYPES:
        make.gguf_file(f"GGUF {kind}", 256, [kind] * 8)
    for path in sorted(folder.iterdir()):
        files = [file for file in path.iterdir() if file.name in ("model.gguf", "model.bin")]
        model, golden = regard.load(files[0] if files else path), load_file(path / "golden.safetensors")
        ids = [int(x) for x in golden["ids"]]
        run, head = model.run(ids), "logits" in golden
        theirs = golden["logits" if head else "hidden"]
        judge(f"{path.name} {'logits' if head else 'hidden states'}", float(np.abs((run.logits if head else run.hidden) - theirs).max()), 2e-3)
        judge(f"{path.name} weights", float(np.abs(run.weights(model.layers - 1, 1) - golden["weights"]).max()), 2e-4)
        losses = json.loads((path / "losses.json").read_text()) if (path / "losses.json").exists() else {}
        if path.name.startswith("GGUF"):
            losses = {"": oracle.loss(torch.tensor(theirs)[None], ids)}
        for edit, loss in losses.items():
            judge(f"{path.name} loss, {edit or 'intact'} ({loss:.5f})", abs(model.run(ids, edit).loss - loss), 1e-3 if edit else 2e-4)


def llama_cpp(path, threads, ours):
    """Decoding by llama.cpp, which rounds activations to 8 bits; ours are f32."""
    if importlib.util.find_spec("xllamacpp") is None:
        table.append(("SmolLM2 decoding against llama.cpp", "not measured", "0.8", "pip install xllamacpp"))
        return
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel = str(path), 512, 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)
    request = {"prompt": "The capital of France is", "n_predict": 100, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
    rate = max(server.handle_completions(dict(request))["timings"]["predicted_per_second"] for _ in range(3))
    measured("SmolLM2 decoding, llama.cpp", rate, "tokens/s", "")
    measured("SmolLM2 decoding against llama.cpp", ours / rate, "times", "0.8")


def memory(name, path, text):
    """The largest memory of `look` on a short text, as a share of the model's files."""
    files = [path] if path.is_file() else [f for f in path.iterdir() if f.suffix in (".safetensors", ".bin", ".gguf")]
    look = [sys.executable, "-m", "regard", "look", str(path), "--text", text, "--quiet"]
    # Started by a small process: until it has a program of its own, a child's memory is that of its parent.
    small = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    with tempfile.TemporaryDirectory() as out:
        said = subprocess.run([sys.executable, "-c", small, *look, "--out", out], check=True, capture_output=True, text=True).stdout
    measured(f"{name}: memory of a look", int(said.split()[-1]) * 1024 / sum(f.stat().st_size for f in files), "of the file", "1.3")


def stories_of(path):
    """The same weights as a model of transformers."""
    raw, sizes = np.fromfile(path, "<f4"), [int(x) for x in np.fromfile(path, "<i4", 7)]
    dim, hidden, layers, heads, kv, vocab, context = sizes
    config = transformers.LlamaConfig(
        vocab_size=vocab, hidden_size=dim, intermediate_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv,
        max_position_embeddings=context, rms_norm_eps=1e-5, tie_word_embeddings=True, attn_implementation="surgery",
    )
    at = 7

    def take(*shape):
        nonlocal at
        count = int(np.prod(shape))
        at += count
        return torch.tensor(raw[at - count : at].reshape(shape))

    def halves(w, count):
        return w.reshape(count, w.shape[0] // count // 2, 2, w.shape[1]).transpose(1, 2).reshape(w.shape)

    kv_dim = kv * dim // heads
    state = {"model.embed_tokens.weight": take(vocab, dim)}
    names = [
        ("input_layernorm", (dim,), 0), ("self_attn.q_proj", (dim, dim), heads), ("self_attn.k_proj", (kv_dim, dim), kv),
        ("self_attn.v_proj", (kv_dim, dim), 0), ("self_attn.o_proj", (dim, dim), 0), ("post_attention_layernorm", (dim,), 0),
        ("mlp.gate_proj", (hidden, dim), 0), ("mlp.down_proj", (dim, hidden), 0), ("mlp.up_proj", (hidden, dim), 0),
    ]
    for name, shape, turned in names:
        for layer, w in enumerate(take(layers, *shape)):
            state[f"model.layers.{layer}.{name}.weight"] = halves(w, turned) if turned else w
    state["model.norm.weight"] = take(dim)
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model = transformers.LlamaForCausalLM(config).eval()
    model.load_state_dict(state)
    return model


def main():
    torch.set_num_threads(regard.get_num_threads())
    with tempfile.TemporaryDirectory() as folder:
        made(Path(folder))
    paths = fetch(Path(sys.argv[1]))
    model, hf = regard.load(paths["stories15M"]), stories_of(paths["stories15M"])
    ids = model.tokens(TEXT)
    compare("stories15M", model, hf, ids)
    hooks("stories15M", model, hf, ids)
    surgery("stories15M", model, hf, ids)
    of_circuits(paths["stories15M"], hf)
    of_faults(hf)
    odd("stories15M", model, hf, model.context)
    greedy("stories15M", model, hf, model.tokens("Once upon a time"), 200)
    measured("stories15M, whole screen", best(1, model.screen), "s", "20 on two cores")

    folder, file = paths["SmolLM2"].parent, paths["SmolLM2"].name
    model = regard.load(paths["SmolLM2"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file)
    judge("SmolLM2 ids that differ", sum(model.tokens(t) != tokenizer(t)["input_ids"] for t in [TEXT, "", *ODD.values()]), 0)
    hf = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32, attn_implementation="surgery").eval()
    ids = model.tokens(TEXT)
    compare("SmolLM2", model, hf, ids)
    hooks("SmolLM2", model, hf, ids)
    surgery("SmolLM2", model, hf, ids)
    odd("SmolLM2", model, hf, 512)
    rate = greedy("SmolLM2", model, hf, model.tokens("The capital of France is"), 100)
    llama_cpp(paths["SmolLM2"], regard.get_num_threads(), rate)
    long = (ids * 6)[:512]
    with torch.no_grad():
        theirs = best(5, lambda: hf.model(torch.tensor([long])))
    measured("SmolLM2 prefill of 512 against transformers", theirs / best(5, lambda: model.run(long)), "times", "1.15")

    model = regard.load(paths["MiniLM"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(paths["MiniLM"])
    judge("MiniLM ids that differ", sum(model.tokens(t) != tokenizer(t)["input_ids"] for t in [TEXT, "", *ODD.values()]), 0)
    hf = transformers.AutoModel.from_pretrained(paths["MiniLM"], attn_implementation="surgery").eval()
    compare("MiniLM", model, hf, model.tokens(TEXT), head=False)
    hooks("MiniLM", model, hf, model.tokens(TEXT), head=False)
    model = regard.load(paths["rxnmapper"])
    hf = transformers.AlbertForMaskedLM.from_pretrained(paths["rxnmapper"], attn_implementation="surgery").eval()
    compare("rxnmapper", model, hf, model.tokens(SMILES))
    model = regard.load(paths["rxnfp"])
    config = transformers.BertConfig.from_pretrained(paths["rxnfp"], attn_implementation="surgery")
    compare("rxnfp", model, transformers.BertForMaskedLM.from_pretrained(paths["rxnfp"], config=config).eval(), model.tokens(SMILES))
    for name in ("stories15M", "SmolLM2", "MiniLM"):
        memory(name, paths[name], "The cat sat on the mat.")
    widths = [max(len(row[i]) for row in table) for i in range(4)]
    print("\n" + "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in table))
    print(f"{len(failures)} limits not kept" + (": " + ", ".join(failures) if failures else ""))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
