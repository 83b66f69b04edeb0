"""Memory and time of a training step as a function of batch, length, width and vocabulary, for each family of models.

    python benchmarks/growth.py                               # a few minutes on one core; plots in docs/pictures
    python benchmarks/growth.py --device cuda --out plots
    python benchmarks/growth.py --recompute --out plots       # with train.gradient_checkpointing

The measurements are compared with the arithmetic of the model, derived from its equations:

    time      multiplications of all matrix products, times three (forward pass and two gradients), and 10 per
              parameter for the optimizer; scaled to fit the largest measured step
    memory    four numbers per parameter (weight, gradient, two of the optimizer), and each value of the equations once,
              because the backward pass needs it; logits and probabilities are computed in chunks, so only the rows of a
              chunk count. In bytes, not fitted

A measured line that is steeper than its dashed line grows faster than necessary. In the table, "like" is the exponent
of n over the three largest sizes, and "theory" is the exponent of the arithmetic for large n; "!" marks faster growth.
On a CPU, the time is the CPU time of one thread, which other load hardly affects.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from peers.options import print_load
from torch import Tensor, nn

from seqloom.accel.cross_entropy import chunk_rows
from seqloom.core.files import write_atomic
from seqloom.core.memory import measure_peak
from seqloom.inspect.plots.figures import COLOURS, new_figure, tidy, to_bytes
from seqloom.models.bert import BERTConfig
from seqloom.models.gpt import GPTConfig
from seqloom.models.recurrent_lm import RecurrentLMConfig
from seqloom.models.recurrent_seq2seq import RecurrentSeq2SeqConfig
from seqloom.models.transformer import TransformerConfig
from seqloom.nn.positions import PositionsConfig
from seqloom.train.optimizers import build_optimizer
from seqloom.train.state import recomputable_layers
from seqloom.train.wrappers import recompute_activations

HEADS, MASKED = 4, 0.15
ROUNDS, MAX_SECONDS = 3, 0.3  # minimum number of timed steps, and seconds after which timing stops
EXPONENT_TOLERANCE = 0.2  # tolerance of an exponent, which allows for measurement errors and cache effects


@dataclass(frozen=True)
class Size:
    """A batch of B rows of T tokens, with vectors of size D and V tokens."""

    batch: int = 16
    length: int = 32
    width: int = 128
    vocabulary: int = 2000
    layers: int = 2

    def words(self) -> dict[str, str]:
        return {
            "batch": f"{self.batch} rows",
            "length": f"{self.length} tokens per row",
            "width": f"width {self.width}",
            "vocabulary": f"a vocabulary of {self.vocabulary:,}",
        }

    def tokens(self, seed: int = 1) -> Tensor:
        return torch.randint(
            1, self.vocabulary, (self.batch, self.length), generator=torch.Generator().manual_seed(seed)
        )


AXES: dict[str, tuple[int, ...]] = {
    "batch": (4, 8, 16, 32, 64, 128),
    "length": (16, 32, 64, 128, 256, 512),
    "width": (32, 64, 128, 256, 512, 1024),
    "vocabulary": (1000, 4000, 16_000, 64_000, 256_000),
}
TITLES = {
    "batch": "batch, rows",
    "length": "length, tokens",
    "width": "width of the vectors",
    "vocabulary": "vocabulary, tokens",
}


# --- models and their arithmetic --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    """A family of models.

    `work` counts multiplications of a row in the forward pass, and `values` its stored values.
    """

    name: str
    build: Callable[[Size], nn.Module]
    loss: Callable[[Any, Any], Tensor]
    batch: Callable[[Size], Any]
    work: Callable[[Size], float]
    values: Callable[[Size], float]


def stream(size: Size) -> Any:
    return size.tokens(1), size.tokens(2)


def stream_loss(model: Any, batch: Any) -> Tensor:
    return model.loss(*batch)[0]


def pairs(size: Size) -> Any:
    source, target, mask = size.tokens(1), size.tokens(2), torch.ones(size.batch, size.length, dtype=torch.bool)
    return {"source": source, "source_mask": mask, "inputs": target, "targets": target, "target_mask": mask.clone()}


def pairs_loss(model: Any, batch: Any) -> Tensor:
    return model.loss(batch)[0]


def gaps(size: Size) -> Any:
    inputs = max(1, round(MASKED * size.length))
    positions = torch.arange(inputs).expand(size.batch, inputs).contiguous()
    mask = torch.ones(size.batch, size.length, dtype=torch.bool)
    targets = size.tokens(2)[:, :inputs].contiguous()
    return {"tokens": size.tokens(1), "mask": mask, "positions": positions, "targets": targets}


def gaps_loss(model: Any, batch: Any) -> Tensor:
    return model.loss(batch)


def recurrent(cell: str) -> Callable[[Size], nn.Module]:
    return lambda size: RecurrentLMConfig(cell=cell, layers=size.layers, hidden=size.width).build(size.vocabulary)


def recurrent_work(gates: int) -> Callable[[Size], float]:
    """Count W x + U h of every gate, and the output layer."""
    return lambda s: s.length * (s.layers * gates * 2 * s.width**2 + s.width * s.vocabulary)


def recurrent_values(each: int) -> Callable[[Size], float]:
    """Count the token vector and `each` values per layer. These are h, or the gates i f g o, c and h."""
    return lambda s: s.length * s.width * (1 + s.layers * each)


def attention_work(s: Size) -> float:
    """Count the scores of all pairs of positions, and the weighted sums."""
    return 2 * s.length**2 * s.width


def block_work(s: Size) -> float:
    """Count q, k, v and out (4 D²), and a feed-forward layer of size 4 D (8 D²)."""
    return 12 * s.length * s.width**2 + attention_work(s)


def block_values(s: Size) -> float:
    """Count x and its norm twice, q k v, the outputs of the heads and of their projection, 4 D before and after the
    activation of the feed-forward layer, its output, and the attention weights of all heads."""
    return 18 * s.length * s.width + HEADS * s.length**2


def seq2seq_work(s: Size) -> float:
    """Count the two GRUs of the encoder and one of the decoder, the keys of the encoder states (2 D), scores, context
    vectors, and the readout of state and context vector."""
    cells = 3 * 6 * s.width**2
    return s.length * (cells + 2 * s.width**2 + 3 * s.length * s.width + 3 * s.width**2 + s.width * s.vocabulary)


def seq2seq_values(s: Size) -> float:
    """Count two token vectors; r z h̃, U h, h of each GRU; encoder states, keys, weights, context vector, readout."""
    return s.length * (s.width * (2 + 3 * 5 + 2 + 1 + 2 + 1) + s.length)


def transformer_work(s: Size) -> float:
    """Count the blocks and the cross-attention of the decoder, 4 D² more."""
    cross = 4 * s.length * s.width**2 + attention_work(s)
    return s.layers * (2 * block_work(s) + cross) + s.length * s.width * s.vocabulary


def transformer_values(s: Size) -> float:
    cross = 8 * s.length * s.width + HEADS * s.length**2
    return s.layers * (2 * block_values(s) + cross) + 2 * s.length * s.width


def build_backbone(config: type[Any], size: Size) -> nn.Module:
    positions = PositionsConfig(kind="learned", max_length=max(512, size.length))
    model: nn.Module = config(d_model=size.width, heads=HEADS, layers=size.layers, positions=positions).build(
        size.vocabulary
    )
    return model


FAMILIES = {
    "rnn": Family("Elman RNN", recurrent("elman"), stream_loss, stream, recurrent_work(1), recurrent_values(1)),
    "lstm": Family("LSTM", recurrent("lstm"), stream_loss, stream, recurrent_work(4), recurrent_values(6)),
    "seq2seq": Family(
        "GRUs with attention",
        lambda size: RecurrentSeq2SeqConfig(hidden=size.width).build(size.vocabulary),
        pairs_loss,
        pairs,
        seq2seq_work,
        seq2seq_values,
    ),
    "transformer": Family(
        "Transformer",
        lambda size: TransformerConfig(
            d_model=size.width, heads=HEADS, encoder_layers=size.layers, decoder_layers=size.layers
        ).build(size.vocabulary),
        pairs_loss,
        pairs,
        transformer_work,
        transformer_values,
    ),
    "gpt": Family(
        "GPT",
        lambda size: build_backbone(GPTConfig, size),
        stream_loss,
        stream,
        lambda s: s.layers * block_work(s) + s.length * s.width * s.vocabulary,
        lambda s: s.layers * block_values(s) + s.length * s.width,
    ),
    "bert": Family(
        "BERT",
        lambda size: build_backbone(BERTConfig, size),
        gaps_loss,
        gaps,
        lambda s: s.layers * block_work(s) + MASKED * s.length * (s.width**2 + s.width * s.vocabulary),
        lambda s: s.layers * block_values(s) + s.length * s.width * (1 + 3 * MASKED),
    ),
}


# --- measuring --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    at: int
    bytes: int
    seconds: list[float]
    own_bytes: float
    own_work: float

    @property
    def second(self) -> float:
        return statistics.median(self.seconds)


def measure_step(family: Family, size: Size, at: int, device: torch.device, less: bool) -> Point:
    torch.manual_seed(1)
    model = family.build(size).to(device).train()
    layers = recomputable_layers(model) if less else []
    optimizer = build_optimizer("adamw", model, lr=1e-3, weight_decay=0.01, momentum=0.0, betas=(0.9, 0.999))
    batch = _to_device(family.batch(size), device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with recompute_activations(layers):
            family.loss(model, batch).backward()
        optimizer.step()

    step()  # from now on the optimizer state exists
    optimizer.zero_grad(set_to_none=True)
    stored = [
        *model.parameters(),
        *(v for state in optimizer.state.values() for v in state.values() if torch.is_tensor(v)),
    ]
    with measure_peak(device, stored) as peak:
        step()
    numbers = sum(parameter.numel() for parameter in model.parameters())
    return Point(
        at,
        peak.bytes,
        list(_rounds(step, device)),
        4 * (4 * numbers + size.batch * family.values(size) + 2 * _logits(family, size, device)),
        3 * size.batch * family.work(size) + 10 * numbers,
    )


def _logits(family: Family, size: Size, device: torch.device) -> float:
    """Return the number of logits in memory."""
    value = size.batch * size.length * (MASKED if family.loss is gaps_loss else 1)
    return size.vocabulary * min(value, chunk_rows(size.vocabulary, device))


def _rounds(step: Callable[[], None], device: torch.device) -> Iterator[float]:
    """Yield the seconds of each round; there are more rounds of short steps."""
    total, count = 0.0, 0
    while count < ROUNDS or (total < MAX_SECONDS and count < 5 * ROUNDS):
        total, count = total + (seconds := _seconds(step, device)), count + 1
        yield seconds


def _to_device(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, dict):
        return {name: part.to(device) for name, part in batch.items()}
    return tuple(part.to(device) for part in batch)


def _seconds(step: Callable[[], None], device: torch.device) -> float:
    """Return the seconds of a step; CPU time of the single thread on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        step()
        torch.cuda.synchronize(device)
        return time.perf_counter() - start
    start = time.process_time()
    step()
    return time.process_time() - start


