"""Output layers, which map a hidden state to the probabilities of all tokens.

    full       p(v) = exp(s_v) / Σ_u exp(s_u),   s = W h + b
    adaptive   p(v) = p(v | head)                               for the frequent tokens
                    = p(cluster | head) · p(v | cluster)         for the others
    sampled    trained with a random sample of tokens, evaluated like full

The loss is −Σ_v t_v log p(v) with t = (1 − ε) · [v = y] + ε/V. All output layers have the same interface: `loss` for
training, and the exact `log_probs` and `target_log_probs` for evaluation and decoding.
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

SCORED_POSITIONS = 2048  # number of positions whose logits over the vocabulary are in memory at the same time
Sampler = Literal["uniform", "log-uniform", "unigram", "blackout"]


@runtime_checkable
class OutputLayer(Protocol):
    """The interface of output layers. The N positions of hidden states and targets may have any order."""

    def loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return the training loss in nats, the mean over hidden (N, H) and targets (N,)."""
        ...

    def log_probs(self, hidden: Tensor) -> Tensor:
        """Map hidden states (…, H) to the exact log-probabilities (…, V)."""
        ...

    def target_log_probs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return the exact log-probability (N,) of each target (N,) given hidden (N, H)."""
        ...

    def initialize(self, scale: float | None = None) -> None:
        """Initialize the layer to nearly uniform probabilities.

        With `scale`, draw all parameters from (-scale, scale).
        """
        ...


# --- full -------------------------------------------------------------------------------------------------------------


@config
class FullSoftmaxConfig:
    kind: Literal["full"] = "full"

    def check(self, hidden: int, vocabulary: int) -> None:
        """Accept any size."""

    def build(self, hidden: int, vocabulary: int, weight: Tensor | None = None) -> "FullSoftmax":
        return FullSoftmax(hidden, vocabulary, weight)


class FullSoftmax(nn.Linear):
    """log p(v) = s_v − log Σ_u exp(s_u),  s = W h + b

    `weight` (V, H) may be tied to the embeddings. b is optional."""

    def __init__(self, hidden: int, vocabulary: int, weight: Tensor | None = None, *, bias: bool = True) -> None:
        super().__init__(hidden, vocabulary, bias=bias)
        self.tied = weight is not None
        if weight is not None:
            self.weight = weight

    def initialize(self, scale: float | None = None) -> None:
        if scale is not None and not self.tied:  # a tied matrix is initialized by the embedding
            nn.init.uniform_(self.weight, -scale, scale)
        if self.bias is not None:
            nn.init.zeros_(self.bias) if scale is None else nn.init.uniform_(self.bias, -scale, scale)

    def loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        return self.total_loss(hidden, targets) / len(targets)

    def total_loss(self, hidden: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """Sum the smoothed −log p over hidden (N, H) and targets (N,). Targets of −100 are ignored."""
        return linear_cross_entropy(hidden, self.weight, self.bias, targets, label_smoothing)

    def log_probs(self, hidden: Tensor) -> Tensor:
        return linear_log_softmax(hidden, self.weight, self.bias)

    def target_log_probs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        return target_log_probs(hidden, self.weight, self.bias, targets)


@operation
def next_token_log_probs(output: FullSoftmax, hidden: Tensor) -> Tensor:
    """Return the log-probabilities (R, V) of the next token given hidden (R, H), for one decoding step."""
    return output.log_probs(hidden)


@operation
def best_next_tokens(output: FullSoftmax, hidden: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` most probable next tokens; see `best_tokens`."""
    return best_tokens(output.log_probs(hidden), count)


