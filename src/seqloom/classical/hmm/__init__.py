"""A hidden Markov model of symbols, and so a language model: it reads, predicts, writes; learned by Baum–Welch.

    z_t ~ A(z_{t−1}, ·)      x_t ~ B(z_t, ·)

A document begins after END and closes with it. END is a state of its own, the last of N + 1, that
emits END and nothing else; no other state does. So π is the row of A after END, how probable it is
that a text is over is the column before it, and a whole stream of documents is one sequence.

What is known of the state after reading x_1 … x_t is all that is kept of them, N numbers that say
which of N states:

    p(z_{t+1} = k | x_1 … x_t) = Σ_j p(z_t = j | x_1 … x_t) A_jk
    p(x_{t+1} | x_1 … x_t) = Σ_k p(z_{t+1} = k | x_1 … x_t) B_k(x_{t+1})

Baum–Welch counts what it expects to have happened and divides; s is added to every count, so
nothing is impossible:

    A_jk = (Σ_t p(z_t = j, z_{t+1} = k | x) + s) / Σ_k …        B_k(v) = (Σ_{t: x_t = v} p(z_t = k | x) + s) / Σ_v …
"""

import math
from collections.abc import Iterator, Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.classical.hmm.inference import MarkovModel, forward, posterior, row_shares, times
from seqloom.classical.tensor_model import Bounds, check_log_shares
from seqloom.config import config
from seqloom.config.constraints import NonNegativeFloat, PositiveInt
from seqloom.core import END
from seqloom.core.device import generator
from seqloom.core.errors import DataError
from seqloom.core.protocols import DecodeState, StepOutput
from seqloom.core.tree import Tree

BLOCK = 1 << 16  # tokens whose posteriors are held at once, padding included; or a document's, if it has more


@config
class HMMConfig:
    kind: Literal["hmm"] = "hmm"
    states: PositiveInt = 8  # N; a model of N states remembers at most log2 N bits
    smoothing: NonNegativeFloat = 0.01  # s, added to every count of symbols and of transitions

    def build(self, vocabulary: int) -> "HiddenMarkov":
        return HiddenMarkov(self, vocabulary)


