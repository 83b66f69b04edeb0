"""How much memory an update takes: the most bytes that lay in tensors at once.

Counted are weights, gradients, the optimizer's numbers and everything computed on the way; not the program, the data or
what an allocator keeps in reserve. So the figure is of the model and its batch, whatever else the process has done
before. On a CUDA device PyTorch's allocator counts; elsewhere every operation's results are watched while they live,
which misses only what a kernel uses within itself.
"""

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Peak:
    """`bytes`: the most so far."""

    def __init__(self) -> None:
        self.bytes = 0


@contextmanager
def watch(device: torch.device, kept: Iterable[Tensor]) -> Iterator[Peak]:
    """The peak of what is computed within this block. `kept` are tensors that exist already and count too."""
    peak = Peak()
    living = _Living(peak)
    for tensor in kept:
        living.meet(tensor)
    if device.type != "cuda":
        with living:
            yield peak
        return
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    yield peak
    peak.bytes += torch.cuda.max_memory_allocated(device) - before


class _Living(TorchDispatchMode):
    """Sees the results of every operation, backwards too, and remembers their storages for as long as they live."""

    def __init__(self, peak: Peak) -> None:
        super().__init__()
        self.peak, self.now = peak, 0
        self.known: dict[int, Any] = {}

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operation(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.layout == torch.strided:
                self.meet(leaf)
        return result

    def meet(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()  # shared by all views of it
        name, size = storage._cdata, storage.nbytes()
        if name in self.known or storage.device.type == "meta":
            return
        self.known[name] = weakref.ref(storage, lambda _: self._gone(name, size))
        self.now += size
        self.peak.bytes = max(self.peak.bytes, self.now)

    def _gone(self, name: int, size: int) -> None:
        del self.known[name]
        self.now -= size
