"""Taggers from Python return one prediction per line, with the positions of words and entities."""

from pathlib import Path

import pytest
from tests.understanding import sentences, tag_recipe, trained, write_sentences

from seqloom.predict.loader import load
from seqloom.predict.tag import TaggerPredictor

ODD = [
    "e\u0301 \u0323",
    "\u202bשלום\u202c",
    "\u2028",
    "👩‍👩‍👧 sings",
    "\x85",
    "\ufeff",
    "x" * 500,
    "अमित दिल्ली में है।",
    "   ",
]
KINDS = {
    "words": [],
    "bytes": ["tokenizer.kind=byte-pair", "tokenizer.size=280"],
    "alone": ["model.crf=false", "model.characters=null", "tokenizer.min_count=1"],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("taggers")
    for name, overrides in KINDS.items():
        trained(tag_recipe(folder, *overrides), folder / name)
    (folder / "plain").mkdir()
    plain = [
        [(word, {"B-PER": "NAME", "O": "X"}.get(tag, "PLACE")) for word, tag in prediction]
        for prediction in sentences()
    ]
    write_sentences(folder / "plain" / "mine.conll", plain)
    trained(tag_recipe(folder / "plain"), folder / "parts")
    return folder


@pytest.fixture(params=KINDS)
def model(runs: Path, request: pytest.FixtureRequest) -> TaggerPredictor:
    predictions: TaggerPredictor = load(runs / request.param, "cpu", TaggerPredictor)
    return predictions


def test_entities_have_positions_in_line(model: TaggerPredictor) -> None:
    line = "  Ann lives in New Delhi.  "
    (prediction,) = model.tag(line)
    assert prediction.marked == "  Ann:PER lives in [New Delhi]:LOC.  "
    assert [(e.text, e.label, line[e.start : e.end]) for e in prediction.entities or ()] == [
        ("Ann", "PER", "Ann"),
        ("New Delhi", "LOC", "New Delhi"),
    ]
    assert [word.tag for word in prediction.words] == ["B-PER", "O", "O", "B-LOC", "I-LOC", "O"]
    new, delhi = prediction.words[3:5]
    assert (prediction.entities or [])[1].probability == min(new.probability, delhi.probability)
    assert all(0 < word.probability <= 1 + 1e-6 for word in prediction.words)


def test_each_line_has_one_prediction_in_order(model: TaggerPredictor) -> None:
    lines = ["Ann lives in Rome .", "", *ODD, "Bob works in São Paulo."]
    alone = [model.tag(line)[0] for line in lines]
    assert [prediction.text for prediction in alone] == lines
    for batch_size, window in ((1, 1), (3, 5), (32, 1024)):
        predictions = list(model.tag(lines, batch_size=batch_size, window=window))
        assert [prediction.marked for prediction in predictions] == [prediction.marked for prediction in alone]
        for prediction, other in zip(alone, predictions, strict=True):
            assert [w.probability for w in prediction.words] == pytest.approx(
                [w.probability for w in other.words], abs=1e-5
            )
    assert all(prediction.text[word.start : word.end] == word.text for prediction in alone for word in prediction.words)
    assert alone[1].words == [] and alone[1].marked == "" and alone[-2].marked == "   "


def test_predictions_match_those_of_evaluation(model: TaggerPredictor) -> None:
    answers = model.answers("test")
    predictions = list(model.tag((" ".join(prediction.words) for prediction, _ in answers), spaces=True))
    assert [[word.tag for word in prediction.words] for prediction in predictions] == [tags for _, tags in answers]
    assert model.report("test").metrics["span_f1"] > 0.9


def test_very_long_line_is_read_in_pieces(runs: Path) -> None:
    model = load(runs / "alone", "cpu")
    (prediction,) = model.tag("Ann lives in Rome . " * 20_000)
    assert len(prediction.words) == 100_000
    assert prediction.pieces > 1_000
    assert len(prediction.entities) == 40_000
    assert {entity.text for entity in prediction.entities} == {"Ann", "Rome"}
    assert model.tag("Ann lives in Rome .")[0].pieces == 1


def test_punctuation_is_split_by_default(runs: Path) -> None:
    model = load(runs / "words", "cpu")
    assert [word.text for word in model.tag("Ann, Bob")[0].words] == ["Ann", ",", "Bob"]
    assert [word.text for word in model.tag("Ann, Bob", spaces=True)[0].words] == ["Ann,", "Bob"]


def test_tags_without_spans_are_marked_on_every_word(runs: Path) -> None:
    (prediction,) = load(runs / "parts", "cpu").tag("Ann lives in Rome.")
    assert prediction.entities is None
    assert prediction.marked == "Ann:NAME lives:X in:X Rome:PLACE .:X"


def test_unknown_words_are_reported(runs: Path) -> None:
    (prediction,) = load(runs / "alone", "cpu").tag("Zoe lives in Rome.")
    assert prediction.unknown == ("Zoe",)
