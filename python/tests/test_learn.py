"""The judge of exercises, on functions of this process."""

import numpy as np
import pytest
import regard


def softmax(x):
    top = x.max(1, keepdims=True)
    e = np.exp(x - np.where(np.isneginf(top), 0, top))
    total = e.sum(1, keepdims=True)
    return e / np.where(total == 0, 1, total)


def test_a_right_function_passes():
    verdict = regard.learn.check(2, softmax)
    assert verdict and verdict.passed and verdict.points == 1 and verdict.mistakes == [], verdict.text


def test_a_mistake_is_named():
    verdict = regard.learn.check("softmax", lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True), points=5)
    assert not verdict and verdict.points == 0, verdict.text
    assert "no-max" in verdict.mistakes and "no-max" in repr(verdict), verdict.text


def test_what_is_not_begun_is_todo_and_exceptions_are_told():
    def stub(x):
        raise NotImplementedError

    assert regard.learn.check(2, stub).status == "todo"
    verdict = regard.learn.check(2, lambda x: x.nothing)
    assert verdict.status in ("fail", "error") and "nothing" in verdict.text, verdict.text


def test_an_endless_loop_ends():
    def endless(x):
        while True:
            pass

    assert not regard.learn.check(2, endless)


def test_functions_with_tensors():
    torch = pytest.importorskip("torch")
    verdict = regard.learn.check(3, lambda q, k, v, scale: ((w := torch.softmax(q @ k.T * scale, 1)) @ v, w), lang="torch")
    assert verdict, verdict.text


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="there is no exercise 99"):
        regard.learn.check(99, softmax)
    with pytest.raises(TypeError, match="function must be callable"):
        regard.learn.check(2, "softmax")


def test_a_function_that_takes_a_path_can_read_the_file():
    sizes = []

    def unchanged(path, x, heads, layer):
        with open(path, "rb") as file:
            sizes.append(int.from_bytes(file.read(8), "little"))
        return x

    verdict = regard.learn.check(16, unchanged)
    assert verdict.status == "fail" and len(sizes) > 10 and min(sizes) > 100, verdict.text
