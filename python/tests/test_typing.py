"""The stubs satisfy a strict type checker where one is installed (pip install pyright); the calls themselves run everywhere."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

import regard


def test_the_typed_calls_run():
    import typed_calls

    assert all(got == expected for got, expected in typed_calls.SHAPES)


def test_the_typed_calls_are_right_to_pyright(tmp_path):
    if importlib.util.find_spec("pyright") is None:
        pytest.skip("pyright is not installed")
    package, calls = Path(regard.__file__).resolve().parents[1], Path(__file__).with_name("typed_calls.py")
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(package)], "include": ["typed_calls.py"]}
    (tmp_path / "typed_calls.py").write_text(calls.read_text())
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    run = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable], capture_output=True, text=True, cwd=tmp_path
    )
    assert run.returncode == 0 and "0 errors" in run.stdout, run.stdout
