"""regard against stored answers of PyTorch's math backend (made by parity/golden_maker.py)."""

import json
from pathlib import Path

import numpy as np
import pytest

import oracle
import regard

FILES = sorted((Path(__file__).parent / "golden").glob("*.npz"))


def load(path):
    stored = np.load(path)
    options = json.loads(str(stored["options"]))
    for name in ("kv_lens", "q_offset"):
        if name in options:
            options[name] = np.array(options[name])
    if "window" in options:
        options["window"] = tuple(options["window"])
    if "mask" in stored.files:
        options["mask"] = stored["mask"]
    return stored, options


def test_the_golden_vectors_are_there():
    assert len(FILES) >= 20


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_golden_vector(path):
    stored, options = load(path)
    q, k, v = (stored[name] for name in "qkv")
    out, lse = regard.attention(q, k, v, return_lse=True, **options)
    exact = stored["out"].astype(np.float64)
    naive = oracle.attention(q, k, v, dtype=q.dtype.type, **options).out
    oracle.assert_as_good_as_naive(out, exact, naive)
    np.testing.assert_allclose(lse, stored["lse"], rtol=1e-5, atol=1e-5)
    unseen = np.isneginf(stored["lse"])
    assert (out[unseen] == 0).all()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_oracle_agrees_with_pytorch(path):
    stored, options = load(path)
    exact = oracle.attention(*(stored[name] for name in "qkv"), **options)
    tolerance = 1e-12 if stored["q"].dtype == np.float64 else 1e-6
    np.testing.assert_allclose(exact.out, stored["out"], rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(exact.lse, stored["lse"], rtol=1e-6, atol=1e-6)


def gradients_of(stored):
    return {name: stored[name] for name in ("dq", "dk", "dv", "dmask") if name in stored.files}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_golden_gradient(path):
    stored, options = load(path)
    arrays = [stored[name] for name in ("q", "k", "v", "dout")]
    naive = oracle.gradients(*arrays, dtype=arrays[0].dtype.type, **options)
    got, expected = regard.attention_vjp(*arrays, **options), gradients_of(stored)
    assert len(got) == len(expected) == len(naive)
    for (name, exact), mine, yardstick in zip(expected.items(), got, naive):
        oracle.assert_as_good_as_naive(mine, exact.astype(np.float64), yardstick, name, factor=3.0)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_oracles_gradients_agree_with_pytorch(path):
    stored, options = load(path)
    exact = oracle.gradients(*(stored[name] for name in ("q", "k", "v", "dout")), **options)
    tolerance = 1e-9 if stored["q"].dtype == np.float64 else 1e-6
    for (name, expected), mine in zip(gradients_of(stored).items(), exact):
        np.testing.assert_allclose(mine, expected, rtol=tolerance, atol=tolerance, err_msg=name)
