"""Attention weights of all heads equal those of the model, by tokens and by words."""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from seqloom.core.errors import UsageError
from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.inspect.views.attention import (
    PARTS,
    AttentionMap,
    HeadStatistics,
    HeadsView,
    Part,
    alignment_view,
    heads_view,
    parts_of,
    read_words,
)
from seqloom.inspect.views.texts import SequencePair
from seqloom.models.recurrent_seq2seq import RecurrentSeq2SeqConfig
from seqloom.models.transformer import TransformerConfig
from seqloom.runs.trained import TranslatingModel
from seqloom.text import BytePairConfig, CharactersConfig, Tokenizer, WordsConfig, train_tokenizer

TEXTS = ["the cat sat, here", "il gatto è qui", "القط هنا", "猫はここ"]


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
        tokens = torch.tensor([[*self.tokenizer.encode(lines[0]), 0]])
        source = {"tokens": tokens, "mask": torch.ones_like(tokens, dtype=torch.bool)}
        with torch.no_grad():
            config = BeamConfig(**{"beam": 2, "max_length": 9, **options})
            (hypotheses,) = beam_search(self.model.eval(), source=source, options=config, end=0, attention=True)
        self.last: Any = hypotheses[0]
        best = type("Candidate", (), {"ids": hypotheses[0].tokens, "finished": hypotheses[0].finished})
        yield type("Translation", (), {"candidates": [best]})


def make(tokenizer: Any = None, **options: Any) -> Translator:
    trained_tokenizer = train_tokenizer(tokenizer or CharactersConfig(), TEXTS)
    torch.manual_seed(3)
    settings: dict[str, Any] = {"d_model": 16, "heads": 4, "encoder_layers": 2, "decoder_layers": 3, **options}
    model = TransformerConfig(**settings).build(len(trained_tokenizer)).double()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.5)  # gives sharp attention that differs between heads
    return Translator(model, trained_tokenizer)


@pytest.fixture(scope="module")
def translator() -> Translator:
    return make()


@pytest.fixture(scope="module")
def view(translator: Translator) -> HeadsView:
    return heads_view(translator, "  the cat\n", "il gatto")


def batch_of(tokenizer: Tokenizer, source: str, target: str) -> dict[str, torch.Tensor]:
    source_ids, target_ids = ([*tokenizer.encode(text), 0] for text in (source, target))
    rows = {"source": source_ids, "inputs": [0, *target_ids[:-1]], "targets": target_ids}
    masks = {"source_mask": [True] * len(source_ids), "target_mask": [True] * len(target_ids)}
    return {name: torch.tensor([row]) for name, row in {**rows, **masks}.items()}


# --- by tokens ------------------------------------------------------------------------------------------------------


def test_weights_match_the_attention_of_the_model(translator: Translator, view: HeadsView) -> None:
    attentions = translator.model.eval().attentions(batch_of(translator.tokenizer, "the cat", "il gatto"))
    assert list(view.parts) == list(PARTS)
    for name, layers, shape in (("encoder", 2, (8, 8)), ("decoder", 3, (9, 9)), ("cross", 3, (9, 8))):
        part = view.part(name)
        assert (part.layers, part.heads) == (layers, 4) and part.tokens.weights.shape == (layers, 4, *shape)
        for layer in range(layers):
            np.testing.assert_array_equal(part.tokens.weights[layer], attentions[name][layer][0].detach().numpy())
        assert part.tokens.weights.std() > 0.05  # the weights are not uniform
    assert (view.source, view.text, view.given, view.finished) == ("the cat", "il gatto", True, True)
    with torch.no_grad():
        log_probs = translator.model.target_log_probs(batch_of(translator.tokenizer, "the cat", "il gatto"))
    assert view.log_prob == pytest.approx(float(log_probs.sum()))


def test_rows_and_columns_are_labelled_with_tokens_and_words(view: HeadsView) -> None:
    assert view.encoder.tokens.rows == view.encoder.tokens.columns == [*"the cat", "</s>"]
    assert view.cross.tokens.rows == [*"il gatto", "</s>"] and view.cross.tokens.columns == [*"the cat", "</s>"]
    # The tokens that the decoder reads
    assert view.decoder.tokens.rows == view.decoder.tokens.columns == ["</s>", *"il gatto"]
    assert view.decoder.words.rows == view.decoder.words.columns == ["</s>", "il", "gatto"]


