"""Training speed of a small Transformer on Multi30k in target tokens per second, through `fit` as in `seqloom train`.

Target tokens are counted with END and without padding. The time of a step includes the batch, the forward and backward
pass, the gradient norm, clipping and Adam. The report has the median over intervals of `--steps` steps with its range.
Two steps of the first epoch are slower, because their memory is measured.

`cpu.py` compares seqloom with other toolkits in one run. For orientation: Joey NMT 2.3 was measured at about 1,400
target tokens per second for such a model (width 128, 4+4 layers, vocabulary of 8,000, Multi30k) on two CPU cores.

    python benchmarks/translation_training_speed.py --threads 2
    python benchmarks/translation_training_speed.py batch.tokens=2048 model.d_model=256
"""

import platform
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from peers.options import Parser, count, print_load, run_main

from seqloom.recipes import read_recipe
from seqloom.train.events import Progress
from seqloom.training import begin

RECIPE = "translate-multi30k"
TINY = ["tokenizer.size=8000", "batch.tokens=4096", "model.d_model=128", "model.dropout=0.3", "loss.consistency=0"]
JOEY = 1400


def speeds(recipe: list[str], intervals: int, folder: Path) -> Iterator[float]:
    """Yield the tokens per second of each interval, without the first interval, which is a warm-up."""
    training = begin(read_recipe(RECIPE, recipe)[1], folder)
    batches, model = training.task.batches, training.recipe.model
    print(
        f"width {model.d_model}, {model.encoder_layers}+{model.decoder_layers} layers, d_ff {model.feed_forward_size}, "
        f"vocabulary {len(training.task.tokenizer):,}; batches of {training.recipe.batch.tokens:,} tokens, "
        f"{training.task.tokens_per_step():,.0f} of the target on average, {batches.padding():.1%} padding"
    )
    seen = 0
    for event in training.events():
        if isinstance(event, Progress):
            seen += 1
            if seen > 1:
                yield event.tokens_per_second
            if seen > intervals:
                return


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--threads", type=count, default=2)
    parser.add_argument("--intervals", type=count, default=9)
    parser.add_argument("--steps", type=count, default=10, help="optimizer steps per interval")
    parser.add_argument("--feed-forward", type=int, nargs="+", default=[512, 256], help="one model for each")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("overrides", nargs="*", help="recipe overrides, e.g. batch.tokens=2048")
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    where = f"{torch.get_num_threads()} CPU threads" if arguments.device == "cpu" else arguments.device
    print(f"{where}, torch {torch.__version__}, {platform.machine()}")
    print_load(arguments.threads)
    for inner in arguments.feed_forward:
        recipe = [*TINY, f"model.d_ff={inner}", f"train.device={arguments.device}"]
        recipe += ["train.precision=fp32"] if arguments.device == "cpu" else []
        recipe += [f"train.log_every={arguments.steps}", "train.evaluate_every=1000000", "train.save_every=1000000"]
        with tempfile.TemporaryDirectory() as folder:
            results = list(speeds([*recipe, *arguments.overrides], arguments.intervals, Path(folder) / "run"))
        median = statistics.median(results)
        print(
            f"  {median:,.0f} target tokens/s ({min(results):,.0f} to {max(results):,.0f}), "
            f"{median / JOEY:.1f} times Joey NMT's {JOEY:,}",
            flush=True,
        )


if __name__ == "__main__":
    run_main(main)
