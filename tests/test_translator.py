"""Translators from Python return one translation per line, in order, for any text."""

import os
import random
import time
from collections.abc import Iterable, Iterator
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
    """A translator in float64, so that results do not depend on the batch.

    Its weights are larger than initial weights.
    """
    model: TranslatorPredictor = load(runs / "bytes", "cpu", TranslatorPredictor)
    model.model.double()
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw, dtype=torch.float64) * 0.7)
    return model


def random_lines(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    words = ["the", "cat", "sat", "dog", ".", *ODD]
    lines = []
    for _ in range(count):
        length = draw.choice([0, 0, 1, 2, 3, 4]) if draw.random() < 0.99 else 40
        lines.append(draw.choice(["", " "]).join(draw.choice(words) for _ in range(length)))
    return lines


def facts(translations: Iterable[Translation]) -> list[tuple[str, str, float]]:
    return [(translation.source, translation.text, round(translation.log_prob, 8)) for translation in translations]


@pytest.mark.parametrize("number", [1_500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_translations_are_independent_of_batch_size(translator: TranslatorPredictor, number: int) -> None:
    lines = random_lines(number, 1)
    assert "" in lines and all(odd in "".join(lines) for odd in ODD)
    options: dict[str, Any] = {"beam": 1, "max_length": 4}
    expected = facts(translator.translate(lines, batch_size=100, **options))
    assert [source for source, _, _ in expected] == lines
    assert all(bool(source.strip()) == (value < 0) for source, _, value in expected)
    assert len({text for _, text, _ in expected}) > 50  # exchanged lines would be detected
    for batch_size, window, count in ((33, 200, number // 5), (1000, number, number)):
        some = iter(lines[:count])
        assert facts(translator.translate(some, batch_size=batch_size, window=window, **options)) == expected[:count]
    assert [facts(translator.translate(line, **options))[0] for line in lines[:100]] == expected[:100]


def test_beams_are_independent_of_other_lines(translator: TranslatorPredictor) -> None:
    lines = random_lines(100, 2)
    translations = [
        [
            [(candidate.text, round(candidate.score, 8)) for candidate in translation.candidates]
            for translation in translator.translate(
                lines, batch_size=size, window=window, beam=3, n_best=2, max_length=6
            )
        ]
        for size, window in ((1, 1), (32, 100), (10, 17))
    ]
    assert translations[0] == translations[1] == translations[2]
    assert max(map(len, translations[0])) == 2


def test_translation_is_one_line(translator: TranslatorPredictor) -> None:
    for translation in translator.translate(random_lines(80, 4), n_best=2, max_length=20):
        for candidate in translation.candidates:
            assert "\n" not in candidate.text and "\r" not in candidate.text
            assert candidate.text == translator.tokenizer.decode(candidate.ids).replace("\n", " ").replace("\r", " ")


def test_line_break_in_translation_becomes_space(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(runs / "characters", "cpu", TranslatorPredictor)
    monkeypatch.setattr(model.tokenizer, "decode", lambda ids: "one\r\ntwo\u2028three\n")
    (translations,) = model.translate("the cat")
    assert translations.text == "one  two\u2028three "


def test_blank_lines_are_not_passed_to_the_model(
    translator: TranslatorPredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translate_module, "beam_search", None)
    translations = list(translator.translate(["", "  ", "\t\u2028", "\u3000"], attention=True))
    assert [(translation.text, translation.score, translation.log_prob) for translation in translations] == [
        ("", 0, 0)
    ] * 4
    assert translations[0].source_words == [] and translations[0].candidates[0].alignment == ""


@pytest.mark.parametrize("window", [1, 3])
def test_input_is_read_one_window_at_a_time(translator: TranslatorPredictor, window: int) -> None:
    read = []

    def lines() -> Iterator[str]:
        for number in range(7):
            read.append(number)
            yield f"line {number}"

    for number, translation in enumerate(translator.translate(lines(), window=window, max_length=3, stream=True)):
        assert translation.source == f"line {number}"
        assert len(read) <= (number // window + 1) * window


def test_lines_before_unreadable_line_are_translated(translator: TranslatorPredictor) -> None:
    def lines() -> Iterator[str]:
        yield from ["one", "", "three"]
        raise DataError("broken")

    translations = translator.translate(lines(), max_length=3, stream=True)
    assert [next(translations).source for _ in range(3)] == ["one", "", "three"]
    with pytest.raises(DataError, match="broken"):
        next(translations)


def test_line_of_ten_thousand_tokens_is_translated_within_a_minute(translator: TranslatorPredictor) -> None:
    long = "猫 dog " * 2_001
    began = time.perf_counter()
    short, translations, other = translator.translate(["the cat", long, "the dog"], beam=2)
    assert len(translations.source_tokens) > 10_000
    assert len(translations.candidates[0].ids) <= beam.DEFAULT_MAX_LENGTH
    assert translations.source == long and (short.source, other.source) == ("the cat", "the dog")
    assert facts(translator.translate("the cat", beam=2)) == facts(iter([short]))
    assert time.perf_counter() - began < 60


def test_long_line_does_not_change_limits_of_others(
    translator: TranslatorPredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beam, "DEFAULT_MAX_LENGTH", 40)
    lines = ["the", "the cat sat " * 9, "cat", "the dog saw " * 8]
    with torch.no_grad():  # the translation may not reach END
        translator.model.output.bias[translator.tokenizer.end] -= 100
    try:
        translations = list(translator.translate(lines, beam=1))
    finally:
        with torch.no_grad():
            translator.model.output.bias[translator.tokenizer.end] += 100
    lengths = [2 * len(translation.source_tokens) + 20 for translation in translations]
    assert [len(translation.candidates[0].ids) for translation in translations] == [
        min(length, 40) for length in lengths
    ]
    assert not any(translation.candidates[0].finished for translation in translations)


def test_too_long_line_is_reported_after_previous_translations(runs: Path) -> None:
    model = load(runs / "location", "cpu", TranslatorPredictor)
    translations = model.translate(["the cat", "", "the cat sat", "the cat sat a dog saw", "the"], stream=True)
    assert [next(translations).source for _ in range(3)] == ["the cat", "", "the cat sat"]
    with pytest.raises(DataError, match=r"Line 4 has 7 tokens.*only 6 positions.*model.attention.max_length"):
        next(translations)


def test_unknown_characters_are_translated_and_reported(runs: Path) -> None:
    words = load(runs / "words", "cpu", TranslatorPredictor)
    translations = list(words.translate(["the cat", "the 猫 cat नमस्ते"]))
    assert [translation.unknown for translation in translations] == [(), ("猫", "नमस्ते")]
    assert all("<unk>" not in translation.text for translation in translations)
    (spelled,) = load(runs / "bytes", "cpu", TranslatorPredictor).translate("the 猫")
    assert spelled.unknown == ()


def test_translations_start_with_the_forced_prefix(runs: Path) -> None:
    words = load(runs / "words", "cpu", TranslatorPredictor)
    for translation in words.translate(["the cat", "a dog saw 3 .", ""], prefix="die Katze", n_best=2):
        assert all(candidate.text.startswith("die Katze") for candidate in translation.candidates) == bool(
            translation.source
        )
    with pytest.raises(DataError, match="The prefix contains '猫', which is not in the vocabulary"):
        words.translate("the cat", prefix="die 猫")


def test_prefix_may_exceed_the_length_limit(runs: Path) -> None:
    words, prefix = load(runs / "words", "cpu", TranslatorPredictor), "die Katze sass " * 10
    for translation in words.translate(["a", "the cat sat 3 .", "the cat sat " * 20], prefix=prefix):
        assert translation.text.startswith(prefix.strip())


def test_alignment_links_words(translator: TranslatorPredictor) -> None:
    (translation,) = translator.translate("the cat, sat", attention=True, n_best=2)
    assert translation.source_words == ["the", "cat", ",", "sat"]
    for candidate in translation.candidates:
        assert candidate.attention is not None and candidate.words is not None and candidate.alignment is not None
        assert candidate.attention.shape == (len(candidate.ids) + candidate.finished, len(translation.source_tokens))
        links = [tuple(map(int, link.split("-"))) for link in candidate.alignment.split()]
        assert all(source < 4 and target < len(candidate.words) for source, target in links)
    (plain,) = translator.translate("the cat, sat", n_best=2)
    assert plain.attention is None and plain.candidates[0].alignment is None
    assert plain.text == translation.text


def test_view_and_listed_links_agree(translator: TranslatorPredictor) -> None:
    (translation,) = translator.translate("the cat, sat", attention=True)
    assert translator.attention("the cat, sat").links == translation.candidates[0].alignment


def test_alignment_needs_attention(runs: Path) -> None:
    blind = load(runs / "blind", "cpu", TranslatorPredictor)
    assert len(list(blind.translate(["the cat", "a dog"]))) == 2
    with pytest.raises(UsageError, match="no attention"):
        list(blind.translate("the cat", attention=True))


def test_options_override_those_of_run(runs: Path) -> None:
    model = load(runs / "words", "cpu", TranslatorPredictor)
    assert model.decode_options() == BeamConfig(beam=2)
    assert model.decode_options(n_best=4).beam == 4
    assert model.decode_options(beam=1, length_penalty=0.0) == BeamConfig(beam=1, length_penalty=0.0)
    assert all(len(translation.candidates) == 3 for translation in model.translate(["the cat", "a"], n_best=3))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"beam": 2, "n_best": 3}, "n_best must be at most beam"),
        ({"beam": 0}, "beam must be at least 1"),
        ({"beem": 2}, r"there is no option 'beem': did you mean beam\? \(choose from beam, length_penalty"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"window": 0}, "window must be at least 1"),
    ],
)
def test_invalid_options_are_rejected_before_reading(runs: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises((UsageError, TypeError), match=words):
        load(runs / "words", "cpu", TranslatorPredictor).translate(["the cat"], **options)


def test_translator_is_rejected_as_language_model(runs: Path) -> None:
    with pytest.raises(UsageError, match=r"is a translator: use `seqloom translate`\. .* needs a language model"):
        load(runs / "words", "cpu", LanguageModelPredictor)
