"""Ensembles of translators: mean probabilities and beam search over all states."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from seqloom.core.protocols import DecodeState, StepOutput, Steppable, select
from seqloom.core.tree import Tree, clone, select_rows
from seqloom.decoding.beam import BeamConfig, Hypothesis, beam_search
from seqloom.decoding.mixture import Ensemble, Mixture, mean_attention, mix
from seqloom.models.recurrent_seq2seq import AttentionConfig, RecurrentSeq2SeqConfig
from seqloom.models.transformer import TransformerConfig
from seqloom.nn.positions import PositionsConfig

END, V = 0, 7


def prepare(config: Any, seed: int, vocabulary: int = V, scale: float = 3.0) -> Any:
    """Convert to float64 and scale the weights, so that predictions are not uniform."""
    torch.manual_seed(seed)
    model = config.build(vocabulary).double().eval()
    for parameter in model.parameters():
        parameter.data.copy_(scale * torch.rand_like(parameter) - scale / 2)
    return model


def small_transformer(**options: Any) -> TransformerConfig:
    sizes: dict[str, Any] = {"d_model": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 2, "d_ff": 12}
    return TransformerConfig(**sizes, **options)


KINDS: dict[str, Any] = {
    "luong": RecurrentSeq2SeqConfig(hidden=6),
    "fed": RecurrentSeq2SeqConfig(hidden=5, cell="lstm", attention=AttentionConfig(input_feeding=True, coverage=True)),
    "bahdanau": RecurrentSeq2SeqConfig(
        hidden=6, decoder_layers=2, attention=AttentionConfig(order="bahdanau", score="additive")
    ),
    "blind": RecurrentSeq2SeqConfig(hidden=6, attention=None, context="every", reverse=True),
    "transformer": small_transformer(),
}
TEAMS = [("luong", "bahdanau"), ("luong", "transformer"), ("blind", "transformer", "fed"), ("transformer", "blind")]


def team(*names: str, vocabulary: int = V) -> list[Any]:
    return [prepare(KINDS[name], seed, vocabulary) for seed, name in enumerate(names)]


def some_source(lengths: tuple[int, ...] = (4, 2, 3), vocabulary: int = V, seed: int = 5) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    tokens = torch.randint(1, vocabulary, mask.shape, generator=draw)
    tokens[torch.arange(len(lengths)), torch.tensor(lengths) - 1] = END
    return {"tokens": tokens, "mask": mask}


def assert_exactly(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-10, rtol=0)


def facts(hypotheses: list[list[Hypothesis]]) -> list[list[tuple[Any, ...]]]:
    return [
        [
            (hypothesis.tokens, hypothesis.finished, round(hypothesis.log_prob, 9), round(hypothesis.score, 9))
            for hypothesis in n_best
        ]
        for n_best in hypotheses
    ]


# --- probabilities ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", TEAMS, ids="+".join)
@torch.no_grad()
def test_step_is_the_mean_of_the_probabilities(names: tuple[str, ...]) -> None:
    models, source = team(*names), some_source()
    ensemble = Ensemble(models)
    assert isinstance(ensemble, Steppable)
    states, state = [model.start(source) for model in models], ensemble.start(source)
    for tokens in torch.randint(1, V, (4, 3, 1), generator=torch.Generator().manual_seed(2)):
        outputs = [model.step(tokens, model_state) for model, model_state in zip(models, states, strict=True)]
        actual = ensemble.step(tokens, state)
        by_hand = sum(output.log_probs.exp() for output in outputs) / len(models)
        assert_exactly(actual.log_probs.exp(), by_hand)
        assert_exactly(actual.log_probs.exp().sum(1), torch.ones(3, dtype=torch.float64))
        attentions = [output.attention for output in outputs if output.attention is not None]
        assert_exactly(actual.attention, sum(attentions) / len(attentions))
        states, state = [output.state for output in outputs], actual.state


@pytest.mark.parametrize("names", TEAMS, ids="+".join)
@torch.no_grad()
def test_target_log_probs_equal_those_of_single_steps(names: tuple[str, ...]) -> None:
    models, source = team(*names), some_source()
    ensemble = Ensemble(models)
    targets = torch.randint(1, V, (3, 5), generator=torch.Generator().manual_seed(4))
    mask = torch.arange(5) < torch.tensor([[5], [1], [3]])
    inputs = torch.cat([torch.zeros(3, 1, dtype=torch.long), targets[:, :-1]], dim=1)
    batch = {
        "source": source["tokens"],
        "source_mask": source["mask"],
        "inputs": inputs,
        "targets": targets,
        "target_mask": mask,
    }
    log_probs, attention, state = ensemble.target_log_probs(batch), ensemble.attention(batch), ensemble.start(source)
    assert torch.equal(log_probs[~mask], torch.zeros_like(log_probs[~mask]))
    assert attention is not None
    for t in range(5):
        output = ensemble.step(inputs[:, t : t + 1], state)
        state = output.state
        step_log_probs = output.log_probs.gather(1, targets[:, t : t + 1]).squeeze(1)
        assert_exactly(log_probs[:, t], torch.where(mask[:, t], step_log_probs, torch.zeros_like(step_log_probs)))
        assert output.attention is not None
        assert_exactly(attention[mask[:, t], t], output.attention[mask[:, t]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("times", [2, 3, 4, 5, 6, 7, 10, 11, 13, 49])
def test_identical_models_are_mixed_without_rounding(dtype: torch.dtype, times: int) -> None:
    logits = 20 * torch.randn(9, 50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    log_probs = logits.to(dtype).log_softmax(1)
    log_probs[0, :7] = -torch.inf
    assert torch.equal(mix([log_probs] * times, [1 / times] * times), log_probs)


@pytest.mark.parametrize("times", [2, 10, 11])
def test_padding_has_log_probability_zero(times: int) -> None:
    class Padded(torch.nn.Module):
        def target_log_probs(self, batch: Any) -> Tensor:
            return torch.tensor([[-1.5, -0.3], [-2.0, 0.0]])

    assert Ensemble([Padded() for _ in range(times)]).target_log_probs({})[1, 1] == 0


def test_model_with_zero_weight_has_no_effect() -> None:
    sure, other = torch.tensor([0.0, -torch.inf]), torch.tensor([-120.0, 0.0])
    assert torch.equal(mix([sure, other], [0.0, 1.0]), other)
    assert_exactly(mix([sure, other], [0.5, 0.5]).exp(), torch.tensor([0.5, 0.5]))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("times", [2, 3])
def test_ensemble_of_a_model_with_itself_gives_the_results_of_the_model(name: str, times: int) -> None:
    model, source = prepare(KINDS[name], 1).float(), some_source()
    options = BeamConfig(beam=3, n_best=3, max_length=8)
    alone = beam_search(model, source=source, options=options, end=END, attention=True)
    hypotheses = beam_search(Ensemble([model] * times), source=source, options=options, end=END, attention=True)
    for expected, actual in zip(itertools.chain(*alone), itertools.chain(*hypotheses), strict=True):
        assert (expected.tokens, expected.log_prob, expected.score) == (actual.tokens, actual.log_prob, actual.score)
        assert expected.token_log_probs == actual.token_log_probs
        if name == "blind":
            assert expected.attention is None and actual.attention is None
        else:
            assert expected.attention is not None and actual.attention is not None
            torch.testing.assert_close(expected.attention, actual.attention, atol=1e-6, rtol=0)


def test_attention_of_layers_and_heads_is_averaged() -> None:
    class WithAttention:
        def __init__(self, attention: Tensor | None) -> None:
            self.attention = attention

        def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
            return StepOutput(torch.zeros(len(tokens), 2).log_softmax(1), state, self.attention)

    plain, by_head = torch.rand(2, 4), torch.rand(2, 3, 5, 4, dtype=torch.float64)
    state = DecodeState((None, None, None), (None, None, None))
    parts = [WithAttention(plain), WithAttention(None), WithAttention(by_head)]
    output = Mixture(parts, [0.2, 0.5, 0.3]).step(torch.zeros(2, 1), state)
    assert_exactly(output.attention, (plain.double() + by_head.mean((1, 2))) / 2)
    assert mean_attention([None, None]) is None


# --- the search -------------------------------------------------------------------------------------------------------


@torch.no_grad()
def every_translation(models: list[Any], source: dict[str, Tensor], max_length: int) -> list[tuple[float, list[int]]]:
    """Enumerate translations of the first source of at most `max_length` tokens with Σ log 1/M Σ p, best first."""
    vocabulary = models[0].output.weight.shape[0]
    first = {key: value[:1] for key, value in source.items()}
    translations = []
    for length in range(max_length):
        for tokens in itertools.product(range(1, vocabulary), repeat=length):
            inputs, targets = torch.tensor([[END, *tokens]]), torch.tensor([[*tokens, END]])
            chances = sum(model(first["tokens"], first["mask"], inputs).softmax(-1) for model in models) / len(models)
            translations.append((chances.gather(2, targets.unsqueeze(2)).log().sum().item(), list(tokens)))
    return sorted(translations, reverse=True)


@pytest.mark.parametrize("names", [("luong", "bahdanau"), ("transformer", "fed"), ("blind", "luong", "transformer")])
def test_wide_beam_matches_brute_force(names: tuple[str, ...]) -> None:
    models, max_length = team(*names, vocabulary=4), 4
    source = some_source((3, 2), vocabulary=4)
    options = BeamConfig(beam=4**max_length, n_best=5, length_penalty=0.0, max_length=max_length, stopping="exact")
    hypotheses = beam_search(Ensemble(models), source=source, options=options, end=END)[0]
    expected = every_translation(models, source, max_length)[:5]
    assert [hypothesis.tokens for hypothesis in hypotheses] == [tokens for _, tokens in expected]
    assert [hypothesis.log_prob for hypothesis in hypotheses] == pytest.approx(
        [log_prob for log_prob, _ in expected], abs=1e-10
    )
    alone = [
        beam_search(model, source=source, options=options, end=END)[0][0].log_prob for model in models
    ]  # negative control: each single model gives another result
    assert all(abs(hypotheses[0].log_prob - single) > 1e-6 for single in alone)


class Uncached:
    """The ensemble without a cache. Every step reads all tokens again."""

    def __init__(self, models: list[Any]) -> None:
        self.models = models

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        return DecodeState(torch.empty(len(source["tokens"]), 0, dtype=torch.long), source)

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        prefix, source = torch.cat([state.hidden, tokens], dim=1), state.memory
        owner = torch.arange(len(prefix)) // (len(prefix) // len(source["tokens"]))
        mine = select_rows(source, owner)
        chances = sum(model(mine["tokens"], mine["mask"], prefix)[:, -1].softmax(-1) for model in self.models)
        return StepOutput((chances / len(self.models)).log(), DecodeState(prefix, source))


SEARCHES = [BeamConfig(beam=4, n_best=4, max_length=7), BeamConfig(beam=3, length_penalty=0.3, stopping="exact")]


@pytest.mark.parametrize("names", TEAMS, ids="+".join)
@pytest.mark.parametrize("options", SEARCHES, ids=["usual", "exact"])
def test_cached_search_matches_uncached_search(names: tuple[str, ...], options: BeamConfig) -> None:
    models, source = team(*names), some_source((4, 2, 3, 1))
    actual = facts(beam_search(Ensemble(models), source=source, options=options, end=END))
    assert actual == facts(beam_search(Uncached(models), source=source, options=options, end=END))


def test_missing_reordering_of_one_state_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the state of the second model is not reordered."""
    models, source = team("luong", "transformer"), some_source((4, 2, 3, 1))
    correct = facts(beam_search(Ensemble(models), source=source, options=SEARCHES[0], end=END))
    plain = Mixture.step

    def stuck(self: Any, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        output = plain(self, tokens, state, mask)
        rows = torch.arange(len(tokens)).flip(0)
        wrong_state = select_rows(output.state.hidden[1], rows)
        return StepOutput(output.log_probs, DecodeState((output.state.hidden[0], wrong_state), output.state.memory))

    monkeypatch.setattr(Mixture, "step", stuck)
    assert facts(beam_search(Ensemble(models), source=source, options=SEARCHES[0], end=END)) != correct


@torch.no_grad()
def test_results_do_not_depend_on_row_order() -> None:
    models, source = team("fed", "transformer", "blind"), some_source((4, 2, 3))
    ensemble = Ensemble(models)
    state = ensemble.step(torch.tensor([[1], [2], [3]]), ensemble.start(source)).state
    rows = torch.tensor([2, 0])
    reordered = ensemble.step(torch.tensor([[4], [5]]), select(clone(state), rows, rows))
    plain = ensemble.step(torch.tensor([[5], [1], [4]]), state)
    assert_exactly(reordered.log_probs, plain.log_probs[rows])


@pytest.mark.parametrize("beam", [1, 5])
def test_each_model_encodes_a_source_once(beam: int) -> None:
    models, source = team("luong", "transformer"), some_source()
    calls = {id(model): 0 for model in models}
    for model in models:
        plain = model.encode

        def count_call(*arguments: Any, plain: Any = plain, who: int = id(model)) -> Any:
            calls[who] += 1
            assert len(arguments[0]) == 3  # one row per source, and not per hypothesis
            return plain(*arguments)

        model.encode = count_call
    beam_search(Ensemble(models), source=source, options=BeamConfig(beam=beam, max_length=6), end=END)
    assert list(calls.values()) == [1, 1]


def test_longest_target_is_the_minimum_of_all_models() -> None:
    short, long = (
        prepare(small_transformer(positions=PositionsConfig(kind="learned", max_length=n)), 1) for n in (5, 9)
    )
    free = prepare(KINDS["luong"], 1)
    assert Ensemble([long, short, free]).longest_target == 5
    assert Ensemble([free, free]).longest_target is None
    with torch.no_grad():
        for model in (long, short, free):
            model.output.bias[END] -= 100  # END is never predicted
    hypotheses = beam_search(Ensemble([long, free, short]), source=some_source(), options=BeamConfig(beam=2), end=END)
    assert [len(hypothesis.tokens) for n in hypotheses for hypothesis in n] == [5, 5, 5]
