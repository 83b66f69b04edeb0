"""`seqloom inspect attention`: where a translator or a denoiser looked, or a Transformer that reads a text alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from seqloom.cli._options import Beam, JsonObject, PictureOut
from seqloom.cli._output import check_out, coloured_console, plain_table, print_json, write_picture
from seqloom.core.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

    from seqloom.inspect.views.attention import AlignmentView, AttentionMap, HeadsView, Part

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
    from seqloom.predict.loader import load
    from seqloom.predict.translate import TranslatorPredictor

    check_out(out)
    if font is not None:
        _check_font(font, out)
    if beam is not None and target is not None:
        raise UsageError("--beam is about how a translation is found; with --target there is nothing to find.")
    model = load(run, "cpu")
    if not isinstance(model, TranslatorPredictor):
        if beam is not None or target is not None:
            raise UsageError(f"--beam and --target are for translators; {run} is {model.what}.")
        found = model.heads(text)
        usual = "cross" if "cross" in found.parts else next(iter(found.parts))
        choice = Choice(part or usual, layer, head, view, tokens, end)
        show_heads(found, choice, out, font, color, as_json)
        return
    options = {} if beam is None else {"beam": beam}
    if view == "grid" or any(option is not None for option in (part, layer, head)):
        choice = Choice(part or "cross", layer, head, view, tokens, end)
        show_heads(model.heads(text, target, **options), choice, out, font, color, as_json)
        return
    found = model.attention(text, target, **options)
    print_notes(found.notes)
    grid = found.grid(tokens=tokens, end=end)
    if out is not None:  # first, so that `… | head` has it too
        draw_view(out, grid, [found.source, found.text], font, links=view == "links")
    if as_json:
        print_json({"run": str(run), **_object(found)})
        return
    print_view(found, grid, color, links=view == "links")
    if hasattr(model.model, "attentions"):
        print("\nThis is the mean over the heads of one layer. Each head: --part cross, or encoder, or decoder.")


def _check_font(font: str, out: Path | None) -> None:
    if out is None:
        raise UsageError("--font is about the picture: name one with --out.")
    from seqloom.inspect.plots.figures import fonts_for

    fonts_for([], font)  # refuses one that is not there


def print_notes(notes: tuple[str, ...]) -> None:
    for note in notes:
        typer.echo(f"note: {note}", err=True)


def draw_view(
    out: Path, grid: "AttentionMap", title: list[str], font: str | None = None, *, links: bool = False
) -> None:
    from seqloom.inspect.plots.heatmaps import draw_alignment, draw_links

    drawn = (draw_links if links else draw_alignment)(grid, title, font=font)
    write_worded(out, drawn, [*grid.rows, *grid.columns, *title], font)


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
        "source_tokens": view.tokens.columns,
        "target_tokens": view.tokens.rows,
        "weights": view.tokens.weights.tolist(),
        "source_words": view.words.columns,
        "target_words": view.words.rows,
        "word_weights": view.words.weights.tolist(),
        "alignment": view.links,
    }


def print_view(view: "AlignmentView", grid: "AttentionMap", color: bool | None = None, *, links: bool = False) -> None:
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


def print_grid(console: "Console", shaded: bool, grid: "AttentionMap", *, links: bool = False) -> None:
    from seqloom.inspect.plots.terminal import LEAST, heat_map, link_list, scale

    console.print(f"{grid.axes}\n", markup=False, soft_wrap=True)
    if links:
        console.print(link_list(grid.rows, grid.columns, grid.weights), end="", crop=False, soft_wrap=True)
        console.print(f"\nat least {LEAST:g} of the attention of each row")
        return
    shown = heat_map(grid.rows, grid.columns, grid.weights, width=console.width, colour=shaded)
    console.print(shown, end="", crop=False)
    console.print("\n", scale(shaded), "  of the attention of each row", sep="")


# --- heads of Transformers -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """What to show. Where no head is named, a map or links are of the mean over the layer's heads."""

    part: str
    layer: int | None
    head: int | None
    view: View | None
    tokens: bool
    end: bool

    @property
    def how(self) -> View:
        one = self.layer is not None and self.head is not None
        return self.view or ("heat" if one else "grid")

    def layers(self, part: "Part") -> Sequence[int]:
        """Those the grid shows."""
        return range(1, part.layers + 1) if self.layer is None else [part.layer(self.layer)]

    def heads(self, part: "Part") -> Sequence[int]:
        return range(1, part.heads + 1) if self.head is None else [part.head(self.head)]


