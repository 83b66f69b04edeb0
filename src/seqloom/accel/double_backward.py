"""Gradients that are written by hand and have no gradient of their own."""

import torch


def refuse_double_backward() -> None:
    """Raise if the backward pass that calls this is itself being recorded, because a second derivative is wanted.

    torch's `once_differentiable` refuses later, and not at all where only gradients of named
    tensors are asked for.
    """
    if torch.is_grad_enabled():
        raise RuntimeError(
            "This gradient is computed by hand and cannot be differentiated again. Do without create_graph=True, or "
            "compute within accel.disabled(), which differentiates the definition."
        )
