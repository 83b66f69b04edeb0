"""The speed of every recurrent cell as in `cells.py`, for the tables of `cpu.py` and `gpu.py`."""

import statistics
import time
from typing import Any

import cells
import torch


def compared(device: str, rounds: int, threads: int = 2, small: bool = False) -> dict[str, Any]:
    """Measure every cell at the sizes of `cells.py` for the device. Print the table and return all durations."""
    results: dict[str, Any] = {}
    size = {"rows": 2, "steps": 4, "hidden": 8} if small else cells.SIZES[device]
    for hidden, precision in _kinds(device, size["hidden"]):
        shape = size["rows"], size["steps"], hidden
        head = f"Cells, forward and backward: B {shape[0]}, T {shape[1]}, D = H = {shape[2]}, {precision}"
        print(f"{head}\n\n{cells.HEADS[device]}", flush=True)
        torch.manual_seed(0)
        x = torch.randn(shape, device=device, requires_grad=True)
        low = precision == "bfloat16"
        with torch.autocast(device, torch.bfloat16, enabled=low), torch.device(device):
            results[f"H {hidden}, {precision}"] = {
                name: _one(name, x, device, rounds, threads) for name in cells.VARIANTS
            }
        print(flush=True)
    return results


def _kinds(device: str, hidden: int) -> list[tuple[int, str]]:
    if device == "cpu":
        return [(hidden, "float32")]
    return [(width, precision) for width in (hidden, 2 * hidden) for precision in ("float32", "bfloat16")]


def _one(name: str, x: torch.Tensor, device: str, rounds: int, threads: int) -> dict[str, Any]:
    programs = cells.build_programs(name, x, x.shape[2], None)
    if device == "cuda":
        cells.measure_on_gpu(programs, rounds)
        print(cells.gpu_line(name, programs), flush=True)
    else:
        clock = time.thread_time if threads == 1 else time.perf_counter
        loop = {"loop": programs.pop("loop")}
        cells.measure(programs, rounds, clock)
        cells.measure(loop, rounds, clock)
        programs |= loop
        print(cells.line(name, programs), flush=True)
    return {
        program: {
            "milliseconds": 1000 * statistics.median(entry.seconds),
            "seconds": entry.seconds,
            "arithmetic": entry.arithmetic,
        }
        for program, entry in programs.items()
    }
