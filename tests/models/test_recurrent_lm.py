import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from seqloom.config import build
from seqloom.core.errors import UsageError
from seqloom.core.protocols import CausalLanguageModel, select
from seqloom.core.tree import clone
from seqloom.models.recurrent_lm import RecurrentLMConfig
from seqloom.nn.cells import CELLS

V, B, T = 11, 3, 6


def exactly(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-10, rtol=0)


def model(seed=0, **options):
    torch.manual_seed(seed)
    return RecurrentLMConfig(**{"hidden": 8, "layers": 2, **options}).build(V).double().eval()


def some_tokens(rows=B, steps=T):
    return torch.randint(V, (rows, steps))


@pytest.fixture(params=[*CELLS, "residual", "highway", "dense"])
def lm(request):
    """Every cell, and an LSTM with every kind of connection."""
    if request.param in CELLS:
        return model(cell=request.param)
    return model(connections=request.param, embedding=6)


def test_recurrent_lm_implements_the_language_model_interface(lm):
    assert isinstance(lm, CausalLanguageModel)


@pytest.mark.parametrize("t", range(T))
def test_predictions_are_causal(lm, t):
    tokens = some_tokens()
    edited = tokens.clone()
    edited[:, t] = (edited[:, t] + 1) % V
    before, after = lm(tokens)[0], lm(edited)[0]
    assert before.shape == (B, T, V)
    assert torch.equal(before[:, :t], after[:, :t])
    assert (before[:, t:] != after[:, t:]).any(dim=-1).all()


def test_step_forward_and_score_agree(lm):
    tokens = some_tokens(steps=T + 1)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    whole = lm(inputs)[0].log_softmax(dim=-1)
    state = lm.start(rows=B)
    for t in range(T):
        output = lm.step(inputs[:, t : t + 1], state)
        exactly(output.log_probs, whole[:, t])
        state = output.state
    scores, after = lm.score(inputs, targets, lm.start(rows=B))
    exactly(scores, whole.gather(2, targets.unsqueeze(2)).squeeze(2))
    exactly(after.hidden, state.hidden)


def test_score_computed_in_pieces_matches_one_call(lm, monkeypatch):
    inputs, targets = some_tokens(), some_tokens()
    whole, _ = lm.score(inputs, targets, lm.start(rows=B))
    monkeypatch.setattr("seqloom.nn.softmax.SCORED_POSITIONS", 4)
    pieces, _ = lm.score(inputs, targets, lm.start(rows=B))
    exactly(pieces, whole)
    (-pieces.mean()).backward()
    assert lm.embed.weight.grad.abs().sum() > 0


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    side=st.sampled_from(["left", "right"]),
    cell=st.sampled_from(sorted(CELLS)),
    connections=st.sampled_from(["none", "residual", "highway", "dense"]),
)
def test_padded_prompt_gives_the_same_results_as_an_unpadded_prompt(lengths, side, cell, connections):
    lm = model(cell=cell, connections=connections)
    prompts = [some_tokens(1, length) for length in lengths]
    width = max(lengths) + 1
    gaps = [(width - n, 0) if side == "left" else (0, width - n) for n in lengths]
    tokens = torch.cat([F.pad(prompt, gap, value=3) for prompt, gap in zip(prompts, gaps, strict=True)])
    mask = torch.cat([F.pad(torch.ones_like(p, dtype=torch.bool), gap) for p, gap in zip(prompts, gaps, strict=True)])
    together = lm.step(tokens, lm.start(rows=len(lengths)), mask)
    scores, after = lm.score(tokens, tokens, lm.start(rows=len(lengths)), mask)
    exactly(after.hidden, together.state.hidden)
    assert not scores[~mask].any()
    for row, prompt in enumerate(prompts):
        alone = lm.step(prompt, lm.start(rows=1))
        exactly(together.log_probs[row : row + 1], alone.log_probs)
        rows = torch.tensor([row])
        exactly(select(together.state, rows, rows).hidden, alone.state.hidden)
        exactly(scores[row, mask[row]], lm.score(prompt, prompt, lm.start(rows=1))[0][0])


def test_row_without_tokens_keeps_its_prediction(lm):
    first = lm.step(some_tokens(), lm.start(rows=B))
    mask = torch.ones(B, 2, dtype=torch.bool)
    mask[1] = False
    second = lm.step(some_tokens(steps=2), clone(first.state), mask)
    exactly(second.log_probs[1], first.log_probs[1])
    assert not torch.allclose(second.log_probs[0], first.log_probs[0])