# --- results ----------------------------------------------------------------------------------------------------------

Found = dict[str, dict[str, list[Point]]]  # axis → family → points


def exponents(points: list[Point]) -> tuple[float, float]:
    """Return the exponents k of n^k for memory and time over the last three points."""
    before, last = points[-3:][0], points[-1]
    ratio = math.log(last.at / before.at)
    return math.log(last.bytes / before.bytes) / ratio, math.log(last.second / before.second) / ratio


def limit(axis: str, family: str) -> int:
    """Return the exponent of n in the arithmetic of the model for large n, for memory and time."""
    if axis == "length":
        return 1 if family in ("rnn", "lstm") else 2
    return 2 if axis == "width" else 1


def table(found: Found) -> Iterator[str]:
    yield "| against | model | memory at most | like | time | like | theory |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for axis, families in found.items():
        for name, points in families.items():
            last, most = points[-1], limit(axis, name)
            memory, seconds = (f"n^{k:.2f}{' !' if k > most + EXPONENT_TOLERANCE else ''}" for k in exponents(points))
            yield (
                f"| {axis} {points[0].at:,} … {last.at:,} | {FAMILIES[name].name} | {last.bytes / 2**20:,.0f} MiB "
                f"| {memory} | {last.second:.3f} s | {seconds} | n^{most} |"
            )


