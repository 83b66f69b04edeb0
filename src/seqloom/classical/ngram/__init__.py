"""The n-gram language model with backoff.

    log p(w | h) = log_prob(h w)                      if h w is in the table
                 = backoff(h) + log p(w | h')          otherwise, where h' is h without its first word

`backoff(h)` is 0 for an unknown context. `kneser_ney` estimates the tables. `arpa` reads and writes
the standard file format of n-gram toolkits.

The n-grams of order k are stored as sorted 64-bit keys: (row of the first k−1 words in the table of order k−1)·(V+1) +
last word. Such keys fit any order and vocabulary. Bisection finds an n-gram, the continuations of a context are
contiguous, and a few vectorized searches per order are sufficient to score a text.

Ids are token ids of the tokenizer, 0 … V−1, where 0 ends a document. The first word of a document
follows `<s>`, which the model adds as id V. `<s>` is never predicted, and n-grams do not cross it.
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
    order: PositiveInt = 5  # length of the longest n-gram in words: order 5 predicts from four words
    min_count: PositiveInt = 1  # drop n-grams of three or more words with fewer occurrences; 1 keeps all

    def build(self, vocabulary: int) -> "NGram":
        return NGram(self.order, vocabulary)


@dataclass(frozen=True)
class Table:
    """The n-grams of one order, with natural logarithms in float64."""

    keys: Tensor  # (n,) int64, in ascending order; 0 … V for unigrams, with `<s>` last
    log_prob: Tensor  # (n,)
    backoff: Tensor  # (n,), or (0,) in the highest order

    def find(self, prefix: Tensor, words: Tensor, width: int) -> Tensor:
        """Return the row of each n-gram, given the row of its prefix and its last word.

        The row is −1 if the n-gram is missing, or if the row of its prefix is −1.
        """
        flat = prefix.reshape(-1)
        rows = torch.full_like(flat, -1)
        valid = (flat >= 0).nonzero().squeeze(1)
        if len(self.keys) == 0 or len(valid) == 0:
            return rows.view(prefix.shape)
        keys = flat[valid] * width + words.reshape(-1)[valid]
        row = torch.searchsorted(self.keys, keys).clamp_(max=len(self.keys) - 1)
        rows[valid] = row.masked_fill_(self.keys[row] != keys, -1)
        return rows.view(prefix.shape)

    def get_backoff(self, rows: Tensor) -> Tensor:
        """Return the backoff weights of rows; the weight of row −1 is 0."""
        if len(self.backoff) == 0:
            return self.backoff.new_zeros(rows.shape)
        return self.backoff[rows].masked_fill_(rows < 0, 0.0)


class NGram(TensorModel):
    """An n-gram model; initially it has no n-grams and predicts 1/V.

    `discounts` (order, 3) contains D1, D2 and D3+ of each order, or zeros for imported tables. `fallback`
    (order,) is True for orders in which default discounts replaced the estimates.
    """

    def __init__(self, order: int, vocabulary: int) -> None:
        self.order, self.vocabulary = order, vocabulary
        self.width = vocabulary + 1
        empty = torch.empty(0, dtype=torch.float64)
        words = torch.full((self.width,), -math.log(vocabulary), dtype=torch.float64)
        words[vocabulary] = -math.inf
        no_keys = torch.empty(0, dtype=torch.int64)
        self.tables = [Table(torch.arange(self.width), words, empty if order == 1 else torch.zeros_like(words))]
        self.tables += [Table(no_keys, empty, empty) for _ in range(order - 1)]
        self.discounts = torch.zeros(order, 3, dtype=torch.float64)
        self.fallback = torch.zeros(order, dtype=torch.bool)
        kinds: dict[str, Bounds] = {"log_prob": (-math.inf, 1e-6), "keys": (0, None), "backoff": (-math.inf, None)}
        parts = {name: name.split(".") for name in self.tensors() if "." in name}
        self.bounds = {name: kinds[kind] for name, (kind, _) in parts.items()}
        self.resizable = [name for name, (_, k) in parts.items() if k != "1"]

    # --- scoring ----------------------------------------------------------------------------------------------------

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        return DecodeState(torch.full((rows or 1, self.order - 1), self.vocabulary, device=self.device))

    def score(self, inputs: Tensor, targets: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        """Return log p(targets[b, t] | inputs[b, :t+1], state) (B, T) and the state after the last position."""
        history = self._history(inputs, state)  # (B, order−1 + T)
        log_prob = self.tables[0].log_prob[targets]  # (B, T)
        for (lower, table), contexts in zip(pairwise(self.tables), self._contexts(history), strict=True):
            context = contexts[:, contexts.shape[1] - inputs.shape[1] :]
            rows = table.find(context, targets, self.width)
            log_prob = log_prob + lower.get_backoff(context)
            if len(table.keys):
                log_prob = torch.where(rows >= 0, table.log_prob[rows], log_prob)
        return log_prob, self._state(history)

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        """Return the next-token distribution (B, V) after tokens (B, T).

        The distribution starts with the unigrams of all V words. Each higher order overwrites the words that it
        contains as continuations.
        """
        history = self._history(tokens, state)
        if mask is not None:  # move real tokens to the end, in order; the tokens of the previous state are always real
            real = torch.cat([mask.new_ones(history.shape[0], self.order - 1), mask], dim=1)
            history = history.gather(1, real.to(torch.int8).argsort(dim=1, stable=True))
        after = self._state(history)
        contexts = [rows[:, -1] for rows in self._contexts(after.hidden)]  # contexts of 1, 2 … order−1 words, each (B,)
        weights = [table.get_backoff(context) for table, context in zip(self.tables, contexts, strict=False)]
        weight = sum(weights, start=self.tables[0].log_prob.new_zeros(history.shape[0]))
        log_probs = self.tables[0].log_prob[: self.vocabulary] + weight[:, None]  # (B, V)
        for table, context, backoff in zip(self.tables[1:], contexts, weights, strict=True):
            weight = weight - backoff
            first = torch.searchsorted(table.keys, context * self.width)  # context −1 gives an empty range at 0
            count = torch.searchsorted(table.keys, (context + 1) * self.width) - first
            rows = torch.repeat_interleave(torch.arange(len(context), device=context.device), count)
            within = torch.arange(len(rows), device=context.device) - (count.cumsum(0) - count)[rows]
            entries = first[rows] + within  # n-grams that continue the context of each batch row
            words = table.keys[entries] - context[rows] * self.width
            log_probs[rows, words] = table.log_prob[entries] + weight[rows]
        return StepOutput(log_probs, after)

    def _history(self, tokens: Tensor, state: DecodeState) -> Tensor:
        """Append tokens to the context; END is replaced by the `<s>` of the next document."""
        return torch.cat([state.hidden, tokens.masked_fill(tokens == END, self.vocabulary)], dim=1)

    def _state(self, history: Tensor) -> DecodeState:
        return DecodeState(history[:, history.shape[1] - (self.order - 1) :].clone())

    def _contexts(self, history: Tensor) -> Iterator[Tensor]:
        """Yield, for k = 1 … order−1, the table rows (B, …) of the k-grams that end at word k and each later word."""
        contexts = history
        for table in self.tables[1:]:
            yield contexts
            contexts = table.find(contexts[:, :-1], history[:, history.shape[1] - contexts.shape[1] + 1 :], self.width)

    # --- saving and loading -----------------------------------------------------------------------------------------

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
        parts = {"keys.1": torch.arange(self.width, device=words.device), f"backoff.{self.order}": words[:0], **tensors}
        names = ("keys", "log_prob", "backoff")
        return [Table(*(parts[f"{name}.{k}"] for name in names)) for k in range(1, self.order + 1)]

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Check that every n-gram has all numbers and continues an n-gram of the order below."""
        tables = self._tables(tensors)
        for k, table in enumerate(tables, start=1):
            sizes = {f"keys.{k}": len(table.keys), f"log_prob.{k}": len(table.log_prob)}
            sizes |= {f"backoff.{k}": len(table.backoff)} if k < self.order else {}
            listed = ", ".join(f"{name} has {size}" for name, size in sizes.items())
            require(len(set(sizes.values())) == 1, f"tensors of {k}-grams must have equal lengths: {listed}")
            require(is_ascending(table.keys), f"keys.{k} must be ascending")
        for k, (lower, table) in enumerate(pairwise(tables), start=2):
            contexts = len(lower.keys)
            last = table.keys[-1:]  # the largest key
            require((last < contexts * self.width).all(), f"keys.{k} must continue the {contexts:,} {k - 1}-grams")

    def size(self) -> dict[str, int]:
        """Return the number of n-grams of each order; `<s>` is not counted because it is never predicted."""
        counts = {f"{k}-grams": len(table.keys) for k, table in enumerate(self.tables, start=1)}
        return counts | {"1-grams": self.vocabulary}