def test_log_probs_are_normalized_in_single_precision():
    lm = model().to(torch.bfloat16)
    output = lm.step(some_tokens(), lm.start(rows=B))
    assert output.log_probs.dtype == torch.float32
    torch.testing.assert_close(output.log_probs.exp().sum(dim=1), torch.ones(B))


def test_start_sets_rows_and_rejects_a_source(lm):
    assert lm.start().hidden[0]["h"].shape == (1, 8)
    with pytest.raises(UsageError, match="takes no source"):
        lm.start(source=some_tokens())


@pytest.mark.parametrize("cell", CELLS)
def test_eight_examples_are_memorized(cell):
    torch.manual_seed(0)
    lm = RecurrentLMConfig(cell=cell, hidden=48).build(V)
    tokens = torch.randint(1, V, (8, 10))
    tokens[:, 0] = torch.arange(8)  # makes the rows different
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    optimizer = torch.optim.Adam(lm.parameters(), lr=2e-2)
    for _ in range(200):
        optimizer.zero_grad()
        loss = F.cross_entropy(lm(inputs)[0].flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(lm.parameters(), 1.0)
        optimizer.step()
        if loss.item() < 0.01:
            return
    pytest.fail(f"after 200 steps the loss is {loss.item():.3f}")


def test_tied_embeddings_are_one_parameter():
    lm = model(tied=True)
    assert lm.output.weight is lm.embed.weight
    assert len(list(lm.parameters())) == len(list(model().parameters())) - 1
    copied = copy.deepcopy(lm)
    assert copied.output.weight is copied.embed.weight and copied.embed.weight is not lm.embed.weight
    other = model(seed=1, tied=True)
    other.load_state_dict(lm.state_dict())
    assert other.output.weight is other.embed.weight
    tokens = some_tokens()
    exactly(other(tokens)[0], lm(tokens)[0])


def test_dropout_applies_to_embeddings_layers_and_output():
    positions = []
    lm = model(dropout=0.5, layers=3)
    for module, name in ((lm.dropout, "model"), (lm.stack.dropout, "stack")):
        module.register_forward_hook(lambda *_, name=name: positions.append(name))
    lm.train()(some_tokens())
    assert positions == ["model", "stack", "stack", "model"]
    tokens = some_tokens()
    assert not torch.equal(lm(tokens)[0], lm(tokens)[0])
    assert torch.equal(lm.eval()(tokens)[0], lm(tokens)[0])


def test_init_range_applies_to_all_parameters_except_the_forget_bias():
    lm = model(cell="lstm", init=0.05, forget_bias=0.0)
    for name, parameter in lm.named_parameters():
        assert 0.03 < parameter.abs().max() <= 0.05, name
    raised = model(cell="lstm", init=0.05).stack.cells[1].bias_x.detach().view(4, 8)
    assert (raised[1] > 0.94).all() and (raised[0] < 0.06).all()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_initial_distribution_is_nearly_uniform(cell, tied):
    lm = model(cell=cell, tied=tied, hidden=64)
    log_probs = lm.step(some_tokens(), lm.start(rows=B)).log_probs
    assert (log_probs + torch.log(torch.tensor(V))).abs().max() < 0.5


def test_trace_matches_forward(lm):
    tokens = some_tokens()
    traces = lm.trace(tokens)
    assert len(traces) == 2
    exactly(lm.output(traces[-1].get("y", traces[-1]["h"])), lm(tokens)[0])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bidirectional": True}, "would read the token that it must predict"),
        ({"cell": "lsmt"}, "did you mean lstm"),
        ({"cell": "gru", "activation": "relu"}, "only to the elman cell"),
        ({"cell": "gru", "forget_bias": 1.0}, "only to the lstm cell"),
        ({"layers": 0}, r"layers:? must be at least 1[;,] got 0"),
        ({"embedding": 0}, r"embedding:? must be at least 1[;,] got 0"),
        ({"dropout": 1.0}, r"dropout:? must be less than 1(\.0)?[;,] got 1\.0"),
        ({"embedding_dropout": -0.1}, r"embedding_dropout:? must be at least 0(\.0)?[;,] got -0\.1"),
        ({"weight_dropout": 1.0}, r"weight_dropout:? must be less than 1(\.0)?[;,] got 1\.0"),
        ({"init": 0.0}, r"init:? must be greater than 0(\.0)?[;,] got 0\.0"),
    ],
)
def test_invalid_options_are_rejected(options, words):
    with pytest.raises(ValueError, match=words):
        RecurrentLMConfig(**options)
    with pytest.raises(UsageError, match=words):
        build(RecurrentLMConfig, options)


