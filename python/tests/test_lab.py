"""The laboratory and its drawings from Python: the command's own tables and figures."""

import subprocess
import sys
import time

import numpy as np
import pytest

import regard


def run(words, folder):
    code = "import sys; from regard._regard import _command; sys.exit(_command(['regard', *sys.argv[1:]]))"
    subprocess.run([sys.executable, "-c", code, *words, "--quiet", "--out", str(folder)], check=True)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("sweep", {"d_k": [4, 64]}, ["sweep", "--d-k", "4,64"]),
        ("sweep", {"d_k": (8,), "seeds": 50, "numbers": "regard", "loss": "unit"}, ["sweep", "--d-k", "8", "--seeds", "50", "--numbers", "regard", "--loss", "unit"]),
        ("flat_map", {}, ["flat-map"]),
        ("overflow", {}, ["overflow"]),
    ],
)
def test_tables_and_figures_are_the_commands(name, settings, words, tmp_path):
    result = getattr(regard.lab, name)(progress=False, **settings)
    run(words, tmp_path)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir() if not path.name.startswith(".")}
    tables = {f"{table.name}.csv": table.to_csv(comments=True).encode() for table in result.tables.values()}
    assert tables == {name: data for name, data in files.items() if name.endswith(".csv")}
    figures = {f"{figure.name}.svg": figure.svg().encode() for figure in result.figures.values()}
    assert figures == {name: data for name, data in files.items() if name.endswith(".svg")}


def test_every_experiment_is_a_function_that_explains_itself():
    names = regard.lab.experiments()["name"].tolist()
    assert len(names) > 15 and {"sweep", "robustness", "entropy", "patterns", "heads", "checks", "mask_training", "scale_training"} <= set(names)
    for name in names:
        function = getattr(regard.lab, name)
        assert function.__name__ == name and len(function.__doc__) > 100
    with pytest.raises(TypeError, match="d_k"):
        regard.lab.sweep(dk=[4])
    with pytest.raises(ValueError, match="whole number"):
        regard.lab.sweep(d_k="four")
    with pytest.raises(ValueError, match="4096"):
        regard.lab.sweep(d_k=[10**9])
    with pytest.raises(AttributeError, match="sweep"):
        regard.lab.swep


def test_ctrl_c_stops_a_long_experiment_within_a_second():
    # A background job ignores Ctrl-C, and its children inherit that.
    code = "import regard, signal; signal.signal(2, signal.default_int_handler); print('go', flush=True); regard.lab.robustness(seeds=1_000_000)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout.readline() == b"go\n"
    time.sleep(1.5)
    begun = time.monotonic()
    child.send_signal(2)
    _, said = child.communicate(timeout=60)
    assert b"KeyboardInterrupt" in said
    # The time is printed, not tested: it depends on other load of the machine.
    print(f"stopped after {time.monotonic() - begun:.2f} s")


def test_columns_are_numpy_and_go_to_others():
    table = regard.lab.sweep(d_k=[4, 64], progress=False)
    assert table["d_k"].dtype == np.int64 and table["scaled"].dtype == bool and table["mean_entropy"].dtype == np.float64
    assert "<table>" in table._repr_html_() and "svg" in table._repr_html_()
    for name, package in (("to_pandas", "pandas"), ("to_polars", "polars")):
        try:
            __import__(package)
        except ImportError:
            with pytest.raises(ImportError, match=f"pip install {package}"):
                getattr(table, name)()
        else:
            frame = getattr(table, name)()
            assert list(frame.columns) == list(table.columns) and len(frame) == len(table)
            assert list(frame["mean_entropy"]) == table["mean_entropy"].tolist() and list(frame["loss"]) == table["loss"].tolist()


def test_arrow_is_given_back():
    pa = pytest.importorskip("pyarrow")
    from regard import _arrow

    table = regard.Table(i=np.arange(5), x=np.linspace(0, 1, 5), b=np.array([True, False, True, True, False]), s=np.array(["a", None, "ü", "", "e"], object))
    made = pa.table(table)
    assert made.to_pydict() == {"i": [0, 1, 2, 3, 4], "x": np.linspace(0, 1, 5).tolist(), "b": [True, False, True, True, False], "s": ["a", None, "ü", "", "e"]}
    del made
    # A capsule that is not consumed releases its memory, too.
    table.__arrow_c_stream__()
    assert not _arrow._held and not _arrow._capsules


def test_analyze_is_the_same_of_weights_and_of_queries_and_keys():
    rng = np.random.default_rng(3)
    q, k = rng.standard_normal((2, 2, 3, 40, 8))
    weights = regard.weights(q, k, causal=True)
    plain, streamed = regard.analyze(weights[:1]), regard.analyze(q=q[:1], k=k[:1], causal=True)
    for name in plain.columns:
        assert np.abs(plain[name] - streamed[name]).max() < 1e-12, name
    # By hand.
    row = weights[0, 0]
    assert abs(plain.first_token_mass[0] - row[:, 0].mean()) < 1e-12
    assert abs(plain.previous_token_mass[0] - np.mean([0] + [row[i, i - 1] for i in range(1, 40)])) < 1e-12
    for wrong in (-weights, weights * 2, np.full((3, 3), np.nan)):
        with pytest.raises(ValueError):
            regard.analyze(wrong)
    with pytest.raises(TypeError):
        regard.analyze()


