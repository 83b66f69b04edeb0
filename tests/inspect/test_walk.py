"""Walks: their values equal those of the model, sums are correct, and invalid requests are rejected."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from tests.inspect.walk_checks import Trained, build_tokenizer, check_walk, keys, randomize, stage_output

from seqloom.core.errors import UsageError
from seqloom.exchange.start_tokens import StartTokenConfig
from seqloom.inspect import capture
from seqloom.inspect.tours.tour import MAX_TOKENS, Follow, Walk, has_tour, walk_through
from seqloom.inspect.values import to_plain
from seqloom.inspect.views.texts import translate_pair
from seqloom.models.bert import BERTConfig
from seqloom.models.gpt import GPTConfig
from seqloom.models.recurrent_lm import RecurrentLMConfig
from seqloom.models.recurrent_seq2seq import AttentionConfig, RecurrentSeq2SeqConfig
from seqloom.models.window_lm import WindowLMConfig
from seqloom.nn.cells import CELLS
from seqloom.nn.positions import PositionsConfig
from seqloom.nn.softmax import AdaptiveSoftmaxConfig
from seqloom.nn.transformer import Norm
from seqloom.text.model_inputs import frame_texts

TINY: dict[str, Any] = {"d_model": 12, "heads": 3, "dropout": 0.3}


def transformer(**options: Any) -> Trained:
    tokenizer = build_tokenizer()
    config = StartTokenConfig(**{**TINY, "encoder_layers": 2, "decoder_layers": 2, **options})
    return Trained(randomize(config.build(len(tokenizer))), tokenizer, "transformer", "translate")


def seq2seq(**options: Any) -> Trained:
    tokenizer = build_tokenizer()
    config = RecurrentSeq2SeqConfig(**{"hidden": 6, "dropout": 0.3, **options})
    return Trained(randomize(config.build(len(tokenizer))), tokenizer, "recurrent-seq2seq", "translate")


def language_model(config: Any, kind: str) -> Trained:
    tokenizer = build_tokenizer()
    return Trained(randomize(config.build(len(tokenizer))), tokenizer, kind, "language-model")


def check(walk: Walk) -> None:
    check_walk(walk)
    assert walk.difference < 1e-9
    json.dumps(to_plain(walk), allow_nan=False)


# --- a Transformer that translates ------------------------------------------------------------------------------------

SHAPES: list[dict[str, Any]] = [
    {},
    {"norm_first": True},
    {"norm": "rms", "norm_first": True, "activation": "swiglu", "kv_heads": 1},
    {"norm": "none", "embed_scale": False},
    {"residual": False, "scale": False},
    {"positions": PositionsConfig(kind="rotary")},
    {"positions": PositionsConfig(kind="learned", max_length=40), "embed_norm": True},
    {"positions": PositionsConfig(kind="none"), "tied": "all"},
    {"encoder_layer": "windowed", "window": 2},
    {"encoder_layer": "convolution"},
    {"bos": 3, "source_bos": 4, "target_bos": 5},
    {"encoder_layers": 1, "decoder_layers": 3, "tied": "decoder", "bias": False},
]


@pytest.mark.parametrize("options", SHAPES, ids=lambda options: " ".join(options) or "plain")
def test_transformer_scores_match_those_of_the_model(options: dict[str, Any]) -> None:
    translator = transformer(**options)
    pair = translate_pair(translator, "the cat", "il gatto")
    for step in (1, 5, len(pair.target_ids)):
        walk = walk_through(translator, "the cat", Follow(step=step, head=3), pair)
        check(walk)
        batch = pair.batch(translator.model)
        expected = translator.model.eval()(batch["source"], batch["source_mask"], batch["inputs"])[0, step - 1]
        np.testing.assert_allclose(stage_output(walk, "logits"), expected.detach().numpy(), atol=1e-9)


def test_transformer_stages_match_layer_outputs() -> None:
    translator = transformer(norm_first=True)
    model = translator.model
    pair = translate_pair(translator, "the cat", "il gatto")
    walk = walk_through(translator, "the cat", Follow(word=3, step=4, layer=2, head=2), pair)
    seen: dict[str, Any] = {}
    for name, part in {"below": model.encoder[1], "memory": model.encoder_norm, "decoder": model.decoder[1]}.items():
        part.register_forward_hook(lambda _, __, result, name=name: seen.setdefault(name, result))
    batch, heads = pair.batch(model), model.eval().attentions(pair.batch(model))
    model(batch["source"], batch["source_mask"], batch["inputs"])
    close: dict[str, Any] = {"atol": 1e-9}
    np.testing.assert_allclose(stage_output(walk, "encoder-feed"), seen["below"][0][0].detach(), **close)
    np.testing.assert_allclose(stage_output(walk, "encoder-layers"), seen["memory"][0].detach(), **close)
    np.testing.assert_allclose(stage_output(walk, "decoder-feed"), seen["decoder"][0][0, :4].detach(), **close)
    np.testing.assert_allclose(stage_output(walk, "encoder-weights"), heads["encoder"][1][0, 1, 2].detach(), **close)
    np.testing.assert_allclose(stage_output(walk, "cross-weights"), heads["cross"][1][0, 1, 3].detach(), **close)


def test_default_token_has_largest_attention() -> None:
    """Without a selected token, the walk follows the token with the largest attention weight."""
    translator = transformer()
    pair = translate_pair(translator, "the cat", "il gatto")
    walk = walk_through(translator, "the cat", Follow(step=3), pair)
    batch = pair.batch(translator.model)
    weights = translator.model.eval().attention(batch)[0, 2, :-1]
    assert walk.word == int(weights.argmax()) + 1


def test_wrong_attention_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: without the scale of the attention scores, the values differ from those of the model."""
    right = capture.attention_values

    def wrong(captured: Any, attention: Any, weights: Any) -> Any:
        scale, attention.scale = attention.scale, 1.0
        try:
            return right(captured, attention, weights)
        finally:
            attention.scale = scale

    translator = transformer()
    pair = translate_pair(translator, "the cat", "il gatto")
    assert walk_through(translator, "the cat", pair=pair).difference < 1e-9
    monkeypatch.setattr(capture, "attention_values", wrong)
    assert walk_through(translator, "the cat", pair=pair).difference > 1e-3


