"""The view "Vectors": embeddings projected to a plane, nearest neighbours, and analogies."""

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
from seqloom.predict.word_vectors import compute_points, list_point_kinds
from seqloom.studio.endpoints import Document, Events, JsonLinesResponse, Line, RunRequest, View
from seqloom.studio.run_folder import OpenRun

view = View("vectors", "Vectors")
MAX_POINTS = 20_000
COORDINATE_DIGITS = 5


class VectorsRequest(RunRequest):
    """Vectors of one kind."""

    kind: PointKind | None = None  # None means the first kind that the model has
    lines: Document | None = None  # texts, one per line; None means the texts of the dev split


class PointsRequest(VectorsRequest):
    """The number of points."""

    count: int = Field(2_000, ge=4, le=MAX_POINTS)


class TsneRequest(PointsRequest):
    """The parameters of t-SNE."""

    perplexity: float = Field(30.0, ge=2, le=100)


class NeighboursRequest(VectorsRequest):
    """The nearest neighbours of a name."""

    name: Line
    top: int = Field(12, ge=1, le=100)


class AnalogyRequest(VectorsRequest):
    """The analogy a : b = c : ?"""

    a: Line
    b: Line
    c: Line
    top: int = Field(8, ge=1, le=100)


@view.post()
def vectors(body: PointsRequest, run: OpenRun) -> object:
    """Return the PCA projection of the vectors, with names and colourings."""
    kinds, points = _compute_points(body, run)
    count = min(body.count, len(points))
    check_points(points, count)
    plane = run.get_or_compute(("pca", points.kind, body.lines, count), lambda: pca(points.space.unit[:count]))
    return {
        "kinds": kinds,
        "kind": points.kind,
        "source": points.source,
        "width": points.space.vectors.shape[1],
        "total": len(points),
        "names": list(points.space.words[:count]),
        **_describe_positions(plane.points),
        "explained": plane.explained_variance_ratio,
        "colourings": [_describe_colouring(colouring, count) for colouring in points.colourings],
    }


@view.post("/tsne")
def by_tsne(body: TsneRequest, run: OpenRun) -> Response:
    """Stream the intermediate layouts of t-SNE, and cache the final layout."""
    _, points = _compute_points(body, run)
    check_points(points, body.count)
    finished: list[Layout] = run.get_or_compute(("tsne", points.kind, body.lines, body.count, body.perplexity), list)

    def layouts() -> Events:
        for layout in finished[-1:] or project_tsne(points, body.count, perplexity=body.perplexity):
            if layout.step == layout.of:
                finished.append(layout)
            yield {"step": layout.step, "of": layout.of, **_describe_positions(layout.points)}

    return JsonLinesResponse(layouts())


@view.post("/near")
def near(body: NeighboursRequest, run: OpenRun) -> object:
    """Return a point and its nearest neighbours among all vectors of its kind."""
    _, points = _compute_points(body, run)
    index = points.space.index(body.name)
    return {"name": points.space.words[index], "index": index, "near": neighbours(points, body.name, body.top)}


@view.post("/analogy")
def analogies(body: AnalogyRequest, run: OpenRun) -> object:
    """Return the vectors nearest to b − a + c."""
    _, points = _compute_points(body, run)
    indices = [points.space.index(name) for name in (body.a, body.b, body.c)]
    best = analogy(points, body.a, body.b, body.c, body.top)
    return {"names": [points.space.words[index] for index in indices], "indices": indices, "near": best}


def _compute_points(body: VectorsRequest, run: OpenRun) -> tuple[list[PointKind], Points]:
    """Return the kinds of vectors that the run has, and the points of the requested kind."""
    kinds = list_point_kinds(run.trained)
    if not kinds:
        raise UsageError(f"{run.name} has no vectors of words, tokens or texts.")
    kind = body.kind or kinds[0]
    texts = None if body.lines is None or kind != "sentences" else tuple(body.lines.splitlines())
    return kinds, run.get_or_compute(("points", kind, texts), lambda: compute_points(run.trained, kind, texts))


def _describe_positions(points: Array) -> dict[str, object]:
    """Return rounded coordinates x, y, x, y … between −1 and 1, and the factor `size` that restores their scale."""
    size = float(np.abs(points).max()) or 1.0
    return {
        "points": np.round(np.asarray(points[:, :2], float) / size, COORDINATE_DIGITS).ravel().tolist(),
        "size": size,
    }


def _describe_colouring(colouring: Colouring, count: int) -> dict[str, object]:
    values = colouring.values[:count]
    are_integers = (values == values.astype(int)).all()
    return {**vars(colouring), "values": values.astype(int) if are_integers else values}
