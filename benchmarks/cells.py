"""Speed of every cell over a sequence, forward and backward, for seqloom, the plain loop, and the layers of torch.

    python benchmarks/cells.py [--rows 32] [--steps 64] [--hidden 256] [--rounds 15] [--threads 2] [--padding 0.25]
    python benchmarks/cells.py gru mut1
    python benchmarks/cells.py --device cuda [--rows 64] [--steps 256] [--hidden 512] [--precision bfloat16]

In every round, seqloom, the torch layer and `nn.LSTM` alternate, and the plain loop follows. The report has medians
with minimum and maximum, and

- the speed of seqloom relative to the plain loop and to the torch layer,
- the time of seqloom per multiply-add relative to that of `nn.LSTM`, from the medians and from the minima, which other
  load affects least.

With `--threads 1`, CPU time is measured instead of wall time, which reduces the effect of other load. `--padding` is
the fraction of padded steps at the ends of rows; with padding, the torch layers read packed sequences.

On a GPU, CUDA events measure the time. seqloom is also captured in a CUDA graph, as in training, and the ratios are
those of the graph: its speed relative to the loop and to the torch layer (cuDNN, not captured), and its time relative
to that of `nn.LSTM`, not per multiply-add. `--precision bfloat16` uses autocast for all programs.
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
class Program:
    run: Callable[[], Tensor]  # a function that returns the outputs
    arithmetic: int  # multiply-adds of the products with x and h for one step of one row
    leaves: list[Tensor]  # tensors whose gradients are computed
    seconds: list[float] = field(default_factory=list)

    def step(self) -> None:
        """Run forward and backward."""
        outputs = self.run()
        torch.autograd.grad(outputs, self.leaves, torch.ones_like(outputs))

    @property
    def formatted(self) -> str:
        low, middle, high = (1000 * f(self.seconds) for f in (min, statistics.median, max))
        return f"{middle:7.1f} ms ({low:.1f} to {high:.1f})"

    @property
    def unit(self) -> float:
        """The seconds per multiply-add in the fastest round."""
        return min(self.seconds) / self.arithmetic


def arithmetic(cell: Cell) -> int:
    return sum(weight.numel() for weight in (cell.weight_x, cell.weight_h, cell.weight_xp) if weight is not None)


def build_programs(name: str, x: Tensor, hidden: int, mask: Tensor | None) -> dict[str, Program]:
    accel.install()
    kind, options = VARIANTS[name]
    layer, lstm = Recurrent(CELLS[kind](x.shape[2], hidden, **options)), nn.LSTM(x.shape[2], hidden, batch_first=True)
    work, lstm_work = arithmetic(layer.cell), 4 * hidden * (x.shape[2] + hidden)
    leaves = [x, *layer.parameters()]
    programs = {
        YARDSTICK: Program(lambda: lstm(x)[0], lstm_work, [x, *lstm.parameters()]),
        "seqloom": Program(lambda: layer(x, mask=mask)[0], work, leaves),
    }
    if name in TWINS:
        torch_layer = TWINS[name](x.shape[2], hidden)

        def packed() -> Tensor:
            if mask is None:
                return torch_layer(x)[0]
            return torch_layer(pack_padded_sequence(x, mask.sum(dim=1), batch_first=True, enforce_sorted=False))[0].data

        programs["torch"] = Program(packed, work, [x, *torch_layer.parameters()])

    def loop() -> Tensor:
        with accel.disabled():
            return layer(x, mask=mask)[0]

    return {**programs, "loop": Program(loop, work, leaves)}


def measure(programs: dict[str, Program], rounds: int, clock: Callable[[], float]) -> None:
    for number in range(rounds + 2):
        for program in programs.values():
            begin = clock()
            program.step()
            if number > 1:  # the first two rounds are a warm-up
                program.seconds.append(clock() - begin)


def capture_graph(program: Program) -> Callable[[], None]:
    """Return a function that replays the forward and backward pass as a CUDA graph."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            program.step()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        program.step()
    return graph.replay


