"""Word weights of classifiers, for any label and for every kind of weights."""

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
    predictor: ClassifierPredictor = load(runs / request.param, "cpu", ClassifierPredictor)
    return predictor


def test_default_weights_match_the_output_of_classify(classifier: ClassifierPredictor) -> None:
    (prediction,) = classifier.classify(TEXT, why=True)
    assert classifier.why(TEXT) == prediction.why == classifier.why(TEXT, prediction.label)
    assert classifier.why(f"  {TEXT} ") == (prediction.why and prediction.why.shift(2))


def test_influence_matches_autograd(classifier: ClassifierPredictor) -> None:
    batch = classifier.reader().batches([TEXT], tokens=1).collate(torch.tensor([0]).numpy())
    for number, label in enumerate(classifier.labels):
        weights = classifier.why(TEXT, label, "influence")
        known = classifier.model.influence(batch, torch.tensor([number]))[0].tolist()
        assert [word.weight for word in weights.words] + [weights.end] == pytest.approx(known, abs=1e-6)
    if classifier.run.path.name == "bag":  # for a bag of words, the sum of the influence equals the score
        score = classifier.model(batch)[0, number].item()
        assert sum(known) + classifier.model.output.bias[number].item() == pytest.approx(score, abs=1e-5)


def test_occlusion_matches_the_prediction_without_the_word(classifier: ClassifierPredictor) -> None:
    def probability_of(text: str) -> float:
        (prediction,) = classifier.classify(text)
        return next(candidate.probability for candidate in prediction.candidates if candidate.label == "good")

    weights = classifier.why(TEXT, "good", "occlusion")
    shortened = ["dull, warm film", "a , warm film", "a dull warm film", "a dull, film", "a dull, warm "]
    assert [word.weight for word in weights.words] == pytest.approx(
        [probability_of(TEXT) - probability_of(text) for text in shortened], abs=1e-6
    )
    assert [word.weight for word in classifier.why("dull", "good", "occlusion").words] == [0.0]


def test_removed_word_leaves_no_double_space() -> None:
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
