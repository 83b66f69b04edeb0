"""Devices, CPU threads, seeds, and optional compilers.

Seeds are pure functions: the random numbers of a step depend only on the recipe's seed and the step.

PyTorch computes one partial sum per thread of the gradients of LayerNorm, convolutions and oneDNN's LSTM. A resumed run
therefore gives bit-identical weights only with the same number of threads as before.
"""

import functools
import hashlib
import importlib
import importlib.util
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import torch
from torch import nn

from seqloom.core.errors import ResourceError, UsageError
from seqloom.core.words import format_count

THREADS_VARIABLE = "OMP_NUM_THREADS"  # if set, it determines the number of threads
WITHOUT_NUMBA = "numba is not installed, so training takes several times longer: pip install 'seqloom[fast]'"
Function = Callable[..., Any]


class OnDevice(Protocol):
    """Protocol of models that are not an `nn.Module` but have a `device` attribute."""

    @property
    def device(self) -> torch.device: ...


def choose_device(name: str = "auto") -> torch.device:
    """Return the device with this name; `auto` selects CUDA if available, then Apple's MPS, then the CPU.

    Raise `UsageError` for an unknown name, and `ResourceError` for a device that this machine lacks.
    """
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
        raise UsageError(f"device must be auto, cpu, cuda, cuda:N or mps; got {name!r}.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ResourceError(
            f"device {name} is not available: this machine has {torch.cuda.device_count()} CUDA GPUs. "
            "Use device=auto or cpu, or install a CUDA build of PyTorch."
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ResourceError("device mps is not available on this machine. Use device=auto or cpu.")
    return device


def device_of(model: nn.Module | OnDevice) -> torch.device:
    """Return the device of a model's weights, or its `device` attribute."""
    return next(iter(model.state_dict().values())).device if isinstance(model, nn.Module) else model.device


def make_deterministic() -> None:
    """Use deterministic GPU kernels, which are slower than other kernels; CPU kernels are always deterministic."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)


@functools.cache
def has_triton() -> bool:
    """Return whether Triton kernels can be compiled for a GPU."""
    return importlib.util.find_spec("triton") is not None


@functools.cache
def has_numba() -> bool:
    """Return whether numba can compile. Importing numba is slow, so call this function last."""
    try:
        config: Any = importlib.import_module("numba").config
    except Exception:  # numba is not installed, or incompatible with Python, NumPy or the processor
        return False
    return not config.DISABLE_JIT


def compile_cached(compiler: Function, *signature: object, **options: object) -> Callable[[Function], Any]:
    """Compile with numba's `njit` or `cfunc` and cache the result on disk if possible."""

    def compile_function(function: Function) -> object:
        try:
            return compiler(*signature, cache=True, **options)(function)
        except Exception:  # caching failed: for example no cache folder, a full disk, or a truncated file
            return compiler(*signature, **options)(function)

    return compile_function


def compile_nogil(**options: object) -> Callable[[Function], Function]:
    """Return a decorator that compiles a function with `njit`, releases the GIL, and caches the result on disk."""
    from numba import njit

    return compile_cached(njit, nogil=True, **options)


def available_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # the function is not available on every system
        return os.cpu_count() or 1


def describe_machine(device: torch.device | str) -> str:
    """Return the processor or GPU, and the versions of Python and PyTorch: `NVIDIA H200, Python 3.12.3, …`."""
    device = torch.device(str(device).partition(" ")[0])  # the name may be "cpu (numba)"
    if device.type == "cuda":
        processor = torch.cuda.get_device_name(device)
    else:
        cores = available_cores()
        processor = f"{_cpu_model()}, {cores} {'core' if cores == 1 else 'cores'}"
    return f"{processor}, Python {platform.python_version()}, PyTorch {torch.__version__}, {platform.system()}"


def _cpu_model() -> str:
    """Return the model of the CPU, or its architecture if the system does not state it."""
    with suppress(OSError, UnicodeDecodeError), open("/proc/cpuinfo", encoding="utf-8") as file:  # exists only on Linux
        for line in file:
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    return platform.processor() or platform.machine()


def training_threads(device: torch.device) -> int:
    """Return the number of CPU threads, which affects rounding, or 0 if training does not run on the CPU."""
    return torch.get_num_threads() if device.type == "cpu" else 0


def resume_threads(before: int, device: torch.device) -> str | None:
    """Set the number of CPU threads to `before`, the number before the run was resumed (0 if unknown).

    The current number is kept if `OMP_NUM_THREADS` is set or if this process has too few cores. Return a note if the
    number differs from `before`.
    """
    now, cores = training_threads(device), available_cores()
    if 0 in (before, now) or before == now:
        return None
    if not os.environ.get(THREADS_VARIABLE) and before <= cores:
        torch.set_num_threads(before)
        return (
            f"training continues with {format_count(before, 'CPU thread')}, as before, so that the weights are "
            f"bit-identical; set {THREADS_VARIABLE} to use a different number"
        )
    is_set = os.environ.get(THREADS_VARIABLE)
    reason = f"{THREADS_VARIABLE} is set" if is_set else f"only {format_count(cores, 'core')} can be used"
    return (
        f"training used {format_count(before, 'CPU thread')} and continues with {now}, because {reason}: the weights "
        "may differ in their last bits from the weights of uninterrupted training"
    )


@contextmanager
def preserve_threads() -> Iterator[None]:
    """Restore the number of threads at the end of this block."""
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
    """Seed the random number generators for a step, so that an interruption does not change dropout.

    Seeding a step takes microseconds, and generator states need not be saved. Evaluating, resuming and repeating a
    batch do not change the random numbers of later steps.
    """
    step_seed = derive_seed(seed, "step", step, rank)
    if torch.accelerator.is_available():
        torch.manual_seed(step_seed)
    else:  # equivalent, but does not record a stack trace for devices that are not initialized
        torch.default_generator.manual_seed(step_seed)


def make_generator(seed: int, *path: int | str) -> torch.Generator:
    return torch.Generator().manual_seed(derive_seed(seed, *path))
