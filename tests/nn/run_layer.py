"""Run a layer with or without the faster implementations of `seqloom.accel`."""

from contextlib import nullcontext
from typing import Any

from seqloom import accel


def run(layer: Any, *arguments: Any, fused: bool = True, **named: Any) -> Any:
    with nullcontext() if fused else accel.disabled():
        return layer(*arguments, **named)
