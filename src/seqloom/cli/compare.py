"""Runs side by side."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqloom.cli._options import JsonObject
from seqloom.cli._output import check_out, plain_table, print_json, wide_console
from seqloom.core.errors import CheckpointError, SeqloomError, UsageError
from seqloom.core.words import HIGHER_IS_BETTER, OF_ANSWERS, did_you_mean

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
ELSEWHERE = ("none", "imported", "imported-pairs")  # the corpora of models that were trained elsewhere
HEADS = {
    "data": "data.corpus",
    "tokenizer": "tokenizer.kind",
    "model": "model.kind",
    "train": "model.kind",
}  # what decides a section's keys
SILENT = ("train.keep", "train.log_every")  # these change nothing that is compared
PER_TOKEN = ("loss", "perplexity")  # only alike where the tokens are


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run directories; what is there and not a run is passed over.")],
    split: Annotated[str, typer.Option(help="dev, or test once `evaluate` has measured it.")] = "dev",
    by: Annotated[str | None, typer.Option(help=f"Rank by: {', '.join(METRICS)}.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw the training curves here: .png or .svg.")] = None,
    as_json: JsonObject = False,
) -> None:
    """Sizes, speeds and scores of several runs, and what their recipes differ in: `seqloom compare runs/*`."""
    if by is not None and by not in METRICS:
        raise UsageError(f"There is no metric {by!r} to rank by: {did_you_mean(by, METRICS)}.")
    check_out(plot)
    opened = _open(runs, split)
    rows = [_row(run, split) for run in opened]
    metric, why_not = _ranking(opened, by, split)
    if by is not None and why_not:
        raise UsageError(why_not)
    if metric is not None:
        sign = -1 if metric in HIGHER_IS_BETTER else 1
        rows.sort(key=lambda row: sign * row["metrics"].get(metric, sign * float("inf")))
    differing = _differing(opened)
    if as_json:
        print_json({"split": split, "ranked_by": metric, "not_ranked": why_not, "runs": rows, "recipes": differing})
    else:
        _print(rows, split, metric, why_not, differing)
    if plot is not None:
        from seqloom.core.files import write_atomic
        from seqloom.inspect.plots.figures import to_bytes
        from seqloom.inspect.plots.measurements import draw_curves

        write_atomic(plot, to_bytes(draw_curves(opened), plot.suffix))
        typer.echo(f"The curves are in {plot}.", err=True)
    if missing := [str(path) for path in runs if not path.exists()]:
        what = "does not exist: it is" if len(missing) == 1 else "do not exist: they are"
        raise UsageError(f"{' and '.join(missing)} {what} missing from the comparison. Check the name.")


def _open(paths: Sequence[Path], split: str) -> list["Run"]:
    """`runs/*` may well hold other things, or damaged runs; say so and go on. One path that is no run is a mistake."""
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


def _row(run: "Run", split: str) -> dict[str, Any]:
    log = list(run.log())
    started = next((entry for entry in log if entry["event"] in ("started", "imported")), {})
    finished: dict[str, Any] = next((entry for entry in reversed(log) if entry["event"] == "finished"), {})
    metrics = run.metrics(split) or {}
    return {
        "run": str(run.path),
        "parameters": finished.get("parameters") or started.get("parameters"),
        "tokens_per_second": finished.get("tokens_per_second"),
        "finished": bool(finished) or run.data["corpus"] in ELSEWHERE,
        "metrics": {name: metrics[name] for name in METRICS if name in metrics},
        "in_training": "step" in metrics,  # measured by the training itself, not by `evaluate`
        "mean_of": _mean_of(run),
    }


def _mean_of(run: "Run") -> str | None:
    """What a run is the mean of, in a word; None for one that was trained."""
    if run.average is None:
        return None
    steps = run.average.get("steps")
    return f"{len(steps)} checkpoints" if steps else f"{len(run.average['runs'])} runs"


def _ranking(runs: Sequence["Run"], by: str | None, split: str) -> tuple[str | None, str | None]:
    """What to rank by, or why ranking would be comparing apples with pears."""
    unmeasured = [str(run.path) for run in runs if run.metrics(split) is None]
    runs = [run for run in runs if run.metrics(split) is not None]
    if len(runs) < 2:
        listed = f"Not ranked: there are no {split} figures for {', '.join(unmeasured)}"
        hint = f"`seqloom evaluate RUN --split {split}` measures a run that has a model and data of its own"
        return None, f"{listed}; {hint}." if unmeasured else None
    if len({run.data["sha256"].get(split) for run in runs}) > 1:
        things = "texts" if all(run.of_text for run in runs) else "data"
        return None, f"Not ranked: the runs were measured on different {split} {things}."
    if by is not None and not any(by in (run.metrics(split) or {}) for run in runs):
        return None, f"Not ranked by {by}: that is not measured for the task {runs[0].recipe['task']}."
    answering = next((name for name in OF_ANSWERS if all(name in (run.metrics(split) or {}) for run in runs)), None)
    if (
        answering is not None
    ):  # the first that all have ranks; what is counted are texts and words, however they are cut into tokens
        return by or answering, None
    if all("neighbours" in (run.metrics(split) or {}) for run in runs):
        objectives = {run.recipe["model"]["objective"] for run in runs}
        if by == "loss" and len(objectives) > 1:
            return None, f"Not ranked by loss: {' and '.join(sorted(objectives))} have losses of their own kind."
        return by or "neighbours", None
    if all("crps" in (run.metrics(split) or {}) for run in runs):
        return by or "crps", None
    if any({"masked_loss", "hidden_accuracy"} & (run.metrics(split) or {}).keys() for run in runs):
        return _ranking_of_masked(runs, by)
    translators = all("bleu" in (run.metrics(split) or {}) for run in runs)
    if by in OF_TRANSLATIONS or (by is None and translators):
        apart = _measured_apart(runs, split)
        if by is not None or apart is None:
            return (None, f"Not ranked by {by}: {apart}") if apart else (by or "bleu", None)
    if len({run.tokenizer.fingerprint() if run.of_text else "" for run in runs}) == 1:
        return by or "loss", None
    if translators:
        why_not = _measured_apart(runs, split) or "Rank by bleu instead."
        return None, f"Not ranked{f' by {by}' if by else ''}: the runs count different tokens. {why_not}"
    lossy = [str(run.path) for run in runs if (run.metrics(split) or {}).get("text_kept", 1.0) < 1]
    if lossy:
        return None, (
            f"Not ranked: the runs count different tokens, and those of {', '.join(lossy)} lose part of the text "
            "(rare words, spacing), which then need not be predicted. Compare runs with one vocabulary."
        )
    if by in PER_TOKEN:
        return None, f"Not ranked by {by}: the runs count different tokens. Rank by bits_per_character instead."
    return by or "bits_per_character", None


def _ranking_of_masked(runs: Sequence["Run"], by: str | None) -> tuple[str | None, str | None]:
    """What a masked language model or a denoiser is asked hangs on what it reads, and on what is hidden there."""
    own = [
        ("noise",)
        if run.recipe["task"] == "denoise"
        else tuple(key for key in ("objective", "masks") if key in run.recipe)
        for run in runs
    ]
    asked = {
        (*(repr(run.recipe[key]) for key in keys), run.recipe["batch"].get("max_length"), run.tokenizer.fingerprint())
        for run, keys in zip(runs, own, strict=True)
    }
    if len(asked) == 1:
        return by or "loss", None
    things = f"{', '.join(dict.fromkeys(key for keys in own for key in keys))}, batch.max_length and vocabulary"
    return None, f"Not ranked: the runs were asked for different tokens. What is hidden hangs on {things}."


def _measured_apart(runs: Sequence["Run"], split: str) -> str | None:
    """Why figures of translations are not alike: in training a few pairs are translated greedily, afterwards all."""
    early = [run for run in runs if "step" in (run.metrics(split) or {})]
    if early and (len(early) < len(runs) or len({run.recipe["batch"]["dev_pairs"] for run in early}) > 1):
        names = ", ".join(str(run.path) for run in early)
        return f"{names}: BLEU is of what was translated while it trained. Run `seqloom evaluate` on all of them first."
    return None


def _differing(runs: Sequence["Run"]) -> dict[str, dict[str, Any]]:
    """Recipe keys on which not all runs agree: key → run → value.

    Where sections are of different kinds (an LSTM, an n-gram), keys that one kind has alone are shown only if the runs
    of that kind disagree on them.
    """
    flat = {str(run.path): _flatten(run.recipe) for run in runs}
    keys = dict.fromkeys(key for recipe in flat.values() for key in recipe)
    table = {key: {path: recipe.get(key) for path, recipe in flat.items()} for key in keys}
    differing = {key: values for key, values in table.items() if len({repr(value) for value in values.values()}) > 1}
    return {
        key: values
        for key, values in differing.items()
        if key not in SILENT
        and (
            HEADS.get(key.split(".")[0], "task") not in differing
            or len({repr(recipe[key]) for recipe in flat.values() if key in recipe}) > 1
        )
    }


def _flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat.update(_flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return flat


def _print(
    rows: list[dict[str, Any]],
    split: str,
    metric: str | None,
    why_not: str | None,
    differing: dict[str, dict[str, Any]],
) -> None:
    from rich.text import Text

    console = wide_console()
    ranked = f", best first by {METRICS[metric]}" if metric else ""
    title = f"{len(rows)} run{'s' * (len(rows) > 1)} on {split}{ranked}"
    console.print(title, style="italic")  # as the table's own title it would be no wider than the table
    shown = [name for name in METRICS if name == "loss" or any(name in row["metrics"] for row in rows)]
    table = plain_table(["run", "parameters", "tokens/s", *(METRICS[name] for name in shown)], fold=1)
    for row in rows:
        cells = [_count(row["parameters"]), _count(row["tokens_per_second"])]
        cells += [_decimal(row["metrics"].get(name)) for name in shown]
        remark = f" (mean of {row['mean_of']})" if row["mean_of"] else "" if row["finished"] else " (unfinished)"
        name = row["run"] + remark
        table.add_row(*map(Text, (name, *cells)))
    console.print(table)
    if any(row["in_training"] and "bleu" in row["metrics"] for row in rows):
        early = "BLEU, chrF and exact matches are of what was translated while training, greedily; "
        console.print(f"{early}`seqloom evaluate RUN` translates a whole split.", markup=False)
    if why_not:
        console.print(why_not, markup=False)
    if differing:
        console.print("\nwhat the recipes differ in", style="italic")
        names = [row["run"] for row in rows]
        table = plain_table(["key", *(Path(name).name for name in names)], fold=1 + len(names))
        for key, values in differing.items():
            table.add_row(*map(Text, (key, *("-" if values[run] is None else str(values[run]) for run in names))))
        console.print(table)


def _count(value: float | None) -> str:
    return f"{value:,.0f}" if value else "-"


def _decimal(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if value < 100 else f"{value:,.2f}" if value < 1e6 else f"{value:.2e}"
