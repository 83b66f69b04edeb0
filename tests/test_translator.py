"""Translators from Python: as many lines out as came in, in their order, whatever is in them."""

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from seqloom.core.errors import DataError, UsageError
from seqloom.decoding import beam
from seqloom.decoding.beam import BeamConfig
from seqloom.predict import translate as translate_module
from seqloom.predict.language_model import LanguageModelPredictor
from seqloom.predict.loader import load
from seqloom.predict.translate import Translation, TranslatorPredictor
from seqloom.runs import record
from seqloom.training import train_recipe

RECIPE = """
task: translate
data: {{corpus: parallel, train: [{folder}/a.en, {folder}/a.de]}}
tokenizer: {tokenizer}
batch: {{tokens: 200, dev_pairs: 0}}
model: {{kind: recurrent-seq2seq, hidden: 8, {model}}}
decode: {{beam: 2}}
train: {{steps: 1, device: cpu}}
"""
KINDS = {
    "bytes": ("{kind: byte-pair, size: 300}", "cell: gru"),
    "words": ("{kind: words}", "cell: gru"),
    "characters": ("{kind: characters}", "cell: gru"),
    "location": ("{kind: words}", "attention: {score: location, max_length: 6}"),
    "blind": ("{kind: words}", "attention: null"),
}
ODD = [
    "e\u0301\u0323",
    "\u202bשלום\u202c",
    "\u200f",
    "\u2028",
    "👩‍👩‍👧",
    "猫",
    "\x85",
    "\x1c",
    "\r",
    "\t",
    "\ufeff",
    "नमस्ते",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("translators")
    for language, words in {"en": ("the cat sat", "a dog saw"), "de": ("die Katze sass", "ein Hund sah")}.items():
        lines = [f"{words[n % 2]} {n} ." for n in range(30)]
        (folder / f"a.{language}").write_text("\n".join(lines) + "\n")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(os, "fsync", lambda handle: None)
        monkeypatch.setattr(record, "open_tensorboard", lambda run, step: None)
        for name, (tokenizer, model) in KINDS.items():
            recipe = folder / f"{name}.yaml"
            recipe.write_text(RECIPE.format(folder=folder, tokenizer=tokenizer, model=model))
            train_recipe(recipe, out=folder / name)
    return folder


@pytest.fixture(scope="module")
def translator(runs: Path) -> TranslatorPredictor:
    """In float64, so that lines side by side come out as they do alone; and less undecided than it was born."""
    made: TranslatorPredictor = load(runs / "bytes", "cpu", TranslatorPredictor)
    made.model.double()
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in made.model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw, dtype=torch.float64) * 0.7)
    return made


