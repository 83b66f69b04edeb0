"""The studio's views inside a notebook.

    import seqloom.studio
    seqloom.studio.show("runs/x", view="heads", text="The class statement")
    seqloom.studio.show("runs/x", view="heads", text="The class statement", static=True)

A server is started in a thread, once for each folder, and the view is shown in a frame. `static` needs no server, now
or when the notebook is read again elsewhere: it writes the picture, or the stages of a walk, into the notebook.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from seqloom.core.errors import UsageError
from seqloom.core.words import did_you_mean

HEIGHT = 820  # pixels
TOKENS = 512  # as in the page
_SERVERS: dict[Path, Any] = {}  # folder → the studio that shows it


@dataclass(frozen=True)
class Frame:
    """A view of a studio that runs; a notebook shows it in a frame."""

    address: str = field(repr=False)  # ends with a token that is good as long as this program runs
    view: str
    height: int = HEIGHT

    def _repr_html_(self) -> str:
        address = escape(self.address, quote=True)
        return (
            f'<iframe src="{address}" title="seqloom studio: {escape(self.view)}" width="100%" '
            f'height="{int(self.height)}" style="border:1px solid #8884;border-radius:8px" allowfullscreen></iframe>'
            f'<p><a href="{address}" target="_blank" rel="noreferrer">Open it in a tab of its own</a>. '
            "Nothing to see? Then this notebook runs on another machine, or was run before: "
            "<code>show(…, static=True)</code> keeps a picture instead.</p>"
        )


@dataclass(frozen=True)
class Still:
    """A view as it is, written into the notebook."""

    view: str
    html: str = field(repr=False)

    def _repr_html_(self) -> str:
        return self.html


def show(
    what: Any, /, view: str | None = None, *, height: int = HEIGHT, static: bool = False, **parameters: Any
) -> Any:
    """Show a run, a folder of runs, or what `seqloom.load` gave. `parameters` are those of the view's address: text,
    layer, head … Without a view, the list of runs and how they learned."""
    path = Path(what.run.path if hasattr(what, "run") else what)
    name = view or "runs"
    _check_view(name)
    if static:
        return Still(name, _still(path, name, parameters))
    serving = studio_of(path)
    if (path / "recipe.yaml").is_file():
        parameters = {"run": path.resolve().name, **parameters}
    return Frame(serving.address(name, **{key: _said(value) for key, value in parameters.items()}), name, height)


def _said(value: Any) -> str | list[str]:
    """As it stands in an address."""
    return [str(one) for one in value] if isinstance(value, list | tuple) else str(value)


def studio_of(folder: Path) -> Any:
    """The studio that shows this folder, or run; it is started if it does not run yet, and ends with the program."""
    from seqloom.studio.server import Studio

    place = folder.resolve()
    if place not in _SERVERS:
        serving = Studio(folder, notebook=True)
        serving.start()
        _SERVERS[place] = serving
    return _SERVERS[place]


def _check_view(name: str) -> None:
    from seqloom.studio.views import VIEWS

    if name not in VIEWS:
        raise UsageError(f"The studio has no view {name!r}: {did_you_mean(name, VIEWS)}.")


# --- without a server -------------------------------------------------------------------------------------------------


def _still(path: Path, view: str, parameters: dict[str, Any]) -> str:
    from seqloom.predict.loader import load

    if view not in STILLS:
        raise UsageError(f"Only {', '.join(STILLS)} can be shown without a server; {view} needs one: leave static out.")
    if view != "runs" and not isinstance(parameters.get("text"), str):
        raise UsageError(f"To show {view} without a server, give the text to look at: text='…'.")
    return STILLS[view](load(path), parameters)


def _picture(figure: Any, words: str) -> str:
    """A drawing of `inspect` as part of the page."""
    from base64 import b64encode

    from seqloom.inspect.plots.figures import to_bytes

    data = b64encode(to_bytes(figure)).decode("ascii")
    return f'<img alt="{escape(words, quote=True)}" style="max-width:100%" src="data:image/png;base64,{data}">'


def _curves(trained: Any, parameters: dict[str, Any]) -> str:
    from seqloom.inspect.plots.measurements import draw_curves

    return _picture(draw_curves([trained.run]), f"training curves of {trained.name}")


def _alignment(trained: Any, parameters: dict[str, Any]) -> str:
    from seqloom.inspect.plots.heatmaps import draw_alignment
    from seqloom.studio.attention import Looks, alignment_of

    found = alignment_of(trained, parameters["text"], parameters.get("target"), most=TOKENS)
    if isinstance(found, Looks):
        view, part, which = found.view, found.view.cross, _which(parameters)
        grid, title = part.grid(*which, **_shown(parameters)), [view.source or "", view.text, part.title(*which)]
    else:
        grid, title = found.grid(**_shown(parameters)), [found.source, found.text]
    return _picture(draw_alignment(grid, title), " → ".join(title[:2]))


def _heads(trained: Any, parameters: dict[str, Any]) -> str:
    """All heads of a part, or the one that is named."""
    from seqloom.inspect.plots.heatmaps import draw_alignment, draw_heads
    from seqloom.studio.attention import Looks

    view = Looks.of(trained, parameters["text"], parameters.get("target"), most=TOKENS).view
    part = view.part(parameters.get("part") or next(iter(view.parts)))
    named, shown = {"layer", "head"} & parameters.keys(), _shown(parameters, end=True)
    which, words = _which(parameters), f"attention of {trained.name}: {view.text}"
    if named:
        return _picture(draw_alignment(part.grid(*which, **shown), [view.text, part.title(*which)]), words)
    return _picture(draw_heads(part.maps(**shown), [view.text]), words)


def _which(parameters: dict[str, Any]) -> tuple[int | None, int | None]:
    """Layer and head as an address names them; `mean` is that over the heads."""
    layer, head = (parameters.get(name) for name in ("layer", "head"))
    return None if layer is None else int(layer), None if head in (None, "mean") else int(head)


def _shown(parameters: dict[str, Any], end: bool = False) -> dict[str, bool]:
    said = parameters.get("end")
    return {"tokens": parameters.get("by") == "tokens", "end": end if said is None else said not in ("no", False)}


def _cell(trained: Any, parameters: dict[str, Any]) -> str:
    from seqloom.inspect.plots.cells import draw_gates
    from seqloom.inspect.views.cells import gate_trace

    trace = gate_trace(trained, parameters["text"])
    layer = parameters.get("layer")
    return _picture(draw_gates(trace, None if layer is None else int(layer)), f"gates and states of {trained.name}")


def _walk(trained: Any, parameters: dict[str, Any]) -> str:
    """The stages in words, with their shapes."""
    from seqloom.inspect.tours.tour import Follow, walk_through

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


STILLS: dict[str, Callable[[Any, dict[str, Any]], str]] = {
    "runs": _curves,
    "alignment": _alignment,
    "heads": _heads,
    "cell": _cell,
    "walk": _walk,
}
