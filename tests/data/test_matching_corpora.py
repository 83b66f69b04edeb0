"""Corpora of sentence pairs, multiple choice and question answering: common requirements, and behaviour of each."""

import gzip
import json
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.example_files import settings, squad, write

from seqloom.config import build, to_mapping
from seqloom.core.errors import DataError, UsageError
from seqloom.data import corpora
from seqloom.data.corpora import CORPORA, corpora_of_form
from seqloom.data.corpora.squad_files import locate_answer, read_squad
from seqloom.data.corpus import Corpus
from seqloom.data.examples import (
    Answer,
    MultipleChoiceExample,
    QuestionAnsweringExample,
    SentencePairExample,
    scores_of,
)
from seqloom.data.files import use_data_folder
from seqloom.data.generated import CHOICES as VALUES
from seqloom.data.generated import CLAIMS, QUESTIONS, SLOTS, TELLINGS, SceneDrawing

ANSWERS = corpora_of_form("question-answering")
CHOICES = corpora_of_form("multiple-choice")
MATCHED = corpora_of_form("sentence-pair")


UNIONS: dict[str, Any] = {
    "sentence-pair": corpora.CorpusConfig[SentencePairExample],
    "multiple-choice": corpora.CorpusConfig[MultipleChoiceExample],
    "question-answering": corpora.CorpusConfig[QuestionAnsweringExample],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("data"))


def load(name: str, folder: Path, **more: Any) -> Any:
    union = UNIONS[CORPORA[name].FORM]
    with use_data_folder(folder):
        return corpora.load(build(union, {**settings(name, folder), **more}))


@pytest.fixture(scope="module", params=[*MATCHED, *CHOICES, *ANSWERS])
def corpus(request: pytest.FixtureRequest, folder: Path) -> Any:
    return load(request.param, folder)


# --- all corpora ------------------------------------------------------------------------------------------------------


def test_each_form_has_corpora() -> None:
    assert set(MATCHED) >= {"rte", "sentence-pairs", "flickr8k-pairs", "scene-claims", "scene-likeness"}
    assert set(CHOICES) >= {"choices", "endings", "scene-choices"}
    assert set(ANSWERS) >= {"squad", "squad-files", "scene-questions"}


@pytest.mark.parametrize("name", [*MATCHED, *CHOICES, *ANSWERS])
def test_config_round_trips(name: str, folder: Path) -> None:
    union = UNIONS[CORPORA[name].FORM]
    built = build(union, settings(name, folder))
    assert type(built) is CORPORA[name].Config
    assert build(union, to_mapping(built)) == built


def test_corpus_is_complete(corpus: Any) -> None:
    assert all((corpus.version, corpus.licence, corpus.description))
    assert set(corpus.splits) == {"train", "dev", "test"}
    for split in corpus.splits:
        assert next(iter(corpus.sizes(split).values())) == len(corpus.split(split)) > 0
        assert all(type(size) is int and size > 0 for size in corpus.sizes(split).values())
        assert 0 <= corpus.new_words(split) <= 1
    assert len(set(corpus.fingerprint().values())) == 3


def test_no_example_is_in_two_splits(corpus: Any) -> None:
    for first, second in combinations(corpus.splits.values(), 2):
        assert not {_question(example) for example in first} & {_question(example) for example in second}


def _question(example: Any) -> Any:
    if isinstance(example, SentencePairExample):
        return example.first, example.second
    return tuple(example.texts())


def test_loading_is_reproducible(corpus: Any, folder: Path) -> None:
    repeated = load(corpus.name, folder)
    assert repeated.fingerprint() == corpus.fingerprint() and repeated.version == corpus.version


def test_answers_match_their_spans(corpus: Any) -> None:
    if not issubclass(corpus.example_type, QuestionAnsweringExample):
        return
    for questions in corpus.splits.values():
        for question in questions:
            assert question.question.strip() and question.answers
            assert all(question.context[answer.start : answer.end] == answer.text for answer in question.answers)


def test_answer_is_among_options(corpus: Any) -> None:
    if not issubclass(corpus.example_type, MultipleChoiceExample):
        return
    for choices in corpus.splits.values():
        for choice in choices:
            assert 0 <= choice.answer < len(choice.options) == len(set(choice.options))


def test_changed_answer_changes_fingerprint(folder: Path) -> None:
    corpus = load("squad-files", folder)
    question = corpus.split("dev")[0]
    replacement = [type(question)(question.context, question.question, (Answer("The", 0),), question.id)]
    changed = Corpus(**{**vars(corpus), "splits": {**corpus.splits, "dev": [*replacement, *corpus.split("dev")[1:]]}})
    assert changed.fingerprint()["dev"] != corpus.fingerprint()["dev"]
    assert changed.fingerprint()["train"] == corpus.fingerprint()["train"]


