"""Vectors: the words, tokens or texts of a model as points of a plane, who is near whom, and analogies."""

from collections.abc import Generator, Mapping
from typing import Any

import numpy as np
from fastapi import APIRouter, Response
from pydantic import Field

from seqloom.core.errors import UsageError
from seqloom.inspect.views.points import (
    Colouring,
    PointKind,
    Points,
    analogy,
    check_points,
    neighbours,
    pca,
    project_tsne,
)
from seqloom.inspect.views.tsne import Layout
from seqloom.predict.word_vectors import kinds_of_points, points_of
from seqloom.studio.arrays import lines
from seqloom.studio.asking import POINTS, Document, Line, RunQuestion, StudioShelf
from seqloom.studio.endpoints import queued
from seqloom.studio.shelf import Shelf
from seqloom.tasks import has_view

router = APIRouter(prefix="/api/vectors")
DIGITS = 5  # of a place on the page


def suits(recipe: Mapping[str, Any]) -> bool:
    return has_view(recipe, "vectors")


class VectorQuestion(RunQuestion):
    kind: PointKind | None = None  # None is what the model has vectors of, words before texts
    lines: Document | None = None  # texts of one's own, one a line; None are those of the dev split


class AskPoints(VectorQuestion):
    count: int = Field(2_000, ge=4, le=POINTS)


class AskTsne(AskPoints):
    perplexity: float = Field(30.0, ge=2, le=100)


class AskNear(VectorQuestion):
    name: Line
    top: int = Field(12, ge=1, le=100)


class AskAnalogy(VectorQuestion):
    a: Line
    b: Line
    c: Line
    top: int = Field(8, ge=1, le=100)


@router.post("")
@queued
def vectors(ask: AskPoints, shelf: StudioShelf) -> dict[str, Any]:
    """The points, by PCA, with their names and all they can be coloured by."""
    with shelf.using(ask.run):  # one model from the vectors to the picture, also where it is trained meanwhile
        kinds, points = found(shelf, ask)
        count = min(ask.count, len(points))
        check_points(points, count)
        plane = shelf.remember(ask.run, ("pca", points.kind, ask.lines, count), lambda: pca(points.space.unit[:count]))
    return {
        "kinds": kinds,
        "kind": points.kind,
        "source": points.source,
        "width": points.space.vectors.shape[1],
        "total": len(points),
        "names": list(points.space.words[:count]),
        **placed(plane.points),
        "shares": plane.shares,
        "colourings": [described(one, count) for one in points.colourings],
    }


@router.post("/tsne")
@queued
def by_tsne(ask: AskTsne, shelf: StudioShelf) -> Response:
    """The picture of t-SNE while it is made; a picture that was made before comes at once."""
    with shelf.using(ask.run):
        _, points = found(shelf, ask)
        check_points(points, ask.count)
        key = ("tsne", points.kind, ask.lines, ask.count, ask.perplexity)
        picture = shelf.remember(ask.run, key, Picture)
    return lines(picture.layouts(points, ask))


class Picture:
    """A picture of t-SNE, once it is made."""

    last: Layout | None = None

    def layouts(self, points: Points, ask: AskTsne) -> Generator[dict[str, Any], None, None]:
        made = project_tsne(points, ask.count, perplexity=ask.perplexity) if self.last is None else [self.last]
        for layout in made:
            if layout.step == layout.of:
                self.last = layout
            yield {"step": layout.step, "of": layout.of, **placed(layout.points)}


@router.post("/near")
@queued
def near(ask: AskNear, shelf: StudioShelf) -> dict[str, Any]:
    """One point and those nearest to it, among all of its kind."""
    points = found(shelf, ask)[1]
    place = points.space.place(ask.name)
    return {
        "name": points.space.words[place],
        "place": place,
        "near": neighbours(points, ask.name, ask.top),
    }


@router.post("/analogy")
@queued
def analogies(ask: AskAnalogy, shelf: StudioShelf) -> dict[str, Any]:
    """What stands to c as b stands to a."""
    points = found(shelf, ask)[1]
    asked = [points.space.place(name) for name in (ask.a, ask.b, ask.c)]
    best = analogy(points, ask.a, ask.b, ask.c, ask.top)
    return {"names": [points.space.words[place] for place in asked], "places": asked, "near": best}


def found(shelf: Shelf, ask: VectorQuestion) -> tuple[list[PointKind], Points]:
    """What the run has vectors of, and those that are asked for."""
    with shelf.using(ask.run) as trained:
        kinds = kinds_of_points(trained)
        if not kinds:
            raise UsageError(f"{ask.run} makes no vectors of words, tokens or texts.")
        kind = ask.kind or kinds[0]
        own = None if ask.lines is None or kind != "sentences" else tuple(ask.lines.splitlines())
        return kinds, shelf.remember(ask.run, ("points", kind, own), lambda: points_of(trained, kind, own))


def placed(points: Any) -> dict[str, Any]:
    """x, y, x, y … between −1 and 1 with few digits, and the `size` they are to be multiplied by."""
    size = float(np.abs(points).max()) or 1.0
    return {"points": np.round(np.asarray(points[:, :2], float) / size, DIGITS).ravel().tolist(), "size": size}


def described(colouring: Colouring, count: int) -> dict[str, Any]:
    values = colouring.values[:count]
    return {
        "name": colouring.name,
        "title": colouring.title,
        "groups": colouring.groups,
        "log": colouring.log,
        "values": values.astype(int).tolist() if (values == values.astype(int)).all() else values.tolist(),
    }
