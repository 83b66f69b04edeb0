"""The hidden Markov model of symbols: a language model estimated by Baum–Welch.

    z_t ~ A(z_{t−1}, ·)      x_t ~ B(z_t, ·)

Every document is preceded and followed by END. Only the last of the N + 1 states emits END, and this
state emits no other symbol. π is therefore the END row of A, the END column contains the probabilities
that a document ends, and a stream of documents is one sequence.

The filtered distribution over the states summarizes all tokens x_1 … x_t:

    p(z_{t+1} = k | x_1 … x_t) = Σ_j p(z_t = j | x_1 … x_t) A_jk
    p(x_{t+1} | x_1 … x_t) = Σ_k p(z_{t+1} = k | x_1 … x_t) B_k(x_{t+1})

Baum–Welch normalizes expected counts. The smoothing s is added to every count, so that no
transition or symbol has probability 0:

    A_jk = (Σ_t p(z_t = j, z_{t+1} = k | x) + s) / Σ_k …        B_k(v) = (Σ_{t: x_t = v} p(z_t = k | x) + s) / Σ_v …
"""

import math
from collections.abc import Iterator, Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.classical.hmm.inference import MarkovModel, forward, log_matmul, normalize_rows, posterior
from seqloom.classical.tensor_model import Bounds, check_log_probabilities
from seqloom.config import config
from seqloom.config.constraints import NonNegativeFloat, PositiveInt
from seqloom.core import END
from seqloom.core.device import make_generator
from seqloom.core.errors import DataError
from seqloom.core.protocols import DecodeState, StepOutput
from seqloom.core.tree import Tree

BLOCK = 1 << 16  # maximum number of tokens per batch, with padding; a longer document is a batch of its own


@config
class HMMConfig:
    kind: Literal["hmm"] = "hmm"
    states: PositiveInt = 8  # number of states N; the state carries at most log2 N bits
    smoothing: NonNegativeFloat = 0.01  # s, the constant added to every count of symbols and of transitions

    def build(self, vocabulary: int) -> "HiddenMarkov":
        return HiddenMarkov(self, vocabulary)