def test_drawings_show_themselves_and_are_saved(tmp_path):
    rng = np.random.default_rng(4)
    q, k = rng.standard_normal((2, 1, 4, 12, 8))
    weights = regard.weights(q, k)
    tokens = [f"t{i}" for i in range(12)]
    for figure in (regard.plot_attention(weights, tokens), regard.plot_heads(weights), regard.plot.plot_entropy(weights), regard.plot.plot_change(weights, weights[..., ::-1])):
        assert figure._repr_svg_().startswith("<svg") and len(figure.alt) > 20
        figure.save(tmp_path / "x.svg")
        figure.save(tmp_path / "x.png")
        assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert "t11" in regard.plot_attention(weights, tokens).svg()
    with pytest.raises(ValueError, match="svg or .png"):
        figure.save(tmp_path / "x.gif")
    with pytest.raises(ValueError, match="12 rows"):
        regard.plot_attention(weights, tokens[:5])
    with pytest.raises(TypeError):
        regard.plot_attention()
    # 144 heads of 64 tokens stay small.
    many = regard.weights(*rng.standard_normal((2, 1, 144, 64, 8)))
    assert len(regard.plot_heads(many).svg()) < 1_000_000


def test_lines_between_tokens_are_the_weights():
    weights = np.array([[[1.0, 0, 0], [0.25, 0.75, 0], [0.1, 0.2, 0.7]], [[1, 0, 0], [0.5, 0.5, 0], [0.0, 0.0, 1.0]]])
    tokens = ["the", "cat", "sat"]
    svg = regard.plot.plot_head_view(weights, tokens, heads=[0, 1]).svg()
    assert svg.count("<title>") == 6 + 4 and "head 0: cat looks at the\nweight: 0.2500" in svg
    assert regard.plot.plot_head_view(weights, tokens, queries=2).svg().count("<title>") == 3
    assert regard.plot.plot_head_view(weights[0, 1:], tokens[1:], key_tokens=tokens).svg().count("<title>") == 5
    q = np.random.default_rng(1).standard_normal((2, 4, 8)).astype(np.float32)
    causal = regard.plot.plot_head_view(q=q, k=q, causal=True, heads=1).svg()
    found = regard.weights(q, q, causal=True)[1]
    assert causal.count("<title>") == (found >= 0.01).sum()
    with pytest.raises(ValueError, match="there are 2, from 0"):
        regard.plot.plot_head_view(weights, tokens, heads=2)
    with pytest.raises(ValueError, match="there are 3, from 0"):
        regard.plot.plot_head_view(weights, tokens, queries=[0, 3])
    with pytest.raises(ValueError, match="up to 120 tokens"):
        regard.plot.plot_head_view(np.eye(121))
    run = regard.load().run("the cat")
    assert "".join(run.tokens).endswith("the cat") and len(run.tokens) == len(run.ids)
    svg = regard.plot.plot_head_view(run=run, layer=0, heads=[0, 1]).svg()
    assert "looks at" in svg and ">the</text>" in svg
    assert ">the</text>" in regard.plot_attention(run=run).svg()


