"""N-gram models: `step` and `score` agree for chunks, masks, batches and restored models."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from seqloom.classical.ngram import NGram, NGramConfig
from seqloom.classical.ngram.kneser_ney import kneser_ney
from seqloom.core.errors import CheckpointError
from seqloom.core.files import tensors_from_file, tensors_to_bytes
from seqloom.core.protocols import CausalLanguageModel, select
from seqloom.core.tree import clone

VOCABULARY = 11


def train_model(order: int, seed: int = 0) -> NGram:
    random = np.random.default_rng(seed)
    stream = np.minimum(random.geometric(0.3, 600) - 1, VOCABULARY - 2)  # word 10 never occurs
    return kneser_ney(np.append(stream, 0), NGramConfig(order=order), VOCABULARY)


@pytest.fixture(scope="module", params=[1, 2, 3, 5])
def model(request: pytest.FixtureRequest) -> NGram:
    return train_model(request.param)


def text(rows: int, length: int, seed: int = 1) -> Tensor:
    return torch.randint(0, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


def test_model_implements_the_language_model_interface(model: NGram) -> None:
    assert isinstance(model, CausalLanguageModel)


def test_distributions_sum_to_one_for_seen_and_unseen_contexts(model: NGram) -> None:
    output = model.step(text(300, 6), model.start(rows=300))
    assert output.log_probs.dtype == torch.float64
    assert output.log_probs.shape == (300, VOCABULARY)
    assert output.log_probs.isfinite().all()
    torch.testing.assert_close(output.log_probs.exp().sum(1), torch.ones(300, dtype=torch.float64), atol=1e-12, rtol=0)


def test_step_agrees_with_score(model: NGram) -> None:
    tokens = text(7, 30)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    scores, final = model.score(inputs, targets, model.start(rows=7))
    state = model.start(rows=7)
    for t in range(inputs.shape[1]):
        output = model.step(inputs[:, t : t + 1], state)
        state = output.state
        torch.testing.assert_close(output.log_probs.gather(1, targets[:, t : t + 1])[:, 0], scores[:, t])
    assert torch.equal(final.hidden, state.hidden)
    at_once = model.step(inputs, model.start(rows=7))
    torch.testing.assert_close(at_once.log_probs, output.log_probs)


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(0, 40), max_size=4), order=st.integers(1, 4))
def test_reading_in_chunks_is_equivalent_to_reading_in_one_call(cuts: list[int], order: int) -> None:
    model = train_model(order)
    tokens = text(3, 41)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    whole, after = model.score(inputs, targets, model.start(rows=3))
    state, pieces = model.start(rows=3), []
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), 40], strict=True):
        scores, state = model.score(inputs[:, begin:end], targets[:, begin:end], state)
        pieces.append(scores)
    assert torch.equal(torch.cat(pieces, dim=1), whole)
    assert torch.equal(state.hidden, after.hidden)


def test_single_row_gives_the_same_result_as_in_a_batch(model: NGram) -> None:
    tokens = text(5, 20)
    together, _ = model.score(tokens[:, :-1], tokens[:, 1:], model.start(rows=5))
    steps = model.step(tokens, model.start(rows=5)).log_probs
    for row in range(5):
        one = tokens[row : row + 1]
        assert torch.equal(model.score(one[:, :-1], one[:, 1:], model.start())[0][0], together[row])
        assert torch.equal(model.step(one, model.start()).log_probs[0], steps[row])


def test_end_token_resets_the_context(model: NGram) -> None:
    fresh = model.step(torch.tensor([[0, 3]]), model.start()).log_probs
    later = model.step(torch.tensor([[4, 2, 7, 0, 3]]), model.start()).log_probs
    assert torch.equal(fresh, later)
    assert torch.equal(fresh, model.step(torch.tensor([[3]]), model.start()).log_probs)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), order=st.integers(1, 4))
def test_masked_tokens_are_not_read(data: st.DataObject, order: int) -> None:
    model = train_model(order)
    real = data.draw(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=4))
    mask, tokens = torch.tensor(real), text(len(real), 6, seed=data.draw(st.integers(0, 99)))
    output = model.step(tokens, model.start(rows=len(real)), mask)
    for row in range(len(real)):
        alone = model.step(tokens[row][mask[row]][None], model.start())
        assert torch.equal(alone.log_probs[0], output.log_probs[row])
        assert torch.equal(alone.state.hidden[0], output.state.hidden[row])


def test_scores_are_causal(model: NGram) -> None:
    tokens = text(1, 20)
    edited = tokens.clone()
    edited[0, 12] = (edited[0, 12] + 1) % VOCABULARY
    before, _ = model.score(tokens[:, :-1], tokens[:, 1:], model.start())
    after, _ = model.score(edited[:, :-1], edited[:, 1:], model.start())
    assert torch.equal(before[:, :11], after[:, :11])
    assert not torch.equal(before[:, 11], after[:, 11])


def test_states_can_be_duplicated_and_reordered() -> None:
    model = train_model(3)
    state = model.step(text(3, 5), model.start(rows=3)).state
    kept = clone(state)
    model.step(text(3, 2, seed=5), state)
    rows = torch.tensor([2, 0, 0])
    chosen = model.step(text(3, 1)[:1].expand(3, 1), select(kept, rows, rows))
    straight = model.step(text(3, 1)[:1].expand(3, 1), kept)
    assert torch.equal(chosen.log_probs, straight.log_probs[rows])


def test_untrained_model_predicts_the_uniform_distribution() -> None:
    model = NGramConfig(order=4).build(8)
    output = model.step(torch.tensor([[1, 2, 3, 4]]), model.start())
    assert output.log_probs[0].tolist() == pytest.approx([-math.log(8)] * 8)
    scores, _ = model.score(torch.tensor([[1, 2, 3]]), torch.tensor([[2, 3, 4]]), model.start())
    assert scores[0].tolist() == pytest.approx([-math.log(8)] * 3)


def test_save_and_load_preserves_the_model(model: NGram, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(tensors_to_bytes(model.state_dict()))
    again = NGramConfig(order=model.order).build(VOCABULARY)
    again.load_state_dict(tensors_from_file(tmp_path / "model.safetensors"))
    tokens = text(20, 9)
    before, after = (which.step(tokens, which.start(rows=20)).log_probs for which in (model, again))
    assert torch.equal(before, after)
    assert again.size() == model.size()
    assert torch.equal(again.discounts, model.discounts)
    assert torch.equal(again.fallback, model.fallback)


def test_tensors_of_another_model_are_rejected() -> None:
    model = train_model(3)
    with pytest.raises(CheckpointError, match=r"log_prob\.4"):
        NGramConfig(order=4).build(VOCABULARY).load_state_dict(model.state_dict())
    with pytest.raises(CheckpointError, match=r"log_prob\.1 must have the shape \(21\)"):
        NGramConfig(order=3).build(20).load_state_dict(model.state_dict())
    damaged = model.state_dict() | {"keys.3": model.tables[2].keys[:-1]}
    with pytest.raises(CheckpointError, match="3-grams"):
        NGramConfig(order=3).build(VOCABULARY).load_state_dict(damaged)


def test_model_has_module_methods(model: NGram) -> None:
    assert model.to("cpu").eval().train() is model
    assert model.device == torch.device("cpu")
    sizes = model.size()
    assert list(sizes) == [f"{k}-grams" for k in range(1, model.order + 1)]
    assert sizes["1-grams"] == VOCABULARY
