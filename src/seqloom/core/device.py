"""Which device to compute on: named, or the best there is."""

import functools
import importlib
import importlib.util
import os
from typing import Any

import torch
from torch import nn

from seqloom.core.errors import ResourceError, UsageError


def choose_device(name: str = "auto") -> torch.device:
    """`auto` takes CUDA, then Apple's MPS, then the CPU; any other name must exist on this machine."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    device: torch.device | None
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda", "mps"):
        raise UsageError(f"device must be auto, cpu, cuda, cuda:N or mps, got {name!r}.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ResourceError(
            f"device {name} was asked for, but this machine shows {torch.cuda.device_count()} CUDA GPUs. "
            "Use device=auto or cpu, or install a CUDA build of PyTorch."
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ResourceError("device mps was asked for, but this machine has none. Use device=auto or cpu.")
    return device


def device_of(model: Any) -> torch.device:
    """The device on which a model computes: that of its weights, or what a model without modules says."""
    device: torch.device
    device = next(iter(model.state_dict().values())).device if isinstance(model, nn.Module) else model.device
    return device


@functools.cache
def has_triton() -> bool:
    """Whether kernels of our own can be compiled for a GPU."""
    return importlib.util.find_spec("triton") is not None


WITHOUT_NUMBA = "numba is not installed: training takes several times longer. pip install 'seqloom[fast]'"


@functools.cache
def has_numba() -> bool:
    """Whether numba can compile here. Asking imports it, which takes a while: ask last."""
    try:
        config: Any = importlib.import_module("numba").config
    except Exception:  # not installed, or not for this Python, NumPy or processor
        return False
    return not config.DISABLE_JIT


def make_deterministic() -> None:
    """Ask every kernel for the same answer each time, at some cost in speed (GPU only: the CPU's already do)."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
