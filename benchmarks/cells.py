"""Speed of every cell over a sequence, forward and backward: seqloom, the plain loop, and the layers of torch.

    python benchmarks/cells.py [--rows 32] [--steps 64] [--hidden 256] [--rounds 15] [--threads 2] [--padding 0.25]
    python benchmarks/cells.py gru mut1
    python benchmarks/cells.py --device cuda [--rows 64] [--steps 256] [--hidden 512] [--precision bfloat16]

In every round, seqloom, the torch layer and `nn.LSTM` alternate; the plain loop follows. The report has medians with
minimum and maximum, and

- the speed of seqloom relative to the plain loop and to the torch layer,
- the time of seqloom per multiply-add relative to that of `nn.LSTM`, from the medians and from the minima, which other
  load affects least.

With `--threads 1`, CPU time is measured instead of wall time, which reduces the effect of other load. `--padding` is
the fraction of padded steps at the ends of rows; the torch layers then read packed sequences.

On a GPU, CUDA events measure the time. seqloom is also captured in a CUDA graph, as in training, and the ratios are
those of the graph: × loop, × torch layer (cuDNN, not captured), and its time relative to that of `nn.LSTM`, not per
multiply-add. `--precision bfloat16` uses autocast for all of them.
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

from seqloom import accel
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
    arithmetic: int  # multiply-adds of the products with x and h, for one step of one row
    leaves: list[Tensor]  # tensors whose gradients are computed
    seconds: list[float] = field(default_factory=list)

    def step(self) -> None:
        """Run forward and backward."""
        outputs = self.run()
        torch.autograd.grad(outputs, self.leaves, torch.ones_like(outputs))

    @property
    def shown(self) -> str:
        low, middle, high = (1000 * f(self.seconds) for f in (min, statistics.median, max))
        return f"{middle:7.1f} ms ({low:.1f} to {high:.1f})"

    @property
    def unit(self) -> float:
        """The seconds per multiply-add in the fastest round."""
        return min(self.seconds) / self.arithmetic


def arithmetic(cell: Cell) -> int:
    return sum(one.numel() for one in (cell.weight_x, cell.weight_h, cell.weight_p) if one is not None)


def ways(name: str, x: Tensor, hidden: int, mask: Tensor | None) -> dict[str, Way]:
    accel.install()
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

    def loop() -> Tensor:
        with accel.disabled():
            return layer(x, mask=mask)[0]

    return {**found, "loop": Way(loop, work, leaves)}


def measure(ways: dict[str, Way], rounds: int, clock: Callable[[], float]) -> None:
    for number in range(rounds + 2):
        for way in ways.values():
            begin = clock()
            way.step()
            if number > 1:  # two warm-up rounds
                way.seconds.append(clock() - begin)


def captured(way: Way) -> Callable[[], None]:
    """Return a function that replays forward and backward as a CUDA graph."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            way.step()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        way.step()
    return graph.replay


def measure_on_a_gpu(ways: dict[str, Way], rounds: int) -> None:
    ways["captured"] = Way(ways["seqloom"].run, ways["seqloom"].arithmetic, ways["seqloom"].leaves)
    calls = {name: captured(way) if name == "captured" else way.step for name, way in ways.items()}
    for number in range(rounds + 2):
        for name, call in calls.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            begin.record()
            call()
            end.record()
            torch.cuda.synchronize()
            if number > 1:
                ways[name].seconds.append(begin.elapsed_time(end) / 1000)


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


def gpu_line(name: str, ways: dict[str, Way]) -> str:
    ours, twin = ways["captured"], ways.get("torch")
    columns = [ours, ways["seqloom"], ways["loop"], twin, ways[YARDSTICK]]
    beside = [ratio(ways["loop"], ours), ratio(ways["loop"], ways["seqloom"]), ratio(twin, ours) if twin else None]
    return (
        f"{name:15}{''.join(f'{way.shown if way else str():32}' for way in columns)}"
        f"{''.join(f'{one:8.2f}' if one else ' ' * 8 for one in beside)}{ratio(ours, ways[YARDSTICK]):8.2f}"
    )


HEADS = {
    "cpu": f"{'cell':15}{'seqloom':32}{'plain loop':34}{'torch':32}{YARDSTICK:32} × loop × torch   per arithmetic",
    "cuda": f"{'cell':15}{'seqloom, captured':32}{'seqloom':32}{'plain loop':32}{'torch':32}{YARDSTICK:32}"
    "  × loop  as is  × torch  / LSTM",
}
SIZES = {
    "cpu": {"rows": 32, "steps": 64, "hidden": 256, "rounds": 15},
    "cuda": {"rows": 64, "steps": 256, "hidden": 512, "rounds": 7},
}


def options_given() -> argparse.Namespace:
    # Imported here, because tests load this file from another folder.
    from peers.options import Parser, count, one_of  # type: ignore[import-not-found]

    parser = Parser(__doc__)
    parser.add_argument("--device", choices=SIZES, default="cpu", help="device (cpu)")
    for name, usual in SIZES["cpu"].items():
        parser.add_argument(f"--{name}", type=count, help=f"({usual}; on a GPU {SIZES['cuda'][name]})")
    parser.add_argument("--threads", type=count, default=2, help="CPU threads (2)")
    parser.add_argument("--padding", type=float, default=0.0, help="fraction of padded steps (0)")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32", help="(float32)")
    named = f"{', '.join(VARIANTS)}; default: all"
    parser.add_argument("cells", nargs="*", type=one_of(VARIANTS), metavar="cell", help=named)
    options = parser.parse_args()
    for name, value in SIZES[options.device].items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def some_mask(options: argparse.Namespace) -> Tensor | None:
    if options.padding <= 0:
        return None
    shares = 1 - 2 * options.padding * torch.rand(options.rows, 1)
    mask = torch.arange(options.steps) < (shares * options.steps).round().clamp(min=1)
    return mask.to(options.device)


def measured(name: str, x: Tensor, mask: Tensor | None, options: argparse.Namespace) -> str:
    every = ways(name, x, options.hidden, mask)
    if options.device == "cuda":
        measure_on_a_gpu(every, options.rounds)
        return gpu_line(name, every)
    loop = every.pop("loop")
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    measure(every, options.rounds, clock)
    measure({"loop": loop}, options.rounds, clock)
    return line(name, {**every, "loop": loop})


def main() -> None:
    from peers.options import print_load

    options = options_given()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    x = torch.randn(options.rows, options.steps, options.hidden, device=options.device, requires_grad=True)
    mask = some_mask(options)
    padded = "" if mask is None else f", {1 - mask.float().mean():.0%} padding"
    machine = torch.cuda.get_device_name() if options.device == "cuda" else f"{options.threads} threads"
    print(
        f"B {options.rows}, T {options.steps}, D = H = {options.hidden}{padded}, {options.precision}; "
        f"{options.rounds} rounds, {machine}; torch {torch.__version__}, {platform.machine()}\n"
    )
    print_load(options.threads if options.device == "cpu" else 1)
    print(HEADS[options.device])
    low = options.precision == "bfloat16"
    with torch.autocast(options.device, torch.bfloat16, enabled=low), torch.device(options.device):
        for name in options.cells or VARIANTS:
            print(measured(name, x, mask, options), flush=True)


if __name__ == "__main__":
    from peers.options import run_main

    run_main(main)
