"""Refusing a model that cannot fit into memory while it is built, before the tensor that would not fit is made."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from seqloom.core.errors import ResourceError
from seqloom.core.limits import available_memory, format_bytes, largest_settings

UNCHECKED = 1 << 26  # bytes that may be allocated before free memory is looked at again
FACTORIES = {  # operations that allocate, and which of their arguments is the shape
    "empty": 0,
    "empty_strided": 0,
    "zeros": 0,
    "ones": 0,
    "full": 0,
    "rand": 0,
    "randn": 0,
    "new_empty": 1,
    "new_zeros": 1,
    "new_ones": 1,
    "new_full": 1,
}


class TooLargeError(ResourceError):
    """A model needs more memory than there is."""


@contextmanager
def build_within_memory(settings: Mapping[str, Any]) -> Iterator[None]:
    """Raise a TooLargeError that names the largest of `settings` if a model built in this block cannot fit."""
    try:
        with _Watch():
            yield
    except TooLargeError as error:
        named = largest_settings(settings)
        raise TooLargeError(
            f"{error} Make the model smaller; its largest settings are {named}. Set SEQLOOM_MEMORY, say to 64G, if "
            "there is more memory than the system reports."
        ) from None


class _Watch(TorchDispatchMode):
    """Looks at every tensor that is about to be made."""

    def __init__(self) -> None:
        super().__init__()
        self.total = self.unchecked = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        place = FACTORIES.get(operation.overloadpacket.__name__)
        if place is not None and len(args) > place and str(kwargs.get("device", "cpu")) == "cpu":
            self._count(args[place], kwargs.get("dtype"))
        return operation(*args, **kwargs)

    def _count(self, shape: Any, dtype: torch.dtype | None) -> None:
        if not isinstance(shape, list | tuple):
            return
        size = math.prod(map(int, shape)) * (dtype or torch.get_default_dtype()).itemsize
        self.total += size
        self.unchecked += size
        if self.unchecked < UNCHECKED:
            return
        free = available_memory()
        if free is not None and self.unchecked > free:
            raise TooLargeError(
                f"The model does not fit into memory: its tensors reach {format_bytes(self.total)}, the latest of "
                f"shape {tuple(map(int, shape))}, and {format_bytes(free)} are free."
            )
        self.unchecked = 0
