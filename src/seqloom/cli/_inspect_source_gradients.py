"""`seqloom inspect gradients` for translators: the gradient norm of each source position."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from seqloom.cli._inspect_views import shorten_names
from seqloom.cli._output import Json, make_table, open_wide_console, print_notes, show_view
from seqloom.core.errors import UsageError

if TYPE_CHECKING:
    from seqloom.inspect.views.source_gradients import SourceGradients
    from seqloom.predict.base import AnyPredictor


def show_source_gradients(
    runs: Sequence[Path],
    models: "Sequence[AnyPredictor]",
    text: str | None,
    target: str | None,
    of: str,
    out: Path | None,
    as_json: bool,
) -> None:
    """Print and plot the gradients of translators; `of` is last or total."""
    from seqloom.inspect.plots.translations import draw_source_gradients
    from seqloom.inspect.views.source_gradients import source_gradients

    if text is None:
        raise UsageError("Translators need a sentence: add --text TEXT.")
    reports = [
        source_gradients(model, text, target, name) for model, name in zip(models, shorten_names(runs), strict=True)
    ]
    for report in reports:
        print_notes(f"{report.name}: {note}" for note in report.notes)
    show_view(
        out,
        lambda: draw_source_gradients(reports, of),
        as_json,
        lambda: {"of": of, "runs": [to_json(run, report) for run, report in zip(runs, reports, strict=True)]},
        lambda: print_source_gradients(reports, of),
    )


def to_json(run: Path, report: "SourceGradients") -> Json:
    return {
        "run": str(run),
        "translation": report.text,
        "source_tokens": report.source,
        "target_tokens": report.target,
        "losses": report.losses,
        "by_token": report.by_token,
        "total": report.total,
        "ratio": report.ratio,
    }


def print_source_gradients(reports: "Sequence[SourceGradients]", of: str) -> None:
    """Print the norms by source position, in one table for the runs with the same source tokens."""
    from rich.text import Text

    from seqloom.inspect.plots.figures import format_token

    console = open_wide_console()
    loss = "the last token's loss" if of == "last" else "the sum of all tokens' losses"
    console.print(Text(f"norm of the gradient of {loss} with respect to each source position", style="italic"))
    groups: dict[tuple[str, ...], list[SourceGradients]] = {}
    for report in reports:
        groups.setdefault(tuple(report.source), []).append(report)
    for source, members in groups.items():
        table = make_table(["position", "source", *(report.name for report in members)], left=0)
        table.columns[1].justify = "left"
        for position, token in enumerate(source):
            norms = (norms_of(report, of)[position] for report in members)
            table.add_row(str(position + 1), Text(format_token(token)), *(f"{norm:.2e}" for norm in norms))
        console.print(table)
        console.print()
    for report in reports:
        relative = f"the norm at the first word is {report.ratio:.2g} times that at the last word (sum of the losses)"
        console.print(f"{report.name}: {report.text}", markup=False)
        console.print(f"  {relative}", markup=False)


def norms_of(report: "SourceGradients", of: str) -> "Sequence[float]":
    """Return the norms for the loss of the last token or for the sum of all losses."""
    norms: Sequence[float] = (report.by_token[-1] if of == "last" else report.total).tolist()
    return norms
