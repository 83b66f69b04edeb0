"""Translation speed of a trained run in sentences per second, by beam size and batch size.

In each round, every setting translates the same sentences of the dev split, sorted by length to reduce padding. The
report has the median over rounds with its range, and the time that the search takes without a model.

    python benchmarks/decoding_speed.py runs/quickstart-en-fr --rounds 5 --sentences 256
"""

import itertools
import platform
import statistics
import time

import torch
from peers.options import Parser, count, print_load, run_main
from peers.turns import Spread, table

from seqloom.core.protocols import DecodeState, StepOutput
from seqloom.core.tree import to_device
from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.predict.loader import load
from seqloom.predict.translate import TranslatorPredictor


def batches(sources: list[list[int]], size: int) -> list[dict[str, torch.Tensor]]:
    padded = []
    for first in range(0, len(sources), size):
        rows = sources[first : first + size]
        longest = max(map(len, rows))
        tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        padded.append({"tokens": tokens, "mask": torch.arange(longest) < torch.tensor([[len(row)] for row in rows])})
    return padded


def translate(model, sources: list[dict[str, torch.Tensor]], beam: int, end: int) -> tuple[float, float]:
    """Return the duration in seconds, and the number of tokens per sentence."""
    start_time = time.perf_counter()
    results = [
        hypotheses[0]
        for batch in sources
        for hypotheses in beam_search(model, source=batch, options=BeamConfig(beam=beam), end=end)
    ]
    return time.perf_counter() - start_time, statistics.mean(len(entry.token_log_probs) for entry in results)


class FreeModel:
    """A model whose step takes no time. It returns the same log-probabilities at every step and never END."""

    def __init__(self, rows: int, beam: int, vocabulary: int, device: torch.device) -> None:
        logits = 3 * torch.randn(rows * beam, vocabulary, generator=torch.Generator().manual_seed(0))
        logits[:, 0] = -100.0
        self.log_probs = logits.log_softmax(-1).to(device)

    def start(self, source=None, rows=None) -> DecodeState:
        return DecodeState(self.log_probs.new_zeros(rows, 1))

    def step(self, tokens, state, mask=None) -> StepOutput:
        return StepOutput(self.log_probs[: len(tokens)], state)


def milliseconds_of_search(rows: int, beam: int, vocabulary: int, device: torch.device, steps: int = 50) -> float:
    model, options = FreeModel(rows, beam, vocabulary, device), BeamConfig(beam=beam, max_length=steps)
    times = []
    for _ in range(6):
        start_time = time.perf_counter()
        beam_search(model, options=options, end=0, rows=rows)
        times.append(time.perf_counter() - start_time)
    return 1000 * statistics.median(times[1:]) / steps


def format_table(speeds: dict[tuple[int, int], Spread], produced: dict[int, float]) -> str:
    """Format a table with a row for each beam size and a column for each batch size."""
    sizes = list(dict.fromkeys(size for _, size in speeds))
    rows = [
        [str(beam), *(speeds[beam, size].format(",.1f") for size in sizes), f"{tokens:.1f}"]
        for beam, tokens in produced.items()
    ]
    return table(sorted(rows, key=lambda row: int(row[0])), ["beam", *map(str, sizes), "tokens each"])


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("run", help="a run directory of a translator")
    parser.add_argument("--rounds", type=count, default=5, help="rounds of each setting (5)")
    parser.add_argument("--sentences", type=count, default=256, help="sentences of the dev split (256)")
    parser.add_argument("--beams", type=count, nargs="+", default=[1, 2, 5, 10], help="beam sizes (1 2 5 10)")
    parser.add_argument("--batches", type=count, nargs="+", default=[1, 8, 32, 128], help="batch sizes (1 8 32 128)")
    parser.add_argument("--threads", type=count, default=None, help="CPU threads; the default of torch if omitted")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (auto)")
    arguments = parser.parse_args()

    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    translator = load(arguments.run, arguments.device, TranslatorPredictor)
    device, tokenizer = translator.device, translator.tokenizer
    pairs = translator.task().corpus.split("dev")[: arguments.sentences]
    sources = sorted(([*tokenizer.encode(pair.source), tokenizer.end] for pair in pairs), key=len)
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(
        f"{arguments.run}: {len(sources)} sentences of dev, {statistics.mean(map(len, sources)):.1f} tokens each, "
        f"vocabulary {len(tokenizer):,}; {where}, torch {torch.__version__}, {platform.machine()}; "
        f"{arguments.rounds} rounds"
    )
    print_load(torch.get_num_threads() if device.type == "cpu" else 1)
    prepared = {size: to_device(batches(sources, size), device) for size in arguments.batches}
    settings = list(itertools.product(arguments.beams, arguments.batches))
    seconds: dict[tuple[int, int], list[float]] = {setting: [] for setting in settings}
    produced: dict[int, float] = {}
    translate(translator.model, prepared[arguments.batches[-1]], 2, tokenizer.end)  # warm-up
    for round_number in range(arguments.rounds):
        for beam, size in settings if round_number % 2 == 0 else reversed(settings):
            took, produced[beam] = translate(translator.model, prepared[size], beam, tokenizer.end)
            seconds[beam, size].append(took)
    print("sentences per second, median (range), by beam size and batch size:")
    speeds = {setting: Spread.of([len(sources) / took for took in results]) for setting, results in seconds.items()}
    print(format_table(speeds, produced))
    print("search without the model, milliseconds per step, 32 sources, beam 5:")
    for vocabulary in (len(tokenizer), 8000, 32000):
        print(f"  vocabulary {vocabulary:>7,} {milliseconds_of_search(32, 5, vocabulary, device):8.2f}")


if __name__ == "__main__":
    run_main(main)