# --- pairs ------------------------------------------------------------------------------------------------------------


def test_rte_uses_glue_dev_as_test(folder: Path) -> None:
    corpus: Corpus[SentencePairExample] = load("rte", folder)
    assert [pair.label for pair in corpus.split("test")] == ["entailment", "not_entailment"] * 3
    firsts = {split: {pair.first for pair in corpus.split(split)} for split in corpus.splits}
    assert not firsts["train"] & firsts["test"] and not firsts["train"] & firsts["dev"]
    assert corpus.notes == ("2 of 40 training pairs share their first text with test and were left out",)
    assert corpus.labels == ("entailment", "not_entailment")


def test_caption_label_is_true_if_images_are_equal(folder: Path) -> None:
    corpus: Corpus[SentencePairExample] = load("flickr8k-pairs", folder, pairs=3)
    assert len(corpus.split("train")) == 8 * 3 * 2
    for pair in corpus.split("train"):
        same = pair.first.split()[2] == pair.second.split()[2]
        assert pair.label == ("5" if same else "0")
        assert pair.first != pair.second
    assert set(scores_of(corpus, "dev")) == {0.0, 5.0}
    assert load("flickr8k-pairs", folder, seed=1).fingerprint() != corpus.fingerprint()


def test_invalid_scores_are_reported(folder: Path) -> None:
    with pytest.raises(DataError, match=r"pair 1 of dev has '(not_)?entailment'"):
        scores_of(load("rte", folder), "dev")
    assert set(scores_of(load("sentence-pairs", folder), "train")) == {0.0, 1.0, 2.0}


def test_infinite_scores_are_rejected() -> None:
    corpus = Corpus("x", "-", {"train": [SentencePairExample.of("a", "b", "inf")]}, "-", "1")
    with pytest.raises(DataError, match="must be a number"):
        scores_of(corpus, "train")


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        ("first\tsecond\tlabel\na\tb\n", {}, "Line 2 .* must have 3 columns"),
        ("one\tother\tlabel\na\tb\tx\n", {}, "must name the column 'first'"),
        ("first\tsecond\tlabel\na\t\tx\n", {}, "must contain pairs of texts with labels"),
        ("a\tb\tx\n", {"first": 1, "second": 1}, "must be different columns"),
        ("a\tb\tx\n", {"first": 0, "second": 2, "label": 3}, "column numbers start at 1"),
        ("a\tb\tx\n", {"header": False}, "must be column numbers"),
        ("a\tb\tx\n", {"first": 1, "second": 2, "label": 3}, "too short: dev and test need"),
    ],
)
def test_invalid_tables_of_pairs_are_rejected(tmp_path: Path, text: str, more: dict[str, Any], message: str) -> None:
    (tmp_path / "a.tsv").write_text(text)
    with pytest.raises((DataError, UsageError), match=message):
        corpora.load(
            build(
                corpora.CorpusConfig[SentencePairExample],
                {"corpus": "sentence-pairs", "train": str(tmp_path / "a.tsv"), **more},
            )
        )


def test_pairs_of_one_text_are_not_separated(tmp_path: Path) -> None:
    rows = [f"same {n // 4}\tother {n}\t{n % 2}" for n in range(80)]
    (tmp_path / "a.tsv").write_text("\n".join(["first\tsecond\tlabel", *rows, "\t x\t1", "a\tb\t"]))
    corpus = corpora.load(
        build(corpora.CorpusConfig[SentencePairExample], {"corpus": "sentence-pairs", "train": str(tmp_path / "a.tsv")})
    )
    firsts = [{pair.first for pair in pairs} for pairs in corpus.splits.values()]
    assert not firsts[0] & firsts[1] and not firsts[0] & firsts[2] and not firsts[1] & firsts[2]
    assert [note[:30] for note in corpus.notes] == ["1 example has a blank text and", "1 example has no label and was"]


# --- choices ----------------------------------------------------------------------------------------------------------


def test_endings_of_pydocs_are_balanced(folder: Path) -> None:
    corpus: Corpus[MultipleChoiceExample] = load("endings", folder)
    assert {len(choice.options) for choice in corpus.split("dev")} == {4}
    texts = {split: set(corpus.texts(split)) for split in corpus.splits}
    assert len(texts["train"] & texts["test"]) < 0.02 * len(texts["test"])
    positions = Counter(choice.answer for choice in corpus.split("train"))
    assert min(positions.values()) > 0.15 * len(corpus.split("train"))  # the correct option can have any position


