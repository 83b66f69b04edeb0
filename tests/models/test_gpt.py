"""GPT as a language model: chunks, batches, and texts longer than the context."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nn.torch_layers import exactly
from torch import Tensor, nn

from seqloom.core.errors import UsageError
from seqloom.core.protocols import CausalLanguageModel, select
from seqloom.core.tree import clone
from seqloom.models.gpt import GPT, NO_TOKEN, GPTConfig, drop_first_half
from seqloom.nn.positions import PositionsConfig

V, B, T, WINDOW = 11, 3, 6, 6
KINDS: dict[str, dict[str, Any]] = {
    "learned": {"positions": PositionsConfig(kind="learned", max_length=WINDOW)},
    "rotary": {"positions": PositionsConfig(kind="rotary"), "context": WINDOW, "kv_heads": 1, "tied": False},
    "sliding window": {"positions": PositionsConfig(kind="rotary"), "context": WINDOW, "sliding_window": 4},
    "post-norm": {"context": WINDOW, "norm_first": False, "embed_norm": True, "activation": "relu"},
}


def model(**options: Any) -> GPT:
    torch.manual_seed(0)
    gpt = GPTConfig(**{"d_model": 8, "heads": 2, "layers": 2, "d_ff": 12, **options}).build(V).double().eval()
    for name, parameter in gpt.named_parameters():
        nn.init.uniform_(parameter, *((0.5, 1.5) if "norm.weight" in name else (-0.7, 0.7)))
    return gpt


@pytest.fixture(params=KINDS)
def gpt(request: Any) -> GPT:
    return model(**KINDS[request.param])


def some_tokens(rows: int = B, steps: int = T) -> Tensor:
    return torch.randint(V, (rows, steps))


def test_gpt_implements_the_language_model_interface(gpt: GPT) -> None:
    assert isinstance(gpt, CausalLanguageModel)


@pytest.mark.parametrize("t", range(T))
def test_predictions_are_causal(gpt: GPT, t: int) -> None:
    tokens = some_tokens()
    edited = tokens.clone()
    edited[:, t] = (edited[:, t] + 1) % V
    before, after = gpt(tokens), gpt(edited)
    assert before.shape == (B, T, V)
    assert torch.equal(before[:, :t], after[:, :t])
    assert (before[:, t:] != after[:, t:]).any(dim=-1).all()


def test_later_tokens_have_no_gradient(gpt: GPT) -> None:
    tokens = torch.arange(T).unsqueeze(0)  # each token occurs once, so that rows of E correspond to positions
    gpt.output.requires_grad_(False)
    for parameter in (gpt.backbone.embed.weight, gpt.output.weight):
        parameter.requires_grad_(parameter is gpt.backbone.embed.weight)
    gpt.backbone.read(tokens)[:, 2].square().sum().backward()
    has_gradient = gpt.backbone.embed.weight.grad.abs().sum(dim=1) > 0  # type: ignore[union-attr]
    assert has_gradient.tolist() == [position <= 2 for position in range(V)]


# --- chunks, texts longer than the context --------------------------------------------------------------------------


def expected_log_probs(gpt: GPT, inputs: Tensor) -> Tensor:
    """Return log p of every token after each input, from the window of each position.

    The window of a position ≥ WINDOW is the last window that starts at a multiple of WINDOW/2 and has at least half a
    window before the position.
    """
    half, result = WINDOW // 2, []
    for p in range(inputs.shape[1]):
        begin = 0 if p < WINDOW else (p - half) // half * half
        result.append(gpt(inputs[:, begin : p + 1])[:, -1].log_softmax(dim=-1))
    return torch.stack(result, dim=1)


@pytest.mark.parametrize("pieces", [[23], [1] * 23, [4, 9, 1, 1, 8], [6, 6, 6, 5], [7, 16]], ids=str)
def test_reading_in_chunks_is_equivalent_to_reading_in_one_call_beyond_the_context(gpt: GPT, pieces: list[int]) -> None:
    tokens = some_tokens(steps=24)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    expected = expected_log_probs(gpt, inputs)
    state, stepped, scored, position = gpt.start(rows=B), gpt.start(rows=B), [], 0
    for piece in pieces:
        some = slice(position, position + piece)
        position += piece
        scores, state = gpt.score(inputs[:, some], targets[:, some], state)
        scored.append(scores)
        output = gpt.step(inputs[:, some], stepped)
        stepped = output.state
        exactly(output.log_probs, expected[:, position - 1])
    exactly(torch.cat(scored, dim=1), expected.gather(2, targets.unsqueeze(2)).squeeze(2))


def test_step_and_score_match_forward_within_the_context(gpt: GPT) -> None:
    tokens = some_tokens()
    state = gpt.start(rows=B)
    for t in range(T):
        output = gpt.step(tokens[:, t : t + 1], state)
        exactly(output.log_probs, gpt(tokens)[:, t].log_softmax(dim=-1))
        state = output.state


@settings(max_examples=20, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 15), min_size=1, max_size=4),
    side=st.sampled_from(["left", "right"]),
    kind=st.sampled_from(sorted(KINDS)),
    more=st.integers(0, 9),
)
def test_single_row_gives_the_same_result_as_in_a_batch(lengths: list[int], side: str, kind: str, more: int) -> None:
    """Padding is on either side. After the prompt, contexts become full at different steps."""
    gpt = model(**KINDS[kind])
    prompts = [some_tokens(1, length) for length in lengths]
    width, later = max(lengths) + 1, some_tokens(len(lengths), more)
    gaps = [(width - n, 0) if side == "left" else (0, width - n) for n in lengths]
    tokens = torch.cat([F.pad(prompt, gap, value=3) for prompt, gap in zip(prompts, gaps, strict=True)])
    mask = torch.cat([F.pad(torch.ones_like(p, dtype=torch.bool), gap) for p, gap in zip(prompts, gaps, strict=True)])
    together = gpt.step(tokens, gpt.start(rows=len(lengths)), mask)
    scores, _ = gpt.score(tokens, tokens, gpt.start(rows=len(lengths)), mask)
    assert not scores[~mask].any()
    firsts = together.log_probs
    for t in range(more):
        together = gpt.step(later[:, t : t + 1], together.state)
    for row, prompt in enumerate(prompts):
        exactly(firsts[row : row + 1], gpt.step(prompt, gpt.start(rows=1)).log_probs)
        exactly(scores[row, mask[row]], gpt.score(prompt, prompt, gpt.start(rows=1))[0][0])
        whole = torch.cat([prompt, later[row : row + 1]], dim=1)
        exactly(together.log_probs[row : row + 1], gpt.step(whole, gpt.start(rows=1)).log_probs)


def test_row_without_tokens_keeps_its_prediction(gpt: GPT) -> None:
    first = gpt.step(some_tokens(), gpt.start(rows=B))
    mask = torch.ones(B, 2, dtype=torch.bool)
    mask[1] = False
    second = gpt.step(some_tokens(steps=2), clone(first.state), mask)
    exactly(second.log_probs[1], first.log_probs[1])
    assert not torch.allclose(second.log_probs[0], first.log_probs[0])


def test_rows_can_be_reordered_and_removed(gpt: GPT) -> None:
    tokens, rows = some_tokens(steps=8), torch.tensor([2, 0])
    state = select(gpt.step(tokens[:, :7], gpt.start(rows=B)).state, rows, rows)
    exactly(
        gpt.step(tokens[rows, 7:], state).log_probs,
        gpt.step(tokens, gpt.start(rows=B)).log_probs[rows],
    )


def test_full_context_drops_its_first_half() -> None:
    no = NO_TOKEN
    text = torch.tensor([[1, 2, 3, 4, no], [no, 5, no, 6, no], [7, no, 8, 9, 10], [no, no, no, no, no]])
    kept, real = drop_first_half(text, window=4)
    assert kept.tolist() == [[3, 4], [5, 6], [9, 10], [no, no]]
    assert real.tolist() == [[True, True], [True, True], [True, True], [False, False]]
    kept, _ = drop_first_half(text, window=5)  # no context is full
    assert kept.tolist() == [[1, 2, 3, 4], [5, 6, no, no], [7, 8, 9, 10], [no, no, no, no]]


# --- training -------------------------------------------------------------------------------------------------------


def test_loss_is_the_mean_cross_entropy(gpt: GPT) -> None:
    inputs, targets = some_tokens(), some_tokens()
    value, carry = gpt.loss(inputs, targets)
    value.backward()
    result = {name: parameter.grad.clone() for name, parameter in gpt.named_parameters()}  # type: ignore[union-attr]
    gpt.zero_grad()
    expected = F.cross_entropy(gpt(inputs).flatten(0, 1), targets.flatten())
    expected.backward()
    assert carry is None
    exactly(value, expected)
    exactly(result, {name: parameter.grad for name, parameter in gpt.named_parameters()})


def test_packed_documents_have_separate_gradients(gpt: GPT) -> None:
    inputs, targets = some_tokens(1), some_tokens(1)
    documents = torch.tensor([[0, 0, 1, 1, 1, 2]])
    gpt.loss(inputs, targets, documents=documents)[0].backward()
    packed = {name: parameter.grad.clone() for name, parameter in gpt.named_parameters()}  # type: ignore[union-attr]
    gpt.zero_grad()
    for first, last in ((0, 2), (2, 5), (5, 6)):
        value, _ = gpt.loss(inputs[:, first:last], targets[:, first:last])
        (value * (last - first) / T).backward()
    exactly(packed, {name: parameter.grad for name, parameter in gpt.named_parameters()})


@pytest.mark.parametrize("kind", KINDS)
def test_eight_examples_are_memorized(kind: str) -> None:
    torch.manual_seed(0)
    gpt = GPTConfig(**{"d_model": 32, "layers": 2, "dropout": 0.0, **KINDS[kind]}).build(V)
    tokens = torch.randint(V, (8, WINDOW))
    tokens[:, 0] = torch.arange(8)  # makes the rows different
    # Differs from the first token, because repeated tokens cannot be counted without positions
    tokens[:, 1] = tokens[:, 0] + 1
    optimizer = torch.optim.Adam(gpt.parameters(), lr=1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        value, _ = gpt.loss(tokens[:, :-1], tokens[:, 1:])
        if value < 0.02:
            break
        value.backward()
        optimizer.step()
    assert value < 0.02


def test_tied_embeddings_are_one_matrix() -> None:
    tied, untied = model(), model(tied=False)
    assert tied.output.weight is tied.backbone.embed.weight
    assert untied.output.weight is not untied.backbone.embed.weight


def test_half_precision_returns_single_precision_log_probs(gpt: GPT) -> None:
    output = gpt.to(torch.bfloat16).step(some_tokens(steps=9), gpt.start(rows=B))
    assert output.log_probs.dtype == torch.float32
    torch.testing.assert_close(output.log_probs.exp().sum(dim=1), torch.ones(B))


# --- invalid input --------------------------------------------------------------------------------------------------


def test_gpt_rejects_a_source() -> None:
    with pytest.raises(UsageError, match="takes no source"):
        model().start(source=some_tokens())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"context": 0}, ["context must be at least 2"]),
        ({"context": 1, "d_model": 0}, ["context must be at least 2", "d_model must be at least 1"]),
        ({"context": 600, "layers": 0}, ["at most 512, the number of learned positions", "layers must be at least 1"]),
        ({"positions": PositionsConfig(kind="learned", max_length=1)}, ["context must be at least 2"]),
    ],
)
def test_all_problems_are_reported(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError, match=words[0]) as caught:
        GPTConfig(**options)
    assert all(word in str(caught.value) for word in words)


def test_window_size_is_the_context_or_the_number_of_learned_positions() -> None:
    rotary = PositionsConfig(kind="rotary")
    assert GPTConfig().window == GPTConfig(positions=rotary).window == 512
    assert GPTConfig(context=9).window == GPTConfig(context=9, positions=rotary).window == 9
    assert GPTConfig(positions=PositionsConfig(kind="learned", max_length=700)).window == 700
    assert model(positions=PositionsConfig(kind="none")).notes() and not model().notes()