class HiddenMarkov(MarkovModel):
    """A hidden Markov model of symbols. Before it is estimated or loaded all its states are alike."""

    names = ("transition", "emission")
    bounds: Mapping[str, Bounds] = dict.fromkeys(names, (-math.inf, 1e-9))
    transition: Tensor  # log A (N+1, N+1), the last is END
    emission: Tensor  # log B (N+1, V)

    def __init__(self, config: HMMConfig, vocabulary: int) -> None:
        self.config, self.vocabulary, self.states = config, vocabulary, config.states
        count = self.states + 1
        self.set(torch.ones(count, count, dtype=torch.float64), torch.ones(count, vocabulary, dtype=torch.float64))

    @property
    def log_initial(self) -> Tensor:
        """log π (N+1,): a document follows an END."""
        return self.transition[-1]

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        for name, table in tensors.items():
            check_log_shares(name, table)

    def set(self, transition: Tensor, emission: Tensor) -> "HiddenMarkov":
        """Take counts, or anything in proportion to them, as probabilities; END is said by the last state alone."""
        emission = emission.clone()
        emission[:, END] = 0
        emission[-1], emission[-1, END] = 0, 1
        emission[emission.sum(dim=1) == 0, END + 1 :] = 1  # a state that says nothing any more could say anything
        self.transition, self.emission = row_shares(transition).log(), row_shares(emission).log()
        return self

    # --- asking -----------------------------------------------------------------------------------------------------

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        """log p of the state that says the next token (B, N+1): any, until the END is read that texts begin after."""
        count = self.states + 1
        return DecodeState(self.transition.new_full((rows or 1, count), -math.log(count)))

    def emitted(self, tokens: Tensor) -> Tensor:
        """log b (B, T, N+1)"""
        return F.embedding(tokens, self.emission.T.contiguous())

    def score(self, inputs: Tensor, targets: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        """log p(targets[b, t] | inputs[b, :t+1], state) for every position (B, T), and the state after the last."""
        found = forward(state.carry, self.transition, self.emitted(inputs))
        last = times(found.alpha[:, -1:], self.transition)
        known = torch.cat([found.predicted[:, 1:], last], dim=1)  # (B, T, N+1): of the state that says the target
        total = torch.logsumexp(known, dim=2)
        scores = torch.logsumexp(known + self.emitted(targets), dim=2) - total
        return scores.where(total > -math.inf, -math.inf), DecodeState(_normalised(known[:, -1]))

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        """The distribution (B, V) after the tokens (B, T)."""
        if mask is not None:  # the real tokens move to the front, in their order
            order = (~mask).to(torch.int8).argsort(dim=1, stable=True)
            tokens, mask = tokens.gather(1, order), mask.gather(1, order)
        found = forward(state.carry, self.transition, self.emitted(tokens), mask)
        known = _normalised(times(found.alpha[:, -1], self.transition))
        if mask is not None:
            known = torch.where(mask[:, :1], known, state.carry)
        log_probs = torch.logsumexp(known.unsqueeze(2) + self.emission, dim=1)
        return StepOutput(log_probs, DecodeState(known))

    # --- learning ---------------------------------------------------------------------------------------------------

    def draw_start(self, tokens: Tensor, seed: int, restart: int) -> "HiddenMarkov":
        """A beginning: symbols as frequent as they are, in each state more or less, all transitions by chance."""
        draws, count = generator(seed, "hmm", restart), self.states + 1
        often = torch.bincount(tokens, minlength=self.vocabulary).double() + self.config.smoothing
        noise = torch.empty(count, self.vocabulary, dtype=torch.float64).exponential_(generator=draws)
        moves = torch.empty(count, count, dtype=torch.float64).exponential_(generator=draws)
        return HiddenMarkov(self.config, self.vocabulary).set(moves, noise * often)

    def improve(self, tokens: Tensor) -> tuple["HiddenMarkov", float]:
        """One iteration of Baum–Welch over a stream that ends with END, and log p per token of this model."""
        smoothing, count = self.config.smoothing, self.states + 1
        moves = torch.full((count, count), smoothing, dtype=torch.float64)
        emitted = torch.full((self.vocabulary, count), smoothing, dtype=torch.float64)
        total = 0.0
        for rows, mask in documents(tokens):
            found = posterior(self.transition[-1], self.transition, self.emitted(rows), mask)
            moves += found.pairs.sum(dim=0)
            moves[-1] += found.states[:, 0].sum(dim=0)  # a document follows an END
            emitted.index_add_(0, rows[mask], found.states[mask])
            total += float(found.log_likelihood.sum())
        better = HiddenMarkov(self.config, self.vocabulary).set(moves, emitted.T)
        return better, total / len(tokens)


def _normalised(known: Tensor) -> Tensor:
    """log p of the states (B, N+1). After what the model cannot have said, nothing is known of them: all are alike."""
    total = torch.logsumexp(known, dim=1, keepdim=True)
    return torch.where(total > -math.inf, known - total, -math.log(known.shape[1]))


def documents(tokens: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The documents of a stream, END included, those of like length together: tokens (B, T), and which are real.

    What is known at an END is all there is to know, so documents can be read side by side.
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
        own, longest = lengths[first : first + count], int(lengths[first + count - 1])
        places = torch.arange(longest)
        mask = places < own.unsqueeze(1)
        chosen = (begins[first : first + count].unsqueeze(1) + places).where(mask, 0)
        yield tokens[chosen], mask
        first += count


def check_seen(counts: Tensor, names: list[str], smoothing: float) -> None:
    """Without smoothing, what was never seen is impossible, and so is every text that has it."""
    never = [names[place] for place in (counts == 0).nonzero().flatten().tolist()]
    if never and smoothing == 0:
        few = ", ".join(repr(name) for name in never[:5]) + (f" and {len(never) - 5} more" if len(never) > 5 else "")
        raise DataError(
            f"The training text never has {few}: with model.smoothing=0 any text that has it would be impossible. "
            "Set model.smoothing above 0, say 0.01."
        )
