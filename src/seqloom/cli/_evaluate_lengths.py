"""`seqloom evaluate --lengths`: BLEU by source length for several translators, as a table and a plot."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from seqloom.cli._inspect_views import shorten_names
from seqloom.cli._output import make_table, open_wide_console, print_json, print_notes, write_plot
from seqloom.core.errors import UsageError

if TYPE_CHECKING:
    from seqloom.predict.evaluation import EvaluationOptions
    from seqloom.predict.translation_evaluation import TranslationEvaluation


def compare_lengths(runs: Sequence[Path], options: "EvaluationOptions", plot: Path, as_json: bool, device: str) -> None:
    """Evaluate each translator separately, and compare BLEU by source length."""
    from seqloom.inspect.plots.translations import draw_lengths
    from seqloom.predict.loader import load
    from seqloom.predict.translate import TranslatorPredictor
    from seqloom.predict.translation_evaluation import TranslationEvaluation

    models = [load(run, device) for run in runs]
    for model in models:
        if not isinstance(model, TranslatorPredictor):
            raise UsageError(f"--lengths requires translators; {model.name} is {model.description}.")
    evaluations = {
        name: TranslationEvaluation(model, options)
        for name, model in zip(shorten_names(runs), models, strict=True)
        if isinstance(model, TranslatorPredictor)
    }
    check_same_pairs(evaluations)
    first = next(iter(evaluations.values()))
    for name, evaluation in evaluations.items():
        print_notes(f"{name}: {note}" for note in evaluation.notes)
    rows = {name: evaluation.report.by_length for name, evaluation in evaluations.items()}
    write_plot(plot, draw_lengths(rows, first.report.unit, f"{first.data}: {len(first.report.lines):,} pairs"))
    if as_json:
        print_json({"data": first.data, "runs": [evaluation.to_json() for evaluation in evaluations.values()]})
        return
    print_lengths(evaluations)


def check_same_pairs(evaluations: "dict[str, TranslationEvaluation]") -> None:
    """Raise an error if the models were evaluated on different sentences."""
    (first, pairs), *others = [
        (name, [(line.source, line.reference) for line in evaluation.report.lines])
        for name, evaluation in evaluations.items()
    ]
    for name, other in others:
        if other != pairs:
            raise UsageError(
                f"--lengths compares translations of the same pairs, but {first} and {name} have different data. Give "
                "the pairs: --source FILE --reference FILE."
            )


def print_lengths(evaluations: "dict[str, TranslationEvaluation]") -> None:
    """Print BLEU of each model in total and by source length."""
    from rich.text import Text

    from seqloom.inspect.plots.translations import bucket_name

    first = next(iter(evaluations.values())).report
    table = make_table([first.unit, "pairs", *evaluations])
    reports = [evaluation.report for evaluation in evaluations.values()]
    for number, row in enumerate(first.by_length):
        table.add_row(
            bucket_name(row), f"{row.pairs:,}", *(f"{report.by_length[number].bleu:.2f}" for report in reports)
        )
    table.add_row(Text("all"), f"{len(first.lines):,}", *(f"{report.metrics['bleu']:.2f}" for report in reports))
    console = open_wide_console()
    console.print("BLEU by length of the source", markup=False)
    console.print(table)
    for name, report in zip(evaluations, reports, strict=True):
        console.print(f"{name}: {report.decoding}", markup=False)
