"""Output layers: from a hidden state to the probability of every token of a vocabulary, however large.

    full       p(v) = exp(s_v) / Σ_u exp(s_u),   s = W h + b
    adaptive   p(v) = p(v | head)                               for the frequent tokens
                    = p(cluster | head) · p(v | cluster)         for the others
    sampled    trained against a few tokens drawn at random, used as full

The loss is −Σ_v t_v log p(v) with t = (1 − ε) · [v = y] + ε/V. All of them offer the same: `loss`
to train with, and `log_probs` and `target_log_probs` to evaluate and to decode with, which are
exact whatever the loss was.
"""

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Annotated, Literal, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.config import Discriminator, config
from seqloom.core.errors import UsageError
from seqloom.core.operations import compiled_region, operation
from seqloom.core.tokens import best_tokens
from seqloom.nn.masks import zero_padding

SCORED_AT_ONCE = 2048  # positions whose logits over the whole vocabulary are held in memory together
Sampler = Literal["uniform", "log-uniform", "unigram", "blackout"]


@runtime_checkable
class OutputLayer(Protocol):
    """What a model may ask of its output layer. N are positions, in any order."""

    def loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """What training lowers: the mean over hidden (N, H) and targets (N,), in nats, a scalar."""
        ...

    def log_probs(self, hidden: Tensor) -> Tensor:
        """(…, H) to the exact log-probabilities (…, V)."""
        ...

    def target_log_probs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """The exact log-probability (N,) of each target (N,) given hidden (N, H)."""
        ...

    def initialise(self, scale: float | None = None) -> None:
        """Begin with all tokens nearly equally likely; with `scale`, all parameters from (-scale, scale)."""
        ...


# --- full -------------------------------------------------------------------------------------------------------------


@config
class FullSoftmaxConfig:
    kind: Literal["full"] = "full"

    def check(self, hidden: int, vocabulary: int) -> None:
        """Any size will do."""

    def build(self, hidden: int, vocabulary: int, weight: Tensor | None = None) -> "FullSoftmax":
        return FullSoftmax(hidden, vocabulary, weight)