# --- recurrent translators --------------------------------------------------------------------------------------------

ATTENTION_OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("additive", {}),
    ("additive", {"coverage": True}),
    ("general", {"order": "bahdanau"}),
    ("dot", {"input_feeding": True}),
    ("scaled-dot", {"order": "bahdanau", "coverage": True}),
    ("cosine", {}),
    ("location", {"max_length": 20, "coverage": True}),
]
ATTENTION = [AttentionConfig(score=score, **options) for score, options in ATTENTION_OPTIONS]
TRANSLATORS: list[dict[str, Any]] = [
    *({"attention": attention} for attention in ATTENTION),
    {"attention": ATTENTION[0], "combine": "sum", "residual": True, "cell": "gru", "encoder_layers": 2},
    {"attention": ATTENTION[2], "combine": "mix", "cell": "lstm", "context": "every", "decoder_layers": 2},
    {"attention": ATTENTION[0], "bidirectional": False, "reverse": True, "tied": "all", "embedding": 4},
    {"attention": None, "cell": "elman"},
    {"attention": None, "reverse": True, "context": "every", "cell": "mut1"},
]


@pytest.mark.parametrize("options", TRANSLATORS, ids=str)
def test_recurrent_translator_values_match_the_model(options: dict[str, Any]) -> None:
    translator = seq2seq(**options)
    pair = translate_pair(translator, "the cat", "il gatto")
    for step in (1, 4, len(pair.target_ids)):
        walk = walk_through(translator, "the cat", Follow(step=step, word=2), pair)
        check(walk)
        batch = pair.batch(translator.model)
        close: dict[str, Any] = {"atol": 1e-9}
        model = translator.model.eval()
        np.testing.assert_allclose(
            stage_output(walk, "encoder-states"), model.encoder_states(batch["source"])[0].detach(), **close
        )
        if model.attend is not None:
            weights = model.attention(batch)[0, step - 1]
            np.testing.assert_allclose(stage_output(walk, "weights"), weights.detach(), **close)


def test_default_translation_comes_from_beam_search() -> None:
    translator = seq2seq()
    walk = walk_through(translator, "the cat")
    (found,) = translator.translate(["the cat"])
    assert walk.answer == translator.tokenizer.decode(found.candidates[0].ids)
    assert len(walk.steps) == len(found.candidates[0].ids) + found.candidates[0].finished


# --- language models --------------------------------------------------------------------------------------------------

