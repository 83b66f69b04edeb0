"""Generation compared with enumeration on small models with and without memory."""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from seqloom.core.errors import DivergedError, UsageError
from seqloom.core.protocols import DecodeState, StepOutput, Steppable
from seqloom.core.tree import GrowingBuffer, Tree
from seqloom.decoding.generate import BLOCK, choose, generate, row_seeds
from seqloom.decoding.processors import SamplingConfig

END = 0
GREEDY = SamplingConfig(temperature=0)


class Bigram:
    """A model whose p(next | last) comes from a table (V, V)."""

    def __init__(self, table: Sequence[Sequence[float]]) -> None:
        self.table = torch.tensor(table, dtype=torch.float64)
        self.rows_seen: list[int] = []

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        return DecodeState(torch.zeros(rows or 1, dtype=torch.long, device=self.table.device))

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        self.rows_seen.append(len(tokens))
        mask = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
        positions = torch.arange(1, tokens.shape[1] + 1, device=mask.device)
        last = (mask * positions).argmax(1)  # the last real position of each row
        return StepOutput(self.table[tokens.gather(1, last[:, None])[:, 0]].log(), DecodeState(last))


class CumulativeModel:
    """A model that depends on the source and all previous tokens, and writes its cache in place."""

    V = 11

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        rows = len(source) if source is not None else rows or 1
        cache = GrowingBuffer(torch.zeros(rows, 400, 2, dtype=torch.float64), torch.zeros(rows, dtype=torch.long))
        carry = {"cache": cache, "layers": ({"h": torch.zeros(rows, 3, dtype=torch.float64)}, None), "name": "r"}
        return DecodeState(carry, None if source is None else {"bias": source})

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        cache, (layer, _) = state.hidden["cache"], state.hidden["layers"]
        h, length, everyone = layer["h"], cache.length, torch.arange(len(tokens))
        for t in range(tokens.shape[1]):
            real = torch.ones(len(tokens), dtype=torch.bool) if mask is None else mask[:, t]
            x = tokens[:, t].double()
            entry = torch.stack([(x + 1).sin(), (x * length).cos()], dim=1)
            index = length.clamp(max=399)
            cache.buffer[everyone, index] = torch.where(real[:, None], entry, cache.buffer[everyone, index])
            mixed = (0.7 * h + (x[:, None] + torch.arange(3)).sin()).tanh()
            h, length = torch.where(real[:, None], mixed, h), length + real
        vocabulary = torch.arange(self.V, dtype=torch.float64)
        scores = (cache.buffer[:, :, :1] * (vocabulary + 1).sin()).sum(1) + cache.buffer[:, :, 1:].sum(1)
        scores = scores + 2 * h[:, :1] * vocabulary.cos() + h[:, 1:2] * (3 * vocabulary).sin()
        scores = scores.clone()
        scores[:, END] -= 2
        if state.memory is not None:
            scores = scores + state.memory["bias"]
        carry = {"cache": GrowingBuffer(cache.buffer, length), "layers": ({"h": h}, None), "name": "r"}
        return StepOutput(scores.log_softmax(-1), DecodeState(carry, state.memory))


TABLE = [[0.1, 0.2, 0.3, 0.4], [0.5, 0.1, 0.1, 0.3], [0.25, 0.25, 0.25, 0.25], [0.0, 0.6, 0.4, 0.0]]


def run(
    model: Steppable, prompt: Tensor, *, max_tokens: int = 12, options: SamplingConfig | None = None, **keywords: Any
) -> list[list[int]]:
    """Return the tokens of each row up to and including END."""
    options = options or SamplingConfig()
    steps = list(generate(model, prompt, options=options, max_tokens=max_tokens, end=END, **keywords))
    rows = torch.stack([step.tokens for step in steps], dim=1).tolist()
    return [row[: row.index(END) + 1] if END in row else row for row in rows]


def enumerate_sequences(options: SamplingConfig, length: int) -> dict[tuple[int, ...], float]:
    """Return the probability under the bigram of every sequence that starts after END."""
    chain = options.processors(END)
    probabilities: dict[tuple[int, ...], float] = {}
    for sequence in itertools.product(range(4), repeat=length):
        probability = 1.0
        cut: list[int] = []
        for token in sequence:
            log_probs = Bigram(TABLE).table[cut[-1] if cut else END].log()[None]
            for processor in chain:
                log_probs = processor(log_probs, torch.tensor([cut], dtype=torch.long))
            probability *= log_probs[0, token].exp().item()
            cut.append(token)
            if token == END:
                break
        if probability > 0:
            probabilities[tuple(cut)] = probability
    return probabilities


