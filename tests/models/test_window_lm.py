"""The feed-forward language model: equations, chunks, padding, training and invalid options."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from seqloom.config import build
from seqloom.core.errors import UsageError
from seqloom.core.protocols import CausalLanguageModel, select
from seqloom.core.tree import clone
from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.models.window_lm import WindowLMConfig, hide_previous_documents, token_windows
from seqloom.text import END

V, B, T, K = 11, 3, 9, 4
SOFTMAXES: dict[str, dict[str, Any]] = {
    "full": {"kind": "full"},
    "adaptive": {"kind": "adaptive", "cutoffs": [3, 7], "factor": 2.0},
    "sampled": {"kind": "sampled", "samples": 4},
}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "deep": {"layers": 3, "activation": "relu"},
    "direct": {"direct": True},
    "tied": {"tied": True},
    "tied-and-direct": {"tied": True, "direct": True, "activation": "gelu"},
    "log-bilinear": {"tied": True, "direct": True, "layers": 0},
    "linear": {"direct": True, "layers": 0},
    "one": {"window": 1, "activation": "sigmoid"},
    "wide": {"window": 2 * T},
    "adaptive": {"softmax": SOFTMAXES["adaptive"]},
    "adaptive-direct": {"softmax": SOFTMAXES["adaptive"], "direct": True},
    "sampled": {"softmax": SOFTMAXES["sampled"], "tied": True},
}


def exactly(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-10, rtol=0)


def model(seed: int = 0, **options: Any) -> Any:
    torch.manual_seed(seed)
    lm = build(WindowLMConfig, {"window": K, "embedding": 5, "hidden": 8, **options}).build(V).double().eval()
    for parameter in lm.parameters():
        torch.nn.init.uniform_(parameter, -0.7, 0.7)
    return lm


def some_tokens(rows: int = B, steps: int = T, seed: int = 1) -> Tensor:
    return torch.randint(V, (rows, steps), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=KINDS)
def lm(request: pytest.FixtureRequest) -> Any:
    return model(**KINDS[request.param])


def expected_log_probs(lm: Any, context: list[int]) -> Tensor:
    """Return log p (V,) after a text, computed from its last window by the equations."""
    config, weights = lm.config, lm.state_dict()
    window = ([END] * config.window + context)[-config.window :]
    x = torch.cat([weights["embed.weight"][token] for token in window])
    h = x
    g = {"tanh": torch.tanh, "relu": torch.relu, "sigmoid": torch.sigmoid, "gelu": F.gelu}[config.activation]
    for layer in range(config.layers):
        h = g(weights[f"hidden.{layer}.weight"] @ h + weights[f"hidden.{layer}.bias"])
    if config.direct:
        h = torch.cat([h, x]) if config.layers else x
    if "project.weight" in weights:
        h = weights["project.weight"] @ h
    if config.softmax.kind == "adaptive":
        return lm.output.log_probs(h)
    return (weights["output.weight"] @ h + weights["output.bias"]).log_softmax(0)


# --- predictions ----------------------------------------------------------------------------------------------------


def test_window_lm_implements_the_language_model_interface(lm: Any) -> None:
    assert isinstance(lm, CausalLanguageModel)


def test_forward_pass_matches_single_windows(lm: Any) -> None:
    inputs = some_tokens()
    assert (inputs == END).any()
    whole, state = lm(inputs)
    for row, tokens in enumerate(inputs.tolist()):
        for t in range(T):
            exactly(whole[row, t].log_softmax(0), expected_log_probs(lm, tokens[: t + 1]))
    exactly(state, F.pad(inputs, (lm.config.window, 0))[:, -lm.config.window :])


@pytest.mark.parametrize("cut", [1, 2, K - 1, K, K + 1, T - 1])
def test_reading_in_chunks_is_equivalent_to_reading_in_one_call(lm: Any, cut: int) -> None:
    inputs, targets = some_tokens(), some_tokens(seed=2)
    whole, after = lm.score(inputs, targets, lm.start(rows=B))
    first, state = lm.score(inputs[:, :cut], targets[:, :cut], lm.start(rows=B))
    second, state = lm.score(inputs[:, cut:], targets[:, cut:], state)
    exactly(torch.cat([first, second], dim=1), whole)
    assert torch.equal(state.hidden, after.hidden)


def test_step_forward_and_score_agree(lm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, targets = some_tokens(), some_tokens(seed=2)
    whole = lm(inputs)[0].log_softmax(dim=-1)
    exactly(whole.exp().sum(-1), torch.ones(B, T, dtype=torch.float64))
    state = lm.start(rows=B)
    for t in range(T):
        output = lm.step(inputs[:, t : t + 1], state)
        exactly(output.log_probs, whole[:, t])
        state = output.state
    monkeypatch.setattr("seqloom.nn.softmax.SCORED_POSITIONS", 4)
    scores, after = lm.score(inputs, targets, lm.start(rows=B))
    exactly(scores, whole.gather(2, targets.unsqueeze(2)).squeeze(2))
    assert torch.equal(after.hidden, state.hidden)


@pytest.mark.parametrize("t", range(T))
def test_predictions_depend_only_on_the_window(t: int) -> None:
    """Tokens before the window have no effect, so results are bit-identical."""
    lm, tokens = model(direct=True), some_tokens()
    edited = tokens.clone()
    edited[:, t] = (edited[:, t] + 1) % V
    before, after = lm(tokens)[0], lm(edited)[0]
    changed = (before != after).any(dim=-1)  # (B, T)
    expected = torch.tensor([t <= position < t + K for position in range(T)])
    assert torch.equal(changed, expected.expand(B, T))


def test_initial_window_is_filled_with_end_tokens() -> None:
    lm = model()
    assert lm.start(rows=2).hidden.tolist() == [[END] * K] * 2
    beginning = torch.full((1, 1), END)
    exactly(lm.step(beginning, lm.start()).log_probs[0], expected_log_probs(lm, []))
    with pytest.raises(UsageError, match="takes no source"):
        lm.start(source=some_tokens())


@settings(max_examples=40, deadline=None)
@given(mask=st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=4), chunks=st.booleans())
def test_padding_at_any_position_has_no_effect(mask: list[list[bool]], chunks: bool) -> None:
    lm, real = model(), torch.tensor(mask)
    tokens, targets = some_tokens(len(mask), 6, seed=3), some_tokens(len(mask), 6, seed=4)
    state, parts = lm.start(rows=len(mask)), []
    for part in (slice(0, 2), slice(2, 6)) if chunks else (slice(0, 6),):
        scores, state = lm.score(tokens[:, part], targets[:, part], state, real[:, part])
        parts.append(scores)
    scores = torch.cat(parts, dim=1)
    assert not scores[~real].any()
    stepped = lm.step(tokens, lm.start(rows=len(mask)), real)
    assert torch.equal(stepped.state.hidden, state.hidden)
    for row in range(len(mask)):
        real_tokens, expected = tokens[row, real[row]], targets[row, real[row]]
        result = [expected_log_probs(lm, real_tokens[: t + 1].tolist())[expected[t]] for t in range(len(real_tokens))]
        exactly(scores[row, real[row]], torch.stack(result) if result else scores.new_empty(0))
        exactly(stepped.log_probs[row], expected_log_probs(lm, real_tokens.tolist()))


def test_row_without_tokens_keeps_its_prediction(lm: Any) -> None:
    first = lm.step(some_tokens(), lm.start(rows=B))
    mask = torch.ones(B, 2, dtype=torch.bool)
    mask[1] = False
    second = lm.step(some_tokens(steps=2, seed=5), clone(first.state), mask)
    exactly(second.log_probs[1], first.log_probs[1])
    assert not torch.allclose(second.log_probs[0], first.log_probs[0])
    nothing = lm.step(some_tokens(steps=0), first.state)
    assert torch.equal(nothing.log_probs, first.log_probs)


def test_wide_beam_finds_the_most_probable_text() -> None:
    lm = model(window=2)
    texts = [[a, b, END] for a in range(1, V) for b in range(1, V)] + [[a, END] for a in range(1, V)] + [[END]]
    scored = {}
    for text in texts:
        context = [[END, *text[:t]] for t in range(len(text))]
        scored[tuple(text[:-1])] = sum(
            expected_log_probs(lm, before)[token].item() for before, token in zip(context, text, strict=True)
        )
    best = max(scored, key=scored.__getitem__)
    options = BeamConfig(beam=V * V, max_length=3, length_penalty=0.0, stopping="exact")
    ((result,),) = beam_search(lm, options=options, end=END, rows=1)
    assert tuple(result.tokens)[: len(best)] == best and result.log_prob == pytest.approx(scored[best], abs=1e-9)


def test_rows_can_be_selected_and_duplicated() -> None:
    lm = model()
    after = lm.step(some_tokens(), lm.start(rows=B))
    rows = torch.tensor([2, 2, 0])
    picked = lm.step(some_tokens(steps=1, seed=6), select(after.state, rows, rows))
    alone = lm.step(some_tokens(steps=1, seed=6)[1:2], select(after.state, rows[1:2], rows[1:2]))
    exactly(picked.log_probs[1:2], alone.log_probs)


def test_window_hides_previous_documents() -> None:
    seen = torch.tensor([[5, 6, END, 7], [END, 5, 6, 7], [5, END, END, 7], [5, 6, 7, END], [5, 6, 7, 8]])
    assert hide_previous_documents(seen).tolist() == [
        [END, END, END, 7],
        [END, 5, 6, 7],
        [END, END, END, 7],
        [END, END, END, END],
        [5, 6, 7, 8],
    ]


def test_windows_continue_previous_tokens_and_skip_padding() -> None:
    seen, after = token_windows(torch.tensor([[4, 5, 6]]), torch.tensor([[2, 3]]))
    assert seen.tolist() == [[[3, 4], [4, 5], [5, 6]]] and after.tolist() == [[5, 6]]
    mask = torch.tensor([[True, False, True]])
    seen, after = token_windows(torch.tensor([[4, 5, 6]]), torch.tensor([[2, 3]]), mask)
    assert seen[0, 0].tolist() == [3, 4] and seen[0, 2].tolist() == [4, 6] and after.tolist() == [[4, 6]]


# --- training -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [KINDS["plain"], KINDS["tied-and-direct"], KINDS["adaptive-direct"]], ids=str)
def test_loss_matches_the_scores_and_gradient_is_correct(options: dict[str, Any]) -> None:
    lm, inputs, targets = model(**options), some_tokens(2, 3), some_tokens(2, 3, seed=2)
    value, state = lm.loss(inputs, targets)
    scores, after = lm.score(inputs, targets, lm.start(rows=2))
    exactly(value, -scores.mean())
    assert torch.equal(state, after.hidden) and not state.requires_grad
    names, parameters = zip(*lm.named_parameters(), strict=True)

    def loss(*given: Tensor) -> Tensor:
        return torch.func.functional_call(lm, dict(zip(names, given, strict=True)), (inputs,))[0].square().sum()

    assert torch.autograd.gradcheck(loss, parameters, fast_mode=True)


@pytest.mark.parametrize("options", [{}, {"direct": True, "tied": True}, {"layers": 2, "activation": "relu"}], ids=str)
def test_eight_examples_are_memorized(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    lm = WindowLMConfig(window=9, embedding=16, hidden=48, **options).build(V)
    tokens = torch.randint(1, V, (8, 10))
    tokens[:, 0] = torch.arange(1, 9)  # makes the rows different; END would also match the initial window
    optimizer = torch.optim.Adam(lm.parameters(), lr=1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        loss, _ = lm.loss(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.01


@pytest.mark.parametrize("options", KINDS.values(), ids=list(KINDS))
def test_initial_distribution_is_nearly_uniform(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    lm = build(WindowLMConfig, {"hidden": 32, **options}).build(V).eval()
    log_probs = lm.step(some_tokens(), lm.start(rows=B)).log_probs
    assert (log_probs + torch.log(torch.tensor(V))).abs().max() < 0.7


@pytest.mark.parametrize("options", [{"dropout": 0.4}, {"embedding_dropout": 0.4}], ids=str)
def test_every_dropout_is_active_only_in_training(options: dict[str, Any]) -> None:
    lm, tokens = model(**options), some_tokens()
    assert not torch.equal(lm.train()(tokens)[0], lm(tokens)[0])
    lm.eval()
    exactly(lm(tokens)[0], model()(tokens)[0])


def test_dropout_applies_to_window_and_hidden_layers() -> None:
    lm, widths = model(dropout=0.5, layers=3).train(), []
    lm.dropout.register_forward_hook(lambda part, given, result: widths.append(result.shape[-1]))
    lm(some_tokens())
    assert widths == [K * 5, 8, 8, 8]


def test_tied_embeddings_are_one_parameter() -> None:
    lm = model(tied=True)
    assert lm.output.weight is lm.embed.weight and lm.project.weight.shape == (5, 8)
    same = model(tied=True, hidden=5)
    assert isinstance(same.project, torch.nn.Identity)
    other = model(seed=1, tied=True)
    other.load_state_dict(lm.state_dict())
    assert other.output.weight is other.embed.weight
    exactly(other(some_tokens())[0], lm(some_tokens())[0])


def test_init_range_applies_to_every_parameter() -> None:
    torch.manual_seed(0)
    for name, parameter in WindowLMConfig(init=0.05, tied=True, direct=True).build(V).named_parameters():
        assert 0.03 < parameter.abs().max() <= 0.05, name


# --- invalid options ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"window": 0}, "window: must be at least 1; got 0"),
        ({"window": -3}, "window: must be at least 1"),
        ({"embedding": 0}, r"embedding:? must be at least 1[;,] got 0"),
        ({"hidden": 0}, r"hidden:? must be at least 1[;,] got 0"),
        ({"layers": 0}, "layers must be at least 1, or 0 with direct=true"),
        ({"layers": -1, "direct": True}, "layers: must be at least 0; got -1"),
        ({"dropout": 1.0}, r"dropout:? must be less than 1(\.0)?[;,] got 1\.0"),
        ({"embedding_dropout": -0.1}, r"embedding_dropout:? must be at least 0(\.0)?[;,] got -0\.1"),
        ({"init": 0.0}, r"init:? must be greater than 0(\.0)?[;,] got 0\.0"),
        ({"activation": "softplus"}, "tanh"),
        ({"tied": True, "softmax": {"kind": "adaptive", "cutoffs": [3]}}, "tied needs one output matrix"),
        ({"cell": "lstm"}, "cell"),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        build(WindowLMConfig, options)


def test_all_problems_are_reported() -> None:
    with pytest.raises(UsageError) as caught:
        build(WindowLMConfig, {"window": 0, "hidden": 0, "layers": -1, "dropout": 1.5, "init": -1.0})
    for word in ("window", "hidden", "layers", "dropout", "init"):
        assert f"{word}: must be" in str(caught.value)


def test_log_probs_are_normalized_in_single_precision() -> None:
    lm = model().to(torch.bfloat16)
    output = lm.step(some_tokens(), lm.start(rows=B))
    assert output.log_probs.dtype == torch.float32
    torch.testing.assert_close(output.log_probs.exp().sum(dim=1), torch.ones(B))
