"""The n-gram language model: a table of what follows what, asked from the longest known context downwards.

    log p(w | h) = log_prob(h w)                      if h w is in the table
                 = backoff(h) + log p(w | h')          otherwise, h' being h without its first word

`backoff(h)` is 0 for a context the table does not know. How the numbers in the table are had is the matter of
`kneser_ney`; `arpa` reads and writes the file format every other n-gram toolkit speaks.

The n-grams of order k are sorted 64-bit keys, (place of the first k−1 words in the table below)·(V+1) + last word. So
any order and any vocabulary fits, an n-gram is found by bisection, the n-grams that continue one context lie side by
side, and a whole text is scored with a few vectorised searches per order.

Ids are those of the tokenizer: 0 … V−1, where 0 ends a document. The context before a document's first word is `<s>`,
which the model adds itself as id V: it is never predicted, and no n-gram reaches across it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.core.protocols import DecodeState, StepOutput
from seqloom.core.tree import Expected, Tree, check_tree, is_ascending, require

END = 0


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
        """Where the n-gram `prefix words` stands, −1 where it does not. A prefix of −1 has no continuation."""
        flat = prefix.reshape(-1)
        found = torch.full_like(flat, -1)
        asked = (flat >= 0).nonzero().squeeze(1)
        if len(self.keys) == 0 or len(asked) == 0:
            return found.view(prefix.shape)
        wanted = flat[asked] * width + words.reshape(-1)[asked]
        place = torch.searchsorted(self.keys, wanted).clamp_(max=len(self.keys) - 1)
        found[asked] = place.masked_fill_(self.keys[place] != wanted, -1)
        return found.view(prefix.shape)

    def log_prob_of(self, place: Tensor, otherwise: Tensor) -> Tensor:
        return torch.where(place >= 0, self.log_prob[place], otherwise) if len(self.keys) else otherwise

    def backoff_of(self, place: Tensor) -> Tensor:
        if len(self.backoff) == 0:
            return self.backoff.new_zeros(place.shape)
        return self.backoff[place].masked_fill_(place < 0, 0.0)


class NGram:
    """An n-gram model; before it is estimated or loaded it knows nothing and predicts 1/V.

    `discounts` (order, 3) are the D1, D2, D3+ of each order, zero where the tables came from elsewhere; `fallback`
    (order,) is true where the text could not give them and the usual constants were taken.
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

    # --- asking -----------------------------------------------------------------------------------------------------

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        return DecodeState(torch.full((rows or 1, self.order - 1), self.vocabulary, device=self.device))

    def score(self, inputs: Tensor, targets: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        """log p(targets[b, t] | inputs[b, :t+1], state) for every position (B, T), and the state after the last."""
        length = inputs.shape[1]
        history = self._history(inputs, state)  # (B, order−1 + T)
        contexts = history  # of k words, ending at each place of the history from the k-th
        log_prob = self.tables[0].log_prob[targets]  # (B, T)
        for lower, table in zip(self.tables, self.tables[1:], strict=False):
            context = contexts[:, contexts.shape[1] - length :]
            found = table.find(context, targets, self.width)
            log_prob = table.log_prob_of(found, otherwise=log_prob + lower.backoff_of(context))
            contexts = table.find(contexts[:, :-1], history[:, history.shape[1] - contexts.shape[1] + 1 :], self.width)
        return log_prob, self._state(history)

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        """The distribution (B, V) after the tokens (B, T)."""
        history = self._history(tokens, state)
        if mask is not None:  # the real tokens move to the end, in their order; the carry is always real
            real = torch.cat([mask.new_ones(history.shape[0], self.order - 1), mask], dim=1)
            history = history.gather(1, real.to(torch.int8).argsort(dim=1, stable=True))
        after = self._state(history)
        return StepOutput(self._distribution(after.carry), after)

    def _history(self, tokens: Tensor, state: DecodeState) -> Tensor:
        """What was read before and what is read now; an ended document leaves the context of a new one."""
        return torch.cat([state.carry, tokens.masked_fill(tokens == END, self.vocabulary)], dim=1)

    def _state(self, history: Tensor) -> DecodeState:
        return DecodeState(history[:, history.shape[1] - (self.order - 1) :].clone())

    def _distribution(self, history: Tensor) -> Tensor:
        """The lowest order for all V words, each higher order written over it where it knows a continuation."""
        contexts = self._contexts(history)
        weights = [table.backoff_of(context) for table, context in zip(self.tables, contexts, strict=False)]
        weight = sum(weights, start=self.tables[0].log_prob.new_zeros(history.shape[0]))
        log_probs = self.tables[0].log_prob[: self.vocabulary] + weight[:, None]  # (B, V)
        for table, context, own in zip(self.tables[1:], contexts, weights, strict=True):
            weight = weight - own
            rows, places = self._continuations(table, context)
            words = table.keys[places] - context[rows] * self.width
            log_probs[rows, words] = table.log_prob[places] + weight[rows]
        return log_probs

    def _contexts(self, history: Tensor) -> list[Tensor]:
        """The places of the last 1, 2 … order−1 words of each row, (B,) each."""
        contexts, ending = history, []
        for table in self.tables[1:]:
            ending.append(contexts[:, -1])
            contexts = table.find(contexts[:, :-1], history[:, history.shape[1] - contexts.shape[1] + 1 :], self.width)
        return ending

    def _continuations(self, table: Table, context: Tensor) -> tuple[Tensor, Tensor]:
        """Every n-gram that continues a context: the row it belongs to, and its place in the table."""
        first = torch.searchsorted(table.keys, context * self.width)  # a context of −1 gives an empty range at 0
        count = torch.searchsorted(table.keys, (context + 1) * self.width) - first
        rows = torch.repeat_interleave(torch.arange(len(context), device=context.device), count)
        within = torch.arange(len(rows), device=context.device) - (count.cumsum(0) - count)[rows]
        return rows, first[rows] + within

    # --- keeping ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Named tensors only; their sizes are those of the text the model was estimated from."""
        tensors = {"discounts": self.discounts, "fallback": self.fallback}
        for k, table in enumerate(self.tables, start=1):
            tensors[f"log_prob.{k}"] = table.log_prob
            if k > 1:
                tensors[f"keys.{k}"] = table.keys
            if k < self.order:
                tensors[f"backoff.{k}"] = table.backoff
        return tensors

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        check_tree(dict(state_dict), self._expected())
        nothing = torch.empty(0, dtype=torch.float64)
        keys = {"keys.1": torch.arange(self.width), **state_dict}
        tables = [
            Table(keys[f"keys.{k}"], state_dict[f"log_prob.{k}"], state_dict.get(f"backoff.{k}", nothing))
            for k in range(1, self.order + 1)
        ]
        self._check(tables)
        self.tables, self.discounts, self.fallback = tables, state_dict["discounts"], state_dict["fallback"]

    def _expected(self) -> dict[str, Expected]:
        real = torch.float64
        found = {"discounts": Expected((self.order, 3), real), "fallback": Expected((self.order,), torch.bool)}
        for k in range(1, self.order + 1):
            count = self.width if k == 1 else None
            found[f"log_prob.{k}"] = Expected((count,), real, low=-math.inf, high=1e-6)
            if k > 1:
                found[f"keys.{k}"] = Expected((None,), torch.int64, low=0)
            if k < self.order:
                found[f"backoff.{k}"] = Expected((count,), real, low=-math.inf)
        return found

    def _check(self, tables: list[Table]) -> None:
        """Every n-gram must have its numbers, and continue one of the table below."""
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

    # --- what a module can do ---------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return self.tables[0].log_prob.device

    def to(self, device: torch.device | str) -> "NGram":
        """Move the tables, in place. Apple's GPUs have no float64: there they become float32."""
        real = torch.float32 if torch.device(device).type == "mps" else torch.float64
        self.tables = [
            Table(table.keys.to(device), table.log_prob.to(device, real), table.backoff.to(device, real))
            for table in self.tables
        ]
        self.discounts, self.fallback = self.discounts.to(device, real), self.fallback.to(device)
        return self

    def eval(self) -> "NGram":
        return self

    def train(self, mode: bool = True) -> "NGram":
        return self