def test_wrong_endings_come_from_other_articles(folder: Path) -> None:
    corpus: Corpus[MultipleChoiceExample] = load("endings", folder, text="wikitext2", options=3, before=1)
    choice = corpus.split("train")[0]
    assert choice.text == "Town 0 is old and small ."
    assert choice.options[choice.answer] == "It has a bridge of stone 0 ."
    for example in corpus.split("train"):
        town = example.options[example.answer].rstrip(" .")[-1]
        assert all(
            option.rstrip(" .")[-1] != town for number, option in enumerate(example.options) if number != example.answer
        )
        assert len(example.options) == 3
    with pytest.raises(DataError, match="too few different sentences for 40"):
        load("endings", folder, text="wikitext2", options=40)


def test_answer_is_given_by_number_or_text(tmp_path: Path) -> None:
    rows = [f"text {n}\tno {n}\tyes {n}\t{'late' * (n % 2)}\t{'yes ' + str(n) if n % 3 else 1}" for n in range(30)]
    (tmp_path / "a.tsv").write_text("\n".join(["sent\te0\te1\te2\tgold", *rows]))
    columns = {"text": "sent", "options": ["e0", "e1", "e2"], "answer": "gold"}
    mapping = {"corpus": "choices", "train": str(tmp_path / "a.tsv"), **columns}
    corpus = corpora.load(build(corpora.CorpusConfig[MultipleChoiceExample], mapping))
    examples = [choice for choices in corpus.splits.values() for choice in choices]
    assert {choice.answer for choice in examples} == {1}
    assert {len(choice.options) for choice in examples} == {2, 3}
    one_based = corpora.load(build(corpora.CorpusConfig[MultipleChoiceExample], {**mapping, "index_base": 1}))
    assert {choice.answer for choices in one_based.splits.values() for choice in choices} == {0, 1}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"text": "a", "options": ["x", "y"], "answer": 2}'], "a number from 0 to 1 or by its text; got '2'"),
        (['{"text": "a", "options": "x", "answer": 0}'], "must be a list"),
        (['{"text": "a", "answer": 0}'], "must have the key 'options'"),
        (['{"text": "a", "options": ["x", ""], "answer": 0}'], "has a blank option"),
        (['{"text": "a", "options": ["x"], "answer": 0}'], "at least two options, but it has none"),
        (["[1]"], "must be a JSON object"),
    ],
)
def test_invalid_choices_are_rejected(tmp_path: Path, lines: list[str], message: str) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with pytest.raises(DataError, match=message):
        corpora.load(
            build(
                corpora.CorpusConfig[MultipleChoiceExample], {"corpus": "choices", "train": str(tmp_path / "a.jsonl")}
            )
        )


def test_single_option_column_is_rejected() -> None:
    with pytest.raises(UsageError, match="a column for each option, such as"):
        build(corpora.CorpusConfig[MultipleChoiceExample], {"corpus": "choices", "train": "a.tsv"})
    with pytest.raises(UsageError, match="at least two columns"):
        build(corpora.CorpusConfig[MultipleChoiceExample], {"corpus": "choices", "train": "a.tsv", "options": ["one"]})


# --- answers ----------------------------------------------------------------------------------------------------------


def test_squad_is_split_by_article(folder: Path) -> None:
    corpus: Corpus[QuestionAnsweringExample] = load("squad", folder)
    titles = [{question.title for question in questions} for questions in corpus.splits.values()]
    assert not titles[0] & titles[1] and not titles[0] & titles[2] and not titles[1] & titles[2]
    assert [len(questions) for questions in corpus.splits.values()] == [28, 4, 8]
    assert "divided by article" in corpus.description
    complete: Corpus[QuestionAnsweringExample] = load("squad", folder, parts="all")
    assert [len(questions) for questions in complete.splits.values()] == [76, 4, 40]


def test_most_frequent_answer_is_target(folder: Path) -> None:
    question = load("squad", folder).split("train")[0]
    assert len(question.answers) == 3 and question.answer.text.startswith("lake")


def test_questions_without_locatable_answer_are_left_out(tmp_path: Path) -> None:
    content = json.loads(squad(12))
    qas = [article["paragraphs"][0]["qas"] for article in content["data"]]
    qas[0][0]["answers"] = [{"text": "the sea", "answer_start": 3}]
    qas[1][0]["answers"] = [{"text": "lake 1", "answer_start": 0}]
    qas[2][0]["answers"] = []
    qas[3][0]["is_impossible"] = True
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    questions, notes = read_squad(path)
    assert len(questions) == 21 and not {"q0-0", "q2-0", "q3-0"} & {question.id for question in questions}
    moved = next(question for question in questions if question.id == "q1-0")
    assert moved.context[moved.answer.start :].startswith("lake 1")
    moved_note = "answers found at a position other than their answer_start"
    assert notes == [
        "left out because they have no answer: 2 questions of a.json.gz; the first is q2-0",
        "left out because the answer is not in the context: 1 question of a.json.gz; the first is q0-0",
        f"{moved_note}: 1 question of a.json.gz; the first is q1-0",
    ]
    with pytest.raises(DataError, match=r"The answer .the sea. to the question q0-0 .* must occur in its context"):
        read_squad(path, "refuse")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no json", "must be JSON in SQuAD format"),
        ("[]", "the file must have a list of objects 'data'"),
        ('{"data": [{"title": "x"}]}', "an article must have a list of objects 'paragraphs'"),
        ('{"data": [{"paragraphs": [{"qas": []}]}]}', "a paragraph must have a non-empty string 'context'"),
        (
            '{"data": [{"paragraphs": [{"context": "c", "qas": [{"question": "q", "answers": 3}]}]}]}',
            "a list of objects 'answers'",
        ),
        (
            '{"data": [{"paragraphs": [{"context": "c", "qas": [{"question": "q", "answers": [{"text": "c"}]}]}]}]}',
            "answer_start of the question q .* must be a number; got null",
        ),
        ('{"data": []}', "must contain questions with answers"),
    ],
)
def test_invalid_squad_files_are_rejected(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataError, match=message):
        read_squad(tmp_path / "a.json")


