"""`seqloom compare` and `seqloom average`: compare runs, and average their weights."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from seqloom.cli._options import DataDir, Device, JsonObject, RunData, run_out_option
from seqloom.cli._output import (
    Json,
    check_plot_path,
    make_table,
    open_wide_console,
    print_json,
    print_notes,
    write_plot,
)
from seqloom.core.errors import CheckpointError, SeqloomError, UsageError
from seqloom.core.metrics import ANSWER_METRICS, HIGHER_IS_BETTER, format_metric
from seqloom.core.words import did_you_mean

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
    "rouge_l": "ROUGE-L",
    "labelled_attachment": "LAS",
    "valid_python": "valid Python",
    "success": "success",
    "masked_accuracy": "masked",
    "next_accuracy": "next",
    "replaced_f1": "replaced F1",
    "hidden_accuracy": "hidden",
    "exact_spans": "exact spans",
    "exact_texts": "exact texts",
    "accuracy": "accuracy",
    "average_precision": "avg. precision",
    "micro_f1": "micro F1",
    "macro_f1": "macro F1",
    "subset_accuracy": "subset accuracy",
    "matthews": "Matthews",
    "span_f1": "span F1",
    "token_accuracy": "word accuracy",
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
    "coverage_80": "80 % coverage",
    "rmse_filtered": "filtered",
    "rmse_smoothed": "smoothed",
}
# Metrics that are comparable only for equal data and decoding
TRANSLATION_METRICS = ("bleu", "chrf", "exact_match", "rouge_l", "labelled_attachment", "valid_python")
PER_TOKEN_METRICS = ("loss", "perplexity")  # metrics that are comparable only for equal tokenizers
IMPORTED_CORPORA = ("none", "imported", "imported-pairs")  # corpora of imported models
SECTION_KINDS = {"data": "data.corpus", "tokenizer": "tokenizer.kind", "model": "model.kind", "train": "model.kind"}
IGNORED_KEYS = ("train.keep_checkpoints", "train.log_every")  # keys that do not affect the compared values
Ranking = tuple[str | None, str | None]  # the metric to rank by, or the reason why there is no ranking


def average(
    runs: Annotated[
        list[Path], typer.Argument(help="A run directory, or several run directories to average their best weights.")
    ],
    last: Annotated[
        int | None, typer.Option(min=1, help="Number of the newest checkpoints to average. [default: 10]")
    ] = None,
    out: Annotated[Path | None, run_out_option("RUN-averaged")] = None,
    data: RunData = None,
    data_dir: DataDir = None,
    as_json: JsonObject = False,
    device: Device = "auto",
) -> None:
    """Average the newest checkpoints of a run into a new run: `seqloom average runs/translate-multi30k --last 10`."""
    if last is not None and len(runs) > 1:
        raise UsageError("--last selects checkpoints of one run; leave it out to average several runs.")
    from seqloom.data.files import use_data_folder
    from seqloom.predict.ensembles import average_runs

    with use_data_folder(data_dir, data):
        averaged = average_runs(runs, last, out, device)
    print_notes(averaged.notes())
    run, metrics, alone = averaged.run, averaged.metrics, averaged.alone
    if as_json:
        sources = [str(source.path) for source in averaged.average.runs]
        parts = [{"name": part.name, "metrics": part.metrics} for part in alone]
        steps = averaged.average.steps or None
        print_json({"run": str(run.path), "from": sources, "steps": steps, "metrics": metrics, "alone": parts})
        return
    shown = [name for name in METRICS if name in metrics]
    first = "bleu" if "bleu" in shown else averaged.monitor
    best = [f"{part.name.partition(', ')[0]} {format_metric(first, part.metrics[first])}" for part in alone]
    value = f"{METRICS.get(first, first)} {format_metric(first, metrics[first])}"
    print(f"averaged {averaged.average.description}: dev {value}, {', '.join(best)}")
    columns = {"averaged": metrics, **{part.name: part.metrics for part in alone}}
    print(f"  {'':12}" + "".join(f"  {head:>10}" for head in columns))
    for name in shown:
        cells = {head: format_metric(name, values[name]) for head, values in columns.items()}
        print(f"  {METRICS[name]:12}" + "".join(f"  {cell:>{max(10, len(head))}}" for head, cell in cells.items()))
    path = shlex.quote(str(run.path))
    split = "test" if "test" in run.data["counts"] else "dev"
    print(f"The run is in {path}. Try: seqloom evaluate {path} --split {split}")


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run directories; other paths are skipped.")],
    split: Annotated[
        str, typer.Option(help="The split to compare: dev, or test after `seqloom evaluate RUN --split test`.")
    ] = "dev",
    by: Annotated[str | None, typer.Option(help=f"Rank by: {', '.join(METRICS)}.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write the training curves to this .png or .svg file.")] = None,
    as_json: JsonObject = False,
) -> None:
    """Compare sizes, speeds, metrics and recipes of several runs: `seqloom compare runs/*`."""
    if by is not None and by not in METRICS:
        raise UsageError(f"There is no metric {by!r} to rank by: {did_you_mean(by, METRICS)}.")
    check_plot_path(plot)
    opened = open_runs(runs, split)
    rows = [RunSummary.of(run, split) for run in opened]
    metric, reason = choose_ranking(opened, by, split)
    if by is not None and reason:
        raise UsageError(reason)
    if metric is not None:
        sign = -1 if metric in HIGHER_IS_BETTER else 1
        rows.sort(key=lambda row: sign * row.metrics.get(metric, sign * float("inf")))
    keys = differing_keys(opened)
    if as_json:
        print_json({"split": split, "ranked_by": metric, "not_ranked": reason, "runs": rows, "recipes": keys})
    else:
        print_comparison(rows, split, metric, reason, keys)
    if plot is not None:
        from seqloom.inspect.plots.measurements import draw_curves

        write_plot(plot, draw_curves(opened), message="The curves are in {}.")
    if missing := [str(path) for path in runs if not path.exists()]:
        verbs = "does not exist and is" if len(missing) == 1 else "do not exist and are"
        raise UsageError(f"{' and '.join(missing)} {verbs} missing from the comparison. Check the name.")


def open_runs(paths: Sequence[Path], split: str) -> list["Run"]:
    """Open runs; skip damaged runs and other paths, because `runs/*` may match them. A single path must be a run."""
    from seqloom.data.corpus import SPLITS
    from seqloom.runs.run import Run

    if split not in SPLITS:
        raise UsageError(f"There is no split {split!r}: {did_you_mean(split, SPLITS)}.")
    opened = []
    for path in paths:
        try:
            run = Run.open(path)
            run.data, run.sizes, run.average, run.metrics(split)  # raises an error if the run is damaged
            opened.append(run)
        except SeqloomError as error:
            if len(paths) == 1:
                raise
            if path.exists():  # missing paths are reported at the end
                typer.echo(f"skipped: {error}", err=True)
    if not opened:
        raise CheckpointError("None of these paths is a readable run. Name directories written by `seqloom train`.")
    return opened


@dataclass(frozen=True)
class RunSummary:
    """The compared values of a run."""

    run: str
    parameters: int | None
    tokens_per_second: float | None
    finished: bool
    metrics: dict[str, float]
    in_training: bool  # whether training computed the metrics instead of `evaluate`
    mean_of: str | None  # None unless the run is an average

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
            finished=bool(finished) or run.data["corpus"] in IMPORTED_CORPORA,
            metrics={name: metrics[name] for name in METRICS if name in metrics},
            in_training="step" in metrics,
            mean_of=mean_of,
        )


# --- ranking --------------------------------------------------------------------------------------------------------


def choose_ranking(opened: Sequence["Run"], by: str | None, split: str) -> Ranking:
    """Return the metric to rank by, or the reason why the runs are not comparable."""
    measured = [(run, metrics) for run in opened if (metrics := run.metrics(split)) is not None]
    runs, all_metrics = [run for run, _ in measured], [metrics for _, metrics in measured]
    if len(runs) < 2:
        unmeasured = [str(run.path) for run in opened if run not in runs]
        listed = f"Not ranked: {split} metrics are missing for {', '.join(unmeasured)}"
        return None, f"{listed}. Run `seqloom evaluate RUN --split {split}` first." if unmeasured else None
    if len({run.data["sha256"].get(split) for run in runs}) > 1:
        things = "texts" if all(run.of_text for run in runs) else "data"
        return None, f"Not ranked: the runs were measured on different {split} {things}."
    if by is not None and not any(by in metrics for metrics in all_metrics):
        return None, f"Not ranked by {by}: the task {runs[0].recipe['task']} has no such metric."
    # Rank by the first metric that all runs have. These metrics count texts and words, so they do not depend on the
    # tokenizer.
    shared = next(
        (name for name in (*ANSWER_METRICS, "neighbours", "crps") if all(name in metrics for metrics in all_metrics)),
        None,
    )
    if shared == "neighbours":
        objectives = {run.recipe["model"]["objective"] for run in runs}
        if by == "loss" and len(objectives) > 1:
            return None, f"Not ranked by loss: the losses of {' and '.join(sorted(objectives))} are not comparable."
    if shared is not None:
        return by or shared, None
    if any({"masked_loss", "hidden_accuracy"} & metrics.keys() for metrics in all_metrics):
        return rank_masked(runs, by)
    translators = all("bleu" in metrics for metrics in all_metrics)
    if by in TRANSLATION_METRICS or (by is None and translators):
        difference = explain_different_bleu(runs, all_metrics)
        if by is not None or difference is None:
            return (None, f"Not ranked by {by}: {difference}") if difference else (by or "bleu", None)
    if len({run.tokenizer.fingerprint() if run.of_text else "" for run in runs}) == 1:
        return by or "loss", None
    if translators:
        reason = explain_different_bleu(runs, all_metrics) or "Rank by bleu instead."
        return None, f"Not ranked{f' by {by}' if by else ''}: the runs have different tokenizers. {reason}"
    lossy = [str(run.path) for run, metrics in measured if metrics.get("text_kept", 1.0) < 1]
    if lossy:
        return None, (
            f"Not ranked: the runs have different tokenizers, and those of {', '.join(lossy)} lose part of the text "
            "(rare words, spacing), which is then not predicted. Compare runs with the same vocabulary."
        )
    if by in PER_TOKEN_METRICS:
        return None, f"Not ranked by {by}: the runs have different tokenizers. Rank by bits_per_character instead."
    return by or "bits_per_character", None


def rank_masked(runs: Sequence["Run"], by: str | None) -> Ranking:
    """Rank masked language models or denoisers, which are comparable only if they predict the same hidden tokens."""
    objectives, keys = set(), dict[str, None]()
    for run in runs:
        names = ["noise"] if run.recipe["task"] == "denoise" else ["objective", "masks"]
        names = [name for name in names if name in run.recipe]
        keys |= dict.fromkeys(names)
        hidden = [repr(run.recipe[name]) for name in names]
        objectives.add((*hidden, run.recipe["batch"].get("max_length"), run.tokenizer.fingerprint()))
    if len(objectives) == 1:
        return by or "loss", None
    things = f"{', '.join(keys)}, batch.max_length and vocabulary"
    return None, f"Not ranked: the runs predict different tokens; {things} must be equal."


def explain_different_bleu(runs: Sequence["Run"], all_metrics: Sequence[Mapping[str, float]]) -> str | None:
    """Return why translation metrics are not comparable, for example if training measured them on a few pairs."""
    early = [run for run, metrics in zip(runs, all_metrics, strict=True) if "step" in metrics]
    if early and (len(early) < len(runs) or len({run.recipe["batch"]["dev_pairs"] for run in early}) > 1):
        names = ", ".join(str(run.path) for run in early)
        return f"{names}: BLEU was measured during training. Run `seqloom evaluate` on all runs first."
    return None


# --- recipes and output ---------------------------------------------------------------------------------------------


def differing_keys(runs: Sequence["Run"]) -> dict[str, Json]:
    """Return the recipe keys on which the runs differ: key → run → value.

    If sections have different kinds, such as an LSTM and an n-gram model, a key that only one kind has is returned only
    if the runs of this kind differ.
    """
    flat = {str(run.path): flatten(run.recipe) for run in runs}
    keys = dict.fromkeys(key for recipe in flat.values() for key in recipe)
    table = {key: {path: recipe.get(key) for path, recipe in flat.items()} for key in keys}
    differing = {key: values for key, values in table.items() if len({repr(value) for value in values.values()}) > 1}
    return {
        key: values
        for key, values in differing.items()
        if key not in IGNORED_KEYS
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
    rows: list[RunSummary], split: str, metric: str | None, reason: str | None, differing: Mapping[str, Json]
) -> None:
    """Print a table of runs, and the differences between their recipes."""
    from rich.text import Text

    console = open_wide_console()
    ranked = f", best first by {METRICS[metric]}" if metric else ""
    title = f"{len(rows)} run{'s' * (len(rows) > 1)} on {split}{ranked}"
    console.print(title, style="italic")  # a table title would wrap at the width of the table
    shown = [name for name in METRICS if name == "loss" or any(name in row.metrics for row in rows)]
    table = make_table(["run", "parameters", "tokens/s", *(METRICS[name] for name in shown)], fold=1)
    for row in rows:
        sizes = [f"{size:,.0f}" if size else "-" for size in (row.parameters, row.tokens_per_second)]
        remark = f" (mean of {row.mean_of})" if row.mean_of else "" if row.finished else " (unfinished)"
        cells = [format_decimal(row.metrics.get(name)) for name in shown]
        table.add_row(*map(Text, (f"{row.run}{remark}", *sizes, *cells)))
    console.print(table)
    if any(row.in_training and "bleu" in row.metrics for row in rows):
        early = "BLEU, chrF and exact match were measured during training with greedy search; "
        console.print(f"{early}`seqloom evaluate RUN` translates the whole split.", markup=False)
    if reason:
        console.print(reason, markup=False)
    if differing:
        console.print("\ndifferences between the recipes", style="italic")
        names = [row.run for row in rows]
        table = make_table(["key", *(Path(name).name for name in names)], fold=1 + len(names))
        for key, values in differing.items():
            table.add_row(*map(Text, (key, *("-" if values[run] is None else str(values[run]) for run in names))))
        console.print(table)


def format_decimal(value: float | None) -> str:
    """Format a metric; large values have fewer digits."""
    if value is None:
        return "-"
    return f"{value:.4f}" if value < 100 else f"{value:,.2f}" if value < 1e6 else f"{value:.2e}"