def score_in_pieces(
    output: OutputLayer, hidden: Tensor, targets: Tensor, prepare: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """Compute log p (N,) of targets (N,) given hidden (N, …), `SCORED_POSITIONS` positions at a time.

    `prepare` maps `hidden` to the input (N, H) of the output layer.
    """
    scores = []
    for piece, piece_targets in zip(hidden.split(SCORED_POSITIONS), targets.split(SCORED_POSITIONS), strict=True):
        scores.append(output.target_log_probs(piece if prepare is None else prepare(piece), piece_targets))
    return torch.cat(scores)


# --- adaptive ---------------------------------------------------------------------------------------------------------


@config
class AdaptiveSoftmaxConfig:
    kind: Literal["adaptive"] = "adaptive"
    cutoffs: tuple[int, ...]  # first token id of each cluster, in increasing order
    factor: float = 4.0  # factor by which the size of the vectors decreases from one cluster to the next

    def problems(self) -> Iterator[str]:
        listed = list(self.cutoffs)
        if not listed or listed[0] < 1 or any(a >= b for a, b in pairwise(listed)):
            yield f"cutoffs must be ascending positive integers; got {listed}"
        if self.factor < 1:
            yield f"factor must be at least 1; got {self.factor}"

    def check(self, hidden: int, vocabulary: int) -> None:
        """Raise `UsageError` if the vocabulary, whose size depends on the tokenizer, is too small for the cutoffs."""
        if self.cutoffs[-1] >= vocabulary:
            raise UsageError(
                f"model.softmax.cutoffs must be below the size of the vocabulary, {vocabulary} tokens; "
                f"got {list(self.cutoffs)}. Lower or remove the last cutoffs, or use model.softmax.kind=full."
            )
        if min(self.widths(hidden)) < 1:
            raise UsageError(
                f"The last cluster of the softmax would have 0 dimensions: model.hidden={hidden}, {len(self.cutoffs)} "
                f"model.softmax.cutoffs, factor {self.factor:g}. Use fewer cutoffs, or a smaller model.softmax.factor."
            )

    def widths(self, hidden: int) -> list[int]:
        """Return the vector size of each cluster."""
        return [int(hidden // self.factor**depth) for depth in range(1, len(self.cutoffs) + 1)]

    def build(self, hidden: int, vocabulary: int, weight: Tensor | None = None) -> "AdaptiveSoftmax":
        if weight is not None:
            raise UsageError("An adaptive softmax has no single matrix for all tokens that could be tied.")
        self.check(hidden, vocabulary)
        return AdaptiveSoftmax(self, hidden, vocabulary)


class AdaptiveSoftmax(nn.Module):
    """Adaptive softmax (Grave et al. 2017): frequent tokens in the head, rare tokens in clusters with smaller vectors.

        log p(v) = log softmax(W_0 h + b_0)_v                                              v in the head
                 = log softmax(W_0 h + b_0)_c + log softmax(W_c P_c h)_v                   v in cluster c

    Tokens 0 … cutoffs[0]−1 are the head, so ids must be sorted by frequency. A cluster is computed only for its own
    targets, and most targets are in the head.

    Parameters have the names and shapes of `torch.nn.AdaptiveLogSoftmaxWithLoss` with a head bias. Unlike that module,
    this class computes in at least float32, even under autocast.
    """

    def __init__(self, config: AdaptiveSoftmaxConfig, hidden: int, vocabulary: int) -> None:
        super().__init__()
        self.bounds = [*config.cutoffs, vocabulary]
        self.head = nn.Linear(hidden, self.bounds[0] + len(config.cutoffs))
        self.tail = nn.ModuleList(
            nn.Sequential(nn.Linear(hidden, width, bias=False), nn.Linear(width, last - first, bias=False))
            for width, (first, last) in zip(config.widths(hidden), pairwise(self.bounds), strict=True)
        )

    def initialize(self, scale: float | None = None) -> None:
        """Initialize each cluster with the total probability of its tokens."""
        nn.init.zeros_(self.head.bias)
        if scale is not None:
            for parameter in self.parameters():
                nn.init.uniform_(parameter, -scale, scale)
        sizes = self.head.bias.new_tensor([last - first for first, last in pairwise(self.bounds)])
        with torch.no_grad():
            self.head.bias[self.bounds[0] :] += sizes.log()

    def forward(self, hidden: Tensor) -> Tensor:
        """Return log-probabilities, which are valid logits."""
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
        """Return the exact log-probabilities. On a GPU, this method synchronizes once per cluster."""
        cluster = torch.bucketize(targets, torch.tensor(self.bounds[:-1], device=targets.device), right=True)  # 0: head
        column = torch.where(cluster == 0, targets, self.bounds[0] - 1 + cluster)
        log_p = at_least_float32(self.head(hidden)).log_softmax(dim=1).gather(1, column.unsqueeze(1)).squeeze(1)
        for number, tail in enumerate(self.tail, start=1):
            rows = (cluster == number).nonzero().squeeze(1)
            within = (targets[rows] - self.bounds[number - 1]).unsqueeze(1)
            tail_log_p = at_least_float32(tail(hidden[rows])).log_softmax(dim=1).gather(1, within).squeeze(1)
            log_p = log_p.index_add(0, rows, tail_log_p)
        return log_p


# --- sampled ----------------------------------------------------------------------------------------------------------


@config
class SampledSoftmaxConfig:
    kind: Literal["sampled"] = "sampled"
    sampler: Sampler = "log-uniform"  # uniform, log-uniform, unigram or blackout
    samples: int = 1000  # number of tokens drawn per batch, at most the vocabulary size
    alpha: float = 0.4  # unigram, blackout: tokens are drawn in proportion to count^alpha

    def problems(self) -> Iterator[str]:
        if self.samples < 1:
            yield f"samples must be at least 1; got {self.samples}"
        if not 0 <= self.alpha <= 1:
            yield f"alpha must be between 0 and 1; got {self.alpha}"

    def check(self, hidden: int, vocabulary: int) -> None:
        """Accept any size."""

    def build(self, hidden: int, vocabulary: int, weight: Tensor | None = None) -> "SampledSoftmax":
        return SampledSoftmax(self, hidden, vocabulary, weight)


class SampledSoftmax(FullSoftmax):
    """The full softmax, trained with the target y and a set S of K tokens that is drawn for each batch.

        s'_v = s_v − log π_v             π_v is the probability that v is in S
        p̃    = softmax of s' over {y} ∪ S

        uniform, log-uniform, unigram    loss = −log p̃(y)
        blackout (Ji et al. 2016)        loss = −log p̃(y) − Σ_{v ∈ S, v ≠ y} log(1 − p̃(v))

    A sample that equals the target is ignored. Samples are drawn without replacement: with K = V, every π is 1, and p̃
    is the full softmax. The samples are the K tokens with the smallest arrival times, which are drawn from Exp(q_v).
    Given the next arrival time τ, π_v = 1 − exp(−q_v τ), and Σ_{v ∈ S} f(v) / π_v is an unbiased estimate of Σ_v f(v).
    For all but the most frequent tokens, π_v ∝ q_v, and 1/q_v is the weight in BlackOut.

        uniform       q_v = 1/V
        log-uniform   q_v ∝ log((v + 2) / (v + 1)), for ids sorted by frequency
        unigram, blackout   q_v ∝ count_v^α
    """

    proposal: Tensor  # q (V,), saved with the weights, because it may depend on the training text

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
        """Set the token counts (V,) of the training text. A count of 0 is treated as 1."""
        if self.config.sampler in ("unigram", "blackout"):
            powers = counts.clamp(min=1).double() ** self.config.alpha
            self.proposal.copy_(powers / powers.sum())

    def draw(self) -> tuple[Tensor, Tensor]:
        """Draw K distinct tokens (K,). Return the tokens, and the log-probability that each token (V,) is drawn."""
        vocabulary = len(self.proposal)
        if self.config.samples >= vocabulary:
            return torch.arange(vocabulary, device=self.proposal.device), torch.zeros_like(self.proposal)
        arrival = torch.empty_like(self.proposal).exponential_() / self.proposal
        first, tokens = arrival.topk(self.config.samples + 1, largest=False)
        return tokens[:-1], (-torch.expm1(-self.proposal * first[-1])).log()

    def loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        samples, log_pi = self.draw()
        others = F.linear(hidden, F.embedding(samples, self.weight), self.bias[samples])  # (N, K)
        others = at_least_float32(others) - log_pi[samples]
        others = others.masked_fill(samples == targets.unsqueeze(1), -math.inf)
        target = (hidden * F.embedding(targets, self.weight)).sum(dim=1) + self.bias[targets] - log_pi[targets]  # (N,)
        log_p = torch.cat([at_least_float32(target).unsqueeze(1), others], dim=1).log_softmax(dim=1)  # (N, 1 + K)
        value = -log_p[:, 0]
        if self.config.sampler == "blackout":
            # If a wrong token has probability 1, the logarithm is clipped, and only log p̃(y) has a gradient.
            value = value - torch.log1p(-log_p[:, 1:].exp().clamp(max=1 - 1e-6)).sum(dim=1)
        return value.mean()


SoftmaxConfig = Annotated[FullSoftmaxConfig | AdaptiveSoftmaxConfig | SampledSoftmaxConfig, Discriminator("kind")]


def tied_problems(
    tied: bool, softmax: FullSoftmaxConfig | AdaptiveSoftmaxConfig | SampledSoftmaxConfig
) -> Iterator[str]:
    """Yield a message if the embeddings cannot be tied to the output layer."""
    if tied and softmax.kind == "adaptive":
        yield (
            "tied needs one output matrix for all tokens, but an adaptive softmax has several of different "
            "sizes; set tied to false, or softmax.kind to full or sampled"
        )


# --- cross entropy ----------------------------------------------------------------------------------------------------


IGNORE_INDEX = -100  # targets with this value are ignored, as in torch


def at_least_float32(logits: Tensor) -> Tensor:
    """Convert logits to at least float32, because half precision is too coarse for a softmax over a vocabulary."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


@operation
def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, label_smoothing: float = 0.0
) -> Tensor:
    """Sum the losses of hidden (N, H) and targets (N,) with W (V, H) and b (V,), in at least float32.

    Targets of −100 are ignored.
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
    """Sum torch's cross-entropy over logits (N, V) in any precision and targets (N,).

        loss = log Σ_u exp(s_u) − (1 − ε) · s_y − ε · mean of s

    In this form, compiled code reads the logits once for all three terms, and once more for the gradient.
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
    """Sum the cross-entropy and the consistency loss of logits (2·N, V).

    The logits of the N positions are computed twice, with different dropout masks.

    loss = −(1 − ε) · log p(y) − ε · mean of log p          + α/2 · (KL(p‖q) + KL(q‖p)) of each pair
    """
    log_probs = at_least_float32(logits).log_softmax(dim=-1)  # the most expensive part, which both terms share
    loss = (1 - label_smoothing) * F.nll_loss(log_probs, targets, reduction="sum", ignore_index=IGNORE_INDEX)
    if label_smoothing:
        loss = loss - label_smoothing * log_probs.mean(dim=1).masked_fill(targets == IGNORE_INDEX, 0).sum()
    return loss + consistency / 2 * symmetric_kl(log_probs, targets)


def symmetric_kl(log_probs: Tensor, targets: Tensor) -> Tensor:
    """Return Σ KL(p‖q) + KL(q‖p) over the targets (2·N,) that are not ignored.

    p is the first half of `log_probs` (2·N, V), and q the second half.
    """
    p, q = log_probs.chunk(2)
    divergence = ((p.exp() - q.exp()) * (p - q)).sum(dim=-1)
    return divergence.masked_fill(targets[: len(divergence)] == IGNORE_INDEX, 0).sum()
