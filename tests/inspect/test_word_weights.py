"""Word weights of classifiers, for any label and of every kind."""

from pathlib import Path

import pytest
import torch
from tests.understanding import classify_recipe, trained

from seqloom.core.errors import UsageError
from seqloom.inspect.views.labels import WordWeight, remove_each_word
from seqloom.predict.classify import ClassifierPredictor
from seqloom.predict.loader import load

TEXT = "a dull, warm film"
BAG = ["model.encoder.kind=bag", "model.dropout=0"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("why")
    trained(classify_recipe(folder), folder / "gru")
    trained(classify_recipe(folder, "model.pooling=attention"), folder / "attends")
    trained(classify_recipe(folder, *BAG), folder / "bag")
    return folder


@pytest.fixture(params=["gru", "attends", "bag"])
def classifier(runs: Path, request: pytest.FixtureRequest) -> ClassifierPredictor:
    found: ClassifierPredictor = load(runs / request.param, "cpu", ClassifierPredictor)
    return found


def test_default_weights_equal_classify(classifier: ClassifierPredictor) -> None:
    (said,) = classifier.classify(TEXT, why=True)
    assert classifier.why(TEXT) == said.why == classifier.why(TEXT, said.label)
    assert classifier.why(f"  {TEXT} ") == (said.why and said.why.shift(2))


def test_influence_equals_autograd(classifier: ClassifierPredictor) -> None:
    batch = classifier.reader().batches([TEXT], tokens=1).collate(torch.tensor([0]).numpy())
    for number, label in enumerate(classifier.labels):
        found = classifier.why(TEXT, label, "influence")
        known = classifier.model.influence(batch, torch.tensor([number]))[0].tolist()
        assert [word.weight for word in found.words] + [found.end] == pytest.approx(known, abs=1e-6)
    if classifier.run.path.name == "bag":  # for a bag of words the sum is the score
        score = classifier.model(batch)[0, number].item()
        assert sum(known) + classifier.model.output.bias[number].item() == pytest.approx(score, abs=1e-5)


def test_occlusion_equals_prediction_without_word(classifier: ClassifierPredictor) -> None:
    def chance(text: str) -> float:
        (said,) = classifier.classify(text)
        return next(one.probability for one in said.candidates if one.label == "good")

    found = classifier.why(TEXT, "good", "occlusion")
    rest = ["dull, warm film", "a , warm film", "a dull warm film", "a dull, film", "a dull, warm "]
    assert [word.weight for word in found.words] == pytest.approx(
        [chance(TEXT) - chance(one) for one in rest], abs=1e-6
    )
    assert [word.weight for word in classifier.why("dull", "good", "occlusion").words] == [0.0]


def test_word_is_removed_with_double_space() -> None:
    words = [
        WordWeight(text, start, start + len(text), 0.0)
        for text, start in (("a", 0), ("dull", 2), (",", 6), ("film", 8))
    ]
    assert remove_each_word("a dull, film", words) == ["dull, film", "a , film", "a dull film", "a dull, "]


def test_invalid_requests_are_rejected(runs: Path) -> None:
    gru = load(runs / "gru", "cpu", ClassifierPredictor)
    with pytest.raises(UsageError, match="has no label 'goood'"):
        gru.why(TEXT, "goood")
    with pytest.raises(UsageError, match="has no attention pooling"):
        gru.why(TEXT, kind="attention")
    with pytest.raises(UsageError, match="empty"):
        gru.why("  ")
