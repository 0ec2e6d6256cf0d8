"""The microscope: checkpoints, runs, edits, tables and pictures. The model is the small one of the package; REGARD_MODELS names a folder with others."""

import json
import os
import pathlib
import struct
import subprocess
import sys
import time

import numpy as np
import pytest
import regard

TEXT = "Emma and David went to the market. David said, \"the cat sleeps.\" Emma and David"


def models():
    yield None
    folder = os.environ.get("REGARD_MODELS")
    if folder:
        yield from (path for path in [pathlib.Path(folder) / "stories" / "model.bin"] if path.is_file())


@pytest.fixture(scope="module", params=list(models()), ids=str)
def model(request):
    return regard.load(request.param)


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def test_a_run_has_what_it_promises(model):
    ids = model.tokens(TEXT)
    assert all(isinstance(i, int) for i in ids)
    r = model.run(TEXT)
    n = len(r)
    assert n == len(ids) and list(r.ids) == ids
    assert r.logits.shape == (n, model.vocab) and r.logits.dtype == np.float32
    assert r.hidden.shape == (n, model.width) and r.hidden.dtype == np.float32
    logp = np.log(softmax(r.logits.astype(np.float64)))
    want = -np.mean([logp[i, ids[i + 1]] for i in range(n - 1)])
    assert abs(r.loss - want) < 1e-4
    assert np.allclose(r.losses, [-logp[i, ids[i + 1]] for i in range(n - 1)], atol=1e-4)
    same = model.run(np.asarray(ids))
    assert np.array_equal(same.logits, r.logits)


