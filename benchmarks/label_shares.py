"""What is pretraining worth when labels are few? A ladder at several shares of the labels: one table, one figure.

The ladder is climbed once for each share, so this can be stopped and gone on with like any ladder. Dev chooses the
checkpoints; the table has both dev and test, mean ± standard deviation over the seeds. The runs that the rungs begin
with must be there:

    seqloom train lm-reviews ; seqloom train gpt-reviews ; seqloom train bert-reviews
    seqloom train elmo-reviews ; seqloom train electra-reviews
    seqloom import-minilm
    python benchmarks/label_shares.py --jobs 8
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

Figures = dict[str, dict[float, list[float]]]  # rung → share → accuracy by seed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE, for every rung")
    parser.add_argument("--ladder", default="ladder-sst2-shares")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.01, 0.1, 1.0])
    parser.add_argument("--steps", type=int, nargs="+", default=[200, 500, 1200], help="of each share")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=Path("runs/sst2-shares"))
    parser.add_argument("--jobs", type=int, default=1, help="runs trained at once")
    arguments = parser.parse_args()
    if len(arguments.steps) != len(arguments.shares):
        parser.error(f"there must be as many --steps as --shares; got {len(arguments.steps)}")

    figures: dict[str, Figures] = {"dev": {}, "test": {}}
    for share, steps in zip(arguments.shares, arguments.steps, strict=True):
        words = [f"data.fraction={share}", f"train.steps={steps}", f"train.evaluate_every={max(1, steps // 20)}"]
        solved = ladder.solve(
            ladder.read_ladder(arguments.ladder, [*words, *arguments.overrides], seeds=arguments.seeds)
        )
        out = arguments.out / f"{100 * share:g}-percent"
        for place, event in ladder.climb(solved, out, jobs=arguments.jobs, splits=("dev", "test")):
            if isinstance(event, Finished | str) or event is None:
                said = event if isinstance(event, str) else "done" if event is None else event.best.get("accuracy")
                print(f"{100 * share:g} % [{place.number}/{place.total}] {place.rung.name} seed {place.seed}: {said}")
        for split, found in figures.items():
            values = {rung.name: rung.values for rung in ladder.results(solved, out, split).rungs}
            for rung in solved.rungs:  # in the order of the ladder
                found.setdefault(rung.name, {})[share] = values[rung.name]
    report(figures, arguments.out)


def report(figures: dict[str, Figures], out: Path) -> None:
    """The table on the screen and in shares.md; all values in shares.json; the figure of test in shares.png."""
    text = "\n\n".join(f"accuracy on {split}, in percent\n\n{table(found)}" for split, found in figures.items())
    print(f"\n{text}\n")
    write_atomic(out / "shares.md", f"{text}\n")
    write_atomic(out / "shares.json", json.dumps(figures, indent=1))
    names = list(dict.fromkeys(twin(name) for name in figures["test"]))
    lines = [
        MeasuredLine(
            name,
            {share: [100 * value for value in values] for share, values in found.items()},
            dashed=scratch(name),
            colour=names.index(twin(name)),
        )
        for name, found in figures["test"].items()
    ]
    seeds = max(len(values) for found in figures["test"].values() for values in found.values())
    title = f"SST-2 by the share of its labels: {seeds} seed{'s' * (seeds > 1)}, from scratch dashed"
    figure = draw_against(lines, title=title, along="share of the labels", measure="accuracy on test, %", percent=True)
    write_atomic(out / "shares.png", to_bytes(figure, ".png"))
    print(f"shares.md, shares.json and shares.png are in {out}")


def twin(name: str) -> str:
    """What a model and the same from scratch are both called."""
    return name.removesuffix("-scratch")


def scratch(name: str) -> bool:
    return name.endswith("scratch") or name in ("bilstm", "transformer")


def table(found: Figures) -> str:
    shares = sorted({share for values in found.values() for share in values})
    head = f"| model | {' | '.join(f'{100 * share:g} %' for share in shares)} |\n|---|{'---:|' * len(shares)}"
    rows = [f"| {name} | {' | '.join(cell(values[share]) for share in shares)} |" for name, values in found.items()]
    return "\n".join([head, *rows])


def cell(values: list[float]) -> str:
    spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.1f}{spread}"


if __name__ == "__main__":
    main()
