"""Saturation of the attention softmax for large d_k, with and without dividing the scores by √d_k (C12).

The entries of one query and S keys are drawn from N(0, 1), roughly as in an untrained Transformer. A sum of d_k
products has variance d_k. Without the division, the largest score therefore dominates:

    entropy    −Σ α_j log α_j, relative to log S: 1 for uniform weights, 0 for a single position
    largest    max_j α_j
    gradient   ‖∂α/∂e‖, the Frobenius norm of diag(α) − α αᵀ: the gradient that reaches the scores

    python benchmarks/attention_scale.py --keys 32 --queries 2000 --seed 1
"""

import argparse
import math

import torch
from torch import Tensor


def measure(e: Tensor) -> tuple[float, float, float]:
    """Return the means of entropy, largest weight and gradient of scores (Q, S)."""
    a = e.softmax(-1)
    entropy = -(a * e.log_softmax(-1)).sum(-1) / math.log(e.shape[-1])
    jacobian = torch.diag_embed(a) - a.unsqueeze(-1) * a.unsqueeze(-2)  # (Q, S, S)
    return entropy.mean().item(), a.amax(-1).mean().item(), jacobian.norm(dim=(-2, -1)).mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=[8, 16, 32, 64, 128, 256, 512], help="d_k")
    parser.add_argument("--keys", type=int, default=32, help="S")
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    generator = torch.Generator().manual_seed(arguments.seed)
    print(f"{arguments.queries:,} queries, {arguments.keys} keys, N(0, 1), seed {arguments.seed}")
    print(f"{'':>5}   {'e = q·k':^27}   {'e = q·k / √d_k':^27}")
    print(f"{'d_k':>5}   " + "   ".join([f"{'entropy':>8} {'largest':>8} {'gradient':>9}"] * 2))
    for width in arguments.widths:
        q = torch.randn(arguments.queries, 1, width, generator=generator)
        k = torch.randn(arguments.queries, arguments.keys, width, generator=generator)
        e = (q * k).sum(-1)
        plain, scaled = measure(e), measure(e / math.sqrt(width))
        print(
            f"{width:>5}   "
            + "   ".join(f"{means[0]:>8.3f} {means[1]:>8.3f} {means[2]:>9.4f}" for means in (plain, scaled))
        )


if __name__ == "__main__":
    main()
