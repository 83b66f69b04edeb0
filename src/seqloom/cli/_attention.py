"""`seqloom inspect attention`: attention weights of translators, denoisers and Transformers that read one text."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from seqloom.cli._options import Beam, JsonObject, PlotOut, drop_unset
from seqloom.cli._output import (
    Json,
    check_plot_path,
    make_table,
    open_console,
    print_json,
    print_notes,
    write_plot,
)
from seqloom.core.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

    from seqloom.inspect.views.attention import AlignmentView, AttentionMap, HeadsView, Part
    from seqloom.inspect.views.links import HeadLink

SHOWN_LINKS = 5  # number of heads that are listed for --from and --to
Target = Annotated[
    str | None, typer.Option(help="Show the alignment of this translation. [default: the model's translation]")
]
View = Literal["heat", "grid", "links"]
PartOption = Annotated[
    Literal["encoder", "decoder", "cross"] | None, typer.Option(help="Transformer: which attention to show.")
]
ViewOption = Annotated[
    View | None,
    typer.Option(help="Heat map, grid of all heads, or links. [default: heat for one head, else grid]"),
]
Color = Annotated[
    bool | None, typer.Option("--color/--no-color", help="Use colours or letters. [default: depends on the terminal]")
]


def attention(
    run: Annotated[Path, typer.Argument(help="Run directory of a model with attention.")],
    text: Annotated[str, typer.Argument(help="The text to read.")],
    target: Target = None,
    beam: Beam = None,
    part: PartOption = None,
    layer: Annotated[int | None, typer.Option(help="Transformer: the layer, counted from 1.")] = None,
    head: Annotated[int | None, typer.Option(help="Transformer: the head, counted from 1.")] = None,
    view: ViewOption = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Show tokens instead of words.")] = False,
    end: Annotated[bool, typer.Option("--end/--no-end", help="Show the END tokens, or [CLS] and [SEP].")] = True,
    query: Annotated[
        str | None,
        typer.Option("--from", help="Find the head with the strongest link from this word to the word given by --to."),
    ] = None,
    key: Annotated[str | None, typer.Option("--to", help="The word to which the word of --from attends.")] = None,
    out: PlotOut = None,
    font: Annotated[
        str | None, typer.Option(help="Font of the plot. [default: a font that has all characters]")
    ] = None,
    color: Color = None,
    as_json: JsonObject = False,
) -> None:
    """Show attention weights: `seqloom inspect attention runs/X "Sunday, November 15, 2026" --out attention.png`."""
    from seqloom.inspect.plots.figures import choose_fonts
    from seqloom.predict.loader import load
    from seqloom.predict.translate import TranslatorPredictor

    check_plot_path(out)
    if font is not None:
        if out is None:
            raise UsageError("--font requires a plot: add --out FILE.")
        choose_fonts([], font)  # raises an error if the font is not installed
    if beam is not None and target is not None:
        raise UsageError("--beam and --target cannot be used together: a given translation needs no search.")
    if (query is None) != (key is None):
        raise UsageError("--from and --to must be given together: two words of the text.")
    if query is not None and (tokens or head is not None):
        raise UsageError("--from and --to name words and find a head: leave out --tokens and --head.")
    model = load(run, "cpu")
    names_heads = view == "grid" or any(option is not None for option in (part, layer, head, query))
    if isinstance(model, TranslatorPredictor) and not names_heads:
        alignment = model.attention(text, target, **drop_unset(beam=beam))
        grid, links = alignment.grid(tokens=tokens, end=end), view == "links"
        print_notes(alignment.notes)
        if out is not None:  # write the plot before printing, because `… | head` may interrupt printing
            draw_grid(out, grid, [alignment.source, alignment.text], font, links=links)
        if as_json:
            print_json({"run": str(run), **alignment_to_json(alignment)})
            return
        print_alignment(alignment, grid, color, links=links)
        if hasattr(model.model, "attentions"):
            print(
                "\nThis is the mean over the heads of one layer. To show single heads, use --part cross, encoder "
                "or decoder."
            )
        return
    if isinstance(model, TranslatorPredictor):
        heads = model.heads(text, target, **drop_unset(beam=beam))
    elif beam is not None or target is not None:
        raise UsageError(f"--beam and --target require a translator; {run} is {model.description}.")
    else:
        heads = model.heads(text)
    default = "cross" if "cross" in heads.parts else next(iter(heads.parts))
    choice = HeadsChoice(heads.part(part or default), layer, head, view, tokens, end)
    found: list[HeadLink] = []
    if query is not None and key is not None:
        from seqloom.inspect.views.links import find_links

        found = find_links(choice.part, query, key, layer)
        choice = replace(choice, layer=found[0].layer, head=found[0].head)
        if not as_json:
            print_links(found, query, key)
    show_heads(heads, choice, out, font, color, as_json, found)


def print_links(links: "list[HeadLink]", query: str, key: str) -> None:
    """Print the heads with the strongest links from a word to another word."""
    table = make_table(["layer", "head", "weight", "rank of the link in its row"], left=0)
    for link in links[:SHOWN_LINKS]:
        table.add_row(str(link.layer), str(link.head), f"{link.weight:.3f}", str(link.rank))
    console = open_console(None)[0]
    console.print(f"heads with the strongest link from {query!r} to {key!r}, of {len(links)}", markup=False)
    console.print(table)
    console.print()


# --- alignments -----------------------------------------------------------------------------------------------------


def alignment_to_json(view: "AlignmentView") -> Json:
    """Return an alignment as JSON values."""
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
        "weights": view.tokens.weights,
        "source_words": view.words.columns,
        "target_words": view.words.rows,
        "word_weights": view.words.weights,
        "alignment": view.links,
    }


def draw_grid(
    out: Path, grid: "AttentionMap", title: list[str], font: str | None = None, *, links: bool = False
) -> None:
    """Plot an attention map as a heat map or as links."""
    from seqloom.inspect.plots.heatmaps import draw_alignment, draw_links

    drawn = (draw_links if links else draw_alignment)(grid, title, font=font)
    write_labelled_plot(out, drawn, [*grid.rows, *grid.columns, *title], font)


def write_labelled_plot(out: Path, figure: "Figure", texts: list[str], font: str | None) -> None:
    """Write a plot, and warn about characters of the texts that no font contains."""
    from seqloom.inspect.plots.figures import choose_fonts, format_word

    write_plot(out, figure, keep_text=True, warning=choose_fonts(map(format_word, texts), font).warning())


def print_alignment(
    view: "AlignmentView", grid: "AttentionMap", color: bool | None = None, *, links: bool = False
) -> None:
    """Print both sentences and the attention map between them."""
    console, is_coloured = open_console(color)
    print_sentences(console, is_coloured, view)
    print_grid(console, is_coloured, grid, links=links)


def print_sentences(console: "Console", is_coloured: bool, view: "AlignmentView | HeadsView") -> None:
    """Print the texts and the log-probability."""
    both = view.text if view.source is None else f"{view.source}\n{view.text}"
    console.print(both, markup=False, style="bold" if is_coloured else None, soft_wrap=True)
    of = " of the given translation" if view.given and view.source is not None else ""
    console.print("" if view.log_prob is None else f"log p = {view.log_prob:.3f}{of}\n")


def print_grid(console: "Console", is_coloured: bool, grid: "AttentionMap", *, links: bool = False) -> None:
    """Print an attention map as a heat map or as links."""
    from seqloom.inspect.plots.terminal import MIN_SHOWN_WEIGHT, render_heat_map, render_links, render_scale

    console.print(f"{grid.axes}\n", markup=False, soft_wrap=True)
    if links:
        console.print(render_links(grid.rows, grid.columns, grid.weights), end="", crop=False, soft_wrap=True)
        console.print(f"\nweights of at least {MIN_SHOWN_WEIGHT:g}")
        return
    shown = render_heat_map(grid.rows, grid.columns, grid.weights, width=console.width, colour=is_coloured)
    console.print(shown, end="", crop=False)
    console.print("\n", render_scale(is_coloured), "  fraction of the attention in each row", sep="")


# --- heads of Transformers -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeadsChoice:
    """The selected layer, head and view.

    If no head is selected, a heat map or links show the mean over the layer's heads.
    """

    part: "Part"
    layer: int | None
    head: int | None
    view: View | None
    tokens: bool
    end: bool

    @property
    def kind(self) -> View:
        """The selected view; the default is a heat map for a single head and a grid otherwise."""
        is_single = self.layer is not None and self.head is not None
        return self.view or ("heat" if is_single else "grid")

    @property
    def grid(self) -> "AttentionMap":
        """The map of the head, or the mean over the heads of the layer if no head is selected."""
        return self.part.grid(self.layer, self.head, tokens=self.tokens, end=self.end)

    @property
    def layers(self) -> list[int]:
        """The layers of the grid. Raise an error if the chosen layer does not exist."""
        return list(range(1, self.part.layers + 1)) if self.layer is None else [self.part.layer(self.layer)]

    @property
    def heads(self) -> list[int]:
        """The heads of the grid. Raise an error if the chosen head does not exist."""
        return list(range(1, self.part.heads + 1)) if self.head is None else [self.part.head(self.head)]


def show_heads(
    view: "HeadsView",
    choice: HeadsChoice,
    out: Path | None,
    font: str | None,
    color: bool | None,
    as_json: bool,
    links: "list[HeadLink]",
) -> None:
    """Plot heads if `out` is given, then print them or their JSON. `links` are the links of --from and --to."""
    part, layers, heads = choice.part, choice.layers, choice.heads
    print_notes(view.notes)
    if out is not None:
        draw_heads_choice(out, view, choice, font)
    if as_json:
        found = {"links": [link._asdict() for link in links]} if links else {}
        print_json({"run": view.name, **heads_to_json(view, choice), **found})
        return
    console, is_coloured = open_console(color)
    print_sentences(console, is_coloured, view)
    if choice.kind != "grid":
        console.print(f"{part.title(choice.layer, choice.head)}\n", markup=False)
        print_grid(console, is_coloured, choice.grid, links=choice.kind == "links")
        return
    from seqloom.inspect.views.attention import NAMES

    end = part.tokens.columns[0 if part.name == "decoder" else -1]  # </s>, or [SEP] of a BERT model
    table = make_table(["layer", "head", "entropy", "distance", f"on {end}"], left=0)
    for item in part.statistics():
        if item.layer in layers and item.head in heads:
            numbers = f"{item.entropy:.2f}", f"{item.distance:.2f}", f"{item.end:.0%}"
            table.add_row(str(item.layer), str(item.head), *numbers)
    console.print(f"{NAMES[part.name]}, heads")
    console.print(table)
    where = "the proportional position in the source" if part.name == "cross" else "the token itself"
    console.print(
        "\nentropy in bits: 0 if all weight is on one token, 1 if it is spread evenly over two, 2 over four\n"
        f"distance in tokens from {where}\n"
        f"on {end}: the weight on the {'beginning' if part.name == 'decoder' else 'end'} of the sentence\n"
        f"{'' if out else 'Plot them: --out heads.png. '}Show one: --layer 1 --head 1",
        markup=False,
    )


def draw_heads_choice(out: Path, view: "HeadsView", choice: HeadsChoice, font: str | None) -> None:
    """Plot the selected heads; the title names the heads and their texts."""
    from seqloom.inspect.plots.heatmaps import draw_heads
    from seqloom.inspect.views.attention import NAMES

    part = choice.part
    source = [] if view.source is None else [view.source]
    texts = {"encoder": source or [view.text], "decoder": [view.text], "cross": [*source, view.text]}[part.name]
    if choice.kind != "grid":
        title = [part.title(choice.layer, choice.head), *texts]
        draw_grid(out, choice.grid, title, font, links=choice.kind == "links")
        return
    of_layer = "" if choice.layer is None else f" of layer {choice.layer}"
    heads = "all heads" if choice.head is None else f"head {choice.head}"
    title = [f"{NAMES[part.name]}{of_layer}: {heads}", *texts]
    maps = part.maps(tokens=choice.tokens, end=choice.end)
    figure = draw_heads(maps, title, layers=choice.layers, heads=choice.heads, font=font)
    write_labelled_plot(out, figure, [*maps.rows, *maps.columns, *title], font)


def heads_to_json(view: "HeadsView", choice: HeadsChoice) -> Json:
    """Return the selected maps as JSON values; `head` is null for the mean over the heads of a layer."""
    part = choice.part
    tokens, words = part.maps(tokens=True), part.maps()
    shown: list[tuple[int, int | None]] = [(part.layer(choice.layer), choice.head)]
    if choice.kind == "grid":
        shown = [(layer, head) for layer in choice.layers for head in choice.heads]
    has_source = view.source is not None
    return {
        **({"source": view.source} if has_source else {}),
        view.output_kind: view.text,
        **({"given": view.given, "finished": view.finished} if has_source else {}),
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
        "statistics": [item._asdict() for item in part.statistics()],
        "maps": [
            {
                "layer": layer,
                "head": head,
                "weights": part.grid(layer, head, tokens=True).weights,
                "word_weights": part.grid(layer, head).weights,
            }
            for layer, head in shown
        ],
    }
