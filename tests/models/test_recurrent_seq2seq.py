import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.small_seq2seq import REPRESENTATIVE, H, V, exactly, log_probs, model, padded, some_batch, source_of

from seqloom.config import build, to_mapping
from seqloom.core.protocols import DecodeState, Steppable, select
from seqloom.core.tree import clone, leaves, select_rows
from seqloom.models.recurrent_seq2seq import RecurrentSeq2SeqConfig
from seqloom.nn.cells import CELLS
from seqloom.nn.masks import reversal_indices
from seqloom.nn.scores import SCORES

# The models cover every path through the decoder.

ORDERS: dict[str, dict[str, Any]] = {
    "luong": {"order": "luong"},
    "luong-feeding": {"order": "luong", "input_feeding": True},
    "bahdanau": {"order": "bahdanau"},
}


@pytest.fixture(params=REPRESENTATIVE)
def seq2seq(request):
    return model(**REPRESENTATIVE[request.param])


@torch.no_grad()
def assert_steps_equal_whole(seq2seq, batch):
    """Assert that decoding step by step equals decoding the complete target."""
    state = seq2seq.start(source_of(batch))
    r, weights, _, _ = seq2seq.decode(batch["inputs"], clone(state.hidden), state.memory)
    whole = seq2seq.output.log_probs(seq2seq.project(r))
    for t in range(whole.shape[1]):
        output = seq2seq.step(batch["inputs"][:, t : t + 1], state)
        exactly(output.log_probs, whole[:, t])
        exactly(output.attention, None if weights is None else weights[:, t])
        state = output.state


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("order", ORDERS)
def test_steps_match_one_forward_pass(order, score, every):
    """Each pair of order and score tests every fifth combination.

    The offsets differ, so all combinations are tested.
    """
    batch = some_batch((3, 2), (3, 3))
    choices = itertools.product((False, True), ("start", "every"), (False, True), ("elman", "lstm", "gru", "gru-cho"))
    first = (len(SCORES) * list(ORDERS).index(order) + list(SCORES).index(score)) % every
    for coverage, context, reverse, cell in list(choices)[first::every]:
        attention = {**ORDERS[order], "score": score, "coverage": coverage}
        assert_steps_equal_whole(model(attention=attention, context=context, reverse=reverse, cell=cell), batch)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("context", ["start", "every"])
def test_steps_match_one_forward_pass_without_attention(cell, context):
    for reverse, layers in itertools.product((False, True), (1, 2)):
        options = {"encoder_layers": layers, "decoder_layers": 3 - layers, "reverse": reverse}
        assert_steps_equal_whole(model(attention=None, cell=cell, context=context, **options), some_batch())


@pytest.mark.parametrize("options", [{"decoder_layers": 3}, {"encoder_layers": 2, "combine": "mix"}, {"tied": "all"}])
def test_steps_match_one_forward_pass_for_other_options(seq2seq, options):
    config = to_mapping(seq2seq.config) | options
    assert_steps_equal_whole(
        build(RecurrentSeq2SeqConfig, config | {"bidirectional": True}).build(V).double().eval(), some_batch()
    )


@pytest.mark.parametrize("reverse", [False, True])
def test_residual_connections_add_embeddings_to_encoder_states(reverse):
    options = {"attention": {"score": "additive"}, "combine": "sum", "hidden": 6, "embedding": 6, "reverse": reverse}
    plain, residual = model(**options), model(**options, residual=True)
    residual.load_state_dict(plain.state_dict())
    batch = some_batch()
    mask = batch["source_mask"]
    without, within = (seq2seq.encode(batch["source"], mask) for seq2seq in (plain, residual))
    exactly((within["states"] - without["states"])[mask], plain.source_embed(batch["source"])[mask])
    exactly(within["context"], without["context"])
    assert_steps_equal_whole(residual, batch)
    with pytest.raises(ValueError, match="residual needs embeddings and encoder states of equal size; got 6 and 12"):
        model(**options | {"combine": "concat"}, residual=True)


def test_model_implements_the_steppable_protocol(seq2seq):
    assert isinstance(seq2seq, Steppable)


@pytest.mark.parametrize("t", range(1, 4))
def test_predictions_are_causal(seq2seq, t):
    batch = some_batch(targets=(4, 4, 4))
    before = log_probs(seq2seq, batch)
    batch["inputs"][:, t] = (batch["inputs"][:, t] + 1) % V
    after = log_probs(seq2seq, batch)
    assert torch.equal(before[:, :t], after[:, :t])
    assert (before[:, t:] != after[:, t:]).any(dim=-1).all()


