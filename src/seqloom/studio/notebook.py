"""Views of the studio inside a notebook.

    import seqloom.studio
    seqloom.studio.show("runs/x", view="heads", text="The class statement")
    seqloom.studio.show("runs/x", view="heads", text="The class statement", static=True)

One server per folder is started in a thread, and the view is embedded as an iframe. With `static`, a plot or the stages
of a walk are embedded in the notebook. A static view needs no server, even if the notebook is opened elsewhere.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqloom.core import JsonObject
from seqloom.core.errors import UsageError
from seqloom.core.notebook import picture_html
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
from seqloom.studio.run_folder import Trained
from seqloom.studio.server import Studio
from seqloom.studio.views import VIEWS
from seqloom.studio.views.attention import compute_alignment, compute_heads

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEIGHT_PIXELS = 820
_SERVERS: dict[Path, Studio] = {}  # servers by folder


@dataclass(frozen=True)
class Shown:
    """A view in a notebook: an iframe of a running studio, or static HTML."""

    view: str
    html: str = field(repr=False)  # may contain the access token of the studio

    def _repr_html_(self) -> str:
        return self.html


def show(
    target: Trained | str | Path,
    /,
    view: str = "runs",
    *,
    height: int = HEIGHT_PIXELS,
    static: bool = False,
    **parameters: Any,
) -> Shown:
    """Show a run, a folder of runs, or a loaded predictor.

    The default view lists the runs and their training curves. `parameters` are the query parameters of the view, such
    as text, layer and head.
    """
    path = Path(target.run.path if isinstance(target, Predictor) else target)
    if view not in VIEWS:
        raise UsageError(f"The studio has no view {view!r}: {did_you_mean(view, VIEWS)}.")
    if static:
        return Shown(view, _render_static(path, view, parameters))
    resolved = path.resolve()
    if resolved not in _SERVERS:  # the server stops when the program exits
        _SERVERS[resolved] = Studio(path, notebook=True)
        _SERVERS[resolved].start()
    if (path / "recipe.yaml").is_file():
        parameters = {"run": resolved.name, **parameters}
    texts = {
        name: [str(item) for item in value] if isinstance(value, list | tuple) else str(value)
        for name, value in parameters.items()
    }
    address = escape(_SERVERS[resolved].address(view, **texts), quote=True)
    html = (
        f'<iframe src="{address}" title="seqloom studio: {escape(view)}" width="100%" '
        f'height="{int(height)}" style="border:1px solid #8884;border-radius:8px" allowfullscreen></iframe>'
        f'<p><a href="{address}" target="_blank" rel="noreferrer">Open in a new tab</a>. '
        "The frame stays empty if the notebook runs on another machine or its kernel was restarted: "
        "<code>show(…, static=True)</code> embeds a plot instead.</p>"
    )
    return Shown(view, html)


# --- without a server -------------------------------------------------------------------------------------------------


def _render_static(path: Path, view: str, parameters: JsonObject) -> str:
    if view not in STATIC_VIEWS:
        raise UsageError(f"static=True supports {', '.join(STATIC_VIEWS)}; for {view}, leave static out.")
    if view != "runs" and not isinstance(parameters.get("text"), str):
        raise UsageError(f"The static view {view} needs a text: text='…'.")
    return STATIC_VIEWS[view](load(path), parameters)


def _image(figure: "Figure", description: str) -> str:
    return picture_html(to_bytes(figure), description)


def _draw_curves(trained: Trained, parameters: JsonObject) -> str:
    return _image(draw_curves([trained.run]), f"training curves of {trained.name}")


def _draw_alignment(trained: Trained, parameters: JsonObject) -> str:
    attention = compute_alignment(trained, parameters["text"], parameters.get("target"))
    options = _map_options(parameters, end=False)
    if isinstance(attention, AlignmentView):
        grid, title = attention.grid(**options), [attention.source, attention.text]
    else:
        view, part, head = attention.view, attention.view.cross, _choose_head(parameters)
        grid, title = part.grid(*head, **options), [view.source or "", view.text, part.title(*head)]
    return _image(draw_alignment(grid, title), " → ".join(title[:2]))


def _draw_heads(trained: Trained, parameters: JsonObject) -> str:
    """Draw the head that `parameters` selects, or all heads of a part."""
    view = compute_heads(trained, parameters["text"], parameters.get("target")).view
    part = view.part(parameters.get("part") or next(iter(view.parts)))
    head, options = _choose_head(parameters), _map_options(parameters, end=True)
    if {"layer", "head"} & parameters.keys():
        figure = draw_alignment(part.grid(*head, **options), [view.text, part.title(*head)])
    else:
        figure = draw_heads(part.maps(**options), [view.text])
    return _image(figure, f"attention of {trained.name}: {view.text}")


def _choose_head(parameters: JsonObject) -> tuple[int | None, int | None]:
    """Return the selected layer and head. None means the default layer, or the mean over the heads."""
    layer, head = (parameters.get(name) for name in ("layer", "head"))
    return None if layer is None else int(layer), None if head in (None, "mean") else int(head)


def _map_options(parameters: JsonObject, end: bool) -> dict[str, bool]:
    value = parameters.get("end")
    return {"tokens": parameters.get("by") == "tokens", "end": end if value is None else value not in ("no", False)}


def _draw_cell(trained: Trained, parameters: JsonObject) -> str:
    layer = parameters.get("layer")
    figure = draw_gates(gate_trace(trained, parameters["text"]), None if layer is None else int(layer))
    return _image(figure, f"gates and states of {trained.name}")


def _write_walk(trained: Trained, parameters: JsonObject) -> str:
    """Write the stages as a table of descriptions, shapes and equations."""
    followed = {key: int(parameters[key]) for key in ("word", "step", "layer", "head", "numbers") if key in parameters}
    walk = walk_through(trained, parameters["text"], Follow(**followed))
    rows = "".join(
        f"<tr><td>{number}</td><td><b>{escape(stage.title)}</b><br>{escape(stage.text)}</td>"
        f"<td>{escape(stage.output_shape)}</td><td><code>{escape(stage.equation)}</code></td></tr>"
        for number, stage in enumerate(walk.stages, start=1)
    )
    head = "<tr><th></th><th>stage</th><th>output</th><th>equation</th></tr>"
    return (
        f'<p>{escape(walk.text)} → <b>{escape(walk.answer)}</b></p><table style="text-align:left">{head}{rows}</table>'
    )


STATIC_VIEWS: dict[str, Callable[[Trained, JsonObject], str]] = {
    "runs": _draw_curves,
    "alignment": _draw_alignment,
    "heads": _draw_heads,
    "cell": _draw_cell,
    "walk": _write_walk,
}