def test_long_texts_are_drawn_in_linear_memory():
    import resource

    rng = np.random.default_rng(5)
    q, k = rng.standard_normal((2, 1, 1, 20_000, 16)).astype(np.float32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert regard.plot_attention(q=q, k=k, causal=True).svg().startswith("<svg")
    # All weights would be 1.6 GB.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_the_import_brings_nothing_that_is_not_asked_for():
    code = "import sys, threading, regard; assert threading.active_count() == 1; print([m for m in ('regard.lab', 'regard.plot', 'torch', 'jax', 'pandas') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip() == "[]"


def test_jax_has_the_gradients_of_numpy():
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(6)
    q, k, v, d_out = rng.standard_normal((4, 1, 2, 9, 5))
    out, pull = jax.vjp(lambda q, k, v: regard.jax.attention(q, k, v, causal=True), q, k, v)
    assert np.abs(np.asarray(out) - regard.attention(q, k, v, causal=True)).max() < 1e-15
    for ours, right in zip(pull(d_out), regard.attention_vjp(q, k, v, d_out, causal=True)[:3]):
        assert np.abs(np.asarray(ours) - right).max() < 1e-15
    assert np.isfinite(jax.jit(jax.grad(lambda q: regard.jax.attention(q, k, v, causal=True).sum()))(q)).all()
    with pytest.raises(TypeError, match="array"):
        regard.jax.attention(q, k, v, sink=np.zeros(2))


def test_columns_of_a_table_fit_together():
    for wrong in ({"a": np.zeros(1000), "b": np.ones(1)}, {"a": np.arange(6).reshape(2, 3)}, {"a": np.float64(1)}):
        with pytest.raises(ValueError, match="one length"):
            regard.Table(**wrong)
    table = regard.Table(a=np.zeros(3), b=np.ones(3))
    table.columns["b"] = np.ones(1)
    with pytest.raises(ValueError, match="one length"):
        table.__arrow_c_stream__()


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="this system has no fork")
def test_experiments_and_models_work_after_a_fork():
    code = """
import os, regard, numpy as np
x = np.ones((1, 8, 512, 64), np.float32)
regard.attention(x, x, x)
regard.lab.sweep(d_k=[4], progress=False)
model = regard.load()
loss = model.run("Emma and David").loss
child = os.fork()
if child == 0:
    try:
        regard.lab.sweep(d_k=[4], progress=False)
        os._exit(0 if model.run("Emma and David").loss == loss else 3)
    except BaseException:
        os._exit(4)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "0"


def test_heads_are_compared_within_their_batch_entry():
    rng = np.random.default_rng(11)
    q, k = rng.standard_normal((2, 2, 2, 20, 8))
    plain, streamed = regard.analyze(regard.weights(q, k, causal=True)), regard.analyze(q=q, k=k, causal=True)
    for name in plain.columns:
        assert np.abs(plain[name] - streamed[name]).max() < 1e-12, name
    nothing = np.zeros((3, 3))
    assert regard.analyze(nothing).beyond.tolist() == [0.0]


@pytest.mark.parametrize("draw", [regard.plot_attention, regard.plot_heads, regard.plot.plot_head_view])
def test_unknown_keywords_of_drawings_are_refused(draw):
    weights, x = np.eye(3), np.ones((1, 1, 3, 4), np.float32)
    run = regard.load().run("the cat")
    for given in (dict(weights=weights), dict(run=run), dict(q=x, k=x)):
        with pytest.raises(TypeError, match="colour"):
            draw(**given, colour="red")
    # An option of attention has no effect on weights that are finished.
    with pytest.raises(TypeError, match="causal=, which it takes only with q= and k="):
        draw(weights, causal=True)


def test_tokens_stand_beside_a_grid_of_heads():
    weights, tokens = np.stack([np.eye(4)] * 3), ["the", "cat", "sat", "down"]
    svg = regard.plot_heads(weights, tokens, columns=2).svg()
    # At the left of both rows of the grid, and at the bottom of both columns.
    assert svg.count(">down</text>") == 4 and ">down</text>" not in regard.plot_heads(weights).svg()
    cross = regard.plot_heads(weights[:, :2], tokens[:2], key_tokens=tokens, columns=3).svg()
    assert cross.count(">down</text>") == 3 and cross.count(">cat</text>") == 4
    with pytest.raises(ValueError, match="3 tokens for 4 rows"):
        regard.plot_heads(weights, tokens[:3])
    run = regard.load().run("the cat")
    assert ">the</text>" in regard.plot_heads(run=run, tokens=run.tokens).svg()


def test_the_examples_of_the_modules_hold():
    import doctest

    for module in (regard.lab, regard.nn, regard.plot):
        found = doctest.testmod(module)
        assert found.attempted >= 3 and found.failed == 0, module.__name__


def test_verdicts_are_there_with_the_settings_of_the_claims():
    assert regard.lab.sweep(d_k=[4], progress=False).claims is None
    assert len(regard.lab.flat_map(progress=False).claims) >= 1


def test_a_table_is_read_by_pandas_without_its_header(tmp_path):
    pandas = pytest.importorskip("pandas")
    table = regard.lab.sweep(d_k=[4, 64], progress=False)
    table.to_csv(tmp_path / "plain.csv")
    frame = pandas.read_csv(tmp_path / "plain.csv")
    assert list(frame.columns) == list(table.columns) and frame["mean_entropy"].tolist() == table["mean_entropy"].tolist()
    assert table.to_csv(comments=True).startswith("#") and table.to_csv(comments=True).endswith(table.to_csv())


def test_a_wide_table_prints_what_fits():
    table = regard.lab.sweep(d_k=[4, 64], progress=False)
    lines = repr(table).splitlines()
    assert max(map(len, lines)) <= 120 and "mean_max_weight" in lines[0] and "_low" not in lines[0] and "more columns" in lines[-1]


def test_rows_that_see_nothing_do_not_count_in_the_divergence_of_heads():
    rng = np.random.default_rng(12)
    q, k = rng.standard_normal((2, 1, 3, 10, 8))
    weights = regard.weights(q, k)
    half = weights.copy()
    half[:, :, ::2] = 0
    np.testing.assert_allclose(regard.analyze(half).nearest_head, regard.analyze(weights[:, :, 1::2]).nearest_head, rtol=1e-12)
    # Heads that never see a key in the same row have no divergence.
    half[:, 0], half[:, 1:, 1::2] = weights[:, 0], 0
    half[:, 0, ::2] = 0
    assert np.isnan(regard.analyze(half[:, :2]).nearest_head).all()