def measure_on_gpu(programs: dict[str, Program], rounds: int) -> None:
    programs["captured"] = Program(programs["seqloom"].run, programs["seqloom"].arithmetic, programs["seqloom"].leaves)
    calls = {name: capture_graph(program) if name == "captured" else program.step for name, program in programs.items()}
    for number in range(rounds + 2):
        for name, call in calls.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            begin.record()
            call()
            end.record()
            torch.cuda.synchronize()
            if number > 1:
                programs[name].seconds.append(begin.elapsed_time(end) / 1000)


def ratio(over: Program, under: Program) -> float:
    return statistics.median(over.seconds) / statistics.median(under.seconds)


def line(name: str, programs: dict[str, Program]) -> str:
    ours, yardstick, torch_layer = programs["seqloom"], programs[YARDSTICK], programs.get("torch")
    per = ratio(ours, yardstick) * yardstick.arithmetic / ours.arithmetic
    return (
        f"{name:15}{ours.formatted:32}{programs['loop'].formatted:34}"
        f"{torch_layer.formatted if torch_layer else '':32}{yardstick.formatted:32}"
        f"{ratio(programs['loop'], ours):7.2f}{f'{ratio(torch_layer, ours):8.2f}' if torch_layer else ' ' * 8}   "
        f"{per:.2f} (fastest {ours.unit / yardstick.unit:.2f})"
    )


def gpu_line(name: str, programs: dict[str, Program]) -> str:
    ours, torch_layer = programs["captured"], programs.get("torch")
    columns = [ours, programs["seqloom"], programs["loop"], torch_layer, programs[YARDSTICK]]
    ratios = [
        ratio(programs["loop"], ours),
        ratio(programs["loop"], programs["seqloom"]),
        ratio(torch_layer, ours) if torch_layer else None,
    ]
    return (
        f"{name:15}{''.join(f'{program.formatted if program else str():32}' for program in columns)}"
        f"{''.join(f'{value:8.2f}' if value else ' ' * 8 for value in ratios)}{ratio(ours, programs[YARDSTICK]):8.2f}"
    )


HEADS = {
    "cpu": f"{'cell':15}{'seqloom':32}{'plain loop':34}{'torch':32}{YARDSTICK:32} × loop × torch   per multiply-add",
    "cuda": f"{'cell':15}{'seqloom, captured':32}{'seqloom':32}{'plain loop':32}{'torch':32}{YARDSTICK:32}"
    "  × loop  as is  × torch  / LSTM",
}
SIZES = {
    "cpu": {"rows": 32, "steps": 64, "hidden": 256, "rounds": 15},
    "cuda": {"rows": 64, "steps": 256, "hidden": 512, "rounds": 7},
}


def parse_options() -> argparse.Namespace:
    # This is imported here, because tests load this file from another folder.
    from peers.options import Parser, count, one_of  # type: ignore[import-not-found]

    parser = Parser(__doc__)
    parser.add_argument("--device", choices=SIZES, default="cpu", help="device (cpu)")
    for name, default in SIZES["cpu"].items():
        parser.add_argument(f"--{name}", type=count, help=f"({default}; on a GPU {SIZES['cuda'][name]})")
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


def make_mask(options: argparse.Namespace) -> Tensor | None:
    if options.padding <= 0:
        return None
    fractions = 1 - 2 * options.padding * torch.rand(options.rows, 1)
    mask = torch.arange(options.steps) < (fractions * options.steps).round().clamp(min=1)
    return mask.to(options.device)


def measure_cell(name: str, x: Tensor, mask: Tensor | None, options: argparse.Namespace) -> str:
    every = build_programs(name, x, options.hidden, mask)
    if options.device == "cuda":
        measure_on_gpu(every, options.rounds)
        return gpu_line(name, every)
    loop = every.pop("loop")
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    measure(every, options.rounds, clock)
    measure({"loop": loop}, options.rounds, clock)
    return line(name, {**every, "loop": loop})


def main() -> None:
    from peers.options import print_load

    options = parse_options()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    x = torch.randn(options.rows, options.steps, options.hidden, device=options.device, requires_grad=True)
    mask = make_mask(options)
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
            print(measure_cell(name, x, mask, options), flush=True)


if __name__ == "__main__":
    from peers.options import run_main

    run_main(main)