@pytest.mark.parametrize("name", PARTS)
def test_rows_sum_to_one(view: HeadsView, name: str) -> None:
    for maps in (view.part(name).tokens, view.part(name).words):
        np.testing.assert_allclose(maps.weights.sum(axis=-1), 1)


def test_decoder_attention_is_causal(view: HeadsView) -> None:
    """Weights above the diagonal would belong to tokens that the decoder has not read."""
    weights = view.decoder.tokens.weights
    ahead = np.triu(np.ones(weights.shape[-2:], dtype=bool), k=1)
    assert (weights[:, :, ahead] == 0).all() and (weights[:, :, ~ahead] > 0).all()
    words = view.decoder.words
    assert (words.weights[:, :, np.triu(np.ones((3, 3), dtype=bool), k=1)] == 0).all()
    assert (words.weights[:, :, range(3), range(3)] > 0).all()  # every token attends to itself
    assert view.encoder.tokens.weights.min() > 0  # the encoder is bidirectional


def test_attention_to_later_positions_is_detected() -> None:
    weights = heads_view(make(causal=False), "the cat", "il gatto").decoder.tokens.weights
    assert weights[:, :, 0, 1:].sum() > 0


def test_alignment_is_mean_over_heads(translator: Translator) -> None:
    """The alignment is the mean over the heads of the last layer, including during decoding."""
    view = heads_view(translator, "the cat sat")
    aligned = alignment_view(translator, "the cat sat")
    np.testing.assert_allclose(view.cross.grid(tokens=True).weights, aligned.tokens.weights)
    np.testing.assert_allclose(view.cross.grid().weights, aligned.words.weights)
    np.testing.assert_allclose(view.cross.grid(tokens=True).weights, translator.last.attention.numpy(), atol=1e-6)
    assert view.text == aligned.text and view.log_prob == pytest.approx(aligned.log_prob) and not view.given


def test_default_layer_is_alignment_layer() -> None:
    translator = make(align_layer=2)
    view = heads_view(translator, "the cat", "il gatto")
    assert (view.cross.default_layer, view.decoder.default_layer, view.encoder.default_layer) == (2, 3, 2)
    aligned = alignment_view(translator, "the cat", "il gatto").words.weights
    np.testing.assert_allclose(view.cross.grid().weights, aligned)


def test_dropout_is_disabled() -> None:
    translator = make(dropout=0.5, attention_dropout=0.5)
    translator.model.train()
    first, second = (heads_view(translator, "the cat", "il gatto") for _ in range(2))
    np.testing.assert_array_equal(first.encoder.tokens.weights, second.encoder.tokens.weights)
    assert translator.model.training


# --- by words -------------------------------------------------------------------------------------------------------


def test_word_weights_sum_columns_and_average_rows(view: HeadsView) -> None:
    tokens, words = view.cross.tokens.weights[1, 2], view.cross.words.weights[1, 2]
    assert words[0, 0] == pytest.approx(tokens[:2, :3].sum() / 2)  # rows i and l, columns t, h and e
    assert words[1, 1] == pytest.approx(tokens[2:8, 3:7].sum() / 6)  # white space belongs to the following word
    tokens, words = view.decoder.tokens.weights[0, 0], view.decoder.words.weights[0, 0]
    assert words[2, 1] == pytest.approx(tokens[3:9, 1:3].sum() / 6)  # gatto attends to il
    tokens, words = view.encoder.tokens.weights[0, 3], view.encoder.words.weights[0, 3]
    assert words[1, 0] == pytest.approx(tokens[3:7, :3].sum() / 4)


