"""Compilation by numba (extra `fast`), which may have nowhere to write its cache."""

from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]


def compile_cached(compiler: Function, *signature: Any, **options: Any) -> Callable[[Function], Any]:
    """numba's `njit` or `cfunc`, compiling at once and cached for the next process; where that fails, for this one."""

    def compiled(function: Function) -> Any:
        try:
            return compiler(*signature, cache=True, **options)(function)
        except Exception:  # no folder for the cache, a full disk, a truncated file
            return compiler(*signature, **options)(function)

    return compiled


def compiler(**options: Any) -> Callable[[Function], Function]:
    """`njit` without the GIL, cached for the next process."""
    from numba import njit

    return compile_cached(njit, nogil=True, **options)
