"""Classifiers from Python return one prediction per text, in order, for any text."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.understanding import classify_recipe, trained

from seqloom.core.errors import DataError, UsageError
from seqloom.predict.classify import ClassifierPredictor
from seqloom.predict.loader import load
from seqloom.predict.tag import TaggerPredictor

ODD = ["e\u0301", "\u202bשלום\u202c", "\u2028", "👩‍👩‍👧 film", "\x85", "\ufeff", "नमस्ते", "film", "x" * 500, "a " * 100]
KINDS = {
    "words": ["model.pooling=mean"],
    "attends": ["model.pooling=attention"],
    "bag": ["model.encoder.kind=bag"],
    "bytes": ["tokenizer.kind=byte-pair", "tokenizer.size=300", "model.pooling=max", "batch.max_length=60"],
    "letters": ["tokenizer.kind=characters", "batch.max_length=60"],
    "spelled": ["model.characters.kind=cnn", "tokenizer.min_count=2"],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifiers")
    for name, overrides in KINDS.items():
        trained(classify_recipe(folder, *overrides), folder / name)
    return folder


@pytest.fixture(params=KINDS)
def model(runs: Path, request: pytest.FixtureRequest) -> ClassifierPredictor:
    predictions: ClassifierPredictor = load(runs / request.param, "cpu", ClassifierPredictor)
    return predictions


def test_each_text_has_one_prediction_in_order(model: ClassifierPredictor) -> None:
    texts = ["a gripping, funny film", "", "a dull, bland plot", "   ", *ODD, "a warm, clever story"]
    alone = [model.classify(text)[0] for text in texts]
    assert [prediction.text for prediction in alone] == texts
    for batch_size, window in ((1, 1), (3, 5), (32, 1024)):
        predictions = list(model.classify(texts, batch_size=batch_size, window=window))
        assert [prediction.text for prediction in predictions] == texts
        for prediction, other in zip(alone, predictions, strict=True):
            assert prediction.label == other.label
            assert prediction.probability == pytest.approx(other.probability, abs=1e-5)
    assert [prediction.label for prediction in alone[:4]] == ["good", "", "bad", ""]
    assert alone[1].candidates == []


def test_probabilities_cover_all_labels(model: ClassifierPredictor) -> None:
    (prediction,) = model.classify("a gripping, funny film")
    assert sum(candidate.probability for candidate in prediction.candidates) == pytest.approx(1.0, abs=1e-5)
    assert [candidate.label for candidate in prediction.candidates] == ["good", "bad"]
    (top,) = model.classify("a gripping, funny film", top=1)
    assert top.candidates == prediction.candidates[:1]


def test_predictions_match_those_of_evaluation(model: ClassifierPredictor) -> None:
    judged = model.predict_split("test")
    predictions = list(model.classify(prediction.text for prediction in judged))
    assert [prediction.label for prediction in predictions] == [prediction.label for prediction in judged]
    assert [prediction.probability for prediction in predictions] == pytest.approx(
        [prediction.probability for prediction in judged], abs=1e-5
    )
    right = sum(prediction.label == prediction.expected for prediction in judged)
    assert model.report("test").metrics["accuracy"] == right / len(judged)


def test_lines_are_read_in_windows(runs: Path) -> None:
    read: list[int] = []

    def lines() -> Iterator[str]:
        for number in range(7):
            read.append(number)
            yield f"text {number}"

    answers = load(runs / "bag", "cpu").classify(lines(), window=3, stream=True)
    next(answers)
    assert read == [0, 1, 2]


def test_lines_before_unreadable_line_are_predicted(runs: Path) -> None:
    def lines() -> Iterator[str]:
        yield "a dull film"
        raise DataError("the line cannot be read")

    answers = load(runs / "bag", "cpu").classify(lines(), stream=True)
    assert next(answers).label == "bad"
    with pytest.raises(DataError, match="cannot be read"):
        next(answers)


def test_very_long_text_is_truncated(model: ClassifierPredictor) -> None:
    text = "a gripping, funny film " + "dull " * 100_000
    (prediction,) = model.classify(text)
    assert prediction.cut
    (beginning,) = model.classify(text[:400])
    assert prediction.candidates[0].label == beginning.candidates[0].label
    assert prediction.probability == pytest.approx(beginning.probability, abs=1e-6)
    assert not model.classify("a dull film")[0].cut


@pytest.mark.parametrize("option", ["batch_size", "window"])
def test_sizes_must_be_positive(runs: Path, option: str) -> None:
    with pytest.raises(UsageError, match=f"{option} must be at least 1; got 0"):
        load(runs / "bag", "cpu").classify(["a"], **{option: 0})


def test_unknown_words_are_reported(runs: Path) -> None:
    (prediction,) = load(runs / "words", "cpu").classify("a gripping zebra")
    assert prediction.unknown == ("zebra",)


def test_other_kind_of_model_is_rejected(runs: Path) -> None:
    with pytest.raises(UsageError, match=r"is a classifier: use `seqloom classify`. This operation needs a tag"):
        load(runs / "bag", "cpu", TaggerPredictor)


# --- why --------------------------------------------------------------------------------------------------------------


def test_explanation_refers_to_words_of_text(model: ClassifierPredictor) -> None:
    text = "  a gripping, नमस्ते film  "
    (prediction,) = model.classify([text], why=True)
    assert prediction.why is not None
    stripped = text.strip()
    assert [prediction.text[word.start : word.end] for word in prediction.why.words] == [
        word.text for word in prediction.why.words
    ]
    assert "".join(word.text for word in prediction.why.words).replace(" ", "") == stripped.replace(" ", "")
    if model.tokenizer.kind == "byte-pair":
        assert [word.text for word in prediction.why.words] == ["a", "gripping", ",", "नमस्ते", "film"]
    assert model.classify("a film")[0].why is None


def test_attention_sums_to_one(runs: Path) -> None:
    (prediction,) = load(runs / "attends", "cpu").classify("a gripping, funny film", why=True)
    assert prediction.why.kind == "attention"
    assert sum(word.weight for word in prediction.why.words) + prediction.why.end == pytest.approx(1.0, abs=1e-5)


def test_influences_of_bag_sum_to_logit(runs: Path) -> None:
    model = load(runs / "bag", "cpu")
    (prediction,) = model.classify("a gripping, funny film", why=True)
    assert prediction.why.kind == "influence"
    batch = model.reader().batches([prediction.text], tokens=1).collate(torch.zeros(1, dtype=torch.long).numpy())
    number = model.labels.index(prediction.label)
    logit = model.model(batch)[0, number] - model.model.output.bias[number]
    assert sum(word.weight for word in prediction.why.words) + prediction.why.end == pytest.approx(
        logit.item(), abs=1e-5
    )


@pytest.mark.parametrize("name", ["words", "bag"])
def test_decisive_words_have_largest_weight(runs: Path, name: str) -> None:
    model: Any = load(runs / name, "cpu")
    for text, word in (("a gripping film", "gripping"), ("a dull film", "dull")):
        (prediction,) = model.classify(text, why=True)
        assert max(prediction.why.words, key=lambda predictions: predictions.weight).text == word
