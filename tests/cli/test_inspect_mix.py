"""Tests of `seqloom inspect mix` with tasks fine-tuned from a bidirectional language model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.bidirectional import bidirectional_recipe
from tests.fine_tuning import classify_recipe, pretrained_run, tag_recipe
from tests.understanding import trained

from seqloom.predict.loader import load


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("elmo")
    base = pretrained_run(folder / "base", "bilm")
    frozen = ["train.freeze=3", "model.encoder.kind=recurrent", "model.encoder.hidden=6", "train.lr=0.05"]
    trained(classify_recipe(folder, base, *frozen), folder / "features")
    trained(tag_recipe(folder, base, "train.steps=2", "train.evaluate_every=2"), folder / "tagger")
    trained(bidirectional_recipe(folder, "train.steps=2"), folder / "elmo")
    return folder


def test_layer_mix_is_shown(seqloom: Any, folder: Path) -> None:
    (result,) = seqloom("inspect", "mix", folder / "features", "--json").objects
    mix = load(folder / "features", "cpu").model.backbone.mix
    assert [layer["layer"] for layer in result["layers"]] == ["token vectors", "layer 1", "layer 2"]
    assert [layer["weight"] for layer in result["layers"]] == pytest.approx(mix.layer_weights.tolist())
    assert result["scale"] == pytest.approx(mix.scale.item()) and result["scale"] != 1  # the scale was trained
    assert sum(layer["weight"] for layer in result["layers"]) == pytest.approx(1)
    shown = seqloom("inspect", "mix", folder / "features").out
    assert (
        f"γ = {mix.scale.item():.3f}" in shown and f"{mix.layer_weights[2]:6.1%}" in shown and "token vectors" in shown
    )


def test_frozen_features_do_not_change(folder: Path) -> None:
    before, after = (load(folder / name, "cpu").model.backbone for name in ("base", "features"))
    tuned, base = after.encoder.state_dict(), before.state_dict()
    V = len(base["embed.weight"])
    assert np.array_equal(tuned["embed.weight"][:V], base["embed.weight"])
    assert all(np.array_equal(tuned[name], base[name]) for name in base if name != "embed.weight")


def test_model_without_mix_is_rejected(seqloom: Any, folder: Path) -> None:
    shown = seqloom("inspect", "mix", folder / "elmo")
    shown.fails_with(2, "fine-tuned from a bidirectional language model (init.from)", lines=1)


def test_fine_tuned_runs_work_with_other_commands(seqloom: Any, folder: Path) -> None:
    assert seqloom("classify", folder / "features", "a warm, funny film", "--why").out
    assert "Ann" in seqloom("tag", folder / "tagger", "Ann lives in Rome .").out
    shown = seqloom("evaluate", folder / "elmo").out
    assert all(words in shown for words in ("perplexity per token", "forward", "backward"))
    names = [line[:24].strip() for line in shown.splitlines()[1:]]
    assert names[1:4] == ["perplexity per token", "forward", "backward"]
    looked = seqloom("inspect", "attention", folder / "elmo", "a text")
    looked.fails_with(2, "elmo is a bidirectional language model", "supports translators, denoisers, GPTs, BERTs")
    for words in (["generate", folder / "elmo"], ["score", folder / "elmo", "a text"]):
        seqloom(*words).fails_with(2, "a bidirectional language model: use `seqloom embed`")
