"""Machine code by numba (extra `fast`), which may be missing, broken or turned off, and may have nowhere to write."""

import functools
import importlib
from collections.abc import Callable
from typing import Any


@functools.cache
def usable() -> bool:
    """Whether numba compiles here. To ask loads it, which takes a while: ask last."""
    try:
        config: Any = importlib.import_module("numba").config
    except Exception:  # not installed, or not for this Python, NumPy or processor
        return False
    return not config.DISABLE_JIT


def kept(compiler: Callable[..., Any], *signature: Any, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """numba's `njit` or `cfunc`, compiling at once and for the next processes; where that fails, for this one alone."""

    def compiled(function: Callable[..., Any]) -> Any:
        try:
            return compiler(*signature, cache=True, **options)(function)
        except Exception:  # no folder to keep it in, a full disk, a file that was cut off
            return compiler(*signature, **options)(function)

    return compiled
