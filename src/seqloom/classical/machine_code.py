"""Loops compiled for a CPU by numba (extra `fast`), where it works."""

from collections.abc import Callable
from typing import Any

from seqloom.core.machine_code import kept

Function = Callable[..., Any]
WITHOUT = "numba is not installed: training takes several times longer. pip install 'seqloom[fast]'"


def compiler(**options: Any) -> Callable[[Function], Function]:
    """What makes machine code of a function. It holds no lock of Python's, and is kept for the next process."""
    from numba import njit

    return kept(njit, nogil=True, **options)
