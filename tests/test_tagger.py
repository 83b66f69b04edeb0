"""Taggers from Python: as many answers out as lines came in, words and entities where they stand in the line."""

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
    plain = [[(word, {"B-PER": "NAME", "O": "X"}.get(tag, "PLACE")) for word, tag in one] for one in sentences()]
    write_sentences(folder / "plain" / "mine.conll", plain)
    trained(tag_recipe(folder / "plain"), folder / "parts")
    return folder


@pytest.fixture(params=KINDS)
def model(runs: Path, request: pytest.FixtureRequest) -> TaggerPredictor:
    found: TaggerPredictor = load(runs / request.param, "cpu", TaggerPredictor)
    return found


def test_entities_stand_where_they_stand(model: TaggerPredictor) -> None:
    line = "  Ann lives in New Delhi.  "
    (one,) = model.tag(line)
    assert one.marked == "  Ann:PER lives in [New Delhi]:LOC.  "
    assert [(e.text, e.label, line[e.start : e.end]) for e in one.entities or ()] == [
        ("Ann", "PER", "Ann"),
        ("New Delhi", "LOC", "New Delhi"),
    ]
    assert [word.tag for word in one.words] == ["B-PER", "O", "O", "B-LOC", "I-LOC", "O"]
    new, delhi = one.words[3:5]
    assert (one.entities or [])[1].probability == min(new.probability, delhi.probability)
    assert all(0 < word.probability <= 1 + 1e-6 for word in one.words)


def test_one_answer_for_each_line_in_order_however_they_are_read(model: TaggerPredictor) -> None:
    lines = ["Ann lives in Rome .", "", *ODD, "Bob works in São Paulo."]
    alone = [next(model.tag(line)) for line in lines]
    assert [one.text for one in alone] == lines
    for batch_size, window in ((1, 1), (3, 5), (32, 1024)):
        found = list(model.tag(lines, batch_size=batch_size, window=window))
        assert [one.marked for one in found] == [one.marked for one in alone]
        for one, other in zip(alone, found, strict=True):
            assert [w.probability for w in one.words] == pytest.approx([w.probability for w in other.words], abs=1e-5)
    assert all(one.text[word.start : word.end] == word.text for one in alone for word in one.words)
    assert alone[1].words == [] and alone[1].marked == "" and alone[-2].marked == "   "


def test_it_answers_as_it_was_measured(model: TaggerPredictor) -> None:
    answers = model.answers("test")
    found = list(model.tag((" ".join(one.words) for one, _ in answers), spaces=True))
    assert [[word.tag for word in one.words] for one in found] == [tags for _, tags in answers]
    assert model.report("test").metrics["span_f1"] > 0.9


def test_a_line_of_a_hundred_thousand_words_is_read_in_pieces(runs: Path) -> None:
    model = load(runs / "alone", "cpu")
    (one,) = model.tag("Ann lives in Rome . " * 20_000)
    assert len(one.words) == 100_000
    assert one.pieces > 1_000
    assert len(one.entities) == 40_000
    assert {entity.text for entity in one.entities} == {"Ann", "Rome"}
    assert next(model.tag("Ann lives in Rome .")).pieces == 1


def test_punctuation_is_apart_unless_it_is_said(runs: Path) -> None:
    model = load(runs / "words", "cpu")
    assert [word.text for word in next(model.tag("Ann, Bob")).words] == ["Ann", ",", "Bob"]
    assert [word.text for word in next(model.tag("Ann, Bob", spaces=True)).words] == ["Ann,", "Bob"]


def test_tags_that_mark_no_spans(runs: Path) -> None:
    (one,) = load(runs / "parts", "cpu").tag("Ann lives in Rome.")
    assert one.entities is None
    assert one.marked == "Ann:NAME lives:X in:X Rome:PLACE .:X"


def test_unknown_words_are_those_the_model_was_given(runs: Path) -> None:
    (one,) = load(runs / "alone", "cpu").tag("Zoe lives in Rome.")
    assert one.unknown == ("Zoe",)
