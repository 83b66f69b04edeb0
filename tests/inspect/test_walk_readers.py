"""Walks through classifiers and taggers: scores and probabilities equal those of the model."""

from pathlib import Path

import numpy as np
import pytest
from tests.inspect.walk_checks import check_walk, keys, stage_output
from tests.understanding import classify_recipe, tag_recipe, ticket_recipe, trained

import seqloom
from seqloom.core.errors import UsageError
from seqloom.inspect.tours.panels import TablePanel
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
TWO_STEPS = ("train.steps=2", "train.evaluate_every=2")


@pytest.mark.parametrize("overrides", CLASSIFIERS, ids=" ".join)
def test_classifier_probabilities_match_those_of_the_model(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    reader = seqloom.load(trained(classify_recipe(tmp_path, *TWO_STEPS, *overrides), tmp_path / "run"))
    text = "a gripping, funny film"
    walk = walk_through(reader, text, Follow(word=2))
    check_single_precision(walk)
    (said,) = reader.classify(text)
    assert walk.answer == said.label
    assert stage_output(walk, "softmax").max() == pytest.approx(said.probability, abs=1e-5)
    assert keys(walk.stages)[-3:] == ["logits", "softmax", "next"]


def test_multi_label_decisions_match_those_of_the_model(tmp_path: Path) -> None:
    reader = seqloom.load(trained(ticket_recipe(tmp_path, "model.encoder.kind=bag"), tmp_path / "run"))
    for temperature in (1.0, 2.0):
        reader.calibrate(temperature=temperature)
        for text in ("hello invoice now", "hello"):
            walk = walk_through(reader, text, Follow(word=1))
            check_single_precision(walk)
            (prediction,) = reader.classify(text)
            probabilities = dict(zip(reader.labels, stage_output(walk, "sigmoid").tolist(), strict=True))
            expected = {each.label: each.probability for each in prediction.candidates}
            assert probabilities == pytest.approx(expected, abs=1e-5)
            table = next(panel for panel in walk.stages[-1].panels if isinstance(panel, TablePanel))
            assert {row[0] for row in table.rows if row[3] == "yes"} == set(prediction.labels)
            assert keys(walk.stages)[-3:] == ["logits", "sigmoid", "next"]
            words = "is empty" if not prediction.labels else "consists of"
            assert words in walk.stages[-1].text


@pytest.mark.parametrize("overrides", [(), ("model.crf=false",), TRANSFORMER], ids=str)
def test_tagger_probabilities_match_those_of_the_model(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    reader = seqloom.load(trained(tag_recipe(tmp_path, *TWO_STEPS, *overrides), tmp_path / "run"))
    text = "Ann lives in Oslo"
    walk = walk_through(reader, text, Follow(word=4))
    check_single_precision(walk)
    (said,) = reader.tag(text)
    assert walk.answer == said.marked
    if reader.model.chain.learned:
        marginals = stage_output(walk, "chain")
        np.testing.assert_allclose(marginals.max(axis=1), [word.probability for word in said.words], atol=0.2)
        batch = reader.read_line(text).batch
        np.testing.assert_allclose(marginals, reader.model.eval().probabilities(batch)[0].numpy(), atol=1e-5)


def check_single_precision(walk: Walk) -> None:
    """Check a walk with a tolerance for single precision."""
    assert walk.difference < 1e-5
    check_walk(walk, tolerance=1e-4)


def test_fine_tuned_model_is_rejected(tmp_path: Path) -> None:
    reader = seqloom.load(trained(classify_recipe(tmp_path, *TWO_STEPS), tmp_path / "run"))
    reader.run.recipe["model"]["kind"] = "fine-tuned-classifier"
    with pytest.raises(UsageError, match="is of kind fine-tuned-classifier"):
        walk_through(reader, "a film")
