"""Tests of `seqloom embed`, which prints an embedding per line with any text model."""

import io
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.fine_tuning import classify_recipe as fine_tuned_recipe
from tests.fine_tuning import pretrained_run
from tests.masked import masked_recipe
from tests.understanding import classify_recipe, tag_recipe, trained

from seqloom.cli.app import main
from seqloom.core.errors import UsageError
from seqloom.predict.embeddings import POOLINGS
from seqloom.predict.loader import load
from seqloom.text import END

LINES = ["the owl slept here .", "", "a cat", "the dog saw in the hay . the owl slept here . the cat sat on a mat ."]
KINDS = ["bert", "gpt", "lstm", "classifier", "bag", "spelled", "tagger", "seq2seq", "transformer"]
KINDS += ["fine-tuned-bert", "fine-tuned-gpt"]
GPT = ["model.kind=gpt", "model.d_model=12", "model.heads=2", "model.layers=1", "model.positions.kind=learned"]


@pytest.fixture(scope="module")
def readers(
    tmp_path_factory: pytest.TempPathFactory, text_overrides: list[str], runs: Path, translators: Path
) -> dict[str, Path]:
    """A run of each kind of text model."""
    folder = tmp_path_factory.mktemp("readers")
    steps = ["train.steps=1", "train.evaluate_every=1"]
    small = [*text_overrides, *steps, "batch.size=4", "batch.length=16", "model.positions.max_length=16"]
    assert main(["train", "lm-char-lstm", *GPT, *small, "--out", str(folder / "gpt")]) == 0
    for name, recipe in {
        "bert": masked_recipe(folder, *steps, "model.positions.kind=learned", "model.positions.max_length=24"),
        "classifier": classify_recipe(folder, *steps),
        "bag": classify_recipe(folder, *steps, "model.encoder.kind=bag"),
        "spelled": classify_recipe(folder, *steps, "model.characters.kind=cnn"),
        "tagger": tag_recipe(folder, *steps),
    }.items():
        trained(recipe, folder / name)
    for kind in ("bert", "gpt"):
        base = pretrained_run(folder / f"pretrained-{kind}", kind)
        trained(fine_tuned_recipe(folder, base, *steps), folder / f"fine-tuned-{kind}")
    result = {name: folder / name for name in KINDS if (folder / name).exists()}
    return {
        **result,
        "lstm": runs / "chars",
        "seq2seq": translators / "one",
        "transformer": translators / "transformer",
    }


@pytest.mark.parametrize("name", KINDS)
def test_every_text_model_computes_embeddings(readers: dict[str, Path], name: str) -> None:
    model = load(readers[name], "cpu")
    vectors = {pooling: model.embed(LINES, pooling) for pooling in POOLINGS}
    for result in vectors.values():
        assert result.dtype == np.float32 and len(result) == len(LINES)
        assert not result[1].any() and result[[0, 2, 3]].any(axis=1).all() and np.isfinite(result).all()
    assert not np.allclose(vectors["first"], vectors["last"]) and not np.allclose(vectors["mean"], vectors["max"])
    one_by_one = np.concatenate([model.embed(line) for line in LINES])
    assert vectors["mean"] == pytest.approx(one_by_one, abs=1e-5)  # single texts and batches give equal vectors
    assert (vectors["mean"] <= vectors["max"] + 1e-6).all()


def test_embeddings_are_means_of_model_outputs(readers: dict[str, Path]) -> None:
    bert, lstm, gpt = (load(readers[name], "cpu") for name in ("bert", "lstm", "gpt"))
    with torch.no_grad():
        ids = bert.tokenizer.encode("The cats purr")
        h = bert.model.read(torch.tensor([[bert.specials.classify, *ids, bert.specials.separate]]))[0]
        assert bert.embed("The cats purr")[0] == pytest.approx(h.mean(dim=0).numpy(), abs=1e-6)
        assert bert.embed("The cats purr", "first")[0] == pytest.approx(h[0].numpy(), abs=1e-6)  # [CLS]
        row = torch.tensor([[END, *lstm.tokenizer.encode("the owl")]])
        assert lstm.embed("the owl", "last")[0] == pytest.approx(lstm.model.read(row)[0][0, -1].numpy(), abs=1e-6)
        row = torch.tensor([[END, *gpt.tokenizer.encode("the owl")]])
        assert gpt.embed("the owl", "max")[0] == pytest.approx(
            gpt.model.backbone.read(row)[0].amax(0).numpy(), abs=1e-6
        )


