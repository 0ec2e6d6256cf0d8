"""Shared by all tests: one seeded source of random numbers per test, and which build is under test."""

import numpy as np
import pytest

import regard


def pytest_report_header(config):
    return f"regard: {regard.__file__}, SIMD level {regard.simd_level()}, {regard.get_num_threads()} threads"


@pytest.fixture
def rng():
    return np.random.default_rng(20)


@pytest.fixture
def normal(rng):
    """normal(2, 3, 4) is an array of that shape; dtype is float32 by default."""

    def draw(*shape, dtype=np.float32):
        return rng.standard_normal(shape).astype(dtype)

    return draw