def chi_square(rows: list[list[int]], expected: dict[tuple[int, ...], float]) -> float:
    counts = Counter(map(tuple, rows))
    assert set(counts) <= set(expected), "a sequence without probability was generated"
    return sum((counts[s] - p * len(rows)) ** 2 / (p * len(rows)) for s, p in expected.items())


@pytest.mark.parametrize(
    "options",
    [
        SamplingConfig(),
        SamplingConfig(temperature=1.5),
        SamplingConfig(top_k=2),
        SamplingConfig(top_p=0.7),
        SamplingConfig(min_tokens=2, repetition_penalty=3),
    ],
    ids=["plain", "temperature", "top-k", "top-p", "constraints"],
)
def test_frequencies_match_the_exact_distribution(options: SamplingConfig) -> None:
    expected = enumerate_sequences(options, length=3)
    assert sum(expected.values()) == pytest.approx(1)
    rows = run(Bigram(TABLE), torch.zeros(4000, 1, dtype=torch.long), max_tokens=3, options=options, seed=1)
    freedom = len(expected) - 1
    limit = freedom + 4 * (2 * freedom) ** 0.5  # four standard deviations above the mean of chi-square
    assert chi_square(rows, expected) < limit
    wrong = dict.fromkeys(expected, 1 / len(expected))
    assert chi_square(rows, wrong) > limit  # negative control: another distribution is rejected


def test_greedy_search_follows_the_most_probable_token() -> None:
    table = [[0.1, 0.2, 0.7, 0.0], [0.4, 0.3, 0.2, 0.1], [0.1, 0.1, 0.2, 0.6], [0.2, 0.5, 0.2, 0.1]]
    prompt = torch.tensor([[0], [3], [1]])
    assert run(Bigram(table), prompt, options=GREEDY) == [[2, 3, 1, 0], [1, 0], [0]]
    constrained = SamplingConfig(temperature=0, min_tokens=2, top_k=1)
    assert run(Bigram(table), prompt, options=constrained) == [[2, 3, 1, 0], [1, 1, 0], [1, 1, 0]]


def test_repetition_penalty_breaks_a_loop() -> None:
    table = [[0.0, 0.9, 0.1], [0.01, 0.9, 0.09], [1.0, 0.0, 0.0]]
    prompt = torch.zeros(1, 1, dtype=torch.long)
    assert run(Bigram(table), prompt, options=GREEDY, max_tokens=5) == [[1] * 5]
    assert run(Bigram(table), prompt, options=SamplingConfig(temperature=0, repetition_penalty=11)) == [[1, 2, 0]]


def test_log_probs_are_those_before_processing() -> None:
    options = SamplingConfig(temperature=3, top_k=3, repetition_penalty=2)
    prompt = torch.tensor([[0], [2], [3]])
    steps = list(generate(Bigram(TABLE), prompt, options=options, max_tokens=6, end=END, seed=4))
    before, finished = prompt[:, 0], torch.zeros(3, dtype=torch.bool)
    for step in steps:
        expected = Bigram(TABLE).table[before, step.tokens].log()
        assert torch.equal(step.log_probs, torch.where(finished, 0.0, expected))
        assert torch.equal(step.finished, finished | (step.tokens == END))
        before, finished = step.tokens, step.finished


def test_single_row_gives_the_same_result_as_in_a_batch() -> None:
    generator = torch.Generator().manual_seed(3)
    prompt = torch.randint(1, 11, (6, 4), generator=generator)
    source = torch.randn(6, 11, generator=generator, dtype=torch.float64)
    options = SamplingConfig(temperature=1.3, top_p=0.95, repetition_penalty=1.2)
    batched = run(CumulativeModel(), prompt, options=options, source=source, seed=9, max_tokens=40)
    assert len({len(row) for row in batched}) > 2, "rows should end at different times for this to mean anything"
    seeds = row_seeds(9, 6)
    for b in range(6):
        row = slice(b, b + 1)
        alone = run(CumulativeModel(), prompt[row], options=options, source=source[row], seed=[seeds[b]], max_tokens=40)
        assert alone == [batched[b]]
        assert run(
            CumulativeModel(), prompt[row], options=options, source=source[row], seed=[seeds[b] + 1], max_tokens=40
        ) != [batched[b]]


def test_prompt_padding_has_no_effect() -> None:
    short, long = torch.tensor([[5, 6]]), torch.tensor([[1, 2, 3, 4]])
    separate = [run(CumulativeModel(), p, seed=[s])[0] for p, s in ((short, 1), (long, 2))]
    for row, keep in (([5, 6, 9, 9], [1, 1, 0, 0]), ([9, 9, 5, 6], [0, 0, 1, 1])):
        prompt = torch.tensor([row, long[0].tolist()])
        mask = torch.tensor([keep, [1, 1, 1, 1]], dtype=torch.bool)
        assert run(CumulativeModel(), prompt, mask=mask, seed=[1, 2]) == separate