MODELS: list[tuple[Any, str]] = [
    *((RecurrentLMConfig(cell=cell, hidden=6, dropout=0.3), "recurrent-lm") for cell in CELLS),
    (RecurrentLMConfig(cell="elman", activation="relu", hidden=6, layers=2, embedding=4, tied=True), "recurrent-lm"),
    (RecurrentLMConfig(cell="lstm", hidden=6, layers=3, connections="residual"), "recurrent-lm"),
    (RecurrentLMConfig(cell="gru", hidden=6, layers=2, connections="dense"), "recurrent-lm"),
    (RecurrentLMConfig(cell="gru", hidden=6, layers=2, connections="highway"), "recurrent-lm"),
    (RecurrentLMConfig(hidden=8, softmax=AdaptiveSoftmaxConfig(cutoffs=(5, 12), factor=2.0)), "recurrent-lm"),
    (WindowLMConfig(window=3, embedding=4, hidden=6, dropout=0.3), "window-lm"),
    (WindowLMConfig(window=2, embedding=4, hidden=6, layers=2, activation="relu", direct=True), "window-lm"),
    (WindowLMConfig(window=3, embedding=4, hidden=6, activation="sigmoid", direct=True, tied=True), "window-lm"),
    (WindowLMConfig(window=1, embedding=5, layers=0, direct=True), "window-lm"),
    (GPTConfig(**TINY, layers=2), "gpt"),
    (GPTConfig(**TINY, layers=1, norm="rms", kv_heads=1, positions=PositionsConfig(kind="rotary"), bos=2), "gpt"),
    (GPTConfig(**TINY, layers=2, norm_first=False, embed_norm=True, tied=False, output_bias=True), "gpt"),
]


@pytest.mark.parametrize(("config", "kind"), MODELS, ids=str)
def test_language_model_probabilities_match_those_of_the_model(config: Any, kind: str) -> None:
    writer = language_model(config, kind)
    layers = max(1, getattr(config, "layers", 1))
    for word in (1, 4, None):
        walk = walk_through(writer, "the cat", Follow(word=word, layer=layers))
        check(walk)
        read = torch.tensor([[0, *writer.tokenizer.encode("the cat")][: walk.word]])
        model = writer.model.eval()
        expected = model.step(read, model.start(rows=1)).log_probs[0].exp()
        np.testing.assert_allclose(stage_output(walk, "softmax"), expected.detach().numpy(), atol=1e-9)


def test_language_model_states_match_the_trace() -> None:
    writer = language_model(RecurrentLMConfig(cell="lstm", hidden=6, layers=2), "recurrent-lm")
    walk = walk_through(writer, "the cat", Follow(word=5, layer=2))
    traces = writer.model.eval().trace(torch.tensor([[0, *writer.tokenizer.encode("the cat")]]))
    np.testing.assert_allclose(stage_output(walk, "states"), traces[1]["h"][0, :5].detach(), atol=1e-9)
    np.testing.assert_allclose(stage_output(walk, "state"), traces[1]["h"][0, 3].detach(), atol=1e-9)


def test_window_contains_last_tokens() -> None:
    writer = language_model(WindowLMConfig(window=4, embedding=3, hidden=5), "window-lm")
    for word, seen in ((2, ["</s>", "</s>", "</s>", "t"]), (8, ["␣", "c", "a", "t"])):
        walk = walk_through(writer, "the cat", Follow(word=word))
        tokens = walk.stage("window").panels[0].tokens  # type: ignore[attr-defined]
        assert tokens == seen
        after = walk.stage("next").panels[0].tokens  # type: ignore[attr-defined]
        assert len(after) == 4 and after[:3] == seen[1:]
    expected = writer.model.eval().embed(torch.tensor(writer.tokenizer.encode(" cat"))).flatten()
    np.testing.assert_allclose(stage_output(walk, "window"), expected.detach(), atol=1e-12)


def test_tour_at_the_end_of_the_text_has_a_continuation() -> None:
    writer = language_model(GPTConfig(**TINY, layers=1), "gpt")
    walk = walk_through(writer, "the cat")
    assert walk.continued_text is None or walk.continued_text.startswith("the cat")
    assert walk_through(writer, "the cat", Follow(word=2)).continued_text is None


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_bert_scores_match_those_of_the_model(norm: Norm) -> None:
    tokenizer = build_tokenizer()
    model = randomize(BERTConfig(**TINY, layers=2, norm=norm, tied=norm == "layer").build(len(tokenizer)))
    reader = Trained(model, tokenizer, "bert", "masked-lm")
    walk = walk_through(reader, "the [MASK]at")
    check(walk)
    assert walk.tokens[walk.word - 1] == "[MASK]"
    assert walk_through(reader, "the cat", Follow(word=3)).difference < 1e-9


def test_bert_without_output_layer_ends_with_vectors() -> None:
    tokenizer = build_tokenizer()
    reader = Imported(randomize(BERTConfig(**TINY, layers=2).build(len(tokenizer))), tokenizer, "bert", "masked-lm")
    walk = walk_through(reader, "the cat", Follow(word=3))
    check(walk)
    assert {"logits", "softmax", "transform"}.isdisjoint(keys(walk.stages))
    expected = reader.model.eval().read(
        torch.tensor([[*frame_texts(reader.specials, "bert", tokenizer.encode("the cat")).tokens]])
    )
    np.testing.assert_allclose(stage_output(walk, "next"), expected[0].detach(), atol=1e-9)
    text = json.dumps(to_plain(walk), ensure_ascii=False)
    assert "never trained" in text
    assert "would put" not in text


