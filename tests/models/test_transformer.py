"""The Transformer: steps equal the forward pass, padding has no effect, and attention weights are correct."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.small_seq2seq import TARGETS, V, exactly, log_probs, some_batch, source_of
from tests.models.small_transformer import SWITCHES, transformer

from seqloom.core.protocols import DecodeState, Steppable, select
from seqloom.core.tree import clone, leaves, pack, select_rows, unpack


@pytest.fixture(params=SWITCHES)
def model(request):
    return transformer(**SWITCHES[request.param])


# --- token by token ---------------------------------------------------------------------------------------------------


def test_model_implements_the_steppable_protocol(model):
    assert isinstance(model, Steppable)


@torch.no_grad()
def assert_steps_equal_whole(model) -> None:
    """Assert that decoding step by step equals decoding the complete target."""
    batch = some_batch(targets=(4, 4, 4))
    whole, weights = log_probs(model, batch), model.attention(batch)
    state = model.start(source_of(batch))
    for t in range(whole.shape[1]):
        output = model.step(batch["inputs"][:, t : t + 1], state)
        exactly(output.log_probs, whole[:, t])
        exactly(output.attention, weights[:, t])
        state = output.state


def test_steps_match_one_forward_pass(model):
    assert_steps_equal_whole(model)


@torch.no_grad()
def test_steps_of_a_long_target_match_one_forward_pass(model):
    """The cache grows several times."""
    batch = some_batch((3,), (38,))
    whole, state = log_probs(model, batch), model.start(source_of(batch))
    for t in range(38):
        output = model.step(batch["inputs"][:, t : t + 1], state)
        exactly(output.log_probs, whole[:, t])
        state = output.state


@torch.no_grad()
def test_prompts_of_different_lengths_give_the_same_results_as_single_rows(model):
    """Prompts are read in one call with padding at any position. The first row is empty."""
    batch = some_batch((5, 2, 4, 3), (4, 4, 4, 4))
    mask = torch.tensor([[0, 0, 0, 0], [1, 1, 0, 0], [0, 1, 0, 1], [1, 1, 1, 1]]).bool()
    state = model.start(source_of(batch))
    first = model.step(batch["inputs"][:, :1], state)
    prompt = batch["targets"]
    output = model.step(prompt, first.state, mask)
    exactly(output.log_probs[0], first.log_probs[0])
    assert output.attention.shape == (4, 5) and output.attention[0].eq(0).all()
    after = torch.randint(1, V, (4, 3))
    second = model.step(after[:, :1], output.state)
    third = model.step(after[:, 1:], second.state)  # two tokens per step, for rows of different lengths
    for row in range(4):
        example = {key: values[row : row + 1] for key, values in source_of(batch).items()}
        inputs = torch.cat([batch["inputs"][row, :1], prompt[row, mask[row]], after[row]]).unsqueeze(0)
        whole = model(example["tokens"], example["mask"], inputs).log_softmax(dim=-1)[0]
        exactly(output.log_probs[row], whole[-4])
        exactly(second.log_probs[row], whole[-3])
        exactly(third.log_probs[row], whole[-1])


@torch.no_grad()
def assert_reordering_works(model) -> None:
    """Assert that hypotheses keep their states when they are reordered, copied and removed."""
    batch = some_batch((5, 2, 4), (3, 3, 3))
    rows, sources = torch.tensor([2, 2, 0, 0]), torch.tensor([2, 0])
    state = model.start(source_of(batch))
    for t in range(2):
        state = model.step(batch["inputs"][:, t : t + 1], state).state
    state = select(state, rows, sources)  # two hypotheses of source 2, and two of source 0
    new = torch.tensor([[1], [2], [3], [4]])
    output = model.step(new, state)
    swapped = select(output.state, torch.tensor([1, 0, 2, 2]), torch.tensor([0, 1]))
    last = model.step(new, swapped)
    before = torch.cat([batch["inputs"][rows, :2], new], dim=1)
    source = select_rows(source_of(batch), rows)
    exactly(output.log_probs, model(source["tokens"], source["mask"], before).log_softmax(-1)[:, -1])
    inputs = torch.cat([before[[1, 0, 2, 2]], new], dim=1)
    exactly(last.log_probs, model(source["tokens"], source["mask"], inputs).log_softmax(-1)[:, -1])


def test_hypotheses_can_be_reordered_and_removed(model):
    assert_reordering_works(model)


@torch.no_grad()
def test_state_can_be_cloned_and_packed(model):
    """A step of one branch does not change the other branch. Packing does not need pickle."""
    batch = some_batch()
    state = model.step(batch["inputs"], model.start(source_of(batch))).state
    kept = DecodeState(clone(state.hidden), clone(state.memory))
    again = DecodeState(*(unpack(*pack(tree)) for tree in (kept.hidden, kept.memory)))
    once = model.step(torch.ones(3, 1, dtype=torch.long), state)
    twice = model.step(torch.ones(3, 1, dtype=torch.long), again)
    exactly(once.log_probs, twice.log_probs)
    assert all(len(leaf) == 3 for leaf in leaves(once.state.hidden))


def test_step_has_a_gradient():
    model, batch = transformer(), some_batch((3, 3), (3, 3))
    total = torch.zeros((), dtype=torch.float64)
    state = model.start(source_of(batch))
    for t in range(3):
        output = model.step(batch["inputs"][:, t : t + 1], state)
        total, state = total - output.log_probs.gather(1, batch["targets"][:, t : t + 1]).sum(), output.state
    total.backward()
    stepped = [clone(parameter.grad) for parameter in model.parameters()]
    model.zero_grad()
    (-model.target_log_probs(batch).sum()).backward()
    for gradient, parameter in zip(stepped, model.parameters(), strict=True):
        exactly(gradient, parameter.grad)


# --- masks and positions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("t", range(1, 4))
def test_predictions_are_causal(model, t):
    batch = some_batch(targets=(4, 4, 4))
    before = log_probs(model, batch)
    batch["inputs"][:, t] = (batch["inputs"][:, t] + 1) % V
    after = log_probs(model, batch)
    assert torch.equal(before[:, :t], after[:, :t])
    assert (before[:, t:] != after[:, t:]).any(dim=-1).all()


def test_predictions_without_causal_mask_read_later_tokens():
    model, batch = transformer(causal=False), some_batch(targets=(4, 4, 4))
    before = log_probs(model, batch)
    batch["inputs"][:, 3] = (batch["inputs"][:, 3] + 1) % V
    assert (log_probs(model, batch) != before).any(dim=-1).all()
    assert "causal is off" in model.notes()[0]
    assert_padding_has_no_effect(model)  # padding is masked in this case, too


def test_predictions_depend_on_the_source(model):
    batch = some_batch()
    before = log_probs(model, batch)
    batch["source"][:, 0] = (batch["source"][:, 0] + 1) % V
    assert (log_probs(model, batch) != before).any(dim=-1).all()


def assert_padding_has_no_effect(model) -> None:
    torch.manual_seed(1)
    batch = some_batch()
    result, weights = model.target_log_probs(batch), model.attention(batch)
    for key, amount in (("source", 3), ("source_mask", 3), ("inputs", 2), ("targets", 2), ("target_mask", 2)):
        filler = torch.zeros(3, amount, dtype=torch.bool) if "mask" in key else torch.randint(V, (3, amount))
        batch[key] = torch.cat([batch[key], filler], dim=1)
    exactly(model.target_log_probs(batch)[:, :-2], result)
    exactly(model.attention(batch)[:, :-2, :-3], weights)
    assert model.attention(batch)[:, :, -3:].eq(0).all()
    for row in range(3):
        S, T = (int(batch[key][row].sum()) for key in ("source_mask", "target_mask"))
        alone = {key: values[row : row + 1, : S if "source" in key else T] for key, values in batch.items()}
        exactly(model.target_log_probs(alone)[0], result[row, :T])


def test_padding_has_no_effect(model):
    assert_padding_has_no_effect(model)


def test_forward_accepts_target_padding_at_any_position(model):
    batch = some_batch((5, 2), (4, 4))
    mask = torch.tensor([[1, 0, 1, 1], [0, 1, 1, 0]]).bool()
    result = model(batch["source"], batch["source_mask"], batch["inputs"], mask)
    for row in range(2):
        example = {key: values[row : row + 1] for key, values in batch.items()}
        expected = model(example["source"], example["source_mask"], example["inputs"][:, mask[row]])
        exactly(result[row, mask[row]], expected[0])


def test_row_of_padding_does_not_change_gradients(model):
    """Batches of a fixed shape may contain rows of padding."""
    batch = some_batch()
    model.loss(batch)[0].backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    value, count = model.loss({key: F.pad(values, (0, 0, 0, 1)) for key, values in batch.items()})
    value.backward()
    assert count == sum(TARGETS)
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        exactly(parameter.grad, gradient)


def depends_on_order(model) -> bool:
    """Return whether the order of the source tokens changes the result."""
    batch = some_batch((5,), (3,))
    before = log_probs(model, batch)
    batch["source"] = batch["source"][:, [1, 0, 3, 2, 4]]
    return not torch.allclose(log_probs(model, batch), before, atol=1e-9)


@pytest.mark.parametrize("kind", ["sinusoidal", "learned", "rotary"])
def test_positions_make_the_order_visible(kind):
    assert depends_on_order(transformer(positions=kind))


def test_order_is_ignored_without_positions():
    model = transformer(positions="none")
    assert not depends_on_order(model)
    assert model.notes() == ["without positions the encoder ignores the order of the source tokens"]
    assert depends_on_order(transformer(positions="none", encoder_layer="convolution"))


# --- attention weights ------------------------------------------------------------------------------------------------


def test_attention_weights_sum_to_one_and_respect_the_masks(model):
    batch = some_batch()
    result, config = model.attentions(batch), model.config
    attends = config.encoder_layer in ("self-attention", "windowed")
    assert [len(result[name]) for name in ("encoder", "decoder", "cross")] == [
        config.encoder_layers if attends else 0,
        config.decoder_layers,
        config.decoder_layers,
    ]
    source, target = batch["source_mask"], batch["target_mask"]
    for name, queries, keys in (
        ("encoder", source, source),
        ("decoder", target, target),
        ("cross", target, source),
    ):
        for weights in result[name]:
            assert weights.shape == (3, config.heads, queries.shape[1], keys.shape[1])
            if config.source_bos is None or name == "decoder":  # the weights of the start token are excluded
                exactly(weights.sum(dim=-1), queries.unsqueeze(1).expand(weights.shape[:3]).double())
            assert weights.masked_fill(keys[:, None, None, :], 0).eq(0).all()
    assert all(weights.triu(1).eq(0).all() for weights in result["decoder"])
    layer = (config.align_layer or config.decoder_layers) - 1
    exactly(model.attention(batch), result["cross"][layer].mean(dim=1))


# --- random lengths ---------------------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 20)), min_size=1, max_size=4),
    name=st.sampled_from(["2017", "today", "learned", "rotary"]),
)
@torch.no_grad()
def test_steps_match_one_forward_pass_for_any_lengths(lengths, name):
    model = transformer(**SWITCHES[name])
    batch = some_batch(*zip(*lengths, strict=True))
    whole, state = model.target_log_probs(batch), model.start(source_of(batch))
    for t in range(batch["inputs"].shape[1]):
        real = batch["target_mask"][:, t : t + 1]
        output = model.step(batch["inputs"][:, t : t + 1], state, real)
        log_probs = output.log_probs.gather(1, batch["targets"][:, t : t + 1])
        exactly((log_probs * real).squeeze(1), whole[:, t])
        state = output.state
    known = state.hidden["cache"]
    length = torch.full((len(lengths),), known["read"]) if known["length"] is None else known["length"]
    assert torch.equal(length, batch["target_mask"].sum(dim=1))
