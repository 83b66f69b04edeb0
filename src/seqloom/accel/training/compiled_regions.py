"""`torch.compile` for the regions that `seqloom.core.operations.compiled_region` marks.

A region is compiled once for all callers. The blocks of a stack share one function, so a deep model compiles as fast as
one block. Results are equal except for rounding and the random numbers of dropout.
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

# The gradient of a norm sums over rows for its input and over columns for its weights. Inductor would fuse both into
# one kernel, which takes twice as long.
INDUCTOR_OPTIONS = {"triton.mix_order_reduction": False}


@dataclass(frozen=True)
class RegionCompiler:
    """A compiler of regions; compilers with equal settings share compiled regions."""

    dynamic: bool = False  # compile once for all shapes, which makes every shape slightly slower
    backend: str = "inductor"

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        _set_cache_folder()
        compiled: Callable[P, R] = _compile(function, self)
        return compiled


@functools.cache
def _compile(function: Callable[..., Any], compiler: RegionCompiler) -> Any:
    options: dict[str, Any] | None = None
    if compiler.backend == "inductor":
        supported = torch._inductor.list_options()
        options = {name: value for name, value in INDUCTOR_OPTIONS.items() if name in supported}
    return torch.compile(function, dynamic=compiler.dynamic, backend=compiler.backend, options=options)


@functools.cache
def _set_cache_folder() -> None:
    """Store compiled kernels in the user's cache folder; torch's default folder is lost at a reboot."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seqloom" / "kernels"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return  # without a writable cache folder, kernels are compiled again in every run
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))