def test_options_are_passed_to_the_cells():
    lm = model(cell="elman", activation="sigmoid", embedding=3, layers=2)
    assert [(cell.inputs, cell.hidden, cell.activation) for cell in lm.stack.cells] == [
        (3, 8, "sigmoid"),
        (8, 8, "sigmoid"),
    ]
    assert model(cell="lstm", forget_bias=2.5).stack.cells[0].forget_bias == 2.5
    assert model(cell="lstm").stack.cells[0].forget_bias == 1.0


def test_unknown_connections_are_rejected() -> None:
    with pytest.raises(UsageError, match=r"none.*residual.*highway.*dense"):
        build(RecurrentLMConfig, {"connections": "skip"})


# Dropout.

DROPOUTS = {"dropout": 0.4, "embedding_dropout": 0.3, "weight_dropout": 0.5}


@pytest.mark.parametrize("options", [{name: fraction} for name, fraction in DROPOUTS.items()])
@pytest.mark.parametrize("variational", [False, True])
def test_every_dropout_is_active_only_in_training(options, variational) -> None:
    lm, tokens = model(**options, variational_dropout=variational), some_tokens()
    assert not torch.equal(lm.train()(tokens)[0], lm(tokens)[0])
    lm.eval()
    assert torch.equal(lm(tokens)[0], lm(tokens)[0])
    exactly(lm(tokens)[0], model()(tokens)[0])


def test_variational_dropout_is_constant_over_steps() -> None:
    lm, seen = model(dropout=0.5, variational_dropout=True, layers=3).train(), []
    for part in (lm.dropout, lm.stack.dropout):
        part.register_forward_hook(lambda part, given, result: seen.append(result == 0))
    lm(some_tokens(steps=9))
    assert len(seen) == 4
    for zeros in seen:
        assert zeros.any() and not zeros.all()
        assert torch.equal(zeros, zeros[:, :1].expand_as(zeros))
    plain, seen[:] = model(dropout=0.5, layers=3).train(), []
    plain.dropout.register_forward_hook(lambda part, given, result: seen.append(result == 0))
    plain(some_tokens(steps=9))
    assert not any(torch.equal(zeros, zeros[:, :1].expand_as(zeros)) for zeros in seen)  # negative control


def test_embedding_dropout_makes_dropped_types_equal() -> None:
    """The output layer keeps all rows, even with tied embeddings, because only the input is dropped."""
    lm = model(embedding_dropout=0.5, tied=True).train()
    types = torch.arange(V).unsqueeze(0)
    vectors = lm.embed_tokens(types)[0]
    dropped = ~vectors.any(dim=1)
    assert 0 < dropped.sum() < V
    exactly(vectors[~dropped], 2 * lm.embed.weight[~dropped])
    assert lm(types)[0].isfinite().all() and lm.output.weight.any(dim=1).all()


@pytest.mark.parametrize("cell", CELLS)
def test_weight_dropout_affects_recurrent_matrices_of_every_layer(cell) -> None:
    lm = model(cell=cell, weight_dropout=0.5).train()
    F.cross_entropy(lm(some_tokens())[0].flatten(0, 1), some_tokens().flatten()).backward()
    for name, parameter in lm.named_parameters():
        if name == "embed.weight":
            continue
        zeros = (parameter.grad == 0).double().mean()
        assert (0.3 < zeros < 0.8) if name.endswith("weight_h") else zeros < 0.1, name


def test_projections_are_noted() -> None:
    assert model(cell="mut1").notes() == []
    assert model(cell="mut1", embedding=6).notes() == ["MUT1 projects its input from 6 to 8 dimensions first (W_xp)"]


def test_variational_dropout_without_dropout_is_noted() -> None:
    assert model(variational_dropout=True, dropout=0.1).notes() == []
    assert model(variational_dropout=True, dropout=0.0).notes() == [
        "variational_dropout has no effect while dropout is 0"
    ]


def test_residual_connections_add_the_output_to_the_state() -> None:
    assert len(model(connections="dense").start().hidden) == 2
    lm, tokens = model(connections="highway"), some_tokens()
    _, carried = lm(tokens)
    after = lm.step(tokens, lm.start(rows=B)).state.hidden
    exactly(after[:2], carried)
    exactly(after[2]["y"], lm.read(tokens)[0][:, -1])
    exactly(lm.trace(tokens, lm.start(rows=B).hidden)[-1]["y"][:, -1], after[2]["y"])