def draw(axis: str, families: dict[str, list[Point]], usual: Size, where: str) -> bytes:
    figure = new_figure(2.2 * len(families) + 0.9, 6)
    grid = figure.subplots(2, len(families), sharex=True, sharey="row", squeeze=False)
    for column, (name, points) in enumerate(families.items()):
        upper, lower = (tidy(axes) for axes in grid[:, column])
        at, colour = [point.at for point in points], COLOURS[column % len(COLOURS)]
        unit = points[-1].second / points[-1].own_work
        _line(upper, at, [p.bytes / 2**20 for p in points], [p.own_bytes / 2**20 for p in points], colour)
        _line(lower, at, [1e3 * p.second for p in points], [1e3 * unit * p.own_work for p in points], colour)
        low, high = ([1e3 * edge(p.seconds) for p in points] for edge in (min, max))
        lower.fill_between(at, low, high, color=colour, alpha=0.2, linewidth=0)
        upper.set_title(FAMILIES[name].name, fontsize=13, color=colour)
        for axes, power in zip((upper, lower), exponents(points), strict=True):
            words = f"$n^{{{power:.2f}}}$ at the end"
            axes.text(0.04, 0.95, words, transform=axes.transAxes, fontsize=11, va="top", color=colour)
        lower.set_xticks(at, [_short(value) for value in at], fontsize=9.5)
    grid[0, 0].set_ylabel("memory, MiB", fontsize=12)
    grid[1, 0].set_ylabel("time, ms", fontsize=12)
    figure.supxlabel(f"{TITLES[axis]}        dashed: theoretical cost", fontsize=12)
    others = (words for name, words in usual.words().items() if name != axis)
    figure.suptitle(
        f"Memory and time of a training step as the {axis} grows\n{', '.join(others)}; {where}", fontsize=13
    )
    return to_bytes(figure, ".png")