def test_predictions_depend_on_the_source(seq2seq):
    batch = some_batch()
    before = log_probs(seq2seq, batch)
    batch["source"][:, 0] = (batch["source"][:, 0] + 1) % V
    assert (log_probs(seq2seq, batch) != before).any(dim=-1).all()


# The equations are computed token by token and share only the weights with the model.


def equations(seq2seq, source, inputs):
    """Return logits (T, V) and weights (T, S) of one pair, for a model with one layer and one state tensor."""
    config = seq2seq.config
    order = None if config.attention is None else config.attention.order
    memory = seq2seq.encode(source.unsqueeze(0))
    c = memory["context"][0]
    every = [c] if config.context == "every" else []
    s = torch.tanh(seq2seq.bridge.weight @ c + seq2seq.bridge.bias)
    looks: list[torch.Tensor] = []
    logits, r, past = [], torch.zeros(H).double(), torch.zeros(len(source)).double()

    def attend_by_equation(s):
        score, h = seq2seq.attend.score, memory["states"]
        covered = past.view(1, 1, -1) if config.attention.coverage else None
        previous = None
        if config.attention.location_filters is not None:
            previous = (looks[-1] if looks else torch.zeros_like(past)).view(1, 1, -1)
        looks.append(score(s.view(1, 1, -1), score.prepare(h), covered, previous)[0, 0].softmax(dim=0))
        return [looks[-1] @ h[0]]

    for token in inputs:
        y = seq2seq.target_embed.weight[token]
        context = attend_by_equation(s) if order == "bahdanau" else []  # context from s_{i-1}
        fed = [r] if order == "luong" and config.attention.input_feeding else context
        s = seq2seq.decoder.cells[0](torch.cat([y, *fed, *every]).unsqueeze(0), {"h": s.unsqueeze(0)})["h"][0]
        context = attend_by_equation(s) if order == "luong" else context  # context from s_t
        seen = [s, *context, *every] if order == "luong" else [y, s, *context, *every]
        plain = order is None and not every
        r = s if plain else torch.tanh(seq2seq.readout.weight @ torch.cat(seen) + seq2seq.readout.bias)
        past = past + looks[-1] if looks else past
        logits.append(seq2seq.output.weight @ r + seq2seq.output.bias)
    return torch.stack(logits), torch.stack(looks) if looks else None


@pytest.mark.parametrize("context", ["start", "every"])
@pytest.mark.parametrize("coverage", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_attention_orders_match_their_equations(order, coverage, context):
    for score in SCORES:
        seq2seq = model(attention={**ORDERS[order], "score": score, "coverage": coverage}, context=context)
        batch = some_batch(sources=(4,), targets=(4,))
        logits, weights = equations(seq2seq, batch["source"][0], batch["inputs"][0])
        exactly(log_probs(seq2seq, batch)[0], logits.log_softmax(dim=-1))
        exactly(seq2seq.attention(batch)[0], weights)


@pytest.mark.parametrize("order", ORDERS)
def test_location_aware_attention_matches_its_equations(order):
    for score in SCORES:
        attention = {**ORDERS[order], "score": score, "location_filters": 2, "location_width": 3}
        seq2seq = model(attention=attention)
        torch.nn.init.normal_(seq2seq.attend.score.located.project.weight)
        batch = some_batch(sources=(4,), targets=(4,))
        logits, weights = equations(seq2seq, batch["source"][0], batch["inputs"][0])
        exactly(log_probs(seq2seq, batch)[0], logits.log_softmax(dim=-1))
        exactly(seq2seq.attention(batch)[0], weights)


@pytest.mark.parametrize("context", ["start", "every"])
def test_contexts_match_their_equations(context):
    seq2seq, batch = model(attention=None, context=context), some_batch(sources=(4,), targets=(4,))
    logits, _ = equations(seq2seq, batch["source"][0], batch["inputs"][0])
    exactly(log_probs(seq2seq, batch)[0], logits.log_softmax(dim=-1))


@pytest.mark.parametrize("score", ["dot", "general"])
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_luong_decoder_matches_torch_layers(cell, score):
    """Compare with torch layers, from tokens to logits."""
    seq2seq = model(cell=cell, attention={"score": score}, combine="concat")
    kind = torch.nn.GRU if cell == "gru" else torch.nn.LSTM
    encoder = kind(4, H, batch_first=True, bidirectional=True).double()
    decoder = kind(4, H, batch_first=True).double()
    names = ("weight_x", "weight_h", "bias_x", "bias_h")
    theirs = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    ways = seq2seq.encoder.layers[0]
    for ours, module, suffix in (
        (ways.forwards.cell, encoder, "l0"),
        (ways.backwards.cell, encoder, "l0_reverse"),
        (seq2seq.decoder.cells[0], decoder, "l0"),
    ):
        for name, other in zip(names, theirs, strict=True):
            getattr(module, f"{other}_{suffix}").data.copy_(getattr(ours, name))
    batch = some_batch()
    lengths = batch["source_mask"].sum(1)
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        seq2seq.source_embed(batch["source"]), lengths, batch_first=True, enforce_sorted=False
    )
    outputs, last = encoder(packed)
    h, _ = torch.nn.utils.rnn.pad_packed_sequence(outputs, batch_first=True)
    last = last if cell == "gru" else last[0]
    parts = torch.tanh(seq2seq.bridge(torch.cat([last[0], last[1]], dim=-1))).unsqueeze(0).split(H, dim=-1)
    first = tuple(part.contiguous() for part in parts)  # s_0, and for the LSTM also c_0
    s, _ = decoder(seq2seq.target_embed(batch["inputs"]), first if cell == "lstm" else first[0])
    matrix = seq2seq.attend.score.weight if score == "general" else seq2seq.attend.score.project
    e = torch.einsum("bth,hm,bsm->bts", s, matrix.weight, h)
    alpha = e.masked_fill(~batch["source_mask"].unsqueeze(1), -torch.inf).softmax(dim=-1)
    a = torch.einsum("bts,bsm->btm", alpha, h)
    logits = seq2seq.output(torch.tanh(seq2seq.readout(torch.cat([s, a], dim=-1))))
    exactly(log_probs(seq2seq, batch), logits.log_softmax(dim=-1))


