"""Classifiers from Python: as many answers out as texts came in, in their order, whatever is in them."""

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
    found: ClassifierPredictor = load(runs / request.param, "cpu", ClassifierPredictor)
    return found


def test_one_answer_for_each_text_in_order_however_they_are_read(model: ClassifierPredictor) -> None:
    texts = ["a gripping, funny film", "", "a dull, bland plot", "   ", *ODD, "a warm, clever story"]
    alone = [next(model.classify(text)) for text in texts]
    assert [one.text for one in alone] == texts
    for batch_size, window in ((1, 1), (3, 5), (32, 1024)):
        found = list(model.classify(texts, batch_size=batch_size, window=window))
        assert [one.text for one in found] == texts
        for one, other in zip(alone, found, strict=True):
            assert one.label == other.label
            assert one.probability == pytest.approx(other.probability, abs=1e-5)
    assert [one.label for one in alone[:4]] == ["good", "", "bad", ""]
    assert alone[1].candidates == []


def test_probabilities_are_of_all_labels(model: ClassifierPredictor) -> None:
    (one,) = model.classify("a gripping, funny film")
    assert sum(said.probability for said in one.candidates) == pytest.approx(1.0, abs=1e-5)
    assert [said.label for said in one.candidates] == ["good", "bad"]
    (top,) = model.classify("a gripping, funny film", top=1)
    assert top.candidates == one.candidates[:1]


def test_it_answers_as_it_was_measured(model: ClassifierPredictor) -> None:
    judged = model.predict_split("test")
    found = list(model.classify(one.text for one in judged))
    assert [one.label for one in found] == [one.label for one in judged]
    assert [one.probability for one in found] == pytest.approx([one.probability for one in judged], abs=1e-5)
    right = sum(one.label == one.expected for one in judged)
    assert model.report("test").metrics["accuracy"] == right / len(judged)


def test_lines_are_read_a_window_at_a_time(runs: Path) -> None:
    read: list[int] = []

    def lines() -> Iterator[str]:
        for number in range(7):
            read.append(number)
            yield f"text {number}"

    answers = load(runs / "bag", "cpu").classify(lines(), window=3)
    next(answers)
    assert read == [0, 1, 2]


def test_what_came_before_a_broken_line_is_answered(runs: Path) -> None:
    def lines() -> Iterator[str]:
        yield "a dull film"
        raise DataError("the line cannot be read")

    answers = load(runs / "bag", "cpu").classify(lines())
    assert next(answers).label == "bad"
    with pytest.raises(DataError, match="cannot be read"):
        next(answers)


def test_a_text_of_a_hundred_thousand_words_is_read_at_its_beginning(model: ClassifierPredictor) -> None:
    text = "a gripping, funny film " + "dull " * 100_000
    (one,) = model.classify(text)
    assert one.cut
    (beginning,) = model.classify(text[:400])
    assert one.candidates[0].label == beginning.candidates[0].label
    assert one.probability == pytest.approx(beginning.probability, abs=1e-6)
    assert not next(model.classify("a dull film")).cut


@pytest.mark.parametrize("option", ["batch_size", "window"])
def test_sizes_must_be_above_zero(runs: Path, option: str) -> None:
    with pytest.raises(UsageError, match=f"{option} must be at least 1, got 0"):
        load(runs / "bag", "cpu").classify(["a"], **{option: 0})


def test_what_is_unknown_is_told(runs: Path) -> None:
    (one,) = load(runs / "words", "cpu").classify("a gripping zebra")
    assert one.unknown == ("zebra",)


def test_another_model_is_refused_by_name(runs: Path) -> None:
    with pytest.raises(
        UsageError, match=r"is a classifier: `seqloom classify` uses it. What was asked for needs a tag"
    ):
        load(runs / "bag", "cpu", TaggerPredictor)


# --- why ------------------------------------------------------------------------------------------------------------


def test_why_points_at_the_words_of_the_text(model: ClassifierPredictor) -> None:
    text = "  a gripping, नमस्ते film  "
    (one,) = model.classify([text], why=True)
    assert one.why is not None
    stripped = text.strip()
    assert [one.text[word.start : word.end] for word in one.why.words] == [word.text for word in one.why.words]
    assert "".join(word.text for word in one.why.words).replace(" ", "") == stripped.replace(" ", "")
    if model.tokenizer.kind == "byte-pair":
        assert [word.text for word in one.why.words] == ["a", "gripping", ",", "नमस्ते", "film"]
    assert next(model.classify("a film")).why is None


def test_attention_sums_to_one(runs: Path) -> None:
    (one,) = load(runs / "attends", "cpu").classify("a gripping, funny film", why=True)
    assert one.why.kind == "attention"
    assert sum(word.weight for word in one.why.words) + one.why.end == pytest.approx(1.0, abs=1e-5)


def test_the_influences_of_a_bag_are_the_logit(runs: Path) -> None:
    model = load(runs / "bag", "cpu")
    (one,) = model.classify("a gripping, funny film", why=True)
    assert one.why.kind == "influence"
    batch = model.reader().batches([one.text], tokens=1).collate(torch.zeros(1, dtype=torch.long).numpy())
    number = model.labels.index(one.label)
    logit = model.model(batch)[0, number] - model.model.output.bias[number]
    assert sum(word.weight for word in one.why.words) + one.why.end == pytest.approx(logit.item(), abs=1e-5)


@pytest.mark.parametrize("name", ["words", "bag"])
def test_words_that_decide_weigh_most(runs: Path, name: str) -> None:
    model: Any = load(runs / name, "cpu")
    for text, word in (("a gripping film", "gripping"), ("a dull film", "dull")):
        (one,) = model.classify(text, why=True)
        assert max(one.why.words, key=lambda found: found.weight).text == word