class FullSoftmax(nn.Linear):
    """log p(v) = s_v − log Σ_u exp(s_u),  s = W h + b. `weight` (V, H) may be shared with the token vectors; b may be
    left out."""

    def __init__(self, hidden: int, vocabulary: int, weight: Tensor | None = None, *, bias: bool = True) -> None:
        super().__init__(hidden, vocabulary, bias=bias)
        self.tied = weight is not None
        if weight is not None:
            self.weight = weight

    def initialise(self, scale: float | None = None) -> None:
        if scale is not None and not self.tied:  # a tied matrix is drawn where it belongs
            nn.init.uniform_(self.weight, -scale, scale)
        if self.bias is not None:
            nn.init.zeros_(self.bias) if scale is None else nn.init.uniform_(self.bias, -scale, scale)

    def loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        return self.total_loss(hidden, targets) / len(targets)

    def total_loss(self, hidden: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """The sum over hidden (N, H) and targets (N,) of −log p, smoothed; targets of −100 do not count."""
        return linear_cross_entropy(hidden, self.weight, self.bias, targets, label_smoothing)

    def log_probs(self, hidden: Tensor) -> Tensor:
        return linear_log_softmax(hidden, self.weight, self.bias)

    def target_log_probs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        return target_log_probs(hidden, self.weight, self.bias, targets)


@operation
def next_token_log_probs(output: FullSoftmax, hidden: Tensor) -> Tensor:
    """log p (R, V) of the token after each of hidden (R, H), as a decoder asks for it at every step."""
    return output.log_probs(hidden)


@operation
def best_next_tokens(output: FullSoftmax, hidden: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Of the same the `count` most probable, as `best_tokens` gives them."""
    return best_tokens(output.log_probs(hidden), count)


def score_in_pieces(
    output: OutputLayer, hidden: Tensor, targets: Tensor, prepare: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """log p (N,) of targets (N,) given hidden (N, …), which `prepare` turns into the output layer's input (N, H).

    Logits over the whole vocabulary are computed for `SCORED_AT_ONCE` positions at a time.
    """
    scores = []
    for some, wanted in zip(hidden.split(SCORED_AT_ONCE), targets.split(SCORED_AT_ONCE), strict=True):
        scores.append(output.target_log_probs(some if prepare is None else prepare(some), wanted))
    return torch.cat(scores)


# --- adaptive ---------------------------------------------------------------------------------------------------------


@config
class AdaptiveSoftmaxConfig:
    kind: Literal["adaptive"] = "adaptive"
    cutoffs: tuple[int, ...]  # where the head and each cluster but the last end, in tokens: [2000, 10000]
    factor: float = 4.0  # each cluster's vectors are so many times narrower than those of the one before

    def problems(self) -> Iterator[str]:
        listed = list(self.cutoffs)
        if not listed or listed[0] < 1 or any(a >= b for a, b in pairwise(listed)):
            yield f"cutoffs must be whole numbers above 0, each larger than the one before; got {listed}"
        if self.factor < 1:
            yield f"factor must be at least 1; got {self.factor}"

    def check(self, hidden: int, vocabulary: int) -> None:
        """Does it fit a vocabulary of this size? That is only known once the tokenizer has read the text."""
        if self.cutoffs[-1] >= vocabulary:
            raise UsageError(
                f"model.softmax.cutoffs must be below the size of the vocabulary, which is {vocabulary} tokens here; "
                f"got {list(self.cutoffs)}. Lower them or leave the last ones out, or use model.softmax.kind=full."
            )
        if min(self.widths(hidden)) < 1:
            raise UsageError(
                f"{len(self.cutoffs)} model.softmax.cutoffs make as many clusters, each {self.factor:g} times narrower "
                f"than the one before: of model.hidden {hidden} nothing is left for the last. Use fewer cutoffs, or a "
                "smaller model.softmax.factor."
            )

    def widths(self, hidden: int) -> list[int]:
        """The width of each cluster's vectors."""
        return [int(hidden // self.factor**depth) for depth in range(1, len(self.cutoffs) + 1)]

    def build(self, hidden: int, vocabulary: int, weight: Tensor | None = None) -> "AdaptiveSoftmax":
        if weight is not None:
            raise UsageError("An adaptive softmax has no matrix over the whole vocabulary that could be tied.")
        self.check(hidden, vocabulary)
        return AdaptiveSoftmax(self, hidden, vocabulary)


class AdaptiveSoftmax(nn.Module):
    """Frequent tokens at full width, rare ones in clusters of ever narrower vectors (Grave et al. 2017).

        log p(v) = log softmax(W_0 h + b_0)_v                                              v in the head
                 = log softmax(W_0 h + b_0)_c + log softmax(W_c P_c h)_v                   v in cluster c

    Tokens 0 … cutoffs[0]−1 are the head, so ids must go from frequent to rare. Most targets are in
    the head, and a cluster is computed only for the targets it holds: that is where the time is
    saved.

    Names and shapes of the parameters are those of `torch.nn.AdaptiveLogSoftmaxWithLoss` with a
    head bias. The sums are written anew since that one works in the precision of its input, which
    is too low under autocast.
    """

    def __init__(self, config: AdaptiveSoftmaxConfig, hidden: int, vocabulary: int) -> None:
        super().__init__()
        self.bounds = [*config.cutoffs, vocabulary]
        self.head = nn.Linear(hidden, self.bounds[0] + len(config.cutoffs))
        self.tail = nn.ModuleList(
            nn.Sequential(nn.Linear(hidden, width, bias=False), nn.Linear(width, last - first, bias=False))
            for width, (first, last) in zip(config.widths(hidden), pairwise(self.bounds), strict=True)
        )

    def initialise(self, scale: float | None = None) -> None:
        """A cluster begins as likely as all its tokens together."""
        nn.init.zeros_(self.head.bias)
        if scale is not None:
            for parameter in self.parameters():
                nn.init.uniform_(parameter, -scale, scale)
        sizes = self.head.bias.new_tensor([last - first for first, last in pairwise(self.bounds)])
        with torch.no_grad():
            self.head.bias[self.bounds[0] :] += sizes.log()

    def forward(self, hidden: Tensor) -> Tensor:
        """Log-probabilities, which are logits too."""
        return self.log_probs(hidden)

    def loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        return -self.target_log_probs(hidden, targets).mean()

    def log_probs(self, hidden: Tensor) -> Tensor:
        head = at_least_float32(self.head(hidden)).log_softmax(dim=-1)
        frequent, clusters = head.split([self.bounds[0], len(self.tail)], dim=-1)
        tails = [
            at_least_float32(tail(hidden)).log_softmax(dim=-1) + clusters[..., i, None]
            for i, tail in enumerate(self.tail)
        ]
        return torch.cat([frequent, *tails], dim=-1)

    def target_log_probs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """On a GPU this waits for the device, once for each cluster: how many targets it holds decides its shapes."""
        cluster = torch.bucketize(targets, torch.tensor(self.bounds[:-1], device=targets.device), right=True)  # 0: head
        place = torch.where(cluster == 0, targets, self.bounds[0] - 1 + cluster)
        found = at_least_float32(self.head(hidden)).log_softmax(dim=1).gather(1, place.unsqueeze(1)).squeeze(1)
        for number, tail in enumerate(self.tail, start=1):
            rows = (cluster == number).nonzero().squeeze(1)
            within = (targets[rows] - self.bounds[number - 1]).unsqueeze(1)
            own = at_least_float32(tail(hidden[rows])).log_softmax(dim=1).gather(1, within).squeeze(1)
            found = found.index_add(0, rows, own)
        return found


# --- sampled ----------------------------------------------------------------------------------------------------------


@config
class SampledSoftmaxConfig:
    kind: Literal["sampled"] = "sampled"
    sampler: Sampler = "log-uniform"  # uniform, log-uniform, unigram or blackout
    samples: int = 1000  # tokens drawn for each batch; the whole vocabulary if it has no more
    alpha: float = 0.4  # of unigram and blackout: tokens are drawn in proportion to count^alpha

    def problems(self) -> Iterator[str]:
        if self.samples < 1:
            yield f"samples must be at least 1; got {self.samples}"
        if not 0 <= self.alpha <= 1:
            yield f"alpha must be between 0 and 1; got {self.alpha}"

    def check(self, hidden: int, vocabulary: int) -> None:
        """Any size will do."""

    def build(self, hidden: int, vocabulary: int, weight: Tensor | None = None) -> "SampledSoftmax":
        return SampledSoftmax(self, hidden, vocabulary, weight)


class SampledSoftmax(FullSoftmax):
    """The full softmax, trained on the target y and a set S of K tokens, drawn anew for each batch and shared by it.

        s'_v = s_v − log π_v             π_v, the chance of v to be drawn into S
        p̃    = softmax of s' over {y} ∪ S

        uniform, log-uniform, unigram    loss = −log p̃(y)
        blackout (Ji et al. 2016)        loss = −log p̃(y) − Σ_{v ∈ S, v ≠ y} log(1 − p̃(v))

    A sample that happens to be the target is left out. The samples are distinct: with K = V all
    tokens are drawn, every π is 1, and p̃ is the full softmax. They are the first K arrivals of a
    race in which token v arrives after a time drawn from Exp(q_v); given the time τ of the next
    arrival, π_v = 1 − exp(−q_v τ), and Σ_{v ∈ S} f(v) / π_v is Σ_v f(v) on average. For all but the
    commonest tokens π_v ∝ q_v, and 1/q_v is the weight BlackOut gives them.

        uniform       q_v = 1/V
        log-uniform   q_v ∝ log((v + 2) / (v + 1)), which takes ids to go from frequent to rare
        unigram, blackout   q_v ∝ count_v^α
    """

    proposal: Tensor  # (V,) q, kept with the weights, as it may come from the training text

    def __init__(
        self, config: SampledSoftmaxConfig, hidden: int, vocabulary: int, weight: Tensor | None = None
    ) -> None:
        super().__init__(hidden, vocabulary, weight)
        self.config = config
        self.register_buffer("proposal", torch.full((vocabulary,), 1 / vocabulary))
        if config.sampler == "log-uniform":
            rank = torch.arange(vocabulary, dtype=torch.float64)
            self.proposal.copy_(((rank + 2) / (rank + 1)).log() / math.log(vocabulary + 1))

    def set_counts(self, counts: Tensor) -> None:
        """How often each token (V,) stands in the training text. One never seen counts as seen once."""
        if self.config.sampler in ("unigram", "blackout"):
            powers = counts.clamp(min=1).double() ** self.config.alpha
            self.proposal.copy_(powers / powers.sum())

    def draw(self) -> tuple[Tensor, Tensor]:
        """K different tokens (K,), and of every token (V,) the logarithm of its chance to be among them."""
        vocabulary = len(self.proposal)
        if self.config.samples >= vocabulary:
            return torch.arange(vocabulary, device=self.proposal.device), torch.zeros_like(self.proposal)
        arrival = torch.empty_like(self.proposal).exponential_() / self.proposal
        first, tokens = arrival.topk(self.config.samples + 1, largest=False)
        return tokens[:-1], (-torch.expm1(-self.proposal * first[-1])).log()

    def loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        samples, log_chance = self.draw()
        others = F.linear(hidden, F.embedding(samples, self.weight), self.bias[samples])  # (N, K)
        others = at_least_float32(others) - log_chance[samples]
        others = others.masked_fill(samples == targets.unsqueeze(1), -math.inf)
        own = (hidden * F.embedding(targets, self.weight)).sum(dim=1) + self.bias[targets] - log_chance[targets]  # (N,)
        log_p = torch.cat([at_least_float32(own).unsqueeze(1), others], dim=1).log_softmax(dim=1)  # (N, 1 + K)
        value = -log_p[:, 0]
        if self.config.sampler == "blackout":
            # Where a wrong token has all the probability, the logarithm is cut off and log p̃(y) alone pulls.
            value = value - torch.log1p(-log_p[:, 1:].exp().clamp(max=1 - 1e-6)).sum(dim=1)
        return value.mean()


SoftmaxConfig = Annotated[FullSoftmaxConfig | AdaptiveSoftmaxConfig | SampledSoftmaxConfig, Discriminator("kind")]


def tied_problems(
    tied: bool, softmax: FullSoftmaxConfig | AdaptiveSoftmaxConfig | SampledSoftmaxConfig
) -> Iterator[str]:
    """What is wrong with sharing the embeddings with an output layer."""
    if tied and softmax.kind == "adaptive":
        yield (
            "tied needs one output matrix over all tokens, and an adaptive softmax has several, of different "
            "widths; set tied to false, or softmax.kind to full or sampled"
        )


# --- cross entropy ----------------------------------------------------------------------------------------------------


IGNORE_INDEX = -100  # a target that does not count, as in torch


def at_least_float32(logits: Tensor) -> Tensor:
    """Convert to float32 or better: a softmax over a vocabulary loses too much in half precision."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


@operation
def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, label_smoothing: float = 0.0
) -> Tensor:
    """Sum the losses of hidden (N, H) with targets (N,), W (V, H) and b (V,): a scalar, float32 at least.

    Targets of −100 do not count.
    """
    hidden = zero_padding(hidden, targets != IGNORE_INDEX)
    return summed_cross_entropy(F.linear(hidden, weight, bias), targets, label_smoothing)


@operation
def target_log_probs(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """Return log p (N,) of the targets (N,) given hidden (N, H)."""
    return -F.cross_entropy(at_least_float32(F.linear(hidden, weight, bias)), targets, reduction="none")


@operation
def linear_log_softmax(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return log softmax(W h + b) (…, V) of hidden (…, H)."""
    return at_least_float32(F.linear(hidden, weight, bias)).log_softmax(dim=-1)


@compiled_region
def summed_cross_entropy(logits: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """torch's, summed, of logits (N, V) in any precision and targets (N,).

        loss = log Σ_u exp(s_u) − (1 − ε) · s_y − ε · mean of s

    Written so, a compiler reads the logits once for all three, and once more for their gradient.
    """
    s = at_least_float32(logits)
    if not torch.compiler.is_compiling():
        return F.cross_entropy(s, targets, reduction="sum", label_smoothing=label_smoothing)
    chosen = torch.arange(s.shape[1], device=s.device) == targets.unsqueeze(1)
    losses = s.logsumexp(dim=1) - (1 - label_smoothing) * s.where(chosen, 0).sum(dim=1)
    if label_smoothing:
        losses = losses - label_smoothing * s.mean(dim=1)
    return losses.where(targets != IGNORE_INDEX, 0).sum()


@compiled_region
def consistent_cross_entropy(
    logits: Tensor, targets: Tensor, label_smoothing: float = 0.0, consistency: float = 0.0
) -> Tensor:
    """Of logits (2·N, V), those of N positions twice over: the sum of the losses, and α/2 of their disagreement.

    loss = −(1 − ε) · log p(y) − ε · mean of log p          + α/2 · (KL(p‖q) + KL(q‖p)) of each pair
    """
    log_probs = at_least_float32(logits).log_softmax(dim=-1)  # the costliest there is: once for both
    found = (1 - label_smoothing) * F.nll_loss(log_probs, targets, reduction="sum", ignore_index=IGNORE_INDEX)
    if label_smoothing:
        found = found - label_smoothing * log_probs.mean(dim=1).masked_fill(targets == IGNORE_INDEX, 0).sum()
    return found + consistency / 2 * disagreement(log_probs, targets)


def disagreement(log_probs: Tensor, targets: Tensor) -> Tensor:
    """Σ KL(p‖q) + KL(q‖p) over the targets (2·N,) that count; p is of the first N rows (2·N, V), q of the others."""
    p, q = log_probs.chunk(2)
    apart = ((p.exp() - q.exp()) * (p - q)).sum(dim=-1)
    return apart.masked_fill(targets[: len(apart)] == IGNORE_INDEX, 0).sum()