def test_weights_are_the_softmax_of_q_and_k(model):
    r = model.run(TEXT)
    n, layer, head = len(r), model.layers - 1, 1
    w = r.weights(layer, head)
    q = r.q(layer)[head].astype(np.float64)
    k = r.k(layer)[head // (model.heads // model.kv_heads)].astype(np.float64)
    scores = q @ k.T / np.sqrt(model.head_dim)
    scores[np.triu_indices(n, 1)] = -np.inf
    assert w.shape == (n, n) and np.abs(w - softmax(scores)).max() < 2e-5
    assert np.array_equal(r.weights(layer, head, rows=(3, 5)), w[3:5])
    s = r.statistics
    assert s.entropy.shape == (model.layers, model.heads, n)
    entropy = -(w * np.log(np.where(w > 0, w, 1))).sum(-1)
    assert np.abs(s.entropy[layer, head] - entropy).max() < 1e-4
    assert np.abs(s.first_token_mass[layer, head] - w[:, 0]).max() < 1e-5
    # Turning keeps lengths, and turns the first token by nothing.
    before = r.q(layer, rotated=False)
    assert np.allclose(np.linalg.norm(before, axis=-1), np.linalg.norm(r.q(layer), axis=-1), rtol=1e-4)
    assert np.array_equal(before[:, 0], r.q(layer)[:, 0])
    assert r.v(layer).shape == r.k(layer).shape and r.z(layer).shape == r.q(layer).shape


def test_maps_hide_or_divide_the_first_token(model):
    r = model.run(TEXT)
    n = len(r)
    w = r.weights(0, 0)
    assert np.array_equal(r.heat_map(0, 0, rows=512).mean, w)
    hidden, divided = (r.heat_map(0, 0, sink=sink).mean for sink in ("hide", "renormalise"))
    assert np.array_equal(hidden[1:, 1:], w[1:, 1:]) and not hidden[1:, 0].any() and not divided[1:, 0].any()
    assert np.allclose(divided[1:].sum(-1), 1, atol=1e-5)
    small = r.heat_map(0, 0, rows=4)
    assert small.mean.shape == (4, 4) and small.max.max() <= 1 + 1e-6
    rows, cols = slice(-(-3 * n // 4), n), slice(0, -(-n // 4))
    assert abs(small.mean[3, 0] - w[rows, cols].mean()) < 1e-5


def test_neuron_and_row_explain_a_weight(model):
    r = model.run(TEXT)
    view, row = r.neuron(0, 1, 9, 4), r.row(0, 1, 9)
    assert np.allclose(view.products, view.q.astype(np.float64) * view.k) and np.allclose(np.cumsum(view.products), view.sums)
    assert abs(row.dot[4] - view.sums[-1]) < 1e-9
    assert np.abs(softmax(row.score) - row.weight).max() < 1e-6
    assert np.array_equal(row.weight.astype(np.float32), r.weights(0, 1)[9])


def test_edits_are_edits(model):
    r, zero = model.run(TEXT), model.run(TEXT, edits="L1.H1=zero")
    assert zero.edits == "L1.H1=zero" and not zero.z(1)[1].any() and r.z(1)[1].any()
    assert zero.loss != r.loss
    assert np.array_equal(model.run(TEXT, edits="L1.H1=gain:1").logits, r.logits)
    other = model.run(TEXT, edits="L1.H1=patch:B@last", texts={"B": "Anna and Ben"})
    assert np.array_equal(other.logits[:-1], r.logits[:-1]) and not np.array_equal(other.logits[-1], r.logits[-1])
    assert model.run(TEXT, edits="L1.H1=mean", reference=["Anna and Ben went to the river."]).loss != r.loss


def test_writing_is_the_likeliest_token_each_time(model):
    ids = model.tokens("Emma and David went to")
    new = model.generate(ids, 8)
    assert new == model.generate("Emma and David went to", 8) and 0 < len(new) <= 8
    logits = model.run(ids + new).logits
    for i, token in enumerate(new):
        row = logits[len(ids) - 1 + i]
        assert row[token] >= row.max() - 1e-4
    assert model.generate(ids, 8, edits="scale=off") == model.generate(ids, 8, edits="scale=off")
    assert model.generate(ids, 20, temperature=1.0, seed=3) == model.generate(ids, 20, temperature=1.0, seed=3)


def test_tables_are_columns(model, tmp_path):
    texts = [TEXT, "Anna and Ben went to the river. Ben said, \"the dogs sing.\" They wait at the river."]
    heads = model.classify(texts)
    assert len(heads) == model.layers * model.heads and heads["previous"].dtype == np.float64
    for name in ("previous", "own", "first", "local", "duplicate", "induction", "repeated", "delimiter"):
        low, value = heads[f"{name}_low"], heads[name]
        assert np.all(np.isnan(value) | (low <= 1) & (value <= 1 + 1e-6))
    lines = heads.to_csv().splitlines()
    assert lines[0].startswith("layer,head") and len(lines) == len(heads) + 1
    heads.to_csv(tmp_path / "heads.csv")
    assert (tmp_path / "heads.csv").read_text() == heads.to_csv()
    assert heads._repr_html_().count("<tr>") == len(heads) + 1 and "layer" in repr(heads)
    table = model.surgery(texts, "scale=off")
    assert table.change[0] == pytest.approx(table.loss[0] - table.intact[0]) and table.low[0] <= table.change[0] <= table.high[0]
    lens = model.lens(TEXT)
    assert lens.top.shape[:2] == (model.layers + 1, len(model.tokens(TEXT))) and np.all(lens.probability[-1, :, 0] > 0)
    assert np.argmax(model.run(TEXT).logits[-1]) == lens.top[-1, -1, 0]
    parts = model.attribute(TEXT)
    assert parts.writes.sum() == pytest.approx(float(model.run(TEXT).logits[-1].max()), rel=1e-3, abs=1e-3)


def test_a_screen_has_totals_and_direct_effects():
    model = regard.load()
    screen = model.screen([TEXT, "Anna and Ben went to the river."], direct=True)
    assert len(screen) == model.layers * model.heads and np.all(screen.q >= screen.p - 1e-12)
    cut = model.run(TEXT, edits="L1.H2=zero").loss - model.run(TEXT).loss
    other = "Anna and Ben went to the river."
    cut = (cut + model.run(other, edits="L1.H2=zero").loss - model.run(other).loss) / 2
    assert screen.change[model.heads + 2] == pytest.approx(cut, abs=1e-6)
    # Nothing comes after the last layer's heads but its network: for the earlier ones the two differ.
    assert np.all(np.isfinite(screen.direct)) and not np.allclose(screen.direct, screen.change)


def test_heads_are_judged_within_the_context():
    model = regard.load()
    # Texts of a stranger, three times as long as the small model's context.
    texts = [f"{name} had a red kite. The kite went up and up, and then the string broke. " * 4 for name in ("Anna", "Tom", "Grace")]
    assert all(len(model.tokens(text)) > model.context for text in texts)
    with pytest.warns(UserWarning, match="3 of 3 texts are cut to the 96 tokens"):
        heads = model.classify(texts)
    within = model.classify([model.tokens(text)[: model.context] for text in texts])
    assert heads.to_csv() == within.to_csv()
    for label in ("previous", "induction", "first"):
        assert any(label in labels.split() for labels in heads.labels), label


def test_statistics_maps_and_lenses_are_tables_and_pictures(tmp_path):
    model = regard.load()
    run, n = model.run(TEXT), len(model.tokens(TEXT))
    rows = [line.split(",") for line in run.statistics.to_csv().splitlines()]
    assert rows[0][:4] == ["entry", "head", "row", "entropy"] and len(rows) == model.layers * model.heads * n + 1
    place = (1 * model.heads + 2) * n + 5 + 1
    assert rows[place][:3] == ["1", "2", "5"] and float(rows[place][3]) == pytest.approx(float(run.statistics.entropy[1, 2, 5]))
    heat = run.heat_map(0, 1, rows=8)
    cells = [line.split(",") for line in heat.to_csv().splitlines()]
    assert len(cells) == heat.mean.size + 1 and cells[0] == ["row", "col", "mean", "max"] and float(cells[-1][2]) == pytest.approx(float(heat.mean.ravel()[-1]))
    heat.to_csv(tmp_path / "map.csv")
    assert (tmp_path / "map.csv").read_text() == heat.to_csv()
    assert heat._repr_svg_().startswith("<svg") and regard.heat_map(*np.ones((2, 1, 3, 4, 2)), rows=2, cols=2)._repr_svg_().startswith("<svg")
    lens = model.lens(TEXT)
    assert lens._repr_html_().count("<tr>") == model.layers + 2 and f"of {n} tokens" in lens._repr_html_()


def test_pictures_show_themselves(tmp_path):
    run = regard.load().run(TEXT)
    one, every = run.picture(0, 1, sink="renormalise"), run.picture()
    for picture in (one, every):
        assert picture._repr_svg_().startswith("<svg") and picture.png()[:4] == b"\x89PNG"
    assert run._repr_svg_() == every.svg() and "without the first token" in one.svg()
    one.save(tmp_path / "head.svg")
    one.save(tmp_path / "head.png")
    assert (tmp_path / "head.svg").read_text() == one.svg() and (tmp_path / "head.png").read_bytes() == one.png()
    with pytest.raises(ValueError, match="must end in"):
        one.save(tmp_path / "head.jpg")


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda m: m.run(TEXT, edits="L9=zero"), "no layer 9"),
        (lambda m: m.run(TEXT, edits="L0=zeros"), "zeros"),
        (lambda m: m.run([]), "no tokens"),
        (lambda m: m.run([10**6]), "1000000"),
        (lambda m: m.run([-1]), "no token"),
        (lambda m: m.run(TEXT).weights(9, 0), "layer"),
        (lambda m: m.run(TEXT).weights(0, 99), "head"),
        (lambda m: m.run(TEXT).heat_map(0, 0, sink="away"), "renormalise"),
        (lambda m: m.run(TEXT).picture(0), "neither"),
        (lambda m: m.run(TEXT).neuron(0, 0, 999, 0), "query"),
        (lambda m: m.generate(TEXT, 3, temperature=-1.0), "temperature"),
        (lambda m: regard.load("no/such/model"), "no such file"),
        (lambda m: regard.load(__file__), "neither GGUF"),
    ],
)
def test_what_cannot_be_is_a_value_error(call, message):
    with pytest.raises((ValueError, IndexError), match=message):
        call(regard.load())