@pytest.mark.parametrize("tokenizer", [CharactersConfig(), WordsConfig(), BytePairConfig(size=280)])
@pytest.mark.parametrize("source", TEXTS)
def test_rows_sum_to_one_with_each_tokenizer(tokenizer: Any, source: str) -> None:
    view = heads_view(make(tokenizer, decoder_layers=1), source, "猫はここ è")
    for part in view.parts.values():
        for maps in (part.tokens, part.words):
            assert maps.weights.shape[2:] == (len(maps.rows), len(maps.columns))
            np.testing.assert_allclose(maps.weights.sum(axis=-1), 1)
    assert "".join(view.encoder.words.rows[:-1]) == source.replace(" ", "")


def test_unfinished_translation_is_noted(translator: Translator) -> None:
    view = heads_view(translator, "the cat", beam=1, max_length=3, min_length=3)
    assert not view.finished and "did not predict END" in view.notes[0]
    decoder = view.decoder
    read = ["</s>", *view.cross.tokens.rows[:-1]]  # the last predicted token is not read
    assert decoder.tokens.rows == decoder.tokens.columns == read
    bare = decoder.maps(tokens=True, end=False)
    assert bare.rows == bare.columns == read[1:]
    np.testing.assert_allclose(decoder.words.weights.sum(axis=-1), 1)


def test_decoder_words_are_shifted_by_one() -> None:
    from seqloom.evaluate.alignment import Word

    words = [Word("ab", (0, 1)), Word("c", (2,))]
    unfinished = SequencePair("", "", False, False, [], [5, 6, 7], [], [], [], words, ())
    assert read_words(unfinished) == [("</s>", (0,)), ("ab", (1, 2))]
    finished = SequencePair("", "", False, True, [], [5, 6, 7, 0], [], [], [], [*words, Word("</s>", (3,))], ())
    assert read_words(finished) == [("</s>", (0,)), ("ab", (1, 2)), ("c", (3,))]


def test_end_token_can_be_hidden(view: HeadsView) -> None:
    sides = {
        "encoder": (["the", "cat"],) * 2,
        "decoder": (["il", "gatto"],) * 2,
        "cross": (["il", "gatto"], ["the", "cat"]),
    }
    kept = {"encoder": np.s_[:, :, :-1, :-1], "decoder": np.s_[:, :, 1:, 1:], "cross": np.s_[:, :, :-1, :-1]}
    for name, (rows, columns) in sides.items():
        part = view.part(name)
        bare = part.maps(end=False)
        assert (bare.rows, bare.columns) == (rows, columns)
        np.testing.assert_array_equal(bare.weights, part.words.weights[kept[name]])
        np.testing.assert_array_equal(part.grid(1, 2, end=False).weights, bare.weights[0, 1])
    nothing = AttentionMap(["</s>"], ["</s>"], np.ones((1, 1, 1, 1)))
    assert Part("decoder", nothing, nothing, 1).maps(end=False) is nothing


# --- single heads -----------------------------------------------------------------------------------------------------


def test_grid_shows_one_head_or_the_mean_over_heads(view: HeadsView) -> None:
    part = view.decoder
    np.testing.assert_array_equal(part.grid(2, 3).weights, part.words.weights[1, 2])
    np.testing.assert_allclose(part.grid(2, tokens=True).weights, part.tokens.weights[1].mean(axis=0))
    np.testing.assert_array_equal(part.grid(head=1).weights, part.words.weights[2, 0])  # the head is in the last layer
    assert part.title(2, 3) == "decoder self-attention, layer 2 of 3, head 3 of 4"
    assert part.title() == "decoder self-attention, layer 3 of 3, mean over its 4 heads"


@pytest.mark.parametrize(("layer", "head"), [(0, 1), (4, 1), (-1, 1), (1, 0), (1, 5)])
def test_invalid_layer_or_head_is_rejected(view: HeadsView, layer: int, head: int) -> None:
    there = (
        "The layer must be from 1 to 3 in cross-attention"
        if head == 1
        else "The head must be from 1 to 4 in each layer"
    )
    with pytest.raises(UsageError, match=there):
        view.cross.grid(layer, head)


def by_hand(name: Any, weights: list[list[float]]) -> Part:
    array = np.array(weights)[None, None]
    words = [str(n) for n in range(max(array.shape))]
    maps = AttentionMap(words[: array.shape[2]], words[: array.shape[3]], array)
    return Part(name, maps, maps, 1)


