"""`seqloom inspect attention`: where a translator looked."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqloom.cli._json import print_json
from seqloom.cli._pictures import Out, check_out, write_picture
from seqloom.core.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from seqloom.inspect.alignment import AlignmentView, Grid


def attention(
    run: Annotated[Path, typer.Argument(help="A run of a translator with attention.")],
    text: Annotated[str, typer.Argument(help="The text to translate.")],
    target: Annotated[
        str | None, typer.Option(help="Look at this translation of it. [default: the one the model finds]")
    ] = None,
    beam: Annotated[int | None, typer.Option(min=1, help="Hypotheses kept; 1 is greedy. [default: the run's]")] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="The model's own pieces instead of words.")] = False,
    end: Annotated[bool, typer.Option("--end/--no-end", help="Show the end of both sentences too.")] = True,
    out: Out = None,
    font: Annotated[str | None, typer.Option(help="Font of the picture. [default: what has the letters]")] = None,
    color: Annotated[
        bool | None, typer.Option("--color/--no-color", help="Colours or letters. [default: by the terminal]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Where a translator looked: `seqloom inspect attention runs/X "Sunday, November 15, 2026" --out attention.png`."""
    from seqloom.api import Translator, load
    from seqloom.inspect.alignment import alignment_view

    check_out(out)
    if font is not None:
        _check_font(font, out)
    if beam is not None and target is not None:
        raise UsageError("--beam is about how a translation is found; with --target there is nothing to find.")
    translator = load(run, "cpu", Translator)
    view = alignment_view(translator, text, target, **({} if beam is None else {"beam": beam}))
    for note in view.notes:
        typer.echo(f"note: {note}", err=True)
    grid = view.grid(tokens=tokens, end=end)
    if out is not None:  # first, so that `… | head` has it too
        draw_view(out, grid, [view.source, view.text], font)
    if as_json:
        print_json({"run": str(run), **_object(view)})
    else:
        print_view(view, grid, color)


def _check_font(font: str, out: Path | None) -> None:
    if out is None:
        raise UsageError("--font is about the picture: name one with --out.")
    from seqloom.inspect.fonts import fonts_for

    fonts_for([], font)  # refuses one that is not there


def draw_view(out: Path, grid: "Grid", title: list[str], font: str | None = None) -> None:
    from seqloom.inspect.draw_alignment import draw_alignment, fonts_of

    complaint = fonts_of(grid, title, font).complaint()
    if complaint and out.suffix.lower() == ".png":
        typer.echo(f"note: {complaint}.", err=True)
    write_picture(out, draw_alignment(grid, title, font=font), text_stays_text=True)


def _object(view: "AlignmentView") -> dict[str, Any]:
    return {
        "source": view.source,
        "translation": view.text,
        "given": view.given,
        "finished": view.finished,
        "log_prob": view.log_prob,
        "source_tokens": view.tokens.source,
        "target_tokens": view.tokens.target,
        "weights": view.tokens.weights.tolist(),
        "source_words": view.words.source,
        "target_words": view.words.target,
        "word_weights": view.words.weights.tolist(),
        "alignment": view.links,
    }


def print_view(view: "AlignmentView", grid: "Grid", color: bool | None = None) -> None:
    from seqloom.inspect.terminal import heat_map, scale

    console = _console(color)
    shaded = console.color_system is not None and not console.no_color if color is None else color
    console.print(f"{view.source}\n{view.text}", markup=False, style="bold" if shaded else None, soft_wrap=True)
    console.print(f"log p = {view.log_prob:.3f}{' of the translation that was given' if view.given else ''}\n")
    shown = heat_map(grid.target, grid.source, grid.weights, width=console.width, colour=shaded)
    console.print(shown, end="", crop=False)
    console.print("\n", scale(shaded), "  of the attention of each row", sep="")


def _console(color: bool | None) -> "Console":
    from rich.console import Console

    if color is None:
        return Console(highlight=False)
    if color and not sys.stdout.isatty():  # nobody can be asked how many colours there are
        return Console(highlight=False, force_terminal=True, color_system="truecolor", no_color=False)
    return Console(highlight=False, no_color=not color)
