"""Walks through classifiers and taggers: their scores and probabilities are the model's own."""

from pathlib import Path

import numpy as np
import pytest
from tests.inspect.walking import follows, keys, output
from tests.understanding import classify_recipe, tag_recipe, trained

import seqloom
from seqloom.core.errors import UsageError
from seqloom.inspect.tours.tour import Follow, Walk, walk_through

TRANSFORMER = ("model.encoder.kind=transformer", "model.encoder.d_model=12", "model.encoder.heads=3")
CLASSIFIERS: list[tuple[str, ...]] = [
    ("model.pooling=last",),
    ("model.pooling=attention", "model.encoder.depth=apart", "model.encoder.layers=2"),
    ("model.pooling=mean", "model.encoder.bidirectional=false"),
    ("model.encoder.kind=convolution", "model.encoder.filters=4", "model.pooling=max"),
    ("model.encoder.kind=bag", "model.encoder.weights=tf-idf"),
    (*TRANSFORMER, "model.pooling=mean"),
]
FEW = ("train.steps=2", "train.evaluate_every=2")


@pytest.mark.parametrize("overrides", CLASSIFIERS, ids=" ".join)
def test_a_classifier_s_scores_and_probabilities_are_its_own(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    reader = seqloom.load(trained(classify_recipe(tmp_path, *FEW, *overrides), tmp_path / "run"))
    text = "a gripping, funny film"
    walk = walk_through(reader, text, Follow(word=2))
    follows_roughly(walk)
    (said,) = reader.classify(text)
    assert walk.answer == said.label
    assert output(walk, "softmax").max() == pytest.approx(said.probability, abs=1e-5)
    assert keys(walk.stages)[-3:] == ["logits", "softmax", "next"]


@pytest.mark.parametrize("overrides", [(), ("model.crf=false",), TRANSFORMER], ids=str)
def test_a_tagger_s_probabilities_are_its_own(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    reader = seqloom.load(trained(tag_recipe(tmp_path, *FEW, *overrides), tmp_path / "run"))
    text = "Ann lives in Oslo"
    walk = walk_through(reader, text, Follow(word=4))
    follows_roughly(walk)
    (said,) = reader.tag(text)
    assert walk.answer == said.marked
    if reader.model.chain.learned:
        own = output(walk, "chain")
        np.testing.assert_allclose(own.max(axis=1), [word.probability for word in said.words], atol=0.2)
        batch = reader.read_line(text).batch
        np.testing.assert_allclose(own, reader.model.eval().probabilities(batch)[0].numpy(), atol=1e-5)


def follows_roughly(walk: Walk) -> None:
    """In single precision sums are right to a few digits."""
    assert walk.difference < 1e-5
    follows(walk, close=1e-4)


def test_a_model_on_a_backbone_is_refused(tmp_path: Path) -> None:
    reader = seqloom.load(trained(classify_recipe(tmp_path, *FEW), tmp_path / "run"))
    reader.run.recipe["model"]["kind"] = "fine-tuned-classifier"
    with pytest.raises(UsageError, match="it is of kind fine-tuned-classifier"):
        walk_through(reader, "a film")
