"""Our tokenizer.json files in the tokenizers package: the same tokens, and the same text back.

The files are written by the Rust test golden_tokenizers_for_python_are_current, which also sees that they are current.
"""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

GOLDEN = Path(__file__).parent / "golden" / "tokenizers"
KINDS = ["char", "bpe", "wordpiece"]


@pytest.fixture
def tokens():
    return json.loads((GOLDEN / "tokens.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_the_same(kind, tokens):
    encoding = Tokenizer.from_file(str(GOLDEN / f"{kind}.json")).encode(tokens["text"])
    assert len(tokens[kind]) > 500
    assert encoding.ids == tokens[kind]


@pytest.mark.parametrize("kind", ["char", "bpe"])
def test_the_text_comes_back(kind, tokens):
    assert Tokenizer.from_file(str(GOLDEN / f"{kind}.json")).decode(tokens[kind]) == tokens["text"]


def test_byte_pairs_know_what_they_have_not_seen():
    strange = "Ωμέγα \x00\x7f 漢字"
    tokenizer = Tokenizer.from_file(str(GOLDEN / "bpe.json"))
    assert tokenizer.decode(tokenizer.encode(strange).ids) == strange
