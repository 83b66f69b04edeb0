"""`torch.compile` for the regions that `seqloom.core.operations.compiled_region` marks.

A region is compiled once for all who call it: the blocks of a stack are the same function, so a
deep model takes no longer to compile than one block. Results are the same but for rounding, and for
the numbers that dropout draws.
"""

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

# The gradient of a norm is a sum over each row for its input, and one over each column for its own weights. In one
# kernel for both, as inductor would have it, the columns slow down the rows: a block's norms took twice as long.
INDUCTOR_OPTIONS = {"triton.mix_order_reduction": False}


@dataclass(frozen=True)
class RegionCompiler:
    """Compiles regions; each one once for all compilers with the same settings."""

    dynamic: bool = False  # whether one compilation is to do for all shapes; each then is a little slower
    backend: str = "inductor"

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        _set_cache_folder()
        compiled: Callable[P, R] = _compile(function, self)
        return compiled


@functools.cache
def _compile(function: Callable[..., Any], compiler: RegionCompiler) -> Any:
    options: dict[str, Any] | None = None
    if compiler.backend == "inductor":
        known = torch._inductor.list_options()  # by this version of torch
        options = {name: value for name, value in INDUCTOR_OPTIONS.items() if name in known}
    return torch.compile(function, dynamic=compiler.dynamic, backend=compiler.backend, options=options)


@functools.cache
def _set_cache_folder() -> None:
    """Keep kernels for the next run in the user's cache folder; torch's own choice does not outlive a restart."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seqloom" / "kernels"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return  # no home, or none to write to: they are compiled anew
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))
