"""Hard attention: for each token, the decoder reads one sampled position of the source (Xu et al. 2015).

    a_t ~ α_t,  c_t = h_{a_t}                           instead of c_t = Σ_j α_tj h_j
    R_t = Σ_{u ≥ t} log p(y_u | y_1 … y_{u-1}, a_1 … a_u, x)
    hard loss = −R_1 − λ Σ_t (R_t − b_t) log α_{t,a_t} − η Σ_t H(α_t)
    loss = q · hard loss + (1 − q) · soft loss

c_t is not a differentiable function of α_t, so the second term trains the attention by REINFORCE (Williams 1992): its
factor R_t − b_t is a constant. With λ = 1 and η = 0, the expected gradient of the hard loss is that of
−E_a[log p(y | a, x)], an upper bound on −log p(y | x). a_t does not affect earlier tokens, so R_t omits them.

The baseline b_t is R_t of the same text with soft attention, as in self-critical training (Rennie et al. 2017). It does
not depend on a, so it does not change the expected gradient. Only training samples positions. In evaluation and
decoding, c_t is its expectation Σ_j α_tj h_j.
"""

from typing import Annotated

import torch
from torch import Tensor

from seqloom.config import config
from seqloom.config.constraints import Gt, Le, NonNegativeFloat
from seqloom.models.seq2seq import Batch, Seq2Seq, attention_penalty
from seqloom.nn.attention import chosen_positions
from seqloom.nn.softmax import at_least_float32


@config
class HardAttentionConfig:
    mix: Annotated[float, Gt(0), Le(1)] = 0.5  # q, the weight of the hard loss; the soft loss has the weight 1 − q
    reinforce: NonNegativeFloat = 0.1  # λ, the weight of the loss of the sampled positions
    entropy: NonNegativeFloat = 0.001  # η, the weight of the entropy of the attention weights


def hard_attention_loss(
    model: Seq2Seq,
    batch: Batch,
    gumbel: Tensor,
    config: HardAttentionConfig,
    label_smoothing: float = 0.0,
    doubly_stochastic: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return the mean loss over all targets, and their number; see `Seq2Seq.loss`.

    `gumbel` (B, T, S) contains independent values from the standard Gumbel distribution; see `chosen_positions`.
    """
    mask, inputs = batch["target_mask"], batch["inputs"]
    memory = model.encode(batch["source"], batch["source_mask"])
    r, soft_weights, *_ = model.decode(inputs, model.initial_hidden(memory), memory)
    soft_loss, soft_log_p = token_losses(model, r, batch, label_smoothing)
    r, weights, *_ = model.decode(inputs, model.initial_hidden(memory), memory | {"gumbel": gumbel})
    hard_loss, log_p = token_losses(model, r, batch, label_smoothing)
    assert weights is not None and soft_weights is not None
    advantage = (to_go(log_p) - to_go(soft_log_p)).detach()  # R_t − b_t (B, T)
    policy = config.reinforce * advantage * log_policy(weights, gumbel) + config.entropy * entropy(weights)
    hard_loss = hard_loss - policy.masked_fill(~mask, 0).sum()
    total = config.mix * hard_loss + (1 - config.mix) * soft_loss
    if doubly_stochastic:
        penalties = [attention_penalty(each, batch["source_mask"], mask) for each in (weights, soft_weights)]
        total = total + doubly_stochastic * (config.mix * penalties[0] + (1 - config.mix) * penalties[1])
    count = mask.sum().clamp(min=1)
    return total / count, count


def token_losses(model: Seq2Seq, r: Tensor, batch: Batch, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the smoothed loss, summed over all targets, and log p of each target (B, T), 0 at padding."""
    log_probs = model.output.log_probs(model.before_output(r))  # (B, T, V)
    log_p = log_probs.gather(2, batch["targets"].unsqueeze(2)).squeeze(2)
    smoothed = (1 - label_smoothing) * log_p + label_smoothing * log_probs.mean(dim=2)
    padding = ~batch["target_mask"]
    return -smoothed.masked_fill(padding, 0).sum(), log_p.masked_fill(padding, 0)


def draw_gumbel(batch: Batch) -> Tensor:
    """Draw independent values (B, T, S) from the standard Gumbel distribution."""
    B, T = batch["inputs"].shape
    return -torch.empty(B, T, batch["source_mask"].shape[1], device=batch["inputs"].device).exponential_().log()


def log_policy(weights: Tensor, gumbel: Tensor) -> Tensor:
    """Return log α_{t,a_t} (B, T) of the sampled positions."""
    return weights.gather(2, chosen_positions(weights, gumbel).unsqueeze(2)).squeeze(2).log()


def entropy(weights: Tensor) -> Tensor:
    """Return H(α_t) (B, T) in nats."""
    positive = at_least_float32(weights).clamp(min=torch.finfo(torch.float32).tiny)  # the gradient at 0 is infinite
    return torch.special.entr(positive).sum(dim=2)


def to_go(log_p: Tensor) -> Tensor:
    """Return Σ_{u ≥ t} log p_u (B, T) for log p (B, T), which is 0 at padding."""
    return log_p.flip(1).cumsum(dim=1).flip(1)
