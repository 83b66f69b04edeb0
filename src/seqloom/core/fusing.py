"""Functions that a compiler may make one kernel of many of.

A function marked `fusible` is an ordinary one. Within `fusing()` it goes through `torch.compile`, once for all who call
it: the blocks of a stack are the same function, so a deep model takes no longer to compile than one block. What comes
out is the same but for rounding, and for the numbers that dropout draws.
"""

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import torch

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Fusing:
    dynamic: bool = False  # whether one compilation is to do for all shapes; each then is a little slower
    backend: str = "inductor"


_now: Fusing | None = None


@contextmanager
def fusing(wanted: Fusing | None) -> Iterator[None]:
    """Within this block fusible functions are compiled as is wanted; None leaves them as they are."""
    global _now
    if wanted is not None:
        _keep_what_is_compiled()
    before, _now = _now, wanted
    try:
        yield
    finally:
        _now = before


def fusible(function: Callable[P, R]) -> Callable[P, R]:
    @functools.cache
    def compiled(how: Fusing) -> Any:
        return torch.compile(function, dynamic=how.dynamic, backend=how.backend, options=_options(how.backend))

    @functools.wraps(function)
    def either(*arguments: P.args, **named: P.kwargs) -> R:
        return cast(R, (function if _now is None else compiled(_now))(*arguments, **named))

    return either


# The gradient of a norm is a sum over each row for what the norm read, and one over each column for its own weights. In
# one kernel for both, as inductor would have it, the columns slow down the rows: a block's norms took twice as long.
WISHES = {"triton.mix_order_reduction": False}


@functools.cache
def _options(backend: str) -> dict[str, Any] | None:
    """Of our wishes those that this version of torch knows."""
    if backend != "inductor":
        return None
    known = torch._inductor.list_options()
    return {name: value for name, value in WISHES.items() if name in known}


@functools.cache
def _keep_what_is_compiled() -> None:
    """Kernels are kept for the next run in the user's cache folder; torch's own choice does not outlive a restart."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seqloom" / "kernels"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return  # no home, or none to write to: they are made anew
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))