def show_heads(
    view: "HeadsView", choice: Choice, out: Path | None, font: str | None, color: bool | None, as_json: bool
) -> None:
    part = view.part(choice.part)
    layers, heads = choice.layers(part), choice.heads(part)  # refuses what is not there
    print_notes(view.notes)
    if out is not None:
        maps = part.maps(tokens=choice.tokens, end=choice.end)
        title = _titles(view, part, choice)
        write_worded(out, _draw_heads(part, choice, title, font), [*maps.rows, *maps.columns, *title], font)
    if as_json:
        print_json({"run": view.name, **_heads_object(view, part, choice)})
        return
    console, shaded = coloured_console(color)
    print_sentence(console, shaded, view.source, view.text, view.log_prob, view.given)
    if choice.how == "grid":
        _print_habits(console, part, layers, heads, drawn=out is not None)
        return
    console.print(f"{part.title(choice.layer, choice.head)}\n", markup=False)
    grid = part.grid(choice.layer, choice.head, tokens=choice.tokens, end=choice.end)
    print_grid(console, shaded, grid, links=choice.how == "links")


def _titles(view: "HeadsView", part: "Part", choice: Choice) -> list[str]:
    """Which heads, and of what: the source, and where it is looked at too, the translation."""
    from seqloom.inspect.views.attention import NAMES

    if choice.how == "grid":
        which = "" if choice.layer is None else f" of layer {choice.layer}"
        which = f"{which}: " + ("every head" if choice.head is None else f"head {choice.head}")
        first = NAMES[part.name] + which
    else:
        first = part.title(choice.layer, choice.head)
    source = [] if view.source is None else [view.source]
    texts = {"encoder": source or [view.text], "decoder": [view.text], "cross": [*source, view.text]}
    return [first, *texts[part.name]]


def _draw_heads(part: "Part", choice: Choice, title: list[str], font: str | None) -> "Figure":
    from seqloom.inspect.plots.heatmaps import draw_alignment, draw_heads, draw_links

    if choice.how == "grid":
        maps = part.maps(tokens=choice.tokens, end=choice.end)
        return draw_heads(maps, title, layers=choice.layers(part), heads=choice.heads(part), font=font)
    grid = part.grid(choice.layer, choice.head, tokens=choice.tokens, end=choice.end)
    return (draw_links if choice.how == "links" else draw_alignment)(grid, title, font=font)


def _heads_object(view: "HeadsView", part: "Part", choice: Choice) -> dict[str, Any]:
    """The chosen maps; `head` is null where it is the mean over a layer's heads."""
    tokens, words = part.maps(tokens=True), part.maps()
    habits = {(habit.layer, habit.head): habit for habit in part.habits()}
    if choice.how == "grid":
        chosen: list[tuple[int, int | None]] = [
            (layer, head) for layer in choice.layers(part) for head in choice.heads(part)
        ]
    else:
        chosen = [(part.layer(choice.layer), choice.head)]
    return {
        **({} if view.source is None else {"source": view.source}),
        view.says: view.text,
        **({} if view.source is None else {"given": view.given, "finished": view.finished}),
        "log_prob": view.log_prob,
        "part": part.name,
        "layers": part.layers,
        "heads": part.heads,
        "row_axis": tokens.axes.row,
        "column_axis": tokens.axes.column,
        "row_tokens": tokens.rows,
        "column_tokens": tokens.columns,
        "row_words": words.rows,
        "column_words": words.columns,
        "habits": [habit._asdict() for habit in habits.values()],
        "maps": [
            {
                "layer": layer,
                "head": head,
                "weights": part.grid(layer, head, tokens=True).weights.tolist(),
                "word_weights": part.grid(layer, head).weights.tolist(),
            }
            for layer, head in chosen
        ],
    }


def _print_habits(
    console: "Console", part: "Part", layers: Sequence[int], heads: Sequence[int], *, drawn: bool
) -> None:
    """The table of heads, and what its columns mean."""
    from seqloom.inspect.views.attention import NAMES

    end = part.tokens.columns[0 if part.name == "decoder" else -1]  # </s>, or [SEP] of a BERT
    table = plain_table(["layer", "head", "entropy", "distance", f"on {end}"], left=0)
    for habit in part.habits():
        if habit.layer in layers and habit.head in heads:
            numbers = f"{habit.entropy:.2f}", f"{habit.distance:.2f}", f"{habit.end:.0%}"
            table.add_row(str(habit.layer), str(habit.head), *numbers)
    console.print(f"{NAMES[part.name]}, heads")
    console.print(table)
    where = "the place as far through the source" if part.name == "cross" else "where it stands"
    console.print(
        "\nentropy: in bits; 0 is all on one token, 1 as if on two, 2 as if on four\n"
        f"distance: in tokens, from {where}\n"
        f"on {end}: the share on the sentence's {'beginning' if part.name == 'decoder' else 'end'}\n"
        f"{'' if drawn else 'Draw them: --out heads.png. '}Look at one: --layer 1 --head 1",
        markup=False,
    )