def random_lines(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    words = ["the", "cat", "sat", "dog", ".", *ODD]
    lines = []
    for _ in range(count):
        length = draw.choice([0, 0, 1, 2, 3, 4]) if draw.random() < 0.99 else 40
        lines.append(draw.choice(["", " "]).join(draw.choice(words) for _ in range(length)))
    return lines


def facts(found: Iterator[Translation]) -> list[tuple[str, str, float]]:
    return [(one.source, one.text, round(one.log_prob, 8)) for one in found]


@pytest.mark.parametrize("number", [1_500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_thousands_of_lines_at_any_batch_size(translator: TranslatorPredictor, number: int) -> None:
    lines = random_lines(number, 1)
    assert "" in lines and all(odd in "".join(lines) for odd in ODD)
    options: dict[str, Any] = {"beam": 1, "max_length": 4}
    expected = facts(translator.translate(lines, batch_size=100, **options))
    assert [source for source, _, _ in expected] == lines
    assert all(bool(source.strip()) == (value < 0) for source, _, value in expected)
    assert len({text for _, text, _ in expected}) > 50  # lines that changed places would be noticed
    for batch_size, window, count in ((33, 200, number // 5), (1000, number, number)):
        some = iter(lines[:count])
        assert facts(translator.translate(some, batch_size=batch_size, window=window, **options)) == expected[:count]
    assert [facts(translator.translate(line, **options))[0] for line in lines[:100]] == expected[:100]


def test_beams_do_not_depend_on_their_company_either(translator: TranslatorPredictor) -> None:
    lines = random_lines(100, 2)
    found = [
        [
            [(candidate.text, round(candidate.score, 8)) for candidate in one.candidates]
            for one in translator.translate(lines, batch_size=size, window=window, beam=3, n_best=2, max_length=6)
        ]
        for size, window in ((1, 1), (32, 100), (10, 17))
    ]
    assert found[0] == found[1] == found[2]
    assert max(map(len, found[0])) == 2


def test_every_translation_is_one_line(translator: TranslatorPredictor) -> None:
    for one in translator.translate(random_lines(80, 4), n_best=2, max_length=20):
        for candidate in one.candidates:
            assert "\n" not in candidate.text and "\r" not in candidate.text
            assert candidate.text == translator.tokenizer.decode(candidate.ids).replace("\n", " ").replace("\r", " ")


def test_a_line_break_in_a_translation_becomes_a_space(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(runs / "characters", "cpu", TranslatorPredictor)
    monkeypatch.setattr(model.tokenizer, "decode", lambda ids: "one\r\ntwo\u2028three\n")
    (found,) = model.translate("the cat")
    assert found.text == "one  two\u2028three "


def test_blank_lines_never_touch_the_model(translator: TranslatorPredictor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translate_module, "beam_search", None)
    found = list(translator.translate(["", "  ", "\t\u2028", "\u3000"], attention=True))
    assert [(one.text, one.score, one.log_prob) for one in found] == [("", 0, 0)] * 4
    assert found[0].source_words == [] and found[0].candidates[0].alignment == ""


@pytest.mark.parametrize("window", [1, 3])
def test_it_reads_no_further_than_its_window(translator: TranslatorPredictor, window: int) -> None:
    read = []

    def lines() -> Iterator[str]:
        for number in range(7):
            read.append(number)
            yield f"line {number}"

    for number, one in enumerate(translator.translate(lines(), window=window, max_length=3)):
        assert one.source == f"line {number}"
        assert len(read) <= (number // window + 1) * window


def test_lines_before_one_that_cannot_be_read_are_answered(translator: TranslatorPredictor) -> None:
    def lines() -> Iterator[str]:
        yield from ["one", "", "three"]
        raise DataError("broken")

    found = translator.translate(lines(), max_length=3)
    assert [next(found).source for _ in range(3)] == ["one", "", "three"]
    with pytest.raises(DataError, match="broken"):
        next(found)


def test_a_line_of_ten_thousand_tokens(translator: TranslatorPredictor) -> None:
    long = "猫 dog " * 2_001
    began = time.perf_counter()
    short, found, other = translator.translate(["the cat", long, "the dog"], beam=2)
    assert len(found.source_tokens) > 10_000
    assert len(found.candidates[0].ids) <= beam.DEFAULT_MAX_LENGTH
    assert found.source == long and (short.source, other.source) == ("the cat", "the dog")
    assert facts(translator.translate("the cat", beam=2)) == facts(iter([short]))
    assert time.perf_counter() - began < 60


def test_a_long_line_changes_no_limit_of_the_others(
    translator: TranslatorPredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beam, "DEFAULT_MAX_LENGTH", 40)
    lines = ["the", "the cat sat " * 9, "cat", "the dog saw " * 8]
    with torch.no_grad():  # it may never end
        translator.model.output.bias[translator.tokenizer.end] -= 100
    try:
        found = list(translator.translate(lines, beam=1))
    finally:
        with torch.no_grad():
            translator.model.output.bias[translator.tokenizer.end] += 100
    lengths = [2 * len(one.source_tokens) + 20 for one in found]
    assert [len(one.candidates[0].ids) for one in found] == [min(length, 40) for length in lengths]
    assert not any(one.candidates[0].finished for one in found)


def test_a_line_too_long_for_the_model_is_named_and_no_line_before_it_is_lost(runs: Path) -> None:
    model = load(runs / "location", "cpu", TranslatorPredictor)
    found = model.translate(["the cat", "", "the cat sat", "the cat sat a dog saw", "the"])
    assert [next(found).source for _ in range(3)] == ["the cat", "", "the cat sat"]
    with pytest.raises(DataError, match=r"Line 4 has 7 tokens.*only 6 places.*model.attention.max_length"):
        next(found)


def test_what_the_vocabulary_cannot_spell_is_translated_and_told(runs: Path) -> None:
    words = load(runs / "words", "cpu", TranslatorPredictor)
    found = list(words.translate(["the cat", "the 猫 cat नमस्ते"]))
    assert [one.unknown for one in found] == [(), ("猫", "नमस्ते")]
    assert all("<unk>" not in one.text for one in found)
    (spelled,) = load(runs / "bytes", "cpu", TranslatorPredictor).translate("the 猫")
    assert spelled.unknown == ()


def test_a_forced_beginning(runs: Path) -> None:
    words = load(runs / "words", "cpu", TranslatorPredictor)
    for one in words.translate(["the cat", "a dog saw 3 .", ""], prefix="die Katze", n_best=2):
        assert all(candidate.text.startswith("die Katze") for candidate in one.candidates) == bool(one.source)
    with pytest.raises(DataError, match="cannot spell '猫' in the prefix"):
        words.translate("the cat", prefix="die 猫")


def test_a_beginning_longer_than_short_lines_may_become(runs: Path) -> None:
    words, prefix = load(runs / "words", "cpu", TranslatorPredictor), "die Katze sass " * 10
    for one in words.translate(["a", "the cat sat 3 .", "the cat sat " * 20], prefix=prefix):
        assert one.text.startswith(prefix.strip())


def test_alignment_links_words(translator: TranslatorPredictor) -> None:
    (one,) = translator.translate("the cat, sat", attention=True, n_best=2)
    assert one.source_words == ["the", "cat", ",", "sat"]
    for candidate in one.candidates:
        assert candidate.attention is not None and candidate.words is not None and candidate.alignment is not None
        assert candidate.attention.shape == (len(candidate.ids) + candidate.finished, len(one.source_tokens))
        links = [tuple(map(int, link.split("-"))) for link in candidate.alignment.split()]
        assert all(source < 4 and target < len(candidate.words) for source, target in links)
    (plain,) = translator.translate("the cat, sat", n_best=2)
    assert plain.attention is None and plain.candidates[0].alignment is None
    assert plain.text == one.text


def test_the_view_says_the_same_as_the_links(translator: TranslatorPredictor) -> None:
    (one,) = translator.translate("the cat, sat", attention=True)
    assert translator.attention("the cat, sat").links == one.candidates[0].alignment


def test_without_attention_there_is_nothing_to_align(runs: Path) -> None:
    blind = load(runs / "blind", "cpu", TranslatorPredictor)
    assert len(list(blind.translate(["the cat", "a dog"]))) == 2
    with pytest.raises(UsageError, match="no attention"):
        list(blind.translate("the cat", attention=True))


def test_options_stand_before_the_runs_own(runs: Path) -> None:
    model = load(runs / "words", "cpu", TranslatorPredictor)
    assert model.decode_options() == BeamConfig(beam=2)
    assert model.decode_options(n_best=4).beam == 4
    assert model.decode_options(beam=1, length_penalty=0.0) == BeamConfig(beam=1, length_penalty=0.0)
    assert all(len(one.candidates) == 3 for one in model.translate(["the cat", "a"], n_best=3))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"beam": 2, "n_best": 3}, "n_best must be at most beam"),
        ({"beam": 0}, "beam must be at least 1"),
        ({"beem": 2}, "options beam, length_penalty"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"window": 0}, "window must be at least 1"),
    ],
)
def test_wrong_options_are_refused_before_a_line_is_read(runs: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load(runs / "words", "cpu", TranslatorPredictor).translate(["the cat"], **options)


def test_a_translator_is_no_language_model(runs: Path) -> None:
    with pytest.raises(UsageError, match=r"is a translator: `seqloom translate` uses it\. .* needs a language model"):
        load(runs / "words", "cpu", LanguageModelPredictor)
