"""Words, tokens or texts as points: their projections, who is near whom, and what they can be coloured by.

    PCA     y_i = Wᵀ (x_i − x̄), W the two directions along which the x vary most: a shadow of the vectors
    t-SNE   points with the same neighbours as the vectors have (`seqloom.inspect.views.tsne`): distances mean little

Both are of unit vectors, x / ‖x‖, so that what is near is what has a large cosine.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from seqloom.core.errors import UsageError
from seqloom.evaluate.word_space import WordSpace
from seqloom.inspect.views.tsne import Layout, tsne

Array = np.ndarray[Any, Any]
PointKind = Literal["words", "tokens", "sentences"]
LEAST = 4  # points of a picture
FIRST = 50  # components that t-SNE sees
GROUPS = 20  # that are told apart by colour; the others are "other"


@dataclass(frozen=True)
class Colouring:
    """A number for each point, or the group each belongs to."""

    name: str  # frequency, length, kind, label
    title: str  # in words
    values: Array  # (N,) numbers, or numbers of groups
    groups: list[str] = field(default_factory=list)  # their names; none where values are numbers
    log: bool = False  # whether numbers are better told apart by their logarithms


@dataclass(frozen=True)
class Points:
    """What has vectors, the more important first."""

    kind: PointKind
    space: WordSpace
    colourings: list[Colouring]
    source: str  # where they are from, in words

    def __len__(self) -> int:
        return len(self.space.words)

    @property
    def nbytes(self) -> int:
        """Of the vectors, as they are and of length 1."""
        return 2 * self.space.vectors.nbytes


@dataclass(frozen=True)
class Components:
    points: Array  # (N, C), the first component first
    shares: Array  # (C,) of the variance


def pca(x: Array, components: int = 2) -> Components:
    """The first components of vectors (N, D). Either direction of an axis is as good: that of its farthest point is
    taken."""
    x = np.asarray(x, dtype=np.float64)
    centred = x - x.mean(axis=0)
    values, directions = np.linalg.eigh(centred.T @ centred)  # ascending
    values, directions = np.maximum(values[::-1], 0), directions[:, ::-1][:, :components]
    points = centred @ directions
    far = np.abs(points).argmax(axis=0)
    points *= np.where(points[far, np.arange(points.shape[1])] < 0, -1.0, 1.0)
    if points.shape[1] < 2:  # of vectors of one number
        points = np.pad(points, ((0, 0), (0, 1)))
    return Components(points, values[:components] / max(float(values.sum()), 1e-30))


def project_tsne(points: Points, count: int, *, perplexity: float = 30.0) -> Iterator[Layout]:
    """The picture of the first `count` points on its way."""
    check_points(points, count)
    yield from plane_by_tsne(points.space.unit[:count], perplexity)


def plane_by_tsne(unit: Array, perplexity: float = 30.0) -> Iterator[Layout]:
    """Unit vectors (N, D) on their way to points (N, 2), from where PCA puts them."""
    x = pca(unit, FIRST).points
    yield from tsne(x, x[:, :2], perplexity=perplexity)


def check_points(points: Points, count: int) -> None:
    if min(count, len(points)) < LEAST:
        raise UsageError(f"A picture needs four points or more, got {min(count, len(points))}.")
    if float(np.ptp(points.space.unit[:count], axis=0).max()) < 1e-9:
        raise UsageError("These vectors are all the same: there is nothing to draw.")


# --- who is near whom -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Neighbour:
    name: str
    place: int  # among the points
    cosine: float


def neighbours(points: Points, name: str, top: int = 12) -> list[Neighbour]:
    """The points whose vectors point most nearly the same way as that of one of them, best first."""
    return _placed(points, points.space.similar(name, top))


def analogy(points: Points, a: str, b: str, c: str, top: int = 8) -> list[Neighbour]:
    """What stands to c as b stands to a: the nearest to b − a + c, best first."""
    return _placed(points, points.space.analogy(a, b, c, top))


def _placed(points: Points, found: Sequence[Any]) -> list[Neighbour]:
    return [Neighbour(one.word, points.space.places[one.word], one.score) for one in found]


# --- what they can be coloured by -------------------------------------------------------------------------------------


def by_frequency(counts: Sequence[float] | None, count: int) -> Colouring:
    """How often each was seen, or where that is not known its rank."""
    if counts is not None:
        return Colouring("frequency", "count in the training text", np.asarray(counts, float), log=True)
    return Colouring("frequency", "rank by frequency", np.arange(1.0, count + 1), log=True)


def by_length(names: Sequence[str], words: bool = False) -> Colouring:
    values = [len(name.split()) if words else len(name.strip()) for name in names]
    return Colouring("length", "number of words" if words else "number of characters", np.asarray(values, float))


def by_kind(names: Sequence[str], pieces: bool = False) -> Colouring:
    """By script, and within it by how it is written; `pieces`: whether it begins a word, too."""
    return by_group("kind", "script and form", [kind_of(name, pieces) for name in names])


def by_group(name: str, title: str, members: Sequence[str]) -> Colouring:
    """The largest groups, the largest first, and "other" for all that are left and for those that have none."""
    sizes: dict[str, int] = {}
    for member in members:
        sizes[member] = sizes.get(member, 0) + 1
    sizes.pop("", None)
    order = sorted(sizes, key=lambda group: (-sizes[group], group))
    kept = order if len(order) <= GROUPS else order[: GROUPS - 1]
    groups = [*kept, "other"] if len(kept) < len(order) or "" in members else kept
    numbers = {group: number for number, group in enumerate(kept)}
    return Colouring(name, title, np.asarray([numbers.get(one, len(kept)) for one in members], float), groups)


def kind_of(text: str, pieces: bool = False) -> str:
    """punctuation, number, Latin, Latin capitalised, Han …; of pieces of words whether a word begins with them."""
    own = text.strip()
    if text.startswith("<") and text.endswith(">") and len(text) > 2:
        return "special"
    letter = next((letter for letter in own if letter.isalpha()), None)
    if letter is None:
        return "number" if any(letter.isnumeric() for letter in own) else "punctuation"
    script = unicodedata.name(letter, "UNKNOWN").split()[0].split("-")[0].capitalize()
    script = {"Cjk": "Han"}.get(script, script)
    if pieces:
        return f"{script}, begins a word" if text[:1].isspace() else f"{script}, inside a word"
    if script == "Latin":
        return "Latin, capital" if letter.isupper() else "Latin, small"
    return script
