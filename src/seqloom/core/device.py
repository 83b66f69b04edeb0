"""Where to compute, and reproducibly: devices, CPU threads, seeds, and the compilers that may be there.

Seeds are pure functions: what is drawn at a step depends on the recipe's seed and that step alone.

PyTorch adds up the gradients of LayerNorm, of convolutions and of oneDNN's LSTM in one part for
each thread. So a training that is resumed ends with the same weights, to the bit, if it has the
number of threads that it had before.
"""

import functools
import hashlib
import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import nn

from seqloom.core.errors import ResourceError, UsageError
from seqloom.core.words import format_count

THREADS_VARIABLE = "OMP_NUM_THREADS"  # whoever sets it decides the number of threads
WITHOUT_NUMBA = "numba is not installed: training takes several times longer. pip install 'seqloom[fast]'"
Function = Callable[..., Any]


class OnDevice(Protocol):
    """A model without modules, which says where it computes."""

    @property
    def device(self) -> torch.device: ...


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


def device_of(model: nn.Module | OnDevice) -> torch.device:
    """Return the device of a model: that of its weights, or its attribute `device`."""
    return next(iter(model.state_dict().values())).device if isinstance(model, nn.Module) else model.device


def make_deterministic() -> None:
    """Use deterministic GPU kernels, which are slower; CPU kernels are always deterministic."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)


@functools.cache
def has_triton() -> bool:
    """Whether kernels of our own can be compiled for a GPU."""
    return importlib.util.find_spec("triton") is not None


@functools.cache
def has_numba() -> bool:
    """Whether numba can compile here. Asking imports it, which takes a while: ask last."""
    try:
        config: Any = importlib.import_module("numba").config
    except Exception:  # not installed, or not for this Python, NumPy or processor
        return False
    return not config.DISABLE_JIT


def compile_cached(compiler: Function, *signature: object, **options: object) -> Callable[[Function], Any]:
    """numba's `njit` or `cfunc`, compiling at once and cached for the next process; where that fails, for this one."""

    def compile_function(function: Function) -> object:
        try:
            return compiler(*signature, cache=True, **options)(function)
        except Exception:  # no folder for the cache, a full disk, a truncated file
            return compiler(*signature, **options)(function)

    return compile_function


def compile_nogil(**options: object) -> Callable[[Function], Function]:
    """`njit` without the GIL, cached for the next process."""
    from numba import njit

    return compile_cached(njit, nogil=True, **options)


def available_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def training_threads(device: torch.device) -> int:
    """The number of threads that the results of a training on this device depend on; 0 if they do not."""
    return torch.get_num_threads() if device.type == "cpu" else 0


def resume_threads(before: int, device: torch.device) -> str | None:
    """Use as many CPU threads as the training used `before` (0: none); a note for the user if that is another number.

    The number stays as it is where `OMP_NUM_THREADS` is set, or where this process has fewer cores
    than that.
    """
    now, cores = training_threads(device), available_cores()
    if 0 in (before, now) or before == now:
        return None
    if not os.environ.get(THREADS_VARIABLE) and before <= cores:
        torch.set_num_threads(before)
        return (
            f"the training continues with {format_count(before, 'CPU thread')}, as before, so that the weights are "
            f"bit-identical; set {THREADS_VARIABLE} to use another number"
        )
    is_set = os.environ.get(THREADS_VARIABLE)
    why = f"{THREADS_VARIABLE} says so" if is_set else f"there are only {format_count(cores, 'core')}"
    return (
        f"the training had {format_count(before, 'CPU thread')} and continues with {now}, since {why}: its weights may "
        "differ in their last bits from those of a training that was never stopped"
    )


@contextmanager
def preserve_threads() -> Iterator[None]:
    """Leave the process with the number of threads it had, whatever a resume set."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


# --- seeds ------------------------------------------------------------------------------------------------------------


def derive_seed(seed: int, *path: int | str) -> int:
    """Derive an independent seed for one purpose."""
    text = "/".join([str(seed), *map(str, path)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def seed_step(seed: int, step: int, rank: int = 0) -> None:
    """Make every random draw of this step (dropout above all) the same whether or not training was interrupted.

    Seeding each step costs microseconds and replaces saved generator states: an evaluation in
    between, a resume, or a batch looked at twice cannot shift the stream of random numbers.
    """
    drawn = derive_seed(seed, "step", step, rank)
    if torch.accelerator.is_available():
        torch.manual_seed(drawn)
    else:  # the same, without noting down the stack for every kind of device that might yet be asked for
        torch.default_generator.manual_seed(drawn)


def make_generator(seed: int, *path: int | str) -> torch.Generator:
    return torch.Generator().manual_seed(derive_seed(seed, *path))
