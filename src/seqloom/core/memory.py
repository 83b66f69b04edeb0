"""Memory of tensors: reject models that do not fit, and measure the peak memory of a computation.

The peak includes weights, gradients, optimizer state and intermediate results, but not the program, the data or memory
that an allocator reserves. The peak therefore depends only on the model and its batch, not on earlier computations. On
CUDA devices, PyTorch's allocator measures the peak. On other devices, this module tracks the results of all operations,
but not temporary buffers inside kernels.
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

UNCHECKED_BYTES = 1 << 26  # number of bytes that may be allocated between two checks of the free memory
# Operations that allocate a tensor, grouped by the position of the shape among their arguments.
FIRST_IS_SHAPE = {"empty", "empty_strided", "zeros", "ones", "full", "rand", "randn"}
SECOND_IS_SHAPE = {"new_empty", "new_zeros", "new_ones", "new_full"}


class TooLargeError(ResourceError):
    """A model needs more memory than is available."""


@contextmanager
def build_within_memory(settings: Mapping[str, object]) -> Iterator[None]:
    """Raise a TooLargeError with the largest of `settings` if a model built in this block does not fit."""
    try:
        with _AllocationGuard():
            yield
    except TooLargeError as error:
        raise TooLargeError(
            f"{error} Make the model smaller; its largest settings are {list_largest_settings(settings)}. Set "
            "SEQLOOM_MEMORY, for example to 64G, if the machine has more memory than the system reports."
        ) from None


class _AllocationGuard(TorchDispatchMode):
    """A mode that checks the size of every tensor before its allocation."""

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
        """Add the bytes of a tensor; raise `TooLargeError` if the unchecked bytes exceed the free memory."""
        size = math.prod(shape) * dtype.itemsize
        self.total, self.unchecked = self.total + size, self.unchecked + size
        if self.unchecked < UNCHECKED_BYTES:
            return
        free = available_memory()
        if free is not None and self.unchecked > free:
            raise TooLargeError(
                f"The model does not fit into memory: its tensors already need {format_bytes(self.total)}, and only "
                f"{format_bytes(free)} is free. The last tensor has the shape {shape}."
            )
        self.unchecked = 0


class Peak:
    """The peak memory so far, in `bytes`."""

    def __init__(self) -> None:
        self.bytes = 0


@contextmanager
def measure_peak(device: torch.device, existing: Iterable[Tensor]) -> Iterator[Peak]:
    """Measure the peak memory of this block, including the `existing` tensors."""
    peak = Peak()
    storages = _LiveStorages(peak)
    for tensor in existing:
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
    """A mode that tracks the storages of all live results, including results of the backward pass."""

    def __init__(self, peak: Peak) -> None:
        super().__init__()
        self.peak, self.bytes = peak, 0
        self.storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operation(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.layout == torch.strided:
                self.add(leaf)
        return result

    def add(self, tensor: Tensor) -> None:
        """Count the storage of a tensor, which all its views share, unless the storage is already counted."""
        storage = tensor.untyped_storage()
        name, size = storage._cdata, storage.nbytes()
        if name in self.storages or storage.device.type == "meta":
            return

        def discard(_: object) -> None:
            del self.storages[name]
            self.bytes -= size

        self.storages[name] = weakref.ref(storage, discard)
        self.bytes += size
        self.peak.bytes = max(self.peak.bytes, self.bytes)