@pytest.mark.parametrize(("name", "room"), [("bert", 22), ("gpt", 15)])
def test_long_text_is_read_in_pieces(readers: dict[str, Path], name: str, room: int) -> None:
    model = load(readers[name], "cpu")
    long = " ".join(["owl"] * 50)
    ids, h = model.tokenizer.encode(long), []
    for start in range(0, len(ids), room):
        piece = ids[start : start + room]
        frame_texts = [model.specials.classify, *piece, model.specials.separate] if name == "bert" else [END, *piece]
        with torch.no_grad():
            h.append(model.model.backbone.read(torch.tensor([frame_texts]))[0])
    assert len(h) > 2 and len(h[-1]) < len(h[0])  # pieces of similar length form batches
    for pooling, pooled in POOLINGS.items():
        expected = pooled(torch.cat(h)).numpy()
        assert model.embed(["owl", long], pooling, batch_size=2)[1] == pytest.approx(expected, abs=1e-5), pooling


def test_token_vectors_are_pooled_immediately(readers: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The token vectors of at most two batches are in memory at the same time."""
    model, most = load(readers["bert"], "cpu"), 0
    alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
    read = model.model.read

    def watched(*row: Any) -> torch.Tensor:
        nonlocal most
        alive.add(h := read(*row))
        most = max(most, len(alive))
        return h

    monkeypatch.setattr(model.model, "read", watched)
    model.embed(["The cats purr"] * 40, batch_size=2)
    assert 1 <= most <= 2


def test_out_option_writes_a_numpy_file(seqloom: Any, readers: dict[str, Path], tmp_path: Path, type_in: Any) -> None:
    out = tmp_path / "vectors.npy"
    type_in("\n".join(LINES).encode())
    shown = seqloom("embed", readers["bert"], "--pooling", "first", "--out", out)
    assert shown.code == 0 and shown.out == f"{out} has 4 vectors of 16 numbers.\n"
    assert "note: the vectors of 1 blank line of 4 are zero" in shown.err
    assert np.load(out) == pytest.approx(load(readers["bert"], "cpu").embed(LINES, "first"), abs=1e-6)
    seqloom("embed", readers["bert"], "a", "--out", out).fails_with(2, "exists")
    seqloom("embed", readers["bert"], "a", "--out", tmp_path / "none" / "x.npy").fails_with(2, "does not exist")


def test_numpy_file_is_written_to_standard_output(readers: dict[str, Path], capfdbinary: Any) -> None:
    assert main(["embed", str(readers["lstm"]), "the owl", "a cat"]) == 0
    vectors = np.load(io.BytesIO(capfdbinary.readouterr().out))
    assert vectors == pytest.approx(load(readers["lstm"], "cpu").embed(["the owl", "a cat"]), abs=1e-6)


def test_terminal_output_is_rejected(seqloom: Any, readers: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    seqloom("embed", readers["lstm"], "a").fails_with(2, "Vectors cannot be printed", "--out vectors.npy")


def test_models_without_embeddings_are_rejected(
    seqloom: Any, readers: dict[str, Path], runs: Path, tmp_path: Path
) -> None:
    out = tmp_path / "x.npy"
    seqloom("embed", runs / "grams", "a", "--out", out).fails_with(2, "which has no text vectors")
    with pytest.raises(UsageError, match=r"no pooling method 'middle'"):
        load(readers["bert"], "cpu").embed("a", "middle")
    with pytest.raises(UsageError, match=r"batch_size must be at least 1; got 0"):
        load(readers["bert"], "cpu").embed("a", batch_size=0)
    assert not out.exists()


def test_empty_input_gives_an_empty_array(readers: dict[str, Path]) -> None:
    assert load(readers["bert"], "cpu").embed([]).shape == (0, 16)
