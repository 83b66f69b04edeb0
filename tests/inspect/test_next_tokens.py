"""Next-token distributions equal direct model calls, and streamed tokens equal `generate`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.denoising import KINDS, denoise_recipe
from tests.random_models import translator, writer

from seqloom import load
from seqloom.core.errors import DataError, UsageError
from seqloom.decoding.generate import generate
from seqloom.decoding.processors import SamplingConfig, process
from seqloom.inspect.views.next_tokens import next_tokens, prepare_decoding, stream_tokens
from seqloom.inspect.views.search_tree import search_tree
from seqloom.training import begin

WRITERS = ("lstm", "gpt", "window", "ngram", "hmm")
OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.6},
    {"temperature": 1.7, "top_k": 4},
    {"top_p": 0.7},
    {"temperature": 1.3, "top_k": 5, "top_p": 0.8},
    {"temperature": 0.0},
]


def step_by_step(trained: Any, text: str, forced: list[int]) -> torch.Tensor:
    """Return log p of every token (V,), computed step by step."""
    ids, state = trained.tokenizer.encode(text), None
    if hasattr(trained, "translate"):
        source = torch.tensor([[*ids, 0]])
        state, ids = trained.model.start({"tokens": source, "mask": torch.ones_like(source, dtype=torch.bool)}), []
    else:
        state = trained.model.start(rows=1)
    with torch.no_grad():
        for token in [0, *ids, *forced]:
            output = trained.model.step(torch.tensor([[token]]), state)
            state = output.state
    log_probs: torch.Tensor = output.log_probs[0]
    return log_probs


@pytest.mark.parametrize("kind", [*WRITERS, "gru", "transformer"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_probabilities_match_model_and_processors(kind: str, options: dict[str, Any]) -> None:
    trained = writer(kind) if kind in WRITERS else translator(kind)
    forced = trained.tokenizer.encode("fa")
    distribution = next_tokens(trained, "bad cab", forced, **options)
    log_probs = step_by_step(trained, "bad cab", forced)
    assert sorted(distribution.ids.tolist()) == list(range(len(trained.tokenizer)))
    assert (np.diff(distribution.log_probs) <= 0).all()
    np.testing.assert_allclose(distribution.log_probs, log_probs[distribution.ids].double(), atol=1e-5)
    assert distribution.probabilities.sum() == pytest.approx(1, abs=1e-5)
    sampling = SamplingConfig(banned=(1,), **options)
    expected = process(log_probs[None], torch.empty(1, 0, dtype=torch.long), sampling.processors(0))[0].exp()
    if options.get("temperature") == 0.0:
        expected = torch.zeros_like(expected).index_fill(0, expected.argmax(), 1.0)
    np.testing.assert_allclose(distribution.sampling_probabilities, expected[distribution.ids].double(), atol=1e-5)
    assert distribution.banned.tolist() == [token == 1 for token in distribution.ids.tolist()]
    assert distribution.sampling_probabilities[distribution.banned].tolist() == [0.0]
    assert distribution.candidate_count == int((expected > 0).sum())
    assert distribution.tokens == [trained.tokenizer.token(token) for token in distribution.ids.tolist()]


def test_distribution_has_requested_names_entropy_and_ranks() -> None:
    distribution = next_tokens(writer("lstm"), "", top=3)
    assert len(distribution.tokens) == 3
    p = distribution.probabilities
    assert distribution.entropy == pytest.approx(float(-(p * np.log2(p)).sum()))
    assert [distribution.rank(int(token)) for token in distribution.ids] == list(range(1, len(distribution.ids) + 1))


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_streamed_tokens_match_generate(kind: str, options: dict[str, Any]) -> None:
    """Tokens and text equal those of `generate`, including texts beyond the context of a GPT."""
    trained = writer(kind)
    tokens = list(stream_tokens(trained, "a bad ", max_tokens=30, seed=11, **options))
    text = trained.generate("a bad ", max_tokens=30, seed=11, **options)
    assert "".join(token.text for token in tokens) == text
    for index, token in list(enumerate(tokens))[::3]:
        before = [previous.token for previous in tokens[:index]]
        again = next_tokens(trained, "a bad ", before, **options)
        np.testing.assert_allclose(token.expected.log_probs, again.log_probs, atol=2e-5)
        chance = token.expected.sampling_probabilities[token.expected.rank(token.token) - 1]
        assert chance > 0 and not token.forced
        assert token.probability == pytest.approx(again.probabilities[again.rank(token.token) - 1], rel=1e-4)
        assert len(token.expected.tokens) == len(trained.tokenizer)


@pytest.mark.parametrize("kind", ["gru", "transformer"])
def test_translator_streams_greedy_and_sampled_tokens(kind: str) -> None:
    """Greedy tokens equal a beam search with beam size one, and sampled tokens equal `generate`."""
    trained = translator(kind)
    greedy = [token.token for token in stream_tokens(trained, "bad cab", temperature=0.0, max_tokens=12)]
    (translation,) = trained.translate("bad cab", beam=1, max_length=12)
    assert greedy == [*translation.candidates[0].ids, *[0] * translation.candidates[0].finished]
    start = prepare_decoding(trained, "bad cab")
    steps = generate(
        trained.model,
        torch.tensor([[0, 5]]),
        options=SamplingConfig(banned=(1,), temperature=1.4),
        max_tokens=9,
        end=0,
        seed=3,
        source=start.source_batch(),
    )
    drawn = list(stream_tokens(trained, "bad cab", [5], temperature=1.4, max_tokens=9, seed=3))
    assert [token.token for token in drawn] == [5, *(int(step.tokens[0]) for step in steps)]
    assert [token.forced for token in drawn] == [True] + [False] * (len(drawn) - 1)


def test_forced_tokens_keep_probability() -> None:
    trained = writer("lstm")
    forced = trained.tokenizer.encode("dad")
    tokens = list(stream_tokens(trained, "a", [*forced, 0]))
    assert [(token.token, token.text, token.forced) for token in tokens] == [
        (*pair, True) for pair in zip([*forced, 0], ["d", "a", "d", ""], strict=True)
    ]
    for index, token in enumerate(tokens):
        log_probs = step_by_step(trained, "a", forced[:index])
        assert token.probability == pytest.approx(log_probs[token.token].exp().item(), rel=1e-5)


def test_unknown_characters_of_prompt_are_read() -> None:
    """An unknown character is read with a note and is never generated."""
    start = prepare_decoding(writer("lstm"), "aß")
    assert start.prompt == [3, 1] and "'ß'" in start.notes[0] and start.banned == (1,)
    assert start.decode([4, 5]) == "bc"


@pytest.mark.parametrize("kind", KINDS)
def test_denoiser_streams_greedy_tokens(tmp_path: Path, kind: str) -> None:
    """Greedy tokens equal a beam search with beam size one, and special tokens have names."""
    for _ in begin(denoise_recipe(tmp_path, f"noise.kind={kind}"), tmp_path / "run").events():
        pass
    trained, text = load(tmp_path / "run", "cpu"), "The [MASK] purr all [MASK] ."
    read, best = trained.search(text, beam=1, max_length=9)
    start = prepare_decoding(trained, text)
    assert start.source == read
    greedy = list(stream_tokens(trained, text, temperature=0.0, max_tokens=9))
    assert [token.token for token in greedy] == [*best.tokens, *[0] * best.finished]
    sentinel = [len(trained.tokenizer) + 3] if kind == "spans" else []  # after [CLS], [SEP] and [MASK]
    forced = [*sentinel, *trained.tokenizer.encode("The cats")]
    streamed = list(stream_tokens(trained, text, forced, max_tokens=3, seed=1))
    assert [token.token for token in streamed[: len(forced)]] == forced
    assert streamed[0].name == ("<1>" if kind == "spans" else trained.tokenizer.token(forced[0]))
    tree = search_tree(trained, text, beam=3, n_best=2, max_length=9)
    (restored,) = trained.denoise(text, beam=3, max_length=9)
    assert len(tree.candidates) == 2
    assert search_tree(trained, text, beam=3, max_length=9).candidates[0].log_prob == restored.log_prob


def test_invalid_requests_are_rejected() -> None:
    trained = writer("lstm")
    with pytest.raises(UsageError, match="Token ids must be from 0 to 8; got 9"):
        next_tokens(trained, "a", [9])
    with pytest.raises(UsageError, match="END must be the last forced token"):
        stream_tokens(trained, "a", [0, 3])
    with pytest.raises(DataError, match="UTF-8"):
        stream_tokens(trained, "\ud800")
    with pytest.raises(UsageError, match="empty"):
        next_tokens(translator(), "  ")
    with pytest.raises(UsageError, match="top_p"):
        next_tokens(trained, "a", top_p=0.0)
    classifier = type("Other", (), {"name": "runs/x", "description": "a classifier", "tokenizer": trained.tokenizer})()
    with pytest.raises(UsageError, match="runs/x is a classifier: it does not generate text"):
        next_tokens(classifier, "a")
