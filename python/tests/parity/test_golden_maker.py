"""The committed golden vectors are what this PyTorch would write today."""

import numpy as np
import pytest

pytest.importorskip("torch")

from pathlib import Path  # noqa: E402

import golden_maker  # noqa: E402

GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.mark.parametrize("name", golden_maker.CASES)
def test_golden_vector_is_current(name):
    _, case = golden_maker.make(name)
    stored = np.load(GOLDEN / f"{name}.npz")
    assert set(stored.files) == {"options", *case}
    for key, value in case.items():
        np.testing.assert_allclose(stored[key], value, rtol=1e-6, atol=1e-7, err_msg=key)


def test_no_golden_vector_is_left_over():
    assert {path.stem for path in GOLDEN.glob("*.npz")} == set(golden_maker.CASES)