def _line(axes: Any, at: list[int], here: list[float], own: list[float], colour: str) -> None:
    from matplotlib.ticker import LogLocator

    axes.plot(at, own, color="0.35", linestyle=(0, (4, 3)), linewidth=1.3)
    axes.plot(at, here, color=colour, marker="o", markersize=4, linewidth=2)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.minorticks_off()


def _short(value: int) -> str:
    return f"{value // 1000}k" if value % 1000 == 0 else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--families", default=",".join(FAMILIES), help="comma-separated subset of the default")
    parser.add_argument("--axes", default=",".join(AXES), help="comma-separated subset of the default")
    parser.add_argument("--steps", type=int, help="number of sizes of each axis, from the smallest")
    parser.add_argument("--layers", type=int, default=2, help="layers of each model; of encoder and decoder each")
    parser.add_argument("--recompute", action="store_true", help="with train.gradient_checkpointing")
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"), help="folder for the plots")
    parser.add_argument("--json", type=Path, help="JSON file to add all results to")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.set_num_threads(1)
    print_load(1)
    where = "one core" if device.type == "cpu" else torch.cuda.get_device_name(device)
    default, less = Size(layers=arguments.layers), arguments.recompute
    results = _read_results(arguments.json)
    for axis in arguments.axes.split(","):
        for name in arguments.families.split(","):
            sizes = AXES[axis][: arguments.steps]
            points = [measure_step(FAMILIES[name], replace(default, **{axis: at}), at, device, less) for at in sizes]
            results.setdefault(axis, {})[name] = points
            shown = (f"{p.bytes / 2**20:.0f} MiB {1e3 * p.second:.0f} ms;" for p in points)
            print(f"{axis:11}{name:12}", *shown, flush=True)
        if arguments.json is not None:
            write_atomic(arguments.json, json.dumps(results, default=asdict))
        ending = "-recompute" if less else ""
        write_atomic(arguments.out / f"growth-{axis}{ending}.png", draw(axis, results[axis], default, where))
    print(*table(results), sep="\n")


def _read_results(path: Path | None) -> Found:
    """Return earlier results, in the order of the families."""
    if path is None or not path.exists():
        return {}
    read = json.loads(path.read_text())
    return {
        axis: {name: [Point(**p) for p in families[name]] for name in FAMILIES if name in families}
        for axis, families in read.items()
    }


if __name__ == "__main__":
    main()