class HiddenMarkov(MarkovModel):
    """A hidden Markov model of symbols; initially all states are equal."""

    names = ("transition", "emission")
    bounds: Mapping[str, Bounds] = dict.fromkeys(names, (-math.inf, 1e-9))
    transition: Tensor  # log A (N+1, N+1); the last state is END
    emission: Tensor  # log B (N+1, V)

    def __init__(self, config: HMMConfig, vocabulary: int) -> None:
        self.config, self.vocabulary, self.states = config, vocabulary, config.states
        count = self.states + 1
        self.set(torch.ones(count, count, dtype=torch.float64), torch.ones(count, vocabulary, dtype=torch.float64))

    @property
    def log_initial(self) -> Tensor:
        """log π (N+1,): the transitions from END."""
        return self.transition[-1]

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        for name, table in tensors.items():
            check_log_probabilities(name, table)

    def set(self, transition: Tensor, emission: Tensor) -> "HiddenMarkov":
        """Set the probabilities from counts or expected counts; only the last state emits END."""
        emission = emission.clone()
        emission[:, END] = 0
        emission[-1], emission[-1, END] = 0, 1
        emission[emission.sum(dim=1) == 0, END + 1 :] = 1  # a state without counts emits uniformly
        self.transition, self.emission = normalize_rows(transition).log(), normalize_rows(emission).log()
        return self

    # --- inference --------------------------------------------------------------------------------------------------

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        """Return log p of the state that emits the next token (B, N+1): uniform before the initial END."""
        count = self.states + 1
        return DecodeState(self.transition.new_full((rows or 1, count), -math.log(count)))

    def emission_log_probs(self, tokens: Tensor) -> Tensor:
        """Return log b (B, T, N+1) of tokens (B, T)."""
        return F.embedding(tokens, self.emission.T.contiguous())

    def score(self, inputs: Tensor, targets: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        """Return log p(targets[b, t] | inputs[b, :t+1], state) (B, T) and the state after the last position."""
        filtered = forward(state.hidden, self.transition, self.emission_log_probs(inputs))
        last = log_matmul(filtered.alpha[:, -1:], self.transition)
        predicted = torch.cat([filtered.predicted[:, 1:], last], dim=1)  # (B, T, N+1): state of the target
        total = torch.logsumexp(predicted, dim=2)
        scores = torch.logsumexp(predicted + self.emission_log_probs(targets), dim=2) - total
        return scores.where(total > -math.inf, -math.inf), DecodeState(_normalize(predicted[:, -1]))

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        """Return the next-token distribution (B, V) after tokens (B, T)."""
        if mask is not None:  # move the real tokens to the front and keep their order
            order = (~mask).to(torch.int8).argsort(dim=1, stable=True)
            tokens, mask = tokens.gather(1, order), mask.gather(1, order)
        filtered = forward(state.hidden, self.transition, self.emission_log_probs(tokens), mask)
        predicted = _normalize(log_matmul(filtered.alpha[:, -1], self.transition))
        if mask is not None:
            predicted = torch.where(mask[:, :1], predicted, state.hidden)
        log_probs = torch.logsumexp(predicted.unsqueeze(2) + self.emission, dim=1)
        return StepOutput(log_probs, DecodeState(predicted))

    # --- estimation -------------------------------------------------------------------------------------------------

    def draw_start(self, tokens: Tensor, seed: int, restart: int) -> "HiddenMarkov":
        """Draw an initial model; its emissions are random multiples of the symbol frequencies."""
        draws, count = make_generator(seed, "hmm", restart), self.states + 1
        frequencies = torch.bincount(tokens, minlength=self.vocabulary).double() + self.config.smoothing
        noise = torch.empty(count, self.vocabulary, dtype=torch.float64).exponential_(generator=draws)
        transitions = torch.empty(count, count, dtype=torch.float64).exponential_(generator=draws)
        return HiddenMarkov(self.config, self.vocabulary).set(transitions, noise * frequencies)

    def improve(self, tokens: Tensor) -> tuple["HiddenMarkov", float]:
        """Run one Baum–Welch iteration over a stream that ends with END.

        Return the improved model, and the log p per token of this model.
        """
        smoothing, count = self.config.smoothing, self.states + 1
        transitions = torch.full((count, count), smoothing, dtype=torch.float64)
        emissions = torch.full((self.vocabulary, count), smoothing, dtype=torch.float64)
        total = 0.0
        for rows, mask in batch_documents(tokens):
            expected = posterior(self.transition[-1], self.transition, self.emission_log_probs(rows), mask)
            transitions += expected.pairs.sum(dim=0)
            transitions[-1] += expected.states[:, 0].sum(dim=0)  # a document follows an END
            emissions.index_add_(0, rows[mask], expected.states[mask])
            total += float(expected.log_likelihood.sum())
        improved = HiddenMarkov(self.config, self.vocabulary).set(transitions, emissions.T)
        return improved, total / len(tokens)


def _normalize(scores: Tensor) -> Tensor:
    """Normalize log p of the states (B, N+1); the result is uniform after a sequence of probability 0."""
    total = torch.logsumexp(scores, dim=1, keepdim=True)
    return torch.where(total > -math.inf, scores - total, -math.log(scores.shape[1]))


def batch_documents(tokens: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the documents of a stream in batches of similar length: tokens (B, T) with END, and masks.

    The state at an END is known, so documents are independent and can be batched.
    """
    ends = (tokens == END).nonzero().flatten() + 1
    begins = torch.cat([ends.new_zeros(1), ends[:-1]])
    order = (ends - begins).argsort(stable=True)
    begins, lengths = begins[order], (ends - begins)[order]
    first = 0
    while first < len(lengths):
        count = 1
        while first + count < len(lengths) and (count + 1) * int(lengths[first + count]) <= BLOCK:
            count += 1
        positions = torch.arange(int(lengths[first + count - 1]))
        mask = positions < lengths[first : first + count].unsqueeze(1)
        chosen = (begins[first : first + count].unsqueeze(1) + positions).where(mask, 0)
        yield tokens[chosen], mask
        first += count


def check_seen(counts: Tensor, names: list[str], smoothing: float) -> None:
    """Raise `DataError` if a symbol would have probability 0, because it has no count and is not smoothed."""
    unseen = [repr(names[symbol]) for symbol in (counts == 0).nonzero().flatten().tolist()]
    if unseen and smoothing == 0:
        symbols = ", ".join(unseen[:5]) + (f" and {len(unseen) - 5} more" if len(unseen) > 5 else "")
        raise DataError(
            f"The training text does not contain {symbols}: with model.smoothing=0 every text with such a symbol has "
            "probability 0. Set model.smoothing above 0, for example 0.01."
        )