def test_finished_rows_leave_the_batch() -> None:
    table = [[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0]]  # 0 → 1 → 2 → 3 → END
    model = Bigram(table)
    prompt = torch.tensor([[3], [1], [2], [3], [0]])
    rows = run(model, prompt)
    assert rows == [[0], [2, 3, 0], [3, 0], [0], [1, 2, 3, 0]]
    assert model.rows_seen == [5, 3, 2, 1]


def test_rows_can_be_ended_by_the_caller() -> None:
    model = Bigram([[0.0, 1.0], [0.0, 1.0]])
    steps = generate(model, torch.ones(3, 1, dtype=torch.long), options=GREEDY, max_tokens=4, end=END)
    next(steps)
    step = steps.send(torch.tensor([False, True, False]))
    assert step.tokens.tolist() == [1, END, 1]
    assert step.finished.tolist() == [False, True, False]
    with pytest.raises(StopIteration):
        steps.send(torch.tensor([True, False, True]))
    assert model.rows_seen == [3, 2]


def test_equal_seeds_give_equal_texts_and_other_seeds_do_not() -> None:
    prompt = torch.ones(2, 1, dtype=torch.long)
    options = SamplingConfig(min_tokens=2 * BLOCK)
    first = run(CumulativeModel(), prompt, options=options, max_tokens=2 * BLOCK, seed=5)
    assert first == run(CumulativeModel(), prompt, options=options, max_tokens=2 * BLOCK, seed=5)
    assert first != run(CumulativeModel(), prompt, options=options, max_tokens=2 * BLOCK, seed=6)
    assert first[0] != first[1]
    state = torch.get_rng_state()
    run(CumulativeModel(), prompt, seed=5)
    assert torch.equal(state, torch.get_rng_state()), "the global generator must not be touched"


def test_longer_generation_starts_with_the_shorter_generation() -> None:
    prompt = torch.ones(3, 2, dtype=torch.long)
    longer = run(CumulativeModel(), prompt, max_tokens=30, seed=2)
    shorter = run(CumulativeModel(), prompt, max_tokens=7, seed=2)
    assert shorter == [row[:7] for row in longer]


def test_choose_never_returns_impossible_tokens() -> None:
    log_probs = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]], dtype=torch.float64).log().expand(6, 6)
    draws = torch.tensor([0.0, 0.2499, 0.2501, 0.7499, 0.7501, 1 - 2**-53], dtype=torch.float64)
    assert choose(log_probs, draws).tolist() == [1, 1, 3, 3, 4, 4]


def test_toy_models_implement_the_steppable_protocol() -> None:
    assert isinstance(Bigram(TABLE), Steppable)
    assert isinstance(CumulativeModel(), Steppable)


def test_invalid_arguments_are_rejected_at_the_call() -> None:
    prompt = torch.zeros(2, 1, dtype=torch.long)
    rules: dict[str, Any] = {"options": GREEDY, "end": END, "max_tokens": 3}
    wrongs: list[dict[str, Any]] = [
        {"prompt": torch.zeros(2, 0, dtype=torch.long)},
        {"prompt": torch.zeros(2, dtype=torch.long)},
        {"max_tokens": 0},
        {"seed": [1, 2, 3]},
        {"mask": torch.tensor([[True], [False]])},
        {"mask": torch.tensor([True, False])},
    ]
    for wrong in wrongs:
        with pytest.raises(UsageError):
            generate(Bigram(TABLE), **({"prompt": prompt} | rules | wrong))


def test_nan_probabilities_are_reported() -> None:
    broken = Bigram([[float("nan")] * 4] * 4)
    for options in (GREEDY, SamplingConfig(), SamplingConfig(top_p=0.5)):
        with pytest.raises(DivergedError, match="are NaN"):
            run(broken, torch.zeros(1, 1, dtype=torch.long), options=options)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_tokens_match_cpu_tokens() -> None:
    log_probs = torch.randn(64, 5000, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    draws = torch.rand(64, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert torch.equal(choose(log_probs, draws), choose(log_probs.cuda(), draws.cuda()).cpu())
    options = SamplingConfig(temperature=0.9, top_k=3, top_p=0.95, min_tokens=2, repetition_penalty=1.5)
    prompt, there = torch.arange(200).view(-1, 2) % 4, Bigram(TABLE)
    there.table = there.table.cuda()
    mask = torch.arange(200).view(-1, 2) % 5 > 0
    expected = run(Bigram(TABLE), prompt, mask=mask, options=options, seed=8, max_tokens=100)
    assert run(there, prompt.cuda(), mask=mask.cuda(), options=options, seed=8, max_tokens=100) == expected