@given(st.text("ab ", min_size=1, max_size=12), st.integers(0, 11), st.integers(1, 4), st.integers(-3, 15))
def test_answer_is_located_at_nearest_occurrence(context: str, start: int, length: int, answer_start: int) -> None:
    text = context[start : start + length]
    answer = locate_answer(text, answer_start, context)
    if not text.strip():
        assert answer is None
        return
    assert answer is not None and context[answer.start : answer.end] == answer.text == text.strip()
    expected_start = answer_start + len(text) - len(text.lstrip())
    occurrences = [position for position in range(len(context)) if context.startswith(answer.text, position)]
    assert abs(answer.start - expected_start) == min(abs(position - expected_start) for position in occurrences)
    assert locate_answer("c", answer_start, context) is None


# --- scenes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("templates", [TELLINGS, *QUESTIONS.values(), *CLAIMS.values()])
def test_templates_are_filled(templates: tuple[str, ...]) -> None:
    scene = SceneDrawing(3).draw_scene()
    for template in templates:
        text, spans = scene.fill_template(template)
        assert "{" not in text and text[-1] in ".?"
        for slot, (start, end) in spans.items():
            assert text[start:end].lower() == getattr(scene, slot).lower()
    assert all(set(scene.fill_template(template)[1]) == set(SLOTS) for template in TELLINGS)


def test_scenes_of_one_text_share_no_values() -> None:
    drawing = SceneDrawing(0)
    for _ in range(50):
        scenes = drawing.draw_scenes(3)
        for slot in ("what", "where", "when"):
            assert len({getattr(scene, slot) for scene in scenes}) == 3
        assert len({name for scene in scenes for name in (scene.who, scene.whom)}) == 6
    assert not set(VALUES["who"]) & set(VALUES["where"])


def test_false_claims_mix_scenes(folder: Path) -> None:
    corpus: Corpus[SentencePairExample] = load("scene-claims", folder)
    assert Counter(pair.label for pair in corpus.split("train")) == {"true": 100, "false": 100}
    for pair in corpus.split("train"):  # the text contains all values of the claim
        values = [value for options in VALUES.values() for value in options if value in pair.second]
        assert values and all(
            value in pair.first.replace(pair.first[0], pair.first[0].lower(), 1)
            or value in pair.first
            or value.capitalize() in pair.first
            or value[0].upper() + value[1:] in pair.first
            for value in values
        )


def test_one_claim_of_several_is_true(folder: Path) -> None:
    corpus: Corpus[MultipleChoiceExample] = load("scene-choices", folder, options=8)
    for choice in corpus.split("train"):
        assert len(set(choice.options)) == 8
        values = [value for slot in VALUES.values() for value in slot if value in choice.options[choice.answer]]
        assert all(value.lower() in choice.text.lower() for value in values)
    with pytest.raises(UsageError, match="options: must be at most 8; got 9"):
        load("scene-choices", folder, options=9)


def test_similarity_counts_shared_slots(folder: Path) -> None:
    corpus: Corpus[SentencePairExample] = load("scene-likeness", folder)
    assert Counter(corpus.labels) == Counter("012345")
    for pair in corpus.split("dev"):
        shared = sum(
            sum(value.lower() in text.lower() for text in (pair.first, pair.second)) == 2
            for slot in ("what", "where", "when")
            for value in VALUES[slot]
        )
        assert shared <= int(pair.label)


def test_answers_are_values_of_the_slot_of_the_question(folder: Path) -> None:
    corpus: Corpus[QuestionAnsweringExample] = load("scene-questions", folder)
    kinds = {"Where": "where", "In": "where", "When": "when", "What": "what"}
    for question in corpus.split("train"):
        slot = kinds.get(question.question.split()[0])
        if slot is not None:
            assert question.answer.text.lower() in {value.lower() for value in VALUES[slot]}
