"""`seqloom inspect attention` of a Transformer: one head, all heads of a part, links between words."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqloom.cli._attention import (
    View,
    print_grid,
    print_notes,
    print_sentence,
    write_worded,
)
from seqloom.cli._output import coloured_console, print_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

    from seqloom.inspect.views.heads import HeadsView, Part


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
        title = titles(view, part, choice)
        write_worded(out, draw(part, choice, title, font), [*maps.rows, *maps.columns, *title], font)
    if as_json:
        print_json({"run": view.name, **_object(view, part, choice)})
        return
    console, shaded = coloured_console(color)
    print_sentence(console, shaded, view.source, view.text, view.log_prob, view.given)
    if choice.how == "grid":
        _print_habits(console, part, layers, heads, drawn=out is not None)
        return
    console.print(f"{part.title(choice.layer, choice.head)}\n", markup=False)
    grid = part.grid(choice.layer, choice.head, tokens=choice.tokens, end=choice.end)
    print_grid(console, shaded, grid, links=choice.how == "links")


def titles(view: "HeadsView", part: "Part", choice: Choice) -> list[str]:
    """Which heads, and of what: the source, and where it is looked at too, the translation."""
    from seqloom.inspect.views.heads import NAMES

    if choice.how == "grid":
        which = "" if choice.layer is None else f" of layer {choice.layer}"
        which = f"{which}: " + ("every head" if choice.head is None else f"head {choice.head}")
        first = NAMES[part.name] + which
    else:
        first = part.title(choice.layer, choice.head)
    source = [] if view.source is None else [view.source]
    texts = {"encoder": source or [view.text], "decoder": [view.text], "cross": [*source, view.text]}
    return [first, *texts[part.name]]


def draw(part: "Part", choice: Choice, title: list[str], font: str | None) -> "Figure":
    from seqloom.inspect.plots.attention import draw_alignment, draw_heads, draw_links

    if choice.how == "grid":
        maps = part.maps(tokens=choice.tokens, end=choice.end)
        return draw_heads(maps, title, layers=choice.layers(part), heads=choice.heads(part), font=font)
    grid = part.grid(choice.layer, choice.head, tokens=choice.tokens, end=choice.end)
    return (draw_links if choice.how == "links" else draw_alignment)(grid, title, font=font)


def _object(view: "HeadsView", part: "Part", choice: Choice) -> dict[str, Any]:
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
    from rich.table import Table
    from rich.text import Text

    from seqloom.inspect.views.heads import NAMES

    table = Table(box=None, header_style="bold")
    end = part.tokens.columns[0 if part.name == "decoder" else -1]  # </s>, or [SEP] of a BERT
    for name in ("layer", "head", "entropy", "distance", f"on {end}"):
        table.add_column(Text(name), justify="right", no_wrap=True)
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
