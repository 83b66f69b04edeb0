"""Every cell over a sequence on the CPU, forward and backward: seqloom, the plain loop, and torch's own layer.

    python benchmarks/cells.py [--rows 32] [--steps 64] [--hidden 256] [--rounds 15] [--threads 2] [--padding 0.25]
    python benchmarks/cells.py gru mut1

Of each cell, seqloom, torch's layer and `nn.LSTM` take turns in every round; the plain loop comes after them. Shown are
medians with the fastest and the slowest, and

- how many times as fast seqloom is as the plain loop and as torch's layer,
- seqloom's time per unit of arithmetic beside that of `nn.LSTM`: both divided by the multiply-adds of their products;
  and the same of the fastest times, which other work on the machine disturbs least.

With `--threads 1` the time of the processor is taken, not that of the clock, so that other work disturbs even less.
With `--padding` that share of the steps, at the ends of rows, is padding; torch's layers read packed sequences then.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from seqloom.nn.cells import CELLS, Cell
from seqloom.nn.recurrent import Recurrent

YARDSTICK = "nn.LSTM"
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in CELLS} | {
    f"elman {g}": ("elman", {"activation": g}) for g in ("relu", "sigmoid")
}
TWINS: dict[str, Callable[[int, int], nn.Module]] = {
    "elman": lambda d, h: nn.RNN(d, h, batch_first=True),
    "elman relu": lambda d, h: nn.RNN(d, h, nonlinearity="relu", batch_first=True),
    "lstm": lambda d, h: nn.LSTM(d, h, batch_first=True),
    "gru": lambda d, h: nn.GRU(d, h, batch_first=True),
}


@dataclass
class Way:
    run: Callable[[], Tensor]  # the outputs
    arithmetic: int  # multiply-adds of the products with x and h, of one step of one row
    leaves: list[Tensor]  # whose gradients are wanted
    seconds: list[float] = field(default_factory=list)

    @property
    def shown(self) -> str:
        low, middle, high = (1000 * f(self.seconds) for f in (min, statistics.median, max))
        return f"{middle:7.1f} ms ({low:.1f} to {high:.1f})"

    @property
    def unit(self) -> float:
        """Seconds per multiply-add in the fastest round."""
        return min(self.seconds) / self.arithmetic


def arithmetic(cell: Cell) -> int:
    return sum(one.numel() for one in (cell.weight_x, cell.weight_h, cell.weight_p) if one is not None)


def ways(name: str, x: Tensor, hidden: int, mask: Tensor | None) -> dict[str, Way]:
    kind, options = VARIANTS[name]
    layer, lstm = Recurrent(CELLS[kind](x.shape[2], hidden, **options)), nn.LSTM(x.shape[2], hidden, batch_first=True)
    work, work_of_lstm = arithmetic(layer.cell), 4 * hidden * (x.shape[2] + hidden)
    leaves = [x, *layer.parameters()]
    found = {
        YARDSTICK: Way(lambda: lstm(x)[0], work_of_lstm, [x, *lstm.parameters()]),
        "seqloom": Way(lambda: layer(x, mask=mask)[0], work, leaves),
    }
    if name in TWINS:
        twin = TWINS[name](x.shape[2], hidden)

        def packed() -> Tensor:
            if mask is None:
                return twin(x)[0]
            return twin(pack_padded_sequence(x, mask.sum(dim=1), batch_first=True, enforce_sorted=False))[0].data

        found["torch"] = Way(packed, work, [x, *twin.parameters()])
    return {**found, "loop": Way(lambda: layer(x, mask=mask, fused=False)[0], work, leaves)}


def measure(ways: dict[str, Way], rounds: int, clock: Callable[[], float]) -> None:
    for number in range(rounds + 2):
        for way in ways.values():
            begin = clock()
            outputs = way.run()
            torch.autograd.grad(outputs, way.leaves, torch.ones_like(outputs))
            if number > 1:  # the first two warm up
                way.seconds.append(clock() - begin)


def ratio(over: Way, under: Way) -> float:
    return statistics.median(over.seconds) / statistics.median(under.seconds)


def line(name: str, ways: dict[str, Way]) -> str:
    ours, yardstick, twin = ways["seqloom"], ways[YARDSTICK], ways.get("torch")
    per = ratio(ours, yardstick) * yardstick.arithmetic / ours.arithmetic
    return (
        f"{name:15}{ours.shown:32}{ways['loop'].shown:34}{twin.shown if twin else '':32}{yardstick.shown:32}"
        f"{ratio(ways['loop'], ours):7.2f}{f'{ratio(twin, ours):8.2f}' if twin else ' ' * 8}   "
        f"{per:.2f} (fastest {ours.unit / yardstick.unit:.2f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"rows": 32, "steps": 64, "hidden": 256, "rounds": 15, "threads": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--padding", type=float, default=0.0)
    parser.add_argument("cells", nargs="*", choices=[[], *VARIANTS], help="all of them unless told")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    x = torch.randn(options.rows, options.steps, options.hidden, requires_grad=True)
    mask = None
    if options.padding > 0:
        shares = 1 - 2 * options.padding * torch.rand(options.rows, 1)
        mask = torch.arange(options.steps) < (shares * options.steps).round().clamp(min=1)
    padded = "" if mask is None else f", {1 - mask.float().mean():.0%} padding"
    print(
        f"B {options.rows}, T {options.steps}, D = H = {options.hidden}{padded}; {options.rounds} rounds, "
        f"{options.threads} threads; torch {torch.__version__}, {platform.machine()}\n"
    )
    print(f"{'cell':15}{'seqloom':32}{'plain loop':34}{'torch':32}{YARDSTICK:32} × loop × torch   per arithmetic")
    for name in options.cells or VARIANTS:
        every = ways(name, x, options.hidden, mask)
        loop = every.pop("loop")
        clock = time.thread_time if options.threads == 1 else time.perf_counter
        measure(every, options.rounds, clock)
        measure({"loop": loop}, options.rounds, clock)
        print(line(name, {**every, "loop": loop}), flush=True)


if __name__ == "__main__":
    main()
