"""Score processors: transformations of p(next token) before a token is chosen.

Each processor is a pure function from log-probabilities (B, V) to normalized log-probabilities (B, V). A processor may
use the generated tokens (B, t), without the prompt. The processors are applied in this order:

    1. repetition penalty   p(v) ← p(v) / θ  for every v generated before
    2. banned tokens        p(v) ← 0         for every v in `banned`, and for END before `min_tokens` tokens
    3. temperature          p(v) ← p(v)^(1/τ)
    4. top-k                p(v) ← 0         outside the k most probable tokens
    5. top-p                p(v) ← 0         outside the smallest set of mass ≥ p, of the tokens that top-k keeps

The first two apply to greedy search and to sampling. The last three do not affect greedy search, so greedy
search skips them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from seqloom.core.errors import UsageError

Processor = Callable[[Tensor, Tensor], Tensor]  # log-probabilities (B, V), generated (B, t) → log-probabilities (B, V)

MIN_TEMPERATURE = 1e-5  # lower temperatures are treated as greedy, because a division by them would overflow


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """Sampling settings. The defaults sample from the distribution of the model."""

    temperature: float = 1.0  # below 1, the distribution is sharper; above 1, flatter; 0 is greedy
    top_k: int | None = None  # sample from the k most probable tokens
    top_p: float = 1.0  # sample from the smallest set of tokens with this probability mass
    min_tokens: int = 0  # minimum number of tokens before END
    banned: tuple[int, ...] = ()  # tokens that are never chosen
    repetition_penalty: float = 1.0  # factor by which generated tokens become less probable

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
        return self.temperature < MIN_TEMPERATURE

    def processors(self, end: int) -> list[Processor]:
        """Return the processors that have an effect, in order."""
        k = self.top_k
        processors: list[tuple[bool, Processor]] = [
            (self.repetition_penalty != 1, partial(penalize_repetition, penalty=self.repetition_penalty)),
            (bool(self.banned), partial(ban, tokens=self.banned)),
            (self.min_tokens > 0, partial(ban, tokens=(end,), until=self.min_tokens)),
        ]
        if not self.greedy:
            processors += [
                (self.temperature != 1, lambda log_probs, _: apply_temperature(log_probs, self.temperature)),
                (k is not None, lambda log_probs, _: keep_top_k(log_probs, k or 1)),
                (self.top_p < 1, lambda log_probs, _: keep_top_p(log_probs, self.top_p)),
            ]
        return [processor for has_effect, processor in processors if has_effect]


def ban(log_probs: Tensor, generated: Tensor, *, tokens: tuple[int, ...], until: int | None = None) -> Tensor:
    """Ban tokens, always or before `until` generated tokens, unless no other token is possible."""
    if until is not None and generated.shape[1] >= until:
        return log_probs
    allowed = torch.ones_like(log_probs, dtype=torch.bool)
    allowed[:, list(tokens)] = False
    return keep_only(log_probs, allowed)


def process(log_probs: Tensor, generated: Tensor, processors: list[Processor]) -> Tensor:
    """Apply processors in order, in float32 or higher precision."""
    log_probs = log_probs.to(torch.promote_types(log_probs.dtype, torch.float32))
    for processor in processors:
        log_probs = processor(log_probs, generated)
    return log_probs


def keep_only(log_probs: Tensor, allowed: Tensor) -> Tensor:
    """Restrict the distribution to the `allowed` tokens (B, V).

    A row whose allowed tokens have no mass is unchanged.
    """
    banned = log_probs.masked_fill(~allowed, -math.inf)
    total = banned.logsumexp(-1, keepdim=True)
    return torch.where(total == -math.inf, log_probs, banned - total)


def penalize_repetition(log_probs: Tensor, generated: Tensor, *, penalty: float) -> Tensor:
    """Divide p(v) by θ for every generated token v, regardless of its count, and normalize.

    The odds of a used token against an unused token decrease by the factor θ. The penalty of CTRL divides positive
    logits by θ and multiplies negative logits by θ, so it depends on the arbitrary offset of the logits. Applied to
    log-probabilities, CTRL's penalty would not affect a token of probability near 1, as in a repetition loop. The
    scales differ: for a logit of 10, CTRL's usual θ = 1.2 has approximately the same effect as θ = 5.3 here.
    """
    used = torch.zeros_like(log_probs, dtype=torch.bool).scatter_(1, generated, True)  # (B, V)
    return torch.where(used, log_probs - math.log(penalty), log_probs).log_softmax(-1)


def apply_temperature(log_probs: Tensor, temperature: float) -> Tensor:
    """Return p(v)^(1/τ), normalized; subtracting the maximum first avoids overflow for small τ."""
    return ((log_probs - log_probs.amax(-1, keepdim=True)) / temperature).log_softmax(-1)


def keep_top_k(log_probs: Tensor, k: int) -> Tensor:
    """Keep exactly the k most probable tokens, or all tokens if V < k; among tied tokens, lower ids are preferred."""
    k = min(k, log_probs.shape[-1])
    threshold = log_probs.topk(k, dim=-1).values[:, -1:]
    above, equal = log_probs > threshold, log_probs == threshold
    room = k - above.sum(-1, keepdim=True)
    return keep_only(log_probs, above | (equal & (equal.cumsum(-1) <= room)))


def keep_top_p(log_probs: Tensor, p: float) -> Tensor:
    """Keep the smallest non-empty set of tokens with mass of at least p; among tied tokens, lower ids are preferred."""
    ordered, order = log_probs.sort(dim=-1, descending=True, stable=True)
    mass = ordered.double().exp()
    needed = mass.cumsum(-1) - mass < p  # whether the mass of the previous tokens is less than p
    return keep_only(log_probs, torch.zeros_like(needed).scatter(1, order, needed))
