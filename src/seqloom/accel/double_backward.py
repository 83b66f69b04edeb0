"""Check for hand-written gradients, which cannot be differentiated again."""

import torch


def refuse_double_backward() -> None:
    """Raise an error if autograd records the calling backward pass for a second derivative.

    torch's `once_differentiable` raises its error later, and raises no error if `torch.autograd.grad` names the
    tensors.
    """
    if torch.is_grad_enabled():
        raise RuntimeError(
            "This hand-written gradient cannot be differentiated again. Remove create_graph=True, or compute within "
            "accel.disabled(), which differentiates the reference implementation."
        )
