"""Score processors: what is done to p(next token) before a token is chosen from it.

Each is a pure function from log-probabilities (B, V) to log-probabilities (B, V), normalised again,
that may look at the tokens generated so far (B, t), prompt not included. They are applied in this
order:

    1. repetition penalty   p(v) ← p(v) / θ  for every v generated before
    2. banned tokens        p(v) ← 0         for every v in `banned`, and for END before `min_tokens` tokens
    3. temperature          p(v) ← p(v)^(1/τ)
    4. top-k                p(v) ← 0         outside the k most probable
    5. top-p                p(v) ← 0         outside the smallest set of mass ≥ p, of what top-k left

The first two say what is wanted and hold for every search; the last three shape chance and so are
left out of greedy search, which they cannot change.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from seqloom.core.errors import UsageError

Processor = Callable[[Tensor, Tensor], Tensor]  # log-probabilities (B, V), generated (B, t) → log-probabilities (B, V)

GREEDY_BELOW = 1e-5  # a temperature under this could only tell ties apart, and dividing by it overflows


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How the next token is chosen. The defaults sample from the model's own distribution."""

    temperature: float = 1.0  # below 1 sharper, above 1 flatter; 0 always takes the most probable token
    top_k: int | None = None  # choose among the k most probable tokens only
    top_p: float = 1.0  # choose among the fewest tokens that hold this share of the probability
    min_tokens: int = 0  # the end may not come before this many tokens
    banned: tuple[int, ...] = ()  # tokens that are never chosen
    repetition_penalty: float = 1.0  # tokens generated before become this many times less probable

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise UsageError(f"temperature must be 0 (greedy) or a positive number; got {self.temperature}.")
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"top_k must be at least 1; got {self.top_k}. Leave it out to choose among all tokens.")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p must be above 0 and at most 1 (1 keeps every token); got {self.top_p}.")
        if self.min_tokens < 0:
            raise UsageError(f"min_tokens must be 0 or more; got {self.min_tokens}.")
        if not 1 <= self.repetition_penalty < math.inf:
            raise UsageError(f"repetition_penalty must be 1 (none) or more; got {self.repetition_penalty}.")

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    def processors(self, end: int) -> list[Processor]:
        """Those that have an effect, in the order they are applied."""
        k = self.top_k
        wanted: list[tuple[bool, Processor]] = [
            (self.repetition_penalty != 1, partial(penalise_repetition, penalty=self.repetition_penalty)),
            (bool(self.banned), partial(ban, tokens=self.banned)),
            (self.min_tokens > 0, partial(ban, tokens=(end,), until=self.min_tokens)),
        ]
        if not self.greedy:
            wanted += [
                (self.temperature != 1, lambda log_probs, _: apply_temperature(log_probs, self.temperature)),
                (k is not None, lambda log_probs, _: keep_top_k(log_probs, k or 1)),
                (self.top_p < 1, lambda log_probs, _: keep_top_p(log_probs, self.top_p)),
            ]
        return [processor for has_effect, processor in wanted if has_effect]


def ban(log_probs: Tensor, generated: Tensor, *, tokens: tuple[int, ...], until: int | None = None) -> Tensor:
    """None of these tokens, or none before `until` tokens, unless the model allows nothing else."""
    if until is not None and generated.shape[1] >= until:
        return log_probs
    kept = torch.ones_like(log_probs, dtype=torch.bool)
    kept[:, list(tokens)] = False
    return keep_only(log_probs, kept)


def process(log_probs: Tensor, generated: Tensor, processors: list[Processor]) -> Tensor:
    """Apply processors in turn, in single precision at least."""
    log_probs = log_probs.to(torch.promote_types(log_probs.dtype, torch.float32))
    for processor in processors:
        log_probs = processor(log_probs, generated)
    return log_probs


def keep_only(log_probs: Tensor, kept: Tensor) -> Tensor:
    """The distribution given that the token is one of `kept` (B, V); a row that would lose all its mass is kept."""
    banned = log_probs.masked_fill(~kept, -math.inf)
    total = banned.logsumexp(-1, keepdim=True)
    return torch.where(total == -math.inf, log_probs, banned - total)


def penalise_repetition(log_probs: Tensor, generated: Tensor, *, penalty: float) -> Tensor:
    """p(v) ← p(v) / θ for every token v generated before, however often, then normalised.

    The odds of a used token against an unused one fall by the factor θ, whatever they were. CTRL's
    penalty divides positive logits by θ and multiplies negative ones, so it depends on where the
    logits' arbitrary zero lies; log-probabilities have none above zero, and θ · log p would leave a
    token of probability near 1, the very case of a loop, untouched. The two scales differ: CTRL's
    usual 1.2 acts on a logit of 10 as 5.3 does here.
    """
    used = torch.zeros_like(log_probs, dtype=torch.bool).scatter_(1, generated, True)  # (B, V)
    return torch.where(used, log_probs - math.log(penalty), log_probs).log_softmax(-1)


def apply_temperature(log_probs: Tensor, temperature: float) -> Tensor:
    """p(v) ∝ p(v)^(1/τ); the largest is taken off first, so that a small τ cannot overflow them all."""
    return ((log_probs - log_probs.amax(-1, keepdim=True)) / temperature).log_softmax(-1)


def keep_top_k(log_probs: Tensor, k: int) -> Tensor:
    """Exactly the k most probable tokens (all, where there are fewer); of equals, those of lower id."""
    k = min(k, log_probs.shape[-1])
    least = log_probs.topk(k, dim=-1).values[:, -1:]
    above, equal = log_probs > least, log_probs == least
    room = k - above.sum(-1, keepdim=True)
    return keep_only(log_probs, above | (equal & (equal.cumsum(-1) <= room)))


def keep_top_p(log_probs: Tensor, p: float) -> Tensor:
    """The smallest set of tokens whose mass is at least p, so never fewer than one; of equals, those of lower id."""
    ordered, order = log_probs.sort(dim=-1, descending=True, stable=True)
    mass = ordered.double().exp()
    needed = mass.cumsum(-1) - mass < p  # the tokens before it do not suffice
    return keep_only(log_probs, torch.zeros_like(needed).scatter(1, order, needed))
