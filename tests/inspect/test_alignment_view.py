"""Alignments of translators equal the attention of the search, by tokens and by words."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from seqloom.core.errors import DataError, UsageError
from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.decoding.rules import Hypothesis
from seqloom.inspect.views.attention import AlignmentView, AttentionMap, alignment_view
from seqloom.models.recurrent_seq2seq import AttentionConfig, RecurrentSeq2SeqConfig
from seqloom.runs.trained import TranslatingModel
from seqloom.text import BytePairConfig, CharactersConfig, Tokenizer, WordsConfig, train_tokenizer

TEXTS = ["the cat sat, here", "il gatto è qui", "القط هنا", "猫はここ"]


class Candidate:
    def __init__(self, hypothesis: Hypothesis):
        self.ids, self.finished, self.hypothesis = hypothesis.tokens, hypothesis.finished, hypothesis


@dataclass
class Translator(TranslatingModel):
    """A translator with random weights and the attributes that the view needs."""

    model: Any
    tokenizer: Tokenizer
    name: str = "runs/x"
    description: str = "a translator"
    run: Any = None
    device: Any = None
    task: Any = None
    longest_source: int | None = None

    def decode_options(self, **changes: Any) -> BeamConfig:
        return BeamConfig(**changes)

    def translate(self, lines: list[str], **options: Any) -> Any:
        for line in lines:
            tokens = torch.tensor([[*self.tokenizer.encode(line), 0]])
            source = {"tokens": tokens, "mask": torch.ones_like(tokens, dtype=torch.bool)}
            with torch.no_grad():
                config = BeamConfig(**{"beam": 2, "max_length": 9, **options})
                hypotheses = beam_search(self.model, source=source, options=config, end=0, attention=True)
            self.last = Candidate(hypotheses[0][0])
            yield type("Translation", (), {"candidates": [self.last]})


def make(tokenizer: Any = None, attention: Any = None, seed: int = 3, **options: Any) -> Translator:
    trained_tokenizer = train_tokenizer(tokenizer or CharactersConfig(), TEXTS)
    torch.manual_seed(seed)
    config = RecurrentSeq2SeqConfig(hidden=8, attention=attention or AttentionConfig(), **options)
    model = config.build(len(trained_tokenizer)).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7)  # gives sharp attention and varied output
    return Translator(model, trained_tokenizer)


@pytest.mark.parametrize("order", ["luong", "bahdanau"])
@pytest.mark.parametrize("reverse", [True, False])
def test_view_shows_the_attention_weights_of_the_search(order: Any, reverse: bool) -> None:
    translator = make(attention=AttentionConfig(order=order, score="additive"), reverse=reverse)
    view = alignment_view(translator, "the cat sat")
    hypothesis = translator.last.hypothesis
    assert hypothesis.attention is not None
    np.testing.assert_allclose(view.tokens.weights, hypothesis.attention.numpy(), atol=1e-6)
    assert view.log_prob == pytest.approx(hypothesis.log_prob)
    assert view.tokens.weights.std() > 0.01
    assert view.text == translator.tokenizer.decode(hypothesis.tokens) and not view.given
    assert view.tokens.columns == [*"the cat sat", "</s>"]
    assert view.finished == (view.tokens.rows[-1] == "</s>")


def test_given_translation_is_aligned() -> None:
    translator = make()
    view = alignment_view(translator, "  the cat\n", "il gatto")
    assert (view.source, view.text, view.given, view.finished) == ("the cat", "il gatto", True, True)
    assert view.tokens.rows == [*"il gatto", "</s>"]
    assert view.words.rows == ["il", "gatto", "</s>"] and view.words.columns == ["the", "cat", "</s>"]
    np.testing.assert_allclose(view.tokens.weights.sum(axis=1), 1)
    np.testing.assert_allclose(view.words.weights.sum(axis=1), 1)
    weights = view.tokens.weights
    assert view.words.weights[0, 0] == pytest.approx(
        weights[:2, :3].sum() / 2
    )  # the mean over i and l of the sum over t, h and e
    assert view.words.weights[1, 1] == pytest.approx(
        weights[2:8, 3:7].sum() / 6
    )  # white space belongs to the following word
    other = alignment_view(translator, "the cat", "il gatto è qui")
    np.testing.assert_allclose(other.tokens.weights[:8], weights[:8])  # later target tokens have no effect


def test_dropout_is_disabled_and_the_mode_is_restored() -> None:
    translator = make(dropout=0.5)
    translator.model.train()
    first, second = (alignment_view(translator, "the cat", "il gatto") for _ in range(2))
    np.testing.assert_array_equal(first.tokens.weights, second.tokens.weights)
    assert translator.model.training


@pytest.mark.parametrize("tokenizer", [CharactersConfig(), WordsConfig(), BytePairConfig(size=280)])
@pytest.mark.parametrize("source", TEXTS)
def test_word_weights_sum_to_one_with_each_tokenizer(tokenizer: Any, source: str) -> None:
    view = alignment_view(make(tokenizer), source, "猫はここ è")
    assert view.words.weights.shape == (len(view.words.rows), len(view.words.columns))
    np.testing.assert_allclose(view.words.weights.sum(axis=1), 1)
    assert "".join(view.words.columns[:-1]) == source.replace(" ", "")


def test_unknown_words_are_reported() -> None:
    view = alignment_view(make(WordsConfig()), "the zebra sat, here", "il gatto blu")
    assert view.notes == (
        "the model reads 'zebra' of the text as <unk>",
        "the model reads 'blu' of the translation as <unk>",
    )
    assert view.words.columns == ["the", "zebra", "sat,", "here", "</s>"]  # tokens are not truncated


def test_unfinished_translation_is_noted() -> None:
    translator = make(seed=1)
    view = alignment_view(translator, "the cat", beam=1, max_length=3, min_length=3)
    assert not view.finished and len(view.tokens.rows) == len(view.tokens.weights) == 3
    assert "did not predict END" in view.notes[0]
    assert view.grid(tokens=True, end=False).rows == view.tokens.rows


def test_end_token_can_be_hidden() -> None:
    view = alignment_view(make(), "the cat", "il gatto")
    both, words = view.grid(tokens=True, end=False), view.grid(end=False)
    assert both.rows == [*"il gatto"] and both.columns == [*"the cat"]
    np.testing.assert_array_equal(both.weights, view.tokens.weights[:-1, :-1])
    assert words.rows == ["il", "gatto"] and words.weights.shape == (2, 2)
    assert view.grid() is view.words and view.grid(tokens=True) is view.tokens


def test_empty_translation_keeps_the_end_token() -> None:
    nothing = AttentionMap(["</s>"], ["a", "</s>"], np.array([[0.5, 0.5]]))
    view = AlignmentView("a", "", False, True, 0.0, nothing, nothing)
    assert view.grid(end=False) is nothing and view.links == ""


def test_links_are_most_attended_words() -> None:
    words = AttentionMap(
        ["x", "y", "z", "</s>"], ["a", "b", "</s>"], np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0], [1, 0, 0]]) * 1.0
    )
    view = AlignmentView("a b", "x y z", True, True, 0.0, words, words)
    assert view.links == "0-2 1-0"  # y attends to END, which is not linked


def test_models_without_attention_are_rejected() -> None:
    translator = make()
    blind = RecurrentSeq2SeqConfig(hidden=8, attention=None).build(len(translator.tokenizer))
    for model in (blind, torch.nn.Linear(1, 1)):
        with pytest.raises(UsageError, match="runs/x has no attention"):
            alignment_view(Translator(model, translator.tokenizer), "the cat", "il gatto")


@pytest.mark.parametrize(("source", "target"), [("", None), (" \n\u2028", None), ("a", " ")])
def test_empty_text_is_rejected(source: str, target: str | None) -> None:
    with pytest.raises(UsageError, match=r"is empty\. Give at least one word"):
        alignment_view(make(), source, target)


def test_invalid_unicode_is_rejected() -> None:
    with pytest.raises(DataError, match="must be UTF-8"):
        alignment_view(make(), "a \udcff")
