"""Loops compiled for a CPU by numba (extra `fast`), where it is installed."""

import importlib.util
from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]
WITHOUT = "numba is not installed: training takes several times longer. pip install 'seqloom[fast]'"


def installed() -> bool:
    return importlib.util.find_spec("numba") is not None


def compiler(**options: Any) -> Callable[[Function], Function]:
    """What makes machine code of a function. It holds no lock of Python's, and is kept for the next process."""
    from numba import njit

    def compiled(function: Function) -> Function:
        made: Function
        try:
            made = njit(nogil=True, cache=True, **options)(function)
        except RuntimeError:  # there is no folder to keep it in: it is compiled in each process
            made = njit(nogil=True, **options)(function)
        return made

    return compiled
