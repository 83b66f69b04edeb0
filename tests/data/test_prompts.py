"""Prompt templates, shots and choices."""

from pathlib import Path

import pytest

from seqloom.core.errors import DataError, UsageError
from seqloom.data.prompts import Prompt, Shot, Template, check_choices, read_shots

SHOTS = [Shot("great fun", "positive"), Shot("a bore, really", "negative")]


def test_prompt_ends_before_label() -> None:
    prompt = Prompt(tuple(SHOTS), Template.parse("Review: {text}\nVerdict: {label}."), "\n\n")
    assert prompt.text("warm {film}") == (
        "Review: great fun\nVerdict: positive.\n\nReview: a bore, really\nVerdict: negative.\n\n"
        "Review: warm {film}\nVerdict: "
    )
    assert prompt.text("x", skip=1) == "Review: a bore, really\nVerdict: negative.\n\nReview: x\nVerdict: "
    assert Prompt(()).text("x") == "x = "


def test_literal_braces_are_doubled() -> None:
    template = Template.parse("{{{text}}} -> {label} {{end}}")
    assert template.question("a") == "{a} -> "
    assert template.example(Shot("a", "b")) == "{a} -> b {end}"


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("{text}", "must contain {text} and then {label}"),
        ("{label}: {text}", "must contain {text} and then {label}"),
        ("{text} {text} {label}", "once each"),
        ("{text} {sense} {label}", "may contain {text}, {label} and no other braces"),
        ("{text!r} {label}", "no other braces"),
        ("{text:>9} {label}", "no other braces"),
        ("{text} {label", "is not a valid template"),
        ("{} {label}", "no other braces"),
    ],
)
def test_invalid_templates_are_rejected(form: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Template.parse(form)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "great fun\tpositive\na bore, really\tnegative\n"),
        ("b.tsv", "text\tlabel\ngreat fun\tpositive\n\na bore, really\tnegative\n"),
        ("c.csv", 'great fun,positive\n"a bore, really",negative\n'),
        ("d.jsonl", '{"text": "great fun", "label": "positive"}\n{"label": "negative", "text": "a bore, really"}\n'),
        ("e", "great fun\tpositive\r\na bore, really\tnegative"),
    ],
)
def test_shots_are_read_from_every_format(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert read_shots(tmp_path / name) == SHOTS


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "great fun\na bore\n", "must have two columns, text and label, separated by a tab"),
        ("a.csv", "great fun\n", "separated by a comma; its first line has one: 'great fun'"),
        ("a.tsv", "great fun\tpositive\na bore\n", "Line 2"),
        ("a.tsv", "great fun\tpositive\na bore\t \n", "the label is blank"),
        ("a.tsv", "\tpositive\n", "the text is blank"),
        ("a.tsv", "text\tlabel\n", "no rows below the header"),
        ("a.tsv", "", "is empty"),
        ("a.jsonl", '{"text": "x"}\n', "must have the keys 'text' and 'label', but has ['text']."),
        ("a.jsonl", '{"text": "x", "label": [1]}\n', "'label' at line 1 of"),
    ],
)
def test_invalid_shots_are_rejected(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(DataError) as caught:
        read_shots(tmp_path / name)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_default_choices_are_the_labels_of_the_shots() -> None:
    assert check_choices([], SHOTS) == ("positive", "negative")
    assert check_choices(["a", "b"]) == ("a", "b")
    for choices, shots, message in (
        ([], [], "there are none"),
        ([], SHOTS[:1], "only one label, 'positive'"),
        (["positive"], [], "but there is only one, 'positive'"),
        (["a", "b", "a"], [], "must be different"),
    ):
        with pytest.raises(UsageError, match=message):
            check_choices(choices, shots)
    with pytest.raises(DataError, match=r"choices, positive, bad; the label of 'a bore, really' is 'negative'"):
        check_choices(["positive", "bad"], SHOTS)
