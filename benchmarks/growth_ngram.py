"""Memory and time of estimating an n-gram model as a function of the text length, with the plot growth-text.png.

    python benchmarks/growth_ngram.py [--order 5] [--out docs/pictures]

The text is drawn from Zipf's law, p(w) ∝ 1 / rank. Nearly every long n-gram occurs once, which is the worst case.
Counting sorts n positions for each order, which costs n log n, and stores a few numbers for each of at most n different
n-grams. The dashed lines show these costs, scaled to the last point. Memory is the peak of NumPy, and time is the
median CPU time of five rounds.
"""

import argparse
import math
import statistics
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
from peers.options import print_load

from seqloom.classical.ngram import NGramConfig
from seqloom.classical.ngram.kneser_ney import kneser_ney
from seqloom.core.files import write_atomic
from seqloom.inspect.plots.figures import COLOURS, new_figure, tidy, to_bytes

WORDS = (10_000, 30_000, 100_000, 300_000, 1_000_000)
VOCABULARY, LINE = 10_000, 20  # words in the vocabulary, and words in a line
ROUNDS = 5


def text(words: int) -> np.ndarray:
    ranks = np.arange(1, VOCABULARY)
    drawn = np.random.default_rng(1).choice(ranks, size=words, p=(1 / ranks) / (1 / ranks).sum())
    drawn[LINE - 1 :: LINE] = 0  # line ends
    return drawn


def measure(words: int, order: int) -> tuple[int, float]:
    """Return the peak bytes, and the duration in seconds of a run without memory tracing."""
    stream, config = text(words), NGramConfig(order=order)
    seconds = []
    for _ in range(ROUNDS):
        start = time.process_time()
        kneser_ney(stream, config, VOCABULARY)
        seconds.append(time.process_time() - start)
    tracemalloc.start()
    kneser_ney(stream, config, VOCABULARY)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak, statistics.median(seconds)


def line(axes: Any, values: list[float], own: list[float], colour: str, label: str) -> None:
    from matplotlib.ticker import LogLocator

    tidy(axes)
    axes.plot(
        WORDS, [value * values[-1] / own[-1] for value in own], color="0.35", linestyle=(0, (4, 3)), linewidth=1.3
    )
    axes.plot(WORDS, values, color=colour, marker="o", markersize=5, linewidth=2)
    power = math.log(values[-1] / values[-3]) / math.log(WORDS[-1] / WORDS[-3])
    axes.text(
        0.04, 0.95, f"$n^{{{power:.2f}}}$ at the end", transform=axes.transAxes, va="top", color=colour, fontsize=11
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.minorticks_off()
    axes.set_xticks(WORDS, [f"{words // 1000}k" if words < 10**6 else "1M" for words in WORDS])
    axes.set_ylabel(label, fontsize=12)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--order", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"), help="folder for the plot")
    arguments = parser.parse_args()
    print_load(1)
    results = []
    for words in WORDS:
        results.append(measure(words, arguments.order))
        print(f"{words:>9,} words: {results[-1][0] / 2**20:7.1f} MiB {results[-1][1]:7.3f} s", flush=True)
    figure = new_figure(9, 4)
    memory, seconds = figure.subplots(1, 2)
    line(memory, [peak / 2**20 for peak, _ in results], list(WORDS), COLOURS[0], "memory, MiB")
    line(seconds, [1e3 * second for _, second in results], [n * math.log(n) for n in WORDS], COLOURS[1], "time, ms")
    figure.supxlabel("words of text        dashed: n for memory, n log n for time", fontsize=12)
    figure.suptitle(f"Memory and time to estimate an n-gram model of order {arguments.order}; one core", fontsize=13)
    write_atomic(arguments.out / "growth-text.png", to_bytes(figure, ".png"))


if __name__ == "__main__":
    main()
