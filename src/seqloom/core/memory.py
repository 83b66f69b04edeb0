"""Memory of tensors: refuse a model that cannot fit while it is built, and measure the peak of a computation.

Counted are weights, gradients, the optimizer's numbers and everything computed on the way; not the
program, the data or what an allocator keeps in reserve. So a peak is that of the model and its
batch, whatever else the process has done before. On a CUDA device PyTorch's allocator counts;
elsewhere every operation's results are watched while they live, which misses only what a kernel
uses within itself.
"""

import math
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from seqloom.core.errors import ResourceError
from seqloom.core.limits import available_memory, format_bytes, list_largest_settings

UNCHECKED_BYTES = 1 << 26  # that may be allocated before free memory is looked at again
FIRST_IS_SHAPE = {"empty", "empty_strided", "zeros", "ones", "full", "rand", "randn"}  # operations that allocate
SECOND_IS_SHAPE = {"new_empty", "new_zeros", "new_ones", "new_full"}


class TooLargeError(ResourceError):
    """A model needs more memory than there is."""


@contextmanager
def build_within_memory(settings: Mapping[str, object]) -> Iterator[None]:
    """Raise a TooLargeError that names the largest of `settings` if a model built in this block cannot fit."""
    try:
        with _AllocationGuard():
            yield
    except TooLargeError as error:
        raise TooLargeError(
            f"{error} Make the model smaller; its largest settings are {list_largest_settings(settings)}. Set "
            "SEQLOOM_MEMORY, say to 64G, if there is more memory than the system reports."
        ) from None


class _AllocationGuard(TorchDispatchMode):
    """Looks at every tensor before it is allocated."""

    def __init__(self) -> None:
        super().__init__()
        self.total = self.unchecked = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = operation.overloadpacket.__name__
        shape = args[: 1 + (name in SECOND_IS_SHAPE)][-1:] if name in FIRST_IS_SHAPE | SECOND_IS_SHAPE else ()
        if shape and isinstance(shape[0], list | tuple) and str(kwargs.get("device", "cpu")) == "cpu":
            self.count(tuple(map(int, shape[0])), kwargs.get("dtype") or torch.get_default_dtype())
        return operation(*args, **kwargs)

    def count(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Add the bytes of a tensor; `TooLargeError` if what was not checked yet exceeds the free memory."""
        size = math.prod(shape) * dtype.itemsize
        self.total, self.unchecked = self.total + size, self.unchecked + size
        if self.unchecked < UNCHECKED_BYTES:
            return
        free = available_memory()
        if free is not None and self.unchecked > free:
            raise TooLargeError(
                f"The model does not fit into memory: its tensors reach {format_bytes(self.total)}, the latest of "
                f"shape {shape}, and {format_bytes(free)} are free."
            )
        self.unchecked = 0


class Peak:
    """`bytes`: the most so far."""

    def __init__(self) -> None:
        self.bytes = 0


@contextmanager
def measure_peak(device: torch.device, kept: Iterable[Tensor]) -> Iterator[Peak]:
    """The peak of what is computed within this block. `kept` are tensors that exist already and count too."""
    peak = Peak()
    storages = _LiveStorages(peak)
    for tensor in kept:
        storages.add(tensor)
    if device.type != "cuda":
        with storages:
            yield peak
        return
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    yield peak
    peak.bytes += torch.cuda.max_memory_allocated(device) - before


class _LiveStorages(TorchDispatchMode):
    """Sees the results of every operation, backwards too, and remembers their storages for as long as they live."""

    def __init__(self, peak: Peak) -> None:
        super().__init__()
        self.peak, self.bytes = peak, 0
        self.known: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operation(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.layout == torch.strided:
                self.add(leaf)
        return result

    def add(self, tensor: Tensor) -> None:
        """Count the storage of a tensor, which all views of it share, unless it is known."""
        storage = tensor.untyped_storage()
        name, size = storage._cdata, storage.nbytes()
        if name in self.known or storage.device.type == "meta":
            return

        def forget(_: object) -> None:
            del self.known[name]
            self.bytes -= size

        self.known[name] = weakref.ref(storage, forget)
        self.bytes += size
        self.peak.bytes = max(self.peak.bytes, self.bytes)
