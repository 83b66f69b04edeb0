"""Terms that the hypotheses of a beam search must contain, or must not contain.

Every hypothesis has a state for each term of its source (`seqloom.decoding.terms`). The distance of a hypothesis is the
number of tokens until all required terms have occurred. END is possible only at distance 0, and hypotheses never
complete a forbidden term.

The most probable continuations rarely approach a term. Every hypothesis therefore also proposes the tokens that reduce
its distance, and the beam is divided among the distances: the best continuation of every distance comes first, then the
second-best continuation of every distance, and so on (dynamic beam allocation, Post and Vilar 2018). The best
continuation of the smallest distance is always kept, so that terms occur even with a beam size of 1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seqloom.core.tokens import best_tokens
from seqloom.decoding.rules import Candidates
from seqloom.decoding.terms import BOUNDARY_KINDS, KINDS, OTHER, START, Automaton

NO_TERM = 0  # the state of a column without a term
PADDING = -1  # padding, which is not a token id


@dataclass(frozen=True)
class SourceTerms:
    """The terms of a source."""

    required: Sequence[Automaton] = ()
    forbidden: Sequence[Automaton] = ()


class Constraints:
    """The terms of the sources of a batch. The states of hypotheses (…, C) have a column for each term of a source.

    The states of all automata are numbered consecutively. The successors of states are stored as a sorted list of
    state · V + token.
    """

    def __init__(self, sources: Sequence[SourceTerms], kinds: Sequence[int], end: int, device: torch.device) -> None:
        """Prepare the terms of the sources; `kinds` (V,) contains the kind of each token."""
        self.end, self.vocabulary = end, len(kinds)
        self.kinds = torch.tensor(kinds, device=device)
        self.kinds[end] = OTHER  # END ends the last word
        self.ends_word = torch.isin(self.kinds, torch.tensor(BOUNDARY_KINDS, device=device))  # (V,)
        first: dict[Automaton, int] = {}  # number of the first state of each automaton
        defaults, complete, distance = [[NO_TERM] * KINDS], [False], [0]
        advancing, accepting = [list[int]()], [list[int]()]
        edges = [(PADDING, NO_TERM)]  # this entry ensures that the list is not empty
        for automaton in dict.fromkeys(term for source in sources for term in (*source.required, *source.forbidden)):
            base = first[automaton] = len(defaults)
            for state, by_token in enumerate(automaton.successors):
                key = (base + state) * self.vocabulary
                edges += [(key + token, base + after) for token, after in by_token.items()]
                advancing.append(automaton.advancing[state])
                accepting.append(automaton.accepting(state))
            defaults += [[base + after for after in row] for row in automaton.defaults]
            complete += automaton.complete
            distance += automaton.distance
        self.keys, self.successors = torch.tensor(sorted(edges), device=device).unbind(1)
        self.keys = self.keys.contiguous()
        self.defaults = torch.tensor(defaults, device=device)  # (states, KINDS)
        self.complete = torch.tensor(complete, device=device)
        self.distance = torch.tensor(distance, device=device)
        self.advancing, self.accepting = (_pad(rows, PADDING).to(device) for rows in (advancing, accepting))
        sides = [[source.required for source in sources], [source.forbidden for source in sources]]
        columns = [_pad([[first[term] + START for term in row] for row in side], NO_TERM) for side in sides]
        self.required = columns[0].shape[1]  # number of columns of required terms, which precede forbidden terms
        self.start = torch.cat(columns, dim=1).to(device)  # (B, C) states before the first token

    def remaining(self, states: Tensor) -> Tensor:
        """Return the distances (…) of states (…, C)."""
        return self.distance[states[..., : self.required]].sum(-1)

    def follow(self, states: Tensor, slot: Tensor, tokens: Tensor) -> Tensor:
        """Return the states (b, M, C) after tokens (b, M); `slot` (b, M) selects from the previous states (b, w, C)."""
        states = states.gather(1, slot.unsqueeze(2).expand(-1, -1, states.shape[2]))
        tokens = tokens.unsqueeze(2)
        key = states * self.vocabulary + tokens
        index = torch.searchsorted(self.keys, key).clamp(max=len(self.keys) - 1)
        return torch.where(self.keys[index] == key, self.successors[index], self.defaults[states, self.kinds[tokens]])

    def forbid(self, log_probs: Tensor, states: Tensor) -> Tensor:
        """Set log p (b·w, V) of impossible tokens to −∞.

        END is impossible before all required terms have occurred. Tokens that complete forbidden terms are always
        impossible.
        """
        forbidden = states[..., self.required :].flatten(0, 1)  # (b·w, F)
        impossible = (self.complete[forbidden].any(1, keepdim=True)) & self.ends_word
        accepting = self.accepting[forbidden].flatten(1)
        extra = torch.zeros_like(impossible[:, :1]).expand(-1, 1)  # a column that receives the padding
        impossible = torch.cat([impossible, extra], dim=1)
        impossible = impossible.scatter(1, accepting.where(accepting >= 0, self.vocabulary), True)[:, :-1]
        impossible[:, self.end] |= self.remaining(states).flatten() > 0
        return log_probs.masked_fill(impossible, -math.inf)

    def propose(self, log_probs: Tensor, values: Tensor, ids: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Add the tokens that reduce the distance to the best tokens (b·w, K) of log-probabilities (b·w, V).

        If a form is complete, also add the best tokens that do not continue its last word.
        """
        required = states[..., : self.required].flatten(0, 1)  # (b·w, R)
        proposed = [self.advancing[required].flatten(1)]
        is_complete = self.complete[required].any(1)
        if bool(is_complete.any()):
            ending = log_probs.masked_fill(~(is_complete.unsqueeze(1) & self.ends_word), -math.inf)
            proposed.append(best_tokens(ending, ids.shape[1])[1])
        new = torch.cat(proposed, dim=1)
        is_repeated = (new.unsqueeze(2) == ids.unsqueeze(1)).any(2)
        is_repeated |= (new.unsqueeze(2) == new.unsqueeze(1)).tril(-1).any(2)
        new_values = log_probs.gather(1, new.clamp(min=0)).masked_fill(is_repeated | (new < 0), -math.inf)
        return torch.cat([values, new_values], dim=1), torch.cat([ids, new.clamp(min=0)], dim=1)

    def allocate(self, best: Candidates, states: Tensor, count: int) -> Candidates:
        """Choose `count` of the candidates (b, M), which are sorted best first, and divide them among the distances."""
        distance = self.remaining(self.follow(states, best.slot, best.token))
        # Impossible candidates come last.
        distance = distance.masked_fill(best.total.isneginf(), torch.iinfo(torch.long).max)
        by_distance, order = distance.sort(dim=1, stable=True)
        position = torch.arange(distance.shape[1], device=distance.device).expand_as(distance)
        is_new = torch.ones_like(by_distance, dtype=torch.bool)
        is_new[:, 1:] = by_distance[:, 1:] != by_distance[:, :-1]
        rank = position - position.where(is_new, 0).cummax(dim=1).values  # rank among candidates of equal distance
        rank = torch.empty_like(rank).scatter(1, order, rank)
        rank = rank.scatter(1, order[:, :1], -1)  # the best of the smallest distance
        rank = rank.masked_fill(best.total.isneginf(), distance.shape[1])
        order = rank.argsort(dim=1, stable=True)[:, :count]
        return Candidates(*(values.gather(1, order) for values in vars(best).values()))


def _pad(rows: Sequence[Sequence[int]], padding: int) -> Tensor:
    """Return rows of numbers as a tensor, padded at the end."""
    width = max(map(len, rows), default=0)
    return torch.tensor([[*row, *[padding] * (width - len(row))] for row in rows], dtype=torch.long).view(
        len(rows), width
    )