def test_statistics_match_manual_values() -> None:
    (sharp,) = by_hand("encoder", [[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 1.0]]).statistics()
    assert sharp == HeadStatistics(
        1, 1, 0, 0.75, 0.5
    )  # distance 1 except in the last row; two of four rows attend to END
    (flat,) = by_hand("encoder", [[0.25] * 4] * 4).statistics()
    assert flat == HeadStatistics(1, 1, 2, 1.25, 0.25)
    (back,) = by_hand("decoder", [[1, 0, 0], [0.5, 0.5, 0], [0, 1, 0]]).statistics()
    assert back == pytest.approx((1, 1, 1 / 3, (0 + 0.5 + 1) / 3, 0.5))
    (diagonal,) = by_hand("cross", [[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]]).statistics()
    assert diagonal == HeadStatistics(1, 1, 1, 0.5, 0.25)  # the centre of each half of the source
    (blind,) = by_hand("cross", [[0, 0, 0], [0, 0, 1.0], [0, 0, 1]]).statistics()  # one row without weights
    assert blind == HeadStatistics(1, 1, 0, 0.5, 1)
    (empty,) = by_hand("cross", [[0.0, 0]]).statistics()
    assert empty == HeadStatistics(1, 1, 0, 0, 0)


# --- views ------------------------------------------------------------------------------------------------------------


def test_json_has_weights_and_statistics(view: HeadsView) -> None:
    decoded = json.loads(json.dumps(view.to_json(), allow_nan=False))
    assert decoded["text"] == "il gatto" and decoded["source"] == "the cat" and decoded["notes"] == []
    for name in PARTS:
        part = view.part(name)
        np.testing.assert_allclose(decoded[name]["weights"], part.tokens.weights)
        np.testing.assert_allclose(decoded[name]["word_weights"][0][1], part.words.weights[0, 1])
        assert decoded[name]["row_words"] == part.words.rows and decoded[name]["column_tokens"] == part.tokens.columns
        assert decoded[name]["statistics"][1]["entropy"] == part.statistics()[1].entropy


def test_parts_without_weights_are_omitted(translator: Translator) -> None:
    pair = SequencePair("a", "b", True, True, [3, 0], [4, 0], ["a", "</s>"], ["b", "</s>"], [], [], ())
    assert dict(parts_of({}, pair)) == dict(parts_of({"encoder": [], "cross": None}, pair)) == {}
    full = heads_view(translator, "the cat", "il gatto")
    some = HeadsView(*(full.name, "", "", True, True, 0.0), {"cross": full.cross, "decoder": full.decoder})
    with pytest.raises(UsageError, match=r"The encoder of runs/x has no attention weights\. Choose cross or"):
        _ = some.encoder
    with pytest.raises(UsageError, match="no part 'cros': did you mean cross"):
        some.part("cros")


@pytest.mark.parametrize("kind", ["convolution", "recurrent"])
def test_encoder_without_attention_has_no_part(kind: Any) -> None:
    view = heads_view(make(encoder_layer=kind), "the cat", "il gatto")
    assert list(view.parts) == ["decoder", "cross"]
    with pytest.raises(UsageError, match="has no attention weights"):
        view.part("encoder")


def test_windowed_encoder_has_banded_weights() -> None:
    weights = heads_view(make(encoder_layer="windowed", window=2), "the cat", "il gatto").encoder.tokens.weights
    np.testing.assert_allclose(weights.sum(axis=-1), 1)
    far = np.abs(np.subtract.outer(np.arange(8), np.arange(8))) > 2
    assert (weights[:, :, far] == 0).all() and (weights[:, :, ~far] > 0).all()


def test_models_without_heads_are_rejected() -> None:
    translator = make()
    model = RecurrentSeq2SeqConfig(hidden=8).build(len(translator.tokenizer))
    with pytest.raises(UsageError, match="runs/x is not a Transformer: it has no layers and heads"):
        heads_view(Translator(model, translator.tokenizer), "the cat", "il gatto")


def test_empty_text_is_rejected(translator: Translator) -> None:
    with pytest.raises(UsageError, match=r"is empty\. Give at least one word"):
        heads_view(translator, " ", "il gatto")
