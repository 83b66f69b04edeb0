"""Scores of given outputs equal the probabilities of the model, computed one choice at a time."""

import math
from typing import Any

import pytest
import torch
from tests.models.small_seq2seq import model as recurrent
from tests.models.small_seq2seq import padded
from tests.models.small_transformer import transformer

from seqloom.core.errors import UsageError
from seqloom.decoding.choices import choice_probabilities, score_choices

CHOICES = [[[3], [4, 5, 6], [7, 7]], [[1, 2]], [[9], [8, 3]]]
END = 0


def alone(model: Any, source: torch.Tensor, mask: torch.Tensor, tokens: list[int]) -> tuple[list[float], Any]:
    """Return log p of each token of a single output, and its attention."""
    targets = torch.tensor([[*tokens, END]])
    batch = {
        "source": source[mask][None],
        "source_mask": torch.ones(1, int(mask.sum()), dtype=torch.bool),
        "inputs": torch.tensor([[END, *tokens]]),
        "targets": targets,
        "target_mask": torch.ones_like(targets, dtype=torch.bool),
    }
    with torch.no_grad():
        return model.target_log_probs(batch)[0].tolist(), model.attention(batch)


@pytest.mark.parametrize("model", [transformer(), recurrent(), recurrent(attention=None)], ids=["t", "r", "plain"])
def test_choices_have_the_probabilities_and_the_attention_of_the_model(model: Any) -> None:
    torch.manual_seed(1)
    tokens, mask = padded((5, 2, 4))
    source = {"tokens": tokens, "mask": mask}
    scored = score_choices(model, CHOICES, source=source, end=END, length_penalty=0.5, attention=True)
    for row, choices, of_source, real in zip(scored, CHOICES, tokens, mask, strict=True):
        assert [hypothesis.tokens for hypothesis in row] == choices
        for hypothesis in row:
            log_probs, attention = alone(model, of_source, real, hypothesis.tokens)
            assert hypothesis.token_log_probs == pytest.approx(log_probs, abs=1e-10)
            assert hypothesis.log_prob == pytest.approx(sum(log_probs), abs=1e-10)
            assert hypothesis.score == pytest.approx(sum(log_probs) / math.sqrt(len(log_probs)), abs=1e-10)
            assert (hypothesis.attention is None) == (attention is None)
            if attention is not None:
                assert hypothesis.attention is not None
                torch.testing.assert_close(hypothesis.attention[:, : int(real.sum())], attention[0], atol=1e-9, rtol=0)


def test_probabilities_are_conditional_probabilities_without_length_penalty() -> None:
    model, (tokens, mask) = transformer(), padded((4,))
    (row,) = score_choices(model, CHOICES[:1], source={"tokens": tokens, "mask": mask}, end=END)
    joint = [math.exp(sum(alone(model, tokens[0], mask[0], choice)[0])) for choice in CHOICES[0]]
    assert choice_probabilities(row) == pytest.approx([each / sum(joint) for each in joint], abs=1e-12)


def test_choice_with_too_many_tokens_is_rejected() -> None:
    model, (tokens, mask) = transformer(positions={"kind": "learned", "max_length": 4}), padded((4,))
    source = {"tokens": tokens, "mask": mask}
    assert len(score_choices(model, [[[1, 2, 3]]], source=source, end=END)[0]) == 1
    with pytest.raises(UsageError, match="A choice must have at most 4 tokens including END, but one has 5"):
        score_choices(model, [[[1], [1, 2, 3, 4]]], source=source, end=END)
