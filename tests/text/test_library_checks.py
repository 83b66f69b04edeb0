"""Imported tokenizer files that would need exponential time or memory are rejected before they process text."""

import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from seqloom.text import Imported
from seqloom.text.bytepair import WORD
from seqloom.text.library_checks import backtracks, check_time_and_growth

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
GPT4O = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{M}]*[\p{Ll}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}]+"
HARMLESS = [r"(?>a+)+", r"(?:a+)++", r"(ab)+", r"(a|b)", r"\(+\|*", r"[(a+)+]", r"\d{1,3}(?=(?:\d{3})*\b)", r"(?i)a+b"]
CATASTROPHIC = [
    r"(a+)+$",
    r"(?:a*)*b",
    r"(a|a)+$",
    r"(a|aa)*$",
    r"((a+)b?)+$",
    r"(a{1,})*",
    r"(?<name>a+)*",
    r"(?i:a+)+",
    r"([a-z]+)*\d",
    r"(a+){2,}",
]


def tokenizer_file(**sections: Any) -> dict[str, Any]:
    vocabulary = {"<unk>": 0, "</s>": 1, "a": 2, "b": 3, "<": 4, "/s>": 5, " ": 6}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}
    return {"version": "1.0", "added_tokens": [], "model": model, **sections}


def split_by(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize("pattern", [WORD, GPT2, LLAMA3, BLOOM, GPT4O, *HARMLESS])
def test_common_patterns_are_accepted(pattern: str) -> None:
    assert not backtracks(pattern)


@pytest.mark.parametrize("pattern", CATASTROPHIC)
def test_catastrophic_patterns_are_rejected(pattern: str) -> None:
    assert backtracks(pattern)
    nested = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, split_by(pattern)]}
    with pytest.raises(ValueError, match=r"of its pre_tokenizer must not repeat .* exponential time"):
        Imported(tokenizer_file(pre_tokenizer=nested), end=1, last=[], rows=7)


def test_exploding_normalizer_is_rejected() -> None:
    double = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    nested = {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": [double] * 6}] * 5}
    with pytest.raises(ValueError, match="its normalizer may lengthen a text 1,073,741,824 times"):
        Imported(tokenizer_file(normalizer=nested), end=1, last=[], rows=7)
    with pytest.raises(ValueError, match="its decoder may lengthen a text 5,000 times"):
        check_time_and_growth({"decoder": {"type": "Replace", "pattern": {"Regex": "x"}, "content": "y" * 5000}})


def test_common_normalizers_are_accepted() -> None:
    spaces = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}
    marks = {"type": "Replace", "pattern": {"String": "…"}, "content": "..."}
    check_time_and_growth({"normalizer": {"type": "Sequence", "normalizers": [spaces, marks, {"type": "NFKC"}]}})


def test_deeply_nested_normalizer_is_rejected() -> None:
    section: dict[str, Any] = {"type": "NFC"}
    for _ in range(500):
        section = {"type": "Sequence", "normalizers": [section]}
    with pytest.raises(ValueError, match="cannot read it"):
        Imported(tokenizer_file(normalizer=section), end=1, last=[], rows=7)


def test_excessive_matching_raises_checkpoint_error() -> None:
    """A pattern with many adjacent repetitions passes the check, but the library stops matching it with an error."""
    program = """
        from seqloom.core.errors import CheckpointError
        from seqloom.text import Imported
        from tests.text.test_library_checks import split_by, tokenizer_file
        tokenizer = Imported(tokenizer_file(pre_tokenizer=split_by("a*a*a*a*a*a*$")), end=1, last=[], rows=7)
        for read in (tokenizer.encode, tokenizer.spans):
            try:
                read("a" * 400 + "b")
            except CheckpointError as error:
                print(error)
    """
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60)
    assert done.stdout.count("takes too many steps") == 2, done.stderr[-1000:]


@pytest.mark.parametrize("count", [3, 3000])
def test_repeated_special_tokens_are_encoded_in_linear_time(count: int) -> None:
    """`</s>` is in the vocabulary, but no text may encode to it. It is encoded as characters, in linear time."""
    tokenizer = Imported(tokenizer_file(pre_tokenizer=split_by(r"</s>|/s>|.")), end=1, last=[], rows=7)
    began = time.monotonic()
    ids = tokenizer.encode("a</s>b" * count)
    spans = tokenizer.spans("a</s>b" * count)
    assert time.monotonic() - began < 10
    assert tokenizer.to_original_ids(ids) == [2, 4, 5, 3] * count
    assert spans[:5] == [(0, 1), (1, 2), (2, 5), (5, 6), (6, 7)]
    assert len(spans) == len(ids)
