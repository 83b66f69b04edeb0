"""The n-gram language model: a table of what follows what, asked from the longest known context downwards.

    log p(w | h) = log_prob(h w)                      if h w is in the table
                 = backoff(h) + log p(w | h')          otherwise, h' being h without its first word

`backoff(h)` is 0 for a context the table does not know. How the numbers in the table are had is the
matter of `kneser_ney`; `arpa` reads and writes the file format every other n-gram toolkit speaks.

The n-grams of order k are sorted 64-bit keys, (place of the first k−1 words in the table
below)·(V+1) + last word. So any order and any vocabulary fits, an n-gram is found by bisection, the
n-grams that continue one context lie side by side, and a whole text is scored with a few vectorised
searches per order.

Ids are those of the tokenizer: 0 … V−1, where 0 ends a document. The context before a document's
first word is `<s>`, which the model adds itself as id V: it is never predicted, and no n-gram
reaches across it.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from seqloom.classical.tensor_model import Bounds, TensorModel
from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.core import END
from seqloom.core.protocols import DecodeState, StepOutput
from seqloom.core.tree import Tree, is_ascending, require


@config
class NGramConfig:
    kind: Literal["ngram"] = "ngram"
    order: PositiveInt = 5  # words in the longest n-gram: an n-gram of order 5 predicts from four words
    min_count: PositiveInt = 1  # n-grams of three words and more seen less often are left out; 1 keeps them all

    def build(self, vocabulary: int) -> "NGram":
        return NGram(self.order, vocabulary)


@dataclass(frozen=True)
class Table:
    """The n-grams of one order. Natural logarithms, float64, since a sum over V words must still be 1."""

    keys: Tensor  # (n,) int64, ascending; for single words simply 0 … V, `<s>` last
    log_prob: Tensor  # (n,)
    backoff: Tensor  # (n,), or (0,) in the highest order, which is no one's context

    def find(self, prefix: Tensor, words: Tensor, width: int) -> Tensor:
        """Find the row of each n-gram `prefix words`, −1 where there is none. A prefix of −1 has no continuation."""
        flat = prefix.reshape(-1)
        rows = torch.full_like(flat, -1)
        asked = (flat >= 0).nonzero().squeeze(1)
        if len(self.keys) == 0 or len(asked) == 0:
            return rows.view(prefix.shape)
        wanted = flat[asked] * width + words.reshape(-1)[asked]
        row = torch.searchsorted(self.keys, wanted).clamp_(max=len(self.keys) - 1)
        rows[asked] = row.masked_fill_(self.keys[row] != wanted, -1)
        return rows.view(prefix.shape)

    def backoff_of(self, rows: Tensor) -> Tensor:
        if len(self.backoff) == 0:
            return self.backoff.new_zeros(rows.shape)
        return self.backoff[rows].masked_fill_(rows < 0, 0.0)


class NGram(TensorModel):
    """An n-gram model; before it is estimated or loaded it knows nothing and predicts 1/V.

    `discounts` (order, 3) are the D1, D2, D3+ of each order, zero where the tables came from
    elsewhere; `fallback` (order,) is true where the text could not give them and the usual
    constants were taken.
    """

    def __init__(self, order: int, vocabulary: int) -> None:
        self.order, self.vocabulary = order, vocabulary
        self.width = vocabulary + 1
        nothing = torch.empty(0, dtype=torch.float64)
        words = torch.full((self.width,), -math.log(vocabulary), dtype=torch.float64)
        words[vocabulary] = -math.inf
        no_keys = torch.empty(0, dtype=torch.int64)
        self.tables = [Table(torch.arange(self.width), words, nothing if order == 1 else torch.zeros_like(words))]
        self.tables += [Table(no_keys, nothing, nothing) for _ in range(order - 1)]
        self.discounts = torch.zeros(order, 3, dtype=torch.float64)
        self.fallback = torch.zeros(order, dtype=torch.bool)
        kinds: dict[str, Bounds] = {"log_prob": (-math.inf, 1e-6), "keys": (0, None), "backoff": (-math.inf, None)}
        parts = {name: name.split(".") for name in self.tensors() if "." in name}
        self.bounds = {name: kinds[kind] for name, (kind, _) in parts.items()}
        self.resizable = [name for name, (_, k) in parts.items() if k != "1"]  # as the text it is estimated from

    # --- asking -----------------------------------------------------------------------------------------------------

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        return DecodeState(torch.full((rows or 1, self.order - 1), self.vocabulary, device=self.device))

    def score(self, inputs: Tensor, targets: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        """log p(targets[b, t] | inputs[b, :t+1], state) for every position (B, T), and the state after the last."""
        history = self._history(inputs, state)  # (B, order−1 + T)
        log_prob = self.tables[0].log_prob[targets]  # (B, T)
        for (lower, table), contexts in zip(pairwise(self.tables), self._contexts(history), strict=True):
            context = contexts[:, contexts.shape[1] - inputs.shape[1] :]
            found = table.find(context, targets, self.width)
            log_prob = log_prob + lower.backoff_of(context)
            if len(table.keys):
                log_prob = torch.where(found >= 0, table.log_prob[found], log_prob)
        return log_prob, self._state(history)

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        """The distribution (B, V) after the tokens (B, T).

        The lowest order for all V words, each higher order written over it where it knows a
        continuation.
        """
        history = self._history(tokens, state)
        if mask is not None:  # the real tokens move to the end, in their order; the carry is always real
            real = torch.cat([mask.new_ones(history.shape[0], self.order - 1), mask], dim=1)
            history = history.gather(1, real.to(torch.int8).argsort(dim=1, stable=True))
        after = self._state(history)
        contexts = [places[:, -1] for places in self._contexts(after.carry)]  # of 1, 2 … order−1 words, (B,) each
        weights = [table.backoff_of(context) for table, context in zip(self.tables, contexts, strict=False)]
        weight = sum(weights, start=self.tables[0].log_prob.new_zeros(history.shape[0]))
        log_probs = self.tables[0].log_prob[: self.vocabulary] + weight[:, None]  # (B, V)
        for table, context, backoff in zip(self.tables[1:], contexts, weights, strict=True):
            weight = weight - backoff
            first = torch.searchsorted(table.keys, context * self.width)  # a context of −1 gives an empty range at 0
            count = torch.searchsorted(table.keys, (context + 1) * self.width) - first
            rows = torch.repeat_interleave(torch.arange(len(context), device=context.device), count)
            within = torch.arange(len(rows), device=context.device) - (count.cumsum(0) - count)[rows]
            places = first[rows] + within  # of every n-gram that continues a context, and the row it belongs to
            words = table.keys[places] - context[rows] * self.width
            log_probs[rows, words] = table.log_prob[places] + weight[rows]
        return StepOutput(log_probs, after)

    def _history(self, tokens: Tensor, state: DecodeState) -> Tensor:
        """What was read before and what is read now; an ended document leaves the context of a new one."""
        return torch.cat([state.carry, tokens.masked_fill(tokens == END, self.vocabulary)], dim=1)

    def _state(self, history: Tensor) -> DecodeState:
        return DecodeState(history[:, history.shape[1] - (self.order - 1) :].clone())

    def _contexts(self, history: Tensor) -> Iterator[Tensor]:
        """Yield, for k = 1 … order−1, the places (B, …) of the k words that end at each word of the history from the
        k-th."""
        contexts = history
        for table in self.tables[1:]:
            yield contexts
            contexts = table.find(contexts[:, :-1], history[:, history.shape[1] - contexts.shape[1] + 1 :], self.width)

    # --- keeping ----------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        tensors = {"discounts": self.discounts, "fallback": self.fallback}
        for k, table in enumerate(self.tables, start=1):
            tensors[f"log_prob.{k}"] = table.log_prob
            if k > 1:
                tensors[f"keys.{k}"] = table.keys
            if k < self.order:
                tensors[f"backoff.{k}"] = table.backoff
        return tensors

    def assign(self, tensors: Mapping[str, Tensor]) -> None:
        self.tables = self._tables(tensors)
        self.discounts, self.fallback = tensors["discounts"], tensors["fallback"]

    def _tables(self, tensors: Mapping[str, Tensor]) -> list[Table]:
        words = tensors["log_prob.1"]
        whole = {"keys.1": torch.arange(self.width, device=words.device), f"backoff.{self.order}": words[:0], **tensors}
        names = ("keys", "log_prob", "backoff")
        return [Table(*(whole[f"{name}.{k}"] for name in names)) for k in range(1, self.order + 1)]

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Every n-gram must have its numbers, and continue one of the table below."""
        tables = self._tables(tensors)
        for k, table in enumerate(tables, start=1):
            sizes = {f"keys.{k}": len(table.keys), f"log_prob.{k}": len(table.log_prob)}
            sizes |= {f"backoff.{k}": len(table.backoff)} if k < self.order else {}
            shown = ", ".join(f"{name} has {size}" for name, size in sizes.items())
            require(len(set(sizes.values())) == 1, f"all {k}-grams must have all their numbers: {shown}")
            require(is_ascending(table.keys), f"keys.{k} must be ascending")
        for k, (lower, table) in enumerate(pairwise(tables), start=2):
            contexts = len(lower.keys)
            last = table.keys[-1:]  # the largest
            require((last < contexts * self.width).all(), f"keys.{k} must continue the {contexts:,} {k - 1}-grams")

    def size(self) -> dict[str, int]:
        """How many n-grams of each order the model keeps; `<s>` is not counted, nothing predicts it."""
        counts = {f"{k}-grams": len(table.keys) for k, table in enumerate(self.tables, start=1)}
        return counts | {"1-grams": self.vocabulary}
