"""Tests of `seqloom inspect points`."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqloom.predict.embeddings import embed
from seqloom.predict.loader import load

TEXTS = ["the cat sat .", "the dog ran .", "a cat slept .", "the owl saw a cat .", "a dog sat ."]


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_coordinates_are_the_principal_components(seqloom: Any, runs: Path, type_in: Any, pooling: str) -> None:
    """The coordinates and variances equal those of a singular value decomposition, up to signs."""
    type_in("\n".join(TEXTS).encode())
    result = seqloom("inspect", "points", runs / "chars", "--pooling", pooling, "--json").json
    vectors = embed(load(runs / "chars", "cpu"), TEXTS, pooling, normalize=True).astype(np.float64)  # type: ignore[arg-type]
    left, values, _ = np.linalg.svd(vectors - vectors.mean(axis=0))
    shown = np.array([[point["x"], point["y"]] for point in result["points"]])
    np.testing.assert_allclose(np.abs(shown), np.abs(left[:, :2] * values[:2]), atol=1e-5)
    np.testing.assert_allclose(result["explained_variance_ratio"], (values**2 / (values**2).sum())[:2], atol=1e-5)
    cosines = vectors @ vectors.T - 2 * np.eye(len(TEXTS))
    assert [point["nearest"] for point in result["points"]] == [TEXTS[near] for near in cosines.argmax(axis=1)]
    assert [point["cosine"] for point in result["points"]] == pytest.approx(cosines.max(axis=1), abs=1e-5)


def test_labels_colour_the_points(seqloom: Any, runs: Path, type_in: Any, tmp_path: Path) -> None:
    labels = ["cat", "dog", "cat", "owl", "dog"]
    lines = "".join(f"{text}\t{label}\n" for text, label in zip(TEXTS, labels, strict=True))
    type_in(f"{lines}\n{TEXTS[0]}\tcat\n".encode())  # a blank line, and a repeated text
    out = tmp_path / "points.svg"
    shown = seqloom("inspect", "points", runs / "chars", "--labels", "--method", "tsne", "--out", out)
    assert shown.code == 0, shown.err
    assert "note: 1 repeated text left out" in shown.err
    rows = shown.out.splitlines()
    assert rows[0].split() == ["x", "y", "text", "label", "nearest", "text", "cosine"]
    assert [label for row, label in zip(rows[1:], labels, strict=True) if f"  {label} " in row] == labels
    assert out.read_text().startswith("<?xml")


def test_encoder_states_of_a_translator_are_drawn(seqloom: Any, translators: Path, tmp_path: Path) -> None:
    out = tmp_path / "points.png"
    shown = seqloom("inspect", "points", translators / "blind", *TEXTS, "--pooling", "last", "--out", out)
    assert shown.code == 0, shown.err
    assert shown.out.splitlines()[-1].startswith("x and y are the first two principal components, with ")
    assert min(struct.unpack(">II", out.read_bytes()[16:24])) > 100


def test_texts_of_a_split_are_read(seqloom: Any, runs: Path) -> None:
    points = seqloom("inspect", "points", runs / "chars", "--split", "dev", "--count", 6, "--json").json["points"]
    assert len(points) == 6 and all(point["label"] is None for point in points)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["a", "b", "c"], 2, "A plot of texts needs at least four texts; got 3"),
        (["a", "b", "c", "d", "--labels"], 3, "a text, a tab and a label; line 1 is 'a'"),
        (["a", "--split", "dev"], 2, "--split reads the texts and labels of the run's data"),
        (["a", "--out", "x.pdf"], 2, "must end in .png or .svg"),
    ],
)
def test_invalid_input_is_reported(seqloom: Any, runs: Path, words: list[str], code: int, message: str) -> None:
    seqloom("inspect", "points", runs / "chars", *words).fails_with(code, message)


def test_model_without_text_vectors_is_an_error(seqloom: Any, runs: Path) -> None:
    seqloom("inspect", "points", runs / "grams", *TEXTS).fails_with(2, "has no text vectors")
