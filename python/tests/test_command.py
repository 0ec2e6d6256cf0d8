"""The command that the package brings."""

import os
import subprocess
import sys

SAFE = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}


def regard(*words, cwd=None, **environment):
    command = [sys.executable, "-m", "regard", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env={**SAFE, **environment}, timeout=120)


def test_the_command_has_its_help_and_its_exit_codes():
    helped = regard("--help")
    assert helped.returncode == 0 and "report" in helped.stdout and "learn" in helped.stdout
    wrong = regard("sweep", "--seq", "many")
    assert wrong.returncode == 2 and "many" in wrong.stderr and not wrong.stdout


def test_an_experiment_writes_its_tables(tmp_path):
    done = regard("patterns", "--quiet", "--out", "results", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(path.suffix for path in (tmp_path / "results").iterdir() if path.name.startswith("patterns")) != []


def test_an_answer_is_judged_by_the_python_that_runs_the_command(tmp_path):
    answer = tmp_path / "softmax.py"
    answer.write_text(
        "import numpy as np\n"
        "def softmax(x):\n"
        "    top = x.max(1, keepdims=True)\n"
        "    e = np.exp(x - np.where(np.isneginf(top), 0, top))\n"
        "    return e / np.maximum(e.sum(1, keepdims=True), 1e-30)\n"
    )
    # The interpreter of a virtual environment is found without VIRTUAL_ENV; any other is python3.
    asked = [] if sys.prefix != sys.base_prefix else ["--python", sys.executable]
    judged = regard("learn", "check", "softmax", "--file", str(answer), *asked, cwd=tmp_path)
    assert judged.returncode == 0, judged.stdout + judged.stderr
    answer.write_text("def softmax(x):\n    return x\n")
    judged = regard("learn", "check", "softmax", "--file", str(answer), *asked, cwd=tmp_path)
    assert judged.returncode == 1, judged.stdout + judged.stderr
