"""`seqloom inspect attention`: where a translator or a denoiser looked, or a Transformer that reads a text alone."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from seqloom.cli._options import Beam, JsonObject, PictureOut
from seqloom.cli._output import check_out, coloured_console, print_json, write_picture
from seqloom.core.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

    from seqloom.inspect.views.alignment import AlignmentView, Grid

View = Literal["heat", "grid", "links"]


def attention(
    run: Annotated[Path, typer.Argument(help="A run of a translator with attention, or of what else has heads.")],
    text: Annotated[str, typer.Argument(help="The text to read.")],
    target: Annotated[
        str | None, typer.Option(help="Look at this translation of it. [default: the one the model finds]")
    ] = None,
    beam: Beam = None,
    part: Annotated[
        Literal["cross", "encoder", "decoder"] | None, typer.Option(help="Of a Transformer: whose heads to look at.")
    ] = None,
    layer: Annotated[int | None, typer.Option(help="Of a Transformer: this layer, 1 is the lowest.")] = None,
    head: Annotated[int | None, typer.Option(help="Of a Transformer: this head, counted from 1.")] = None,
    view: Annotated[
        View | None,
        typer.Option(help="One map, all heads, or links between words. [default: heat of one head, else grid]"),
    ] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="The model's own pieces instead of words.")] = False,
    end: Annotated[bool, typer.Option("--end/--no-end", help="Show the end of both sentences too.")] = True,
    out: PictureOut = None,
    font: Annotated[str | None, typer.Option(help="Font of the picture. [default: what has the letters]")] = None,
    color: Annotated[
        bool | None, typer.Option("--color/--no-color", help="Colours or letters. [default: by the terminal]")
    ] = None,
    as_json: JsonObject = False,
) -> None:
    """Where a model looked: `seqloom inspect attention runs/X "Sunday, November 15, 2026" --out attention.png`."""
    from seqloom.cli._heads import Choice, show_heads
    from seqloom.predict.loader import load
    from seqloom.predict.translator import Translator

    check_out(out)
    if font is not None:
        _check_font(font, out)
    if beam is not None and target is not None:
        raise UsageError("--beam is about how a translation is found; with --target there is nothing to find.")
    model = load(run, "cpu")
    if not isinstance(model, Translator) and hasattr(model, "heads"):
        if beam is not None or target is not None:
            raise UsageError(f"--beam and --target are for translators; {run} is {model.what}.")
        found = model.heads(text)
        usual = "cross" if "cross" in found.parts else next(iter(found.parts))
        choice = Choice(part or usual, layer, head, view, tokens, end)
        show_heads(found, choice, out, font, color, as_json)
        return
    if not isinstance(model, Translator):
        raise UsageError(
            f"{run} is {model.what}, whose attention there is none to look at. `inspect attention` takes translators "
            "and denoisers, GPTs and BERTs, and what classifies, tags, matches, chooses or answers with a Transformer."
        )
    translator = model
    options = {} if beam is None else {"beam": beam}
    if view == "grid" or any(option is not None for option in (part, layer, head)):
        choice = Choice(part or "cross", layer, head, view, tokens, end)
        show_heads(translator.heads(text, target, **options), choice, out, font, color, as_json)
        return
    found = translator.attention(text, target, **options)
    print_notes(found.notes)
    grid = found.grid(tokens=tokens, end=end)
    if out is not None:  # first, so that `… | head` has it too
        draw_view(out, grid, [found.source, found.text], font, links=view == "links")
    if as_json:
        print_json({"run": str(run), **_object(found)})
        return
    print_view(found, grid, color, links=view == "links")
    if hasattr(translator.model, "attentions"):
        print("\nThis is the mean over the heads of one layer. Each head: --part cross, or encoder, or decoder.")


def _check_font(font: str, out: Path | None) -> None:
    if out is None:
        raise UsageError("--font is about the picture: name one with --out.")
    from seqloom.inspect.plots.figures import fonts_for

    fonts_for([], font)  # refuses one that is not there


def print_notes(notes: tuple[str, ...]) -> None:
    for note in notes:
        typer.echo(f"note: {note}", err=True)


def draw_view(out: Path, grid: "Grid", title: list[str], font: str | None = None, *, links: bool = False) -> None:
    from seqloom.inspect.plots.attention import draw_alignment, draw_links

    drawn = (draw_links if links else draw_alignment)(grid, title, font=font)
    write_worded(out, drawn, [*grid.target, *grid.source, *title], font)


def write_worded(out: Path, figure: "Figure", texts: list[str], font: str | None) -> None:
    """Write a picture with these words in it, and say so if they cannot all be drawn."""
    from seqloom.inspect.plots.figures import fonts_for, label

    complaint = fonts_for(map(label, texts), font).complaint()
    if complaint and out.suffix.lower() == ".png":
        typer.echo(f"note: {complaint}.", err=True)
    write_picture(out, figure, text_stays_text=True)


def _object(view: "AlignmentView") -> dict[str, Any]:
    return {
        "source": view.source,
        "translation": view.text,
        "given": view.given,
        "finished": view.finished,
        "log_prob": view.log_prob,
        "row_axis": view.tokens.axes.row,
        "column_axis": view.tokens.axes.column,
        "source_tokens": view.tokens.source,
        "target_tokens": view.tokens.target,
        "weights": view.tokens.weights.tolist(),
        "source_words": view.words.source,
        "target_words": view.words.target,
        "word_weights": view.words.weights.tolist(),
        "alignment": view.links,
    }


def print_view(view: "AlignmentView", grid: "Grid", color: bool | None = None, *, links: bool = False) -> None:
    console, shaded = coloured_console(color)
    print_sentence(console, shaded, view.source, view.text, view.log_prob, view.given)
    print_grid(console, shaded, grid, links=links)


def print_sentence(
    console: "Console", shaded: bool, source: str | None, text: str, log_prob: float | None, given: bool
) -> None:
    both = text if source is None else f"{source}\n{text}"
    console.print(both, markup=False, style="bold" if shaded else None, soft_wrap=True)
    of = " of the translation that was given" if given and source is not None else ""
    console.print("" if log_prob is None else f"log p = {log_prob:.3f}{of}\n")


def print_grid(console: "Console", shaded: bool, grid: "Grid", *, links: bool = False) -> None:
    from seqloom.inspect.plots.terminal import LEAST, heat_map, link_list, scale

    console.print(f"{grid.axes}\n", markup=False, soft_wrap=True)
    if links:
        console.print(link_list(grid.target, grid.source, grid.weights), end="", crop=False, soft_wrap=True)
        console.print(f"\nat least {LEAST:g} of the attention of each row")
        return
    shown = heat_map(grid.target, grid.source, grid.weights, width=console.width, colour=shaded)
    console.print(shown, end="", crop=False)
    console.print("\n", scale(shaded), "  of the attention of each row", sep="")
