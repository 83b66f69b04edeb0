"""The studio's views inside a notebook.

    import seqloom.studio
    seqloom.studio.show("runs/x", view="heads", text="The class statement")
    seqloom.studio.show("runs/x", view="heads", text="The class statement", static=True)

A server is started in a thread, once for each folder, and the view is shown in a frame. `static`
needs no server, now or when the notebook is read again elsewhere: it writes the picture, or the
stages of a walk, into the notebook.
"""

from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqloom.core.errors import UsageError
from seqloom.core.words import did_you_mean
from seqloom.inspect.plots.cells import draw_gates
from seqloom.inspect.plots.figures import to_bytes
from seqloom.inspect.plots.heatmaps import draw_alignment, draw_heads
from seqloom.inspect.plots.measurements import draw_curves
from seqloom.inspect.tours.tour import Follow, walk_through
from seqloom.inspect.views.attention import AlignmentView
from seqloom.inspect.views.cells import gate_trace
from seqloom.predict.base import Predictor
from seqloom.predict.loader import load
from seqloom.studio.server import Studio
from seqloom.studio.shelf import Json, Trained
from seqloom.studio.views import VIEWS
from seqloom.studio.views.attention import read_alignment, read_heads

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEIGHT = 820  # pixels
_SERVERS: dict[Path, Studio] = {}  # folder → the studio that shows it


@dataclass(frozen=True)
class Shown:
    """A view in a notebook: a frame on a studio that runs, or the view as it is."""

    view: str
    html: str = field(repr=False)  # of a frame, with a token that is good as long as this program runs

    def _repr_html_(self) -> str:
        return self.html


def show(
    what: Trained | str | Path, /, view: str = "runs", *, height: int = HEIGHT, static: bool = False, **parameters: Any
) -> Shown:
    """Show a run, a folder of runs, or what `seqloom.load` gave. `parameters` are those of the view's address: text,
    layer, head … Without a view, the list of runs and how they learned."""
    path = Path(what.run.path if isinstance(what, Predictor) else what)
    if view not in VIEWS:
        raise UsageError(f"The studio has no view {view!r}: {did_you_mean(view, VIEWS)}.")
    if static:
        return Shown(view, _draw_still(path, view, parameters))
    place = path.resolve()
    if place not in _SERVERS:  # it ends with the program
        _SERVERS[place] = Studio(path, notebook=True)
        _SERVERS[place].start()
    if (path / "recipe.yaml").is_file():
        parameters = {"run": place.name, **parameters}
    texts = {
        name: [str(one) for one in value] if isinstance(value, list | tuple) else str(value)
        for name, value in parameters.items()
    }
    address = escape(_SERVERS[place].address(view, **texts), quote=True)
    html = (
        f'<iframe src="{address}" title="seqloom studio: {escape(view)}" width="100%" '
        f'height="{int(height)}" style="border:1px solid #8884;border-radius:8px" allowfullscreen></iframe>'
        f'<p><a href="{address}" target="_blank" rel="noreferrer">Open it in a tab of its own</a>. '
        "Nothing to see? Then this notebook runs on another machine, or was run before: "
        "<code>show(…, static=True)</code> keeps a picture instead.</p>"
    )
    return Shown(view, html)


# --- without a server -------------------------------------------------------------------------------------------------


def _draw_still(path: Path, view: str, parameters: Json) -> str:
    if view not in STILLS:
        raise UsageError(f"Only {', '.join(STILLS)} can be shown without a server; {view} needs one: leave static out.")
    if view != "runs" and not isinstance(parameters.get("text"), str):
        raise UsageError(f"To show {view} without a server, give the text to look at: text='…'.")
    return STILLS[view](load(path), parameters)


def _picture(figure: "Figure", words: str) -> str:
    data = b64encode(to_bytes(figure)).decode("ascii")
    return f'<img alt="{escape(words, quote=True)}" style="max-width:100%" src="data:image/png;base64,{data}">'


def _draw_curves(trained: Trained, parameters: Json) -> str:
    return _picture(draw_curves([trained.run]), f"training curves of {trained.name}")


def _draw_alignment(trained: Trained, parameters: Json) -> str:
    read = read_alignment(trained, parameters["text"], parameters.get("target"))
    options = _map_options(parameters, end=False)
    if isinstance(read, AlignmentView):
        grid, title = read.grid(**options), [read.source, read.text]
    else:
        part, which = read.view.cross, _choose_head(parameters)
        grid, title = part.grid(*which, **options), [read.view.source or "", read.view.text, part.title(*which)]
    return _picture(draw_alignment(grid, title), " → ".join(title[:2]))


def _draw_heads(trained: Trained, parameters: Json) -> str:
    """All heads of a part, or the one that is named."""
    view = read_heads(trained, parameters["text"], parameters.get("target")).view
    part = view.part(parameters.get("part") or next(iter(view.parts)))
    which, options = _choose_head(parameters), _map_options(parameters, end=True)
    if {"layer", "head"} & parameters.keys():
        figure = draw_alignment(part.grid(*which, **options), [view.text, part.title(*which)])
    else:
        figure = draw_heads(part.maps(**options), [view.text])
    return _picture(figure, f"attention of {trained.name}: {view.text}")


def _choose_head(parameters: Json) -> tuple[int | None, int | None]:
    """Layer and head as an address names them; `mean` is that over the heads."""
    layer, head = (parameters.get(name) for name in ("layer", "head"))
    return None if layer is None else int(layer), None if head in (None, "mean") else int(head)


def _map_options(parameters: Json, end: bool) -> dict[str, bool]:
    given = parameters.get("end")
    return {"tokens": parameters.get("by") == "tokens", "end": end if given is None else given not in ("no", False)}


def _draw_cell(trained: Trained, parameters: Json) -> str:
    layer = parameters.get("layer")
    figure = draw_gates(gate_trace(trained, parameters["text"]), None if layer is None else int(layer))
    return _picture(figure, f"gates and states of {trained.name}")


def _write_walk(trained: Trained, parameters: Json) -> str:
    """The stages in words, with their shapes."""
    wanted = {key: int(parameters[key]) for key in ("word", "step", "layer", "head", "numbers") if key in parameters}
    walk = walk_through(trained, parameters["text"], Follow(**wanted))
    rows = "".join(
        f"<tr><td>{number}</td><td><b>{escape(stage.title)}</b><br>{escape(stage.words)}</td>"
        f"<td>{escape(stage.gives)}</td><td><code>{escape(stage.equation)}</code></td></tr>"
        for number, stage in enumerate(walk.stages, start=1)
    )
    head = "<tr><th></th><th>stage</th><th>what goes out</th><th>as a formula</th></tr>"
    return (
        f'<p>{escape(walk.text)} → <b>{escape(walk.answer)}</b></p><table style="text-align:left">{head}{rows}</table>'
    )


STILLS: dict[str, Callable[[Trained, Json], str]] = {
    "runs": _draw_curves,
    "alignment": _draw_alignment,
    "heads": _draw_heads,
    "cell": _draw_cell,
    "walk": _write_walk,
}
