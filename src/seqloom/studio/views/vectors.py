"""Vectors: the words, tokens or texts of a model as points of a plane, who is near whom, and analogies."""

import numpy as np
from fastapi import Response
from pydantic import Field

from seqloom.core.errors import UsageError
from seqloom.inspect.values import Array
from seqloom.inspect.views.points import (
    Colouring,
    Layout,
    PointKind,
    Points,
    analogy,
    check_points,
    neighbours,
    pca,
    project_tsne,
)
from seqloom.predict.word_vectors import kinds_of_points, points_of
from seqloom.studio.endpoints import Document, Events, Line, LineResponse, RunQuestion, View
from seqloom.studio.shelf import OpenRun

view = View("vectors")
POINTS = 20_000
DIGITS = 5  # of a place on the page


class VectorQuestion(RunQuestion):
    """Vectors of a kind."""

    kind: PointKind | None = None  # None is what the model has vectors of, words before texts
    lines: Document | None = None  # texts of one's own, one a line; None are those of the dev split


class PointsQuestion(VectorQuestion):
    """So many of them as points."""

    count: int = Field(2_000, ge=4, le=POINTS)


class TsneQuestion(PointsQuestion):
    """The same by t-SNE."""

    perplexity: float = Field(30.0, ge=2, le=100)


class NearQuestion(VectorQuestion):
    """Those nearest to one."""

    name: Line
    top: int = Field(12, ge=1, le=100)


class AnalogyQuestion(VectorQuestion):
    """What stands to c as b stands to a."""

    a: Line
    b: Line
    c: Line
    top: int = Field(8, ge=1, le=100)


@view.post()
def vectors(ask: PointsQuestion, run: OpenRun) -> object:
    """The points, by PCA, with their names and all they can be coloured by."""
    kinds, points = _read_points(ask, run)
    count = min(ask.count, len(points))
    check_points(points, count)
    plane = run.remember(("pca", points.kind, ask.lines, count), lambda: pca(points.space.unit[:count]))
    return {
        "kinds": kinds,
        "kind": points.kind,
        "source": points.source,
        "width": points.space.vectors.shape[1],
        "total": len(points),
        "names": list(points.space.words[:count]),
        **_describe_places(plane.points),
        "shares": plane.shares,
        "colourings": [_describe_colouring(colouring, count) for colouring in points.colourings],
    }


@view.post("/tsne")
def by_tsne(ask: TsneQuestion, run: OpenRun) -> Response:
    """The layout of t-SNE while it is made; one that was made before comes at once."""
    _, points = _read_points(ask, run)
    check_points(points, ask.count)
    finished: list[Layout] = run.remember(("tsne", points.kind, ask.lines, ask.count, ask.perplexity), list)

    def layouts() -> Events:
        made = finished[-1:] or project_tsne(points, ask.count, perplexity=ask.perplexity)
        for layout in made:
            if layout.step == layout.of:
                finished.append(layout)
            yield {"step": layout.step, "of": layout.of, **_describe_places(layout.points)}

    return LineResponse(layouts())


@view.post("/near")
def near(ask: NearQuestion, run: OpenRun) -> object:
    """One point and those nearest to it, among all of its kind."""
    _, points = _read_points(ask, run)
    place = points.space.index(ask.name)
    return {"name": points.space.words[place], "place": place, "near": neighbours(points, ask.name, ask.top)}


@view.post("/analogy")
def analogies(ask: AnalogyQuestion, run: OpenRun) -> object:
    """What stands to c as b stands to a."""
    _, points = _read_points(ask, run)
    places = [points.space.index(name) for name in (ask.a, ask.b, ask.c)]
    best = analogy(points, ask.a, ask.b, ask.c, ask.top)
    return {"names": [points.space.words[place] for place in places], "places": places, "near": best}


def _read_points(ask: VectorQuestion, run: OpenRun) -> tuple[list[PointKind], Points]:
    """What the run has vectors of, and those that are asked for."""
    kinds = kinds_of_points(run.trained)
    if not kinds:
        raise UsageError(f"{run.name} makes no vectors of words, tokens or texts.")
    kind = ask.kind or kinds[0]
    texts = None if ask.lines is None or kind != "sentences" else tuple(ask.lines.splitlines())
    return kinds, run.remember(("points", kind, texts), lambda: points_of(run.trained, kind, texts))


def _describe_places(points: Array) -> dict[str, object]:
    """x, y, x, y … between −1 and 1 with few digits, and the `size` they are to be multiplied by."""
    size = float(np.abs(points).max()) or 1.0
    return {"points": np.round(np.asarray(points[:, :2], float) / size, DIGITS).ravel().tolist(), "size": size}


def _describe_colouring(colouring: Colouring, count: int) -> dict[str, object]:
    values = colouring.values[:count]
    is_whole = (values == values.astype(int)).all()
    return {**vars(colouring), "values": values.astype(int) if is_whole else values}