# Padding, batches, hypotheses.


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=3),
    more=st.integers(0, 2),
    name=st.sampled_from(sorted(REPRESENTATIVE)),
)
def test_single_sentence_gives_the_same_result_as_in_a_padded_batch(lengths, more, name):
    seq2seq = model(**REPRESENTATIVE[name])
    sources, targets = zip(*lengths, strict=True)
    batch = some_batch(sources, targets, source=max(sources) + more, target=max(targets) + more)
    together, scores, weights = log_probs(seq2seq, batch), seq2seq.target_log_probs(batch), seq2seq.attention(batch)
    assert not scores[~batch["target_mask"]].any()
    for row, (s, t) in enumerate(lengths):
        sides = {"source": s, "source_mask": s, "inputs": t, "targets": t, "target_mask": t}
        alone = {side: batch[side][row : row + 1, :length] for side, length in sides.items()}
        exactly(together[row : row + 1, :t], log_probs(seq2seq, alone))
        exactly(scores[row : row + 1, :t], seq2seq.target_log_probs(alone))
        if weights is not None:
            exactly(weights[row : row + 1, :t, :s], seq2seq.attention(alone))
            assert not weights[row, :, s:].any() and not weights[row, t:].any()
            exactly(weights[row, :t].sum(-1), torch.ones(t).double())


def test_rows_of_padding_do_not_change_loss_and_gradients(seq2seq):
    batch = some_batch()
    expected = seq2seq.loss(batch)
    expected[0].backward()
    gradients = [parameter.grad.clone() for parameter in seq2seq.parameters()]
    seq2seq.zero_grad()
    filled = {name: F.pad(tensor, (0, 0, 0, 2)) for name, tensor in batch.items()}  # masks are padded with False
    value, count = seq2seq.loss(filled)
    value.backward()
    exactly((value, count), expected)
    exactly([parameter.grad for parameter in seq2seq.parameters()], gradients)
    assert log_probs(seq2seq, filled).isfinite().all()
    nothing = {name: torch.zeros_like(tensor) for name, tensor in batch.items()}
    assert seq2seq.loss(nothing)[0] == 0 and not seq2seq.target_log_probs(nothing).any()


