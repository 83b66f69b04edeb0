"""Functions whose gradient is written by hand, and has no gradient of its own."""

import torch


def only_once() -> None:
    """To be called in their `backward`: that records what it does only where a gradient of the gradient is wanted.

    torch's `once_differentiable` refuses later, and not at all where only gradients of named tensors are asked for.
    """
    if torch.is_grad_enabled():
        raise RuntimeError(
            "This gradient was written by hand and cannot be differentiated again. Without create_graph=True it can be "
            "had; recurrent layers have one that can be, with fused=False."
        )
