"""Continuation scores with a shared prefix equal scores of separate texts."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seqloom.evaluate.perplexity import common_prefix_length, continuation_log_probs, score_texts
from seqloom.models.gpt import GPTConfig
from seqloom.models.recurrent_lm import RecurrentLMConfig
from seqloom.nn.positions import PositionsConfig

V = 11
CONFIGS: dict[str, Any] = {
    "recurrent": RecurrentLMConfig(hidden=8, layers=2, connections="highway"),
    "gpt": GPTConfig(d_model=8, heads=2, layers=2, positions=PositionsConfig(kind="rotary"), context=40),
    "gpt that slides": GPTConfig(d_model=8, heads=2, layers=2, positions=PositionsConfig(kind="learned", max_length=6)),
}


@pytest.fixture(scope="module", params=CONFIGS)
def model(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(1)
    built = CONFIGS[request.param].build(V).double().eval()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return built


rows_of_tokens = st.lists(st.integers(1, V - 1), min_size=1, max_size=6)


@given(shared=st.lists(st.integers(1, V - 1), max_size=8), tails=st.lists(rows_of_tokens, min_size=1, max_size=5))
def test_shared_prefix_gives_the_same_results_as_separate_texts(
    model: Any, shared: list[int], tails: list[list[int]]
) -> None:
    rows = [shared + tail for tail in tails]
    starts = [len(row) - 1 - (len(tail) > 4) for row, tail in zip(rows, tails, strict=True)]
    log_probs = continuation_log_probs(model, rows, starts, end=0, batch_size=2)
    for row, start, scores in zip(rows, starts, log_probs, strict=True):
        (alone,) = score_texts(model, [row], end=0)
        torch.testing.assert_close(scores, alone[start : len(row)], rtol=0, atol=1e-10)


def test_scores_depend_on_the_prompt(model: Any) -> None:
    """Negative control: the score depends on the prompt, not only on the continuation."""
    first, second = continuation_log_probs(model, [[1, 2, 3], [4, 5, 3]], [2, 2], end=0)
    assert (first - second).abs().max() > 1e-4


def test_scores_from_the_first_token_match_text_scores(model: Any) -> None:
    (log_probs,) = continuation_log_probs(model, [[1, 2, 3]], [0], end=0)
    torch.testing.assert_close(log_probs, score_texts(model, [[1, 2, 3]], end=0)[0][:-1], rtol=0, atol=1e-10)


def test_common_prefix_ends_at_the_first_difference_or_shortest_text() -> None:
    assert common_prefix_length([[1, 2, 3], [1, 2], [1, 2, 4]]) == 2
    assert common_prefix_length([[1], [2]]) == 0
    assert common_prefix_length([[1, 2]]) == 2
    assert common_prefix_length([[], [1]]) == 0
