"""The effect of pretraining with few labels. A ladder is trained on several fractions of the labels.

The output is a table and a plot. The ladder is trained once for each fraction and can be stopped and resumed.
Checkpoints are selected on dev. The table has dev and test results as mean ± standard deviation over the random seeds.
Train the pretrained models of the variants first:

    seqloom train lm-reviews ; seqloom train gpt-reviews ; seqloom train bert-reviews
    seqloom train elmo-reviews ; seqloom train electra-reviews
    seqloom import-minilm
    python benchmarks/label_fractions.py --jobs 8
"""

import argparse
import json
import statistics
from pathlib import Path

from seqloom import ladder
from seqloom.core.files import write_atomic
from seqloom.inspect.plots.figures import to_bytes
from seqloom.inspect.plots.measurements import MeasuredLine, draw_against
from seqloom.train.events import Finished

Accuracies = dict[str, dict[float, list[float]]]  # accuracies over the random seeds, by variant and fraction


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE, for all variants")
    parser.add_argument("--ladder", default="ladder-sst2-fractions")
    parser.add_argument("--fractions", type=float, nargs="+", default=[0.01, 0.1, 1.0])
    parser.add_argument("--steps", type=int, nargs="+", default=[200, 500, 1200], help="steps for each fraction")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=Path("runs/sst2-fractions"))
    parser.add_argument("--jobs", type=int, default=1, help="parallel runs")
    arguments = parser.parse_args()
    if len(arguments.steps) != len(arguments.fractions):
        parser.error(f"--steps must have one value for each of --fractions; got {len(arguments.steps)}")

    accuracies: dict[str, Accuracies] = {"dev": {}, "test": {}}
    for fraction, steps in zip(arguments.fractions, arguments.steps, strict=True):
        changes = [f"data.fraction={fraction}", f"train.steps={steps}", f"train.evaluate_every={max(1, steps // 20)}"]
        solved = ladder.solve(
            ladder.read_ladder(arguments.ladder, [*changes, *arguments.overrides], seeds=arguments.seeds)
        )
        out = arguments.out / f"{100 * fraction:g}-percent"
        for run, event in ladder.train_ladder(solved, out, jobs=arguments.jobs, splits=("dev", "test")):
            if isinstance(event, Finished | str) or event is None:
                status = event if isinstance(event, str) else "done" if event is None else event.best.get("accuracy")
                print(f"{100 * fraction:g} % [{run.number}/{run.total}] {run.variant.name} seed {run.seed}: {status}")
        for split, by_variant in accuracies.items():
            values = {variant.name: variant.values for variant in ladder.collect_results(solved, out, split).variants}
            for variant in solved.variants:  # in the order of the ladder
                by_variant.setdefault(variant.name, {})[fraction] = values[variant.name]
    report(accuracies, arguments.out)


def report(accuracies: dict[str, Accuracies], out: Path) -> None:
    """Print the table. Write it to fractions.md, all values to fractions.json, and a plot to fractions.png."""
    text = "\n\n".join(f"accuracy on {split}, in percent\n\n{table(values)}" for split, values in accuracies.items())
    print(f"\n{text}\n")
    write_atomic(out / "fractions.md", f"{text}\n")
    write_atomic(out / "fractions.json", json.dumps(accuracies, indent=1))
    names = list(dict.fromkeys(pretrained_name(name) for name in accuracies["test"]))
    lines = [
        MeasuredLine(
            name,
            {fraction: [100 * value for value in values] for fraction, values in by_fraction.items()},
            dashed=is_from_scratch(name),
            colour=names.index(pretrained_name(name)),
        )
        for name, by_fraction in accuracies["test"].items()
    ]
    seeds = max(len(values) for row in accuracies["test"].values() for values in row.values())
    title = f"SST-2 by the fraction of its labels: {seeds} seed{'s' * (seeds > 1)}, from scratch dashed"
    figure = draw_against(
        lines, title=title, x_label="fraction of the labels", y_label="accuracy on test, %", percent=True
    )
    write_atomic(out / "fractions.png", to_bytes(figure, ".png"))
    print(f"fractions.md, fractions.json and fractions.png are in {out}")


def pretrained_name(name: str) -> str:
    """Return the name of the pretrained model to which a from-scratch baseline belongs."""
    return name.removesuffix("-scratch")


def is_from_scratch(name: str) -> bool:
    return name.endswith("scratch") or name in ("bilstm", "transformer")


def table(accuracies: Accuracies) -> str:
    fractions = sorted({fraction for row in accuracies.values() for fraction in row})
    lines = [f"| model | {' | '.join(f'{100 * fraction:g} %' for fraction in fractions)} |"]
    lines += [f"|---|{'---:|' * len(fractions)}"]
    lines += [f"| {name} | {' | '.join(cell(row[key]) for key in fractions)} |" for name, row in accuracies.items()]
    return "\n".join(lines)


def cell(values: list[float]) -> str:
    spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.1f}{spread}"


if __name__ == "__main__":
    main()
