"""Runs side by side, and the mean of several."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from seqloom.cli._options import DataDir, Device, JsonObject, run_out_option
from seqloom.cli._output import (
    Json,
    check_out,
    plain_table,
    print_json,
    print_notes,
    wide_console,
    write_picture,
)
from seqloom.core.errors import CheckpointError, SeqloomError, UsageError
from seqloom.core.words import ANSWER_METRICS, HIGHER_IS_BETTER, did_you_mean, format_metric

if TYPE_CHECKING:
    from seqloom.runs.run import Run

METRICS = {
    "loss": "loss",
    "perplexity": "ppl/token",
    "word_perplexity": "ppl/word",
    "bits_per_character": "bits/char",
    "bleu": "BLEU",
    "chrf": "chrF",
    "exact_match": "exact",
    "success": "success",
    "masked_accuracy": "masked",
    "next_accuracy": "next",
    "replaced_f1": "replaced F1",
    "hidden_accuracy": "hidden",
    "exact_spans": "exact spans",
    "exact_texts": "exact texts",
    "accuracy": "accuracy",
    "macro_f1": "macro F1",
    "matthews": "Matthews",
    "span_f1": "span F1",
    "token_accuracy": "words right",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "answer_f1": "answer F1",
    "answer_exact": "answer exact",
    "neighbours": "neighbours",
    "wordsim353": "WordSim",
    "simlex999": "SimLex",
    "analogies": "analogies",
    "crps": "CRPS",
    "mase": "MASE",
    "smape": "sMAPE",
    "coverage_80": "in 80 %",
    "rmse_filtered": "filtered",
    "rmse_smoothed": "smoothed",
}
OF_TRANSLATIONS = ("bleu", "chrf", "exact_match")  # only alike where the same was translated in the same way
PER_TOKEN = ("loss", "perplexity")  # only alike where the tokens are
ELSEWHERE = ("none", "imported", "imported-pairs")  # the corpora of models that were trained elsewhere
SECTION_KINDS = {"data": "data.corpus", "tokenizer": "tokenizer.kind", "model": "model.kind", "train": "model.kind"}
SILENT_KEYS = ("train.keep_checkpoints", "train.log_every")  # these change nothing that is compared
Ranking = tuple[str | None, str | None]  # the metric to rank by, or why there is none


def average(
    runs: Annotated[list[Path], typer.Argument(help="A run, or several runs whose best weights are averaged.")],
    last: Annotated[int | None, typer.Option(min=1, help="Number of checkpoints to average. [default: 10]")] = None,
    out: Annotated[Path | None, run_out_option("RUN-averaged")] = None,
    data_dir: DataDir = None,
    as_json: JsonObject = False,
    device: Device = "auto",
) -> None:
    """Average the newest checkpoints of a run into a new run: `seqloom average runs/translate-multi30k --last 10`."""
    if last is not None and len(runs) > 1:
        raise UsageError("--last is about the checkpoints of one run; of several runs, the best weights are averaged.")
    from seqloom.data.files import use_data_folder
    from seqloom.predict.ensembles import make_average

    with use_data_folder(data_dir):
        averaged = make_average(runs, last, out, device)
    print_notes(averaged.notes())
    run, metrics, alone = averaged.run, averaged.metrics, averaged.alone
    if as_json:
        sources = [str(source.path) for source in averaged.made.runs]
        parts = [{"name": one.name, "metrics": one.metrics} for one in alone]
        steps = averaged.made.steps or None
        print_json({"run": str(run.path), "from": sources, "steps": steps, "metrics": metrics, "alone": parts})
        return
    shown = [name for name in METRICS if name in metrics]
    first = "bleu" if "bleu" in shown else averaged.monitor
    best = [f"{one.name.partition(', ')[0]} {format_metric(first, one.metrics[first])}" for one in alone]
    value = f"{METRICS.get(first, first)} {format_metric(first, metrics[first])}"
    print(f"averaged {averaged.made.what}: dev {value}, {', '.join(best)}")
    columns = {"averaged": metrics, **{one.name: one.metrics for one in alone}}
    print(f"  {'':12}" + "".join(f"  {head:>10}" for head in columns))
    for name in shown:
        cells = {head: format_metric(name, values[name]) for head, values in columns.items()}
        print(f"  {METRICS[name]:12}" + "".join(f"  {cell:>{max(10, len(head))}}" for head, cell in cells.items()))
    path = shlex.quote(str(run.path))
    split = "test" if "test" in run.data["counts"] else "dev"
    print(f"The run is in {path}. Try: seqloom evaluate {path} --split {split}")


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run directories; other paths are skipped.")],
    split: Annotated[str, typer.Option(help="dev, or test if `seqloom evaluate` has been run on it.")] = "dev",
    by: Annotated[str | None, typer.Option(help=f"Rank by: {', '.join(METRICS)}.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write the training curves to this .png or .svg file.")] = None,
    as_json: JsonObject = False,
) -> None:
    """Compare sizes, speeds, metrics and recipes of several runs: `seqloom compare runs/*`."""
    if by is not None and by not in METRICS:
        raise UsageError(f"There is no metric {by!r} to rank by: {did_you_mean(by, METRICS)}.")
    check_out(plot)
    opened = open_runs(runs, split)
    rows = [RunSummary.of(run, split) for run in opened]
    metric, why_not = choose_ranking(opened, by, split)
    if by is not None and why_not:
        raise UsageError(why_not)
    if metric is not None:
        sign = -1 if metric in HIGHER_IS_BETTER else 1
        rows.sort(key=lambda row: sign * row.metrics.get(metric, sign * float("inf")))
    keys = differing_keys(opened)
    if as_json:
        print_json({"split": split, "ranked_by": metric, "not_ranked": why_not, "runs": rows, "recipes": keys})
    else:
        print_comparison(rows, split, metric, why_not, keys)
    if plot is not None:
        from seqloom.inspect.plots.measurements import draw_curves

        write_picture(plot, draw_curves(opened), said="The curves are in {}.")
    if missing := [str(path) for path in runs if not path.exists()]:
        what = "does not exist: it is" if len(missing) == 1 else "do not exist: they are"
        raise UsageError(f"{' and '.join(missing)} {what} missing from the comparison. Check the name.")


def open_runs(paths: Sequence[Path], split: str) -> list["Run"]:
    """Open runs. `runs/*` may well hold other things, or damaged runs, which are noted; one path must be a run."""
    from seqloom.data.corpus import SPLITS
    from seqloom.runs.run import Run

    if split not in SPLITS:
        raise UsageError(f"There is no split {split!r}: {did_you_mean(split, SPLITS)}.")
    opened = []
    for path in paths:
        try:
            run = Run.open(path)
            run.data, run.sizes, run.average, run.metrics(split)  # so that what is damaged is passed over
            opened.append(run)
        except SeqloomError as error:
            if len(paths) == 1:
                raise
            if path.exists():  # else it is named at the end
                typer.echo(f"passed over: {error}", err=True)
    if not opened:
        raise CheckpointError("None of these is a run that can be read. Name directories that `seqloom train` made.")
    return opened


@dataclass(frozen=True)
class RunSummary:
    """What is compared of a run."""

    run: str
    parameters: int | None
    tokens_per_second: float | None
    finished: bool
    metrics: dict[str, float]
    in_training: bool  # whether they were measured by the training itself, not by `evaluate`
    mean_of: str | None  # None for a run that was trained

    @classmethod
    def of(cls, run: "Run", split: str) -> Self:
        """Read the log and the metrics of a run."""
        log = list(run.log())
        started = next((entry for entry in log if entry["event"] in ("started", "imported")), {})
        finished: dict[str, Any] = next((entry for entry in reversed(log) if entry["event"] == "finished"), {})
        metrics, mean_of = run.metrics(split) or {}, None
        if run.average is not None:
            steps = run.average.get("steps")
            mean_of = f"{len(steps)} checkpoints" if steps else f"{len(run.average['runs'])} runs"
        return cls(
            run=str(run.path),
            parameters=finished.get("parameters") or started.get("parameters"),
            tokens_per_second=finished.get("tokens_per_second"),
            finished=bool(finished) or run.data["corpus"] in ELSEWHERE,
            metrics={name: metrics[name] for name in METRICS if name in metrics},
            in_training="step" in metrics,
            mean_of=mean_of,
        )


# --- ranking --------------------------------------------------------------------------------------------------------


def choose_ranking(opened: Sequence["Run"], by: str | None, split: str) -> Ranking:
    """Return what to rank by, or why ranking would be comparing apples with pears."""
    measured = [(run, metrics) for run in opened if (metrics := run.metrics(split)) is not None]
    runs, every = [run for run, _ in measured], [metrics for _, metrics in measured]
    if len(runs) < 2:
        unmeasured = [str(run.path) for run in opened if run not in runs]
        listed = f"Not ranked: there are no {split} figures for {', '.join(unmeasured)}"
        hint = f"`seqloom evaluate RUN --split {split}` measures a run that has a model and data of its own"
        return None, f"{listed}; {hint}." if unmeasured else None
    if len({run.data["sha256"].get(split) for run in runs}) > 1:
        things = "texts" if all(run.of_text for run in runs) else "data"
        return None, f"Not ranked: the runs were measured on different {split} {things}."
    if by is not None and not any(by in metrics for metrics in every):
        return None, f"Not ranked by {by}: that is not measured for the task {runs[0].recipe['task']}."
    # The first that all have ranks; what is counted are texts and words, however they are cut into tokens.
    shared = next(
        (name for name in (*ANSWER_METRICS, "neighbours", "crps") if all(name in each for each in every)), None
    )
    if shared == "neighbours":
        objectives = {run.recipe["model"]["objective"] for run in runs}
        if by == "loss" and len(objectives) > 1:
            return None, f"Not ranked by loss: {' and '.join(sorted(objectives))} have losses of their own kind."
    if shared is not None:
        return by or shared, None
    if any({"masked_loss", "hidden_accuracy"} & metrics.keys() for metrics in every):
        return rank_masked(runs, by)
    translators = all("bleu" in metrics for metrics in every)
    if by in OF_TRANSLATIONS or (by is None and translators):
        apart = explain_unlike_bleu(runs, every)
        if by is not None or apart is None:
            return (None, f"Not ranked by {by}: {apart}") if apart else (by or "bleu", None)
    if len({run.tokenizer.fingerprint() if run.of_text else "" for run in runs}) == 1:
        return by or "loss", None
    if translators:
        why_not = explain_unlike_bleu(runs, every) or "Rank by bleu instead."
        return None, f"Not ranked{f' by {by}' if by else ''}: the runs count different tokens. {why_not}"
    lossy = [str(run.path) for run, metrics in measured if metrics.get("text_kept", 1.0) < 1]
    if lossy:
        return None, (
            f"Not ranked: the runs count different tokens, and those of {', '.join(lossy)} lose part of the text "
            "(rare words, spacing), which then need not be predicted. Compare runs with one vocabulary."
        )
    if by in PER_TOKEN:
        return None, f"Not ranked by {by}: the runs count different tokens. Rank by bits_per_character instead."
    return by or "bits_per_character", None


def rank_masked(runs: Sequence["Run"], by: str | None) -> Ranking:
    """Rank masked language models and denoisers, which are asked for what is hidden in what they read."""
    asked, keys = set(), dict[str, None]()
    for run in runs:
        names = ("noise",) if run.recipe["task"] == "denoise" else ("objective", "masks")
        own = [name for name in names if name in run.recipe]
        keys |= dict.fromkeys(own)
        hidden = [repr(run.recipe[name]) for name in own]
        asked.add((*hidden, run.recipe["batch"].get("max_length"), run.tokenizer.fingerprint()))
    if len(asked) == 1:
        return by or "loss", None
    things = f"{', '.join(keys)}, batch.max_length and vocabulary"
    return None, f"Not ranked: the runs were asked for different tokens. What is hidden hangs on {things}."


def explain_unlike_bleu(runs: Sequence["Run"], every: Sequence[Mapping[str, float]]) -> str | None:
    """Return why metrics of translations are not alike: in training a few pairs are translated greedily, then all."""
    early = [run for run, metrics in zip(runs, every, strict=True) if "step" in metrics]
    if early and (len(early) < len(runs) or len({run.recipe["batch"]["dev_pairs"] for run in early}) > 1):
        names = ", ".join(str(run.path) for run in early)
        return f"{names}: BLEU is of what was translated while it trained. Run `seqloom evaluate` on all of them first."
    return None


# --- recipes and output ---------------------------------------------------------------------------------------------


def differing_keys(runs: Sequence["Run"]) -> dict[str, Json]:
    """Return the recipe keys on which not all runs agree: key → run → value.

    Where sections are of different kinds (an LSTM, an n-gram), keys that one kind has alone are
    shown only if the runs of that kind disagree on them.
    """
    flat = {str(run.path): flatten(run.recipe) for run in runs}
    keys = dict.fromkeys(key for recipe in flat.values() for key in recipe)
    table = {key: {path: recipe.get(key) for path, recipe in flat.items()} for key in keys}
    differing = {key: values for key, values in table.items() if len({repr(value) for value in values.values()}) > 1}
    return {
        key: values
        for key, values in differing.items()
        if key not in SILENT_KEYS
        and (
            SECTION_KINDS.get(key.split(".")[0], "task") not in differing
            or len({repr(recipe[key]) for recipe in flat.values() if key in recipe}) > 1
        )
    }


def flatten(tree: Mapping[str, object], prefix: str = "") -> Json:
    """Return nested sections as one mapping with dotted keys."""
    flat: Json = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def print_comparison(
    rows: list[RunSummary], split: str, metric: str | None, why_not: str | None, differing: Mapping[str, Json]
) -> None:
    """Print a table of runs, and what their recipes differ in."""
    from rich.text import Text

    console = wide_console()
    ranked = f", best first by {METRICS[metric]}" if metric else ""
    title = f"{len(rows)} run{'s' * (len(rows) > 1)} on {split}{ranked}"
    console.print(title, style="italic")  # as the table's own title it would be no wider than the table
    shown = [name for name in METRICS if name == "loss" or any(name in row.metrics for row in rows)]
    table = plain_table(["run", "parameters", "tokens/s", *(METRICS[name] for name in shown)], fold=1)
    for row in rows:
        sizes = [f"{size:,.0f}" if size else "-" for size in (row.parameters, row.tokens_per_second)]
        remark = f" (mean of {row.mean_of})" if row.mean_of else "" if row.finished else " (unfinished)"
        cells = [format_decimal(row.metrics.get(name)) for name in shown]
        table.add_row(*map(Text, (f"{row.run}{remark}", *sizes, *cells)))
    console.print(table)
    if any(row.in_training and "bleu" in row.metrics for row in rows):
        early = "BLEU, chrF and exact matches are of what was translated while training, greedily; "
        console.print(f"{early}`seqloom evaluate RUN` translates a whole split.", markup=False)
    if why_not:
        console.print(why_not, markup=False)
    if differing:
        console.print("\nwhat the recipes differ in", style="italic")
        names = [row.run for row in rows]
        table = plain_table(["key", *(Path(name).name for name in names)], fold=1 + len(names))
        for key, values in differing.items():
            table.add_row(*map(Text, (key, *("-" if values[run] is None else str(values[run]) for run in names))))
        console.print(table)


def format_decimal(value: float | None) -> str:
    """Return a metric with as many digits as it needs."""
    if value is None:
        return "-"
    return f"{value:.4f}" if value < 100 else f"{value:,.2f}" if value < 1e6 else f"{value:.2e}"