class Imported(Trained):
    @property
    def run(self) -> Any:
        run = super().run
        run.data = {"imported": {"initialized": ["dense.weight"]}}
        run.recipe["data"] = None
        return run


# --- texts ------------------------------------------------------------------------------------------------------------


def three_walks() -> list[Walk]:
    return [
        walk_through(language_model(RecurrentLMConfig(cell="lstm", hidden=20, layers=2), "recurrent-lm"), "the cat"),
        walk_through(seq2seq(attention=ATTENTION[0], cell="gru"), "the cat"),
        walk_through(transformer(norm_first=True), "the cat"),
    ]


@pytest.mark.parametrize("index", range(3))
def test_every_symbol_is_explained(index: int) -> None:
    signs = ("⊙", "tanh", "σ", "W", "Σ", "√", "exp", "[", " ← ", "norm(", "ReLU")
    for stage in three_walks()[index].stages:
        explained = [symbol for symbol, _ in stage.symbols]
        assert "e^" not in stage.equation
        for sign in signs:
            if sign in stage.equation:
                assert any(sign.strip(" (") in symbol for symbol in explained), (stage.key, sign, explained)
        assert bool(explained) == bool(stage.equation)


def test_next_input_is_one_token_or_complete_prefix() -> None:
    counts = [len(walk.stage("next").panels[0].tokens) for walk in three_walks()]  # type: ignore[attr-defined]
    assert counts[:2] == [1, 1]
    assert counts[2] > 1


def test_displayed_units_are_those_that_change_most() -> None:
    writer = language_model(RecurrentLMConfig(cell="lstm", hidden=20), "recurrent-lm")
    walk = walk_through(writer, "the cat", Follow(word=5, numbers=3))
    h = writer.model.eval().trace(torch.tensor([[0, *writer.tokenizer.encode("the cat")]]))[0]["h"][0]
    most = sorted(((h[4] - h[3]).abs().topk(3).indices + 1).tolist())
    panel: Any = walk.stage("step").panels[-1]
    assert panel.units == most
    np.testing.assert_allclose(panel.terms[-1].values, h[4][[unit - 1 for unit in most]].detach(), atol=1e-9)


def test_explanation_of_queries_depends_on_layer() -> None:
    for layer in (1, 2):
        words = walk_through(transformer(), "the cat", Follow(layer=layer)).stage("encoder-queries").text
        assert ("depends only on the token itself" in words) == (layer == 1)


# --- options and errors -----------------------------------------------------------------------------------------------


def test_vectors_are_truncated() -> None:
    writer = language_model(RecurrentLMConfig(hidden=20), "recurrent-lm")
    walk = walk_through(writer, "cat", Follow(numbers=5))
    panel: Any = walk.stage("embeddings").panels[0]
    assert (panel.values.shape[1], panel.of) == (5, 20)
    assert walk.stage("embeddings").output_shape == "4 tokens × 20 numbers"
    check_walk(walk)


def test_spaces_are_made_visible() -> None:
    walk = walk_through(language_model(RecurrentLMConfig(hidden=4), "recurrent-lm"), "a cat")
    assert walk.tokens[2] == "␣"
    assert "stands for a space" in walk.stage("tokens").text


def test_invalid_requests_are_rejected() -> None:
    writer = language_model(RecurrentLMConfig(hidden=4), "recurrent-lm")
    for text, follow, words in [
        ("cat", Follow(word=9), "no token 9"),
        ("cat", Follow(layer=2), "no layer 2"),
        ("cat", Follow(numbers=0), "At least one number"),
        ("cat" * MAX_TOKENS, Follow(), f"at most {MAX_TOKENS} tokens"),
    ]:
        with pytest.raises(UsageError, match=words):
            walk_through(writer, text, follow)
    with pytest.raises(UsageError, match="no head 4"):
        walk_through(transformer(), "cat", Follow(head=4))
    with pytest.raises(UsageError, match="no step 40"):
        walk_through(seq2seq(), "cat", Follow(step=40))
    with pytest.raises(UsageError, match="There is no tour for"):
        walk_through(Trained(writer.model, writer.tokenizer, "ngram", "language-model"), "cat")


def test_only_supported_models_have_tours() -> None:
    assert has_tour({"task": "translate", "model": {"kind": "transformer"}})
    assert has_tour({"task": "tag", "model": {"kind": "tagger"}})
    assert not has_tour({"task": "language-model", "model": {"kind": "ngram"}})
    assert not has_tour({"task": "forecast", "model": {"kind": "transformer"}})