@pytest.mark.parametrize("k", [1, 2, 3])
def test_k_hypotheses_share_the_memory_of_their_source(seq2seq, k):
    batch = some_batch()
    copies = torch.arange(3).repeat_interleave(k)
    state = seq2seq.start(source_of(batch))
    shared = DecodeState(select_rows(state.hidden, copies), state.memory)
    copied = select(clone(state), copies, copies)
    for _ in range(3):
        tokens = torch.randint(V, (3 * k, 1))
        first, second = seq2seq.step(tokens, shared), seq2seq.step(tokens, copied)
        exactly((first.log_probs, first.attention), (second.log_probs, second.attention))
        shared, copied = first.state, second.state
        assert all(len(leaf) == 3 for leaf in leaves(shared.memory))
        # as in beam search, hypotheses are reordered only within their source
        rows = torch.cat([i * k + torch.randint(k, (k,)) for i in range(3)])
        shared, copied = select(shared, rows, torch.arange(3)), select(copied, rows, torch.arange(3 * k))


def test_finished_sources_can_be_removed(seq2seq):
    batch = some_batch()
    state = seq2seq.step(batch["inputs"][:, :1], seq2seq.start(source_of(batch))).state
    rows = torch.tensor([2, 0])
    tokens = batch["inputs"][:, 1:2]
    both = seq2seq.step(tokens[rows], select(clone(state), rows, rows)).log_probs
    exactly(both, seq2seq.step(tokens, state).log_probs[rows])


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_prefixes_give_the_same_results_as_single_rows(seq2seq, side):
    batch = some_batch()
    lengths = (2, 1, 4)
    tokens, mask = padded(lengths)
    if side == "left":
        tokens, mask = tokens.flip(1), mask.flip(1)
    state = seq2seq.start(source_of(batch))
    together = seq2seq.step(tokens, clone(state), mask)
    for row in range(len(lengths)):
        rows = torch.tensor([row])
        alone = seq2seq.step(tokens[row, mask[row]].unsqueeze(0), select(clone(state), rows, rows))
        exactly(together.log_probs[row : row + 1], alone.log_probs)
        exactly(select_rows(together.state.hidden, rows), alone.state.hidden)
        if together.attention is not None:
            exactly(together.attention[row : row + 1], alone.attention)


def test_row_without_tokens_keeps_its_prediction(seq2seq):
    batch = some_batch()
    first = seq2seq.step(batch["inputs"][:, :2], seq2seq.start(source_of(batch)))
    mask = torch.tensor([[True, True], [False, False], [True, False]])
    second = seq2seq.step(torch.randint(V, (3, 2)), clone(first.state), mask)
    exactly(second.log_probs[1], first.log_probs[1])
    assert not torch.allclose(second.log_probs[0], first.log_probs[0])
    assert second.attention is None or not second.attention[1].any()


def test_target_mask_excludes_padding(seq2seq):
    batch = some_batch()
    masked = seq2seq(batch["source"], batch["source_mask"], batch["inputs"], batch["target_mask"])
    real = batch["target_mask"]
    exactly(masked[real].log_softmax(-1), log_probs(seq2seq, batch)[real])


def test_missing_source_mask_means_that_there_is_no_padding(seq2seq):
    tokens = torch.randint(V, (2, 4))
    exactly(seq2seq.encode(tokens), seq2seq.encode(tokens, torch.ones(2, 4, dtype=torch.bool)))


# Reversal.


def test_reversal_keeps_the_end_token_and_padding_last():
    tokens = torch.tensor([[3, 4, 5, 0, 9, 9], [7, 0, 9, 9, 9, 9], [0, 9, 9, 9, 9, 9], [9, 9, 9, 9, 9, 9]])
    mask = torch.arange(6) < torch.tensor([[4], [2], [1], [0]])
    order = reversal_indices(mask, fixed=1)
    assert tokens.gather(1, order).tolist() == [[5, 4, 3, 0, 9, 9], *tokens[1:].tolist()]
    assert torch.equal(order.gather(1, order), torch.arange(6).expand(4, 6))


@pytest.mark.parametrize("options", [{"attention": None}, {"attention": {}}, {"attention": {}, "bidirectional": False}])
def test_reverse_option_is_equivalent_to_reversing_the_source(options):
    """The memory and the attention weights are in the order of the source."""
    batch = some_batch()
    plain, reverse = model(**options), model(**options, reverse=True)
    order = reversal_indices(batch["source_mask"], fixed=1)
    turned = batch | {"source": batch["source"].gather(1, order)}
    exactly(log_probs(reverse, batch), log_probs(plain, turned))
    assert (log_probs(plain, batch) - log_probs(reverse, batch)).abs().max() > 1e-4
    if options["attention"] is not None:
        weights = plain.attention(turned).take_along_dim(order.unsqueeze(1), dim=2)
        exactly(reverse.attention(batch), weights)