@pytest.mark.parametrize(
    "call", ["m.screen(texts=[list(range(250))] * 64)", "m.run(list(range(250)) * 400)", "m.run(list(range(250)) * 40).statistics; m.run(list(range(250)) * 400)"]
)
def test_ctrl_c_ends_work_on_a_model(call):
    code = f"import regard, signal; signal.signal(2, signal.default_int_handler); m = regard.load(); print('go', flush=True); {call}"
    child = subprocess.Popen([sys.executable, "-W", "ignore", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout.readline() == b"go\n"
    time.sleep(0.7)
    begun = time.monotonic()
    child.send_signal(2)
    _, said = child.communicate(timeout=120)
    took = time.monotonic() - begun
    assert b"KeyboardInterrupt" in said, said
    assert took < 5, f"{took:.1f} s"


def test_indices_count_from_the_end_where_they_are_negative():
    m = regard.load()
    run = m.run("Emma and David went home.")
    assert np.array_equal(run.weights(-1, -1), run.weights(m.layers - 1, m.heads - 1))
    assert np.array_equal(run.q(-1), run.q(m.layers - 1)) and np.array_equal(run.z(-m.layers), run.z(0))
    assert run.row(-1, 0, -1).weight.sum() == pytest.approx(1, abs=1e-5)
    for call in [lambda: run.weights(-m.layers - 1, 0), lambda: run.weights(0, m.heads), lambda: run.v(99), lambda: run.neuron(0, 0, len(run), 0)]:
        with pytest.raises(IndexError, match="out of range"):
            call()


def test_writing_with_a_smaller_cache(model):
    ids = model.tokens("Emma and David went to")
    exact = model.generate(ids, 12)
    assert model.generate(ids, 12, cache_type="f32") == exact
    for kind in ("f16", "bf16", "q8_0"):
        written = model.generate(ids, 12, cache_type=kind)
        assert written == model.generate(ids, 12, cache_type=kind) and written[:2] == exact[:2]
    with pytest.raises(ValueError, match="the cache type is q4_0; it must be one of f32, f16, bf16, q8_0"):
        model.generate(ids, 1, cache_type="q4_0")


def test_patches_are_runs_with_edits(model):
    clean, corrupt = "Emma and David went to the river.", "Anna and David went to the park."
    a, b = model.tokens(clean), model.tokens(corrupt)
    n = min(len(a), len(b))
    a, b = a[:n], b[:n]
    table = model.patch(a, b, tokens=(5, 7))
    assert len(table) == model.layers * model.heads

    def margin(run):
        return float(run.logits[-1, 5]) - float(run.logits[-1, 7])

    run = model.run(a)
    assert table.clean[0] == pytest.approx(margin(run), abs=1e-5) and table.corrupt[0] == pytest.approx(margin(model.run(b)), abs=1e-5)
    for i in (0, 5, len(table) - 1):
        edit = f"L{table.layer[i]}.H{table.head[i]}=patch:x"
        by_text, by_run = model.run(b, edit, texts={"x": a}), model.run(b, edit, texts={"x": run})
        assert np.array_equal(by_text.logits, by_run.logits) and table.margin[i] == pytest.approx(margin(by_run), abs=1e-5)
        assert table.share[i] == pytest.approx((table.margin[i] - table.corrupt[i]) / (table.clean[i] - table.corrupt[i]))
    places = model.patch(a, b, tokens=(5, 7), by_position=True)
    assert len(places) == len(table) * n and places.position.max() == n - 1


def test_attribution_of_a_difference(model):
    a, b, both = model.attribute(TEXT, token=5), model.attribute(TEXT, token=7), model.attribute(TEXT, token=5, minus=7)
    assert list(a.part) == list(both.part) and np.allclose(both.writes, a.writes - b.writes, atol=1e-6)


def test_every_site_is_patched(model):
    a, b = model.tokens("Emma and David went to the river."), model.tokens("Anna and David went to the park.")
    n = min(len(a), len(b))
    a, b = a[:n], b[:n]
    heads = {"q": model.heads, "z": model.heads, "pattern": model.heads, "k": model.kv_heads, "v": model.kv_heads}
    for site in ("resid_pre", "resid_mid", "resid_post", "q", "k", "v", "pattern", "z", "attn_out", "mlp_out"):
        all_at_once = model.patch(a, b, site, tokens=(5, 7), by_position=False)
        assert len(all_at_once) == model.layers * heads.get(site, 1) and hasattr(all_at_once, "head") == (site in heads)
        by_position = model.patch(a, b, site=site, tokens=(5, 7), by_position=True)
        assert len(by_position) == n * len(all_at_once)
        # The stream holds everything: by default it is patched by position.
        default = model.patch(a, b, site, tokens=(5, 7))
        assert len(default) == len(by_position if site.startswith("resid") else all_at_once)
    run = model.run(a, keep=["resid_mid"])
    table = model.patch(a, b, "resid_mid", tokens=(5, 7))
    edited = model.run(b, "L1.resid_mid=patch:x@2", texts={"x": run})
    row = table.layer.tolist().index(1) + 2
    assert table.position[row] == 2
    assert table.margin[row] == pytest.approx(float(edited.logits[-1, 5]) - float(edited.logits[-1, 7]), abs=1e-5)
    with pytest.raises(ValueError, match='"resid" is no activation; use one of'):
        model.patch(a, b, "resid")


def test_vectors_steer(model, tmp_path):
    direction = np.linspace(-1, 1, model.width).astype(np.float32)
    tensor = {"dtype": "F32", "shape": list(direction.shape), "data_offsets": [0, direction.nbytes]}
    header = json.dumps({"d": tensor}).encode()
    (tmp_path / "v.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + direction.tobytes())
    hooked = model.run(TEXT, hooks={"L1.resid_pre": lambda x: x + 2 * direction}).logits
    for vectors in ({"d": direction}, {"d": list(direction)}, str(tmp_path / "v.safetensors"), tmp_path / "v.safetensors"):
        assert np.array_equal(model.run(TEXT, "L1.resid=add:d*2", vectors=vectors).logits, hooked)
    steered = model.with_vectors({"d": direction})
    assert np.array_equal(steered.run(TEXT, "L1.resid=add:d*2").logits, hooked)
    assert regard.load(vectors={"d": direction}).run(TEXT, "L1.resid=add:d*2").edits == "L1.resid_pre=add:d*2"
    assert steered.generate(TEXT, 5, "L1.resid=add:d*50") != model.generate(TEXT, 5)
    for wrong, message in (({"e": direction}, "no vector named \"d\""), ({"d": direction[1:]}, "elements; the stream has")):
        with pytest.raises(ValueError, match=message):
            model.run(TEXT, "L1.resid=add:d", vectors=wrong)
    with pytest.raises(ValueError, match="must be finite"):
        model.run(TEXT, vectors={"d": direction * np.nan})
    with pytest.raises(ValueError, match="one dimension"):
        model.with_vectors({"d": np.ones((2, 3))})


def test_own_arrays_are_patched(model):
    other = model.run("Anna went to the park with David.", keep=["resid_post"])
    n = len(other)
    ids = model.tokens(TEXT)[:n]
    assert len(ids) == n
    for edits, name, array in (
        ("L1.H2=patch:x", "L1.z", other.z(1)),
        ("L1.KV0=patch:x.k", "k", other["k"]),
        ("L1.resid_post=patch:x@1", "L1.resid_post", other["L1.resid_post"]),
    ):
        by_array = model.run(ids, edits, texts={"x": {name: array}}).logits
        assert np.array_equal(by_array, model.run(ids, edits, texts={"x": other}).logits)
        assert not np.array_equal(by_array, model.run(ids).logits)
    z = np.zeros((model.heads, n, model.head_dim))
    assert np.array_equal(model.run(ids, "L1=patch:x", texts={"x": {"L1.z": z}}).logits, model.run(ids, "L1=zero").logits)
    with pytest.raises(ValueError, match="has the shape"):
        model.run(ids, "L1=patch:x", texts={"x": {"L1.z": z[:, :, 1:]}})
    with pytest.raises(ValueError, match="keep it in the run"):
        model.run(ids, "L1.resid_mid=patch:x", texts={"x": other})


def test_screens_by_a_prediction(model):
    texts = ["Emma and David went to the", "Anna ran to the"]
    table = model.screen(texts, of={"logit_diff": [5, 7]}, direct=True)
    assert len(table) == model.layers * model.heads and not hasattr(table, "loss")

    def values(edits):
        logits = [model.run(text, edits).logits[-1] for text in texts]
        return np.array([float(row[5]) - float(row[7]) for row in logits])

    intact, edited = values(""), values("L1.H1=zero")
    row = model.heads + 1
    assert table.edits[row] == "L1.H1=zero" and table.change[row] == pytest.approx((edited - intact).mean(), abs=1e-5)
    assert table.higher[row] == (edited > intact).sum() and np.isfinite(table.direct).all()
    several = model.screen(texts, of=[{"probability": 5}, {"probability": 7, "position": 0}])
    runs = [model.run(text).logits.astype(np.float64) for text in texts]
    p = [np.exp(x[at] - x[at].max()) / np.exp(x[at] - x[at].max()).sum() for x, at in zip(runs, (-1, 0))]
    assert several.intact[0] == pytest.approx((p[0][5] + p[1][7]) / 2, rel=1e-5)
    both, outside = {"probability": 5, "logit_diff": [5, 7]}, {"probability": 5, "position": 99}
    for wrong in ("los", {"logits": 5}, [{"probability": 5}], both, outside):
        with pytest.raises((ValueError, IndexError)):
            model.screen(texts, of=wrong)


def test_attribution_by_position(model):
    whole, apart = model.attribute(TEXT, token=5, minus=7), model.attribute(TEXT, token=5, minus=7, by_position=True)
    for part in dict.fromkeys(whole.part):
        sums = [writes for name, writes in zip(apart.part, apart.writes) if name == part]
        assert sum(sums) == pytest.approx(whole.writes[list(whole.part).index(part)], abs=1e-4)
    n = len(model.tokens(TEXT))
    assert sorted({p for name, p in zip(apart.part, apart.position) if name == "L0.H0"}) == list(range(n))
    assert set(model.attribute(TEXT, -2, token=5, by_position=True).position) == set(range(n - 1))
    with pytest.raises(ValueError, match="it replaces the sum over keys"):
        model.attribute(TEXT, edits="L0.H1=zero", by_position=True)
    edited = model.attribute(TEXT, token=5, edits="L0.resid_mid=gain:0.5")
    assert list(edited.part).count("L0.edits") == 1
    logit = model.run(TEXT, "L0.resid_mid=gain:0.5").logits[-1, 5]
    assert sum(edited.writes) == pytest.approx(float(logit), abs=1e-3)
