"""What commands show of series: corpora of them, and forecasts measured."""

import math
from typing import TYPE_CHECKING, Any

from seqloom.cli._corpora import facts, print_absent, print_head, print_shares
from seqloom.cli._output import print_json

if TYPE_CHECKING:
    from seqloom.data.corpus import Corpus
    from seqloom.data.series import LabelledSeries, Series
    from seqloom.predict.forecaster import Forecaster
    from seqloom.tasks.forecast import ForecastReport

FIGURES = {
    "mase": "MASE",
    "smape": "sMAPE, %",
    "crps": "CRPS, in the unit of MASE",
    "coverage_80": "in the 80 % interval",
    "coverage_95": "in the 95 % interval",
}
STEPS = 12  # ahead that are listed one by one


def show_series(found: "Corpus[Series]", lines: int, as_json: bool) -> None:
    """How long it is, what is missing, and how each split begins."""
    from seqloom.data.series import columns_of, season_of

    if as_json:
        _print_json(found, columns=list(columns_of(found)), season=season_of(found))
        return
    print_head(found)
    _print_sizes(found)
    for split in found.splits if lines else ():
        (series, *_), labels = found.split(split), found.split(split)[0].time_labels()
        print(f"\n{split} begins:\n  {'time':16}" + "".join(f"{name[:13]:>14}" for name in columns_of(found)))
        for place in range(series.begins, min(series.begins + lines, len(series))):
            print(f"  {labels[place]:16}" + "".join(f"{_number(value):>14}" for value in series.values[place]))


def show_labelled_series(found: "Corpus[LabelledSeries]", lines: int, as_json: bool) -> None:
    if as_json:
        _print_json(found, labels=list(found.labels))
        return
    print_head(found)
    _print_sizes(found)
    print_shares("labels", found.label_counts("train"))
    for split in found.splits if lines else ():
        print(f"\n{split} begins:")
        for one in found.split(split)[:lines]:
            text = f"{one.label}: {one.text}"
            print(f"  {text if len(text) <= 110 else text[:109] + '…'}")


def _number(value: float) -> str:
    return "missing" if math.isnan(value) else f"{value:,.6g}"


def _print_sizes(found: Any) -> None:
    print(f"{'split':8}" + "".join(f"{name:>12}" for name in found.sizes("train")) + "   sha256")
    for split in found.splits:
        cells = "".join(f"{count:>12,}" for count in found.sizes(split).values())
        print(f"{split:8}{cells}   {found.fingerprint()[split][:12]}")
    print_absent(found)
    for note in found.notes:
        print(f"note: {note}")


def _print_json(found: Any, **more: Any) -> None:
    counts = {split: found.sizes(split) for split in found.splits}
    print_json({**facts(found), **more, "counts": counts, "absent": dict(found.absent), "notes": list(found.notes)})


# --- forecasts measured -----------------------------------------------------------------------------------------------


def evaluate_forecasts(model: "Forecaster", split: str, as_json: bool) -> None:
    """All figures of a split, with those of the seasonal naive forecast beside them."""
    found = model.report(split)
    data = f"{model.run.data['corpus']}, {split}"
    if as_json:
        steps = {"by_step": found.by_step, "naive_by_step": found.naive_by_step, "by_variable": found.by_variable}
        print_json({"run": model.name, "data": data, **found.kept(), **steps})
        return
    origins = "1 origin" if found.origins == 1 else f"{found.origins} origins"
    print(f"{model.name} on {data}: {found.horizon} steps ahead, from {origins}")
    print(f"  {'':28}{'model':>10}{'naive':>10}")
    for name, words in FIGURES.items():
        print(f"  {words:28}{found.metrics[name]:>10.4f}{found.metrics[f'naive_{name}']:>10.4f}")
    print(f"  {'loss, nats of the next value':28}{found.metrics['loss']:>10.4f}")
    _print_steps(found)
    if len(found.by_variable) > 1:
        print("\nMASE of each variable")
        for column, figures in found.by_variable.items():
            print(f"  {column[:26]:28}{figures['mase']:>10.4f}{figures['naive_mase']:>10.4f}")
    print(f"\nnaive: what was there {_season(model.season)} ago")


def _season(season: int) -> str:
    return "one step" if season == 1 else f"a season, {season} steps,"


def _print_steps(found: "ForecastReport") -> None:
    """MASE by how far ahead; of a long horizon a few steps."""
    count = len(found.by_step)
    every = max(1, -(-count // STEPS))
    print("\nMASE by steps ahead")
    for step in range(every - 1, count, every):
        print(f"  {step + 1:<28}{found.by_step[step]:>10.4f}{found.naive_by_step[step]:>10.4f}")
