"""The notebooks run, from top to bottom, without their outputs stored."""

import pathlib

import pytest

NOTEBOOKS = sorted((pathlib.Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def test_there_are_five():
    assert len(NOTEBOOKS) == 5


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        assert not cell.get("outputs"), f"{path.name} stores outputs"
    nbclient.NotebookClient(notebook, timeout=100, kernel_name="python3").execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    pictures = [output for output in shown if "image/svg+xml" in output["data"]]
    assert pictures, f"{path.name} shows no picture"
    assert "regard learn check" in notebook.cells[-1].source, f"{path.name} ends without an exercise"
    # For inspection.
    import os

    if folder := os.environ.get("REGARD_SHOTS"):
        for i, output in enumerate(pictures):
            pathlib.Path(folder, f"{path.stem}-{i}.svg").write_text("".join(output["data"]["image/svg+xml"]))
