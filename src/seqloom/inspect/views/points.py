"""Words, tokens or texts as points of a plane: their projections, who is near whom, and what they can be coloured by.

    PCA     y_i = Wᵀ (x_i − x̄), W the two directions along which the x vary most: a shadow of the vectors
    t-SNE   points with the same neighbours as the vectors have: distances mean little

Both are of unit vectors, x / ‖x‖, so that what is near is what has a large cosine. In t-SNE

    p_{j|i} ∝ exp(−β_i ‖x_i − x_j‖²)  over the nearest j of i, β_i such that p_{·|i} has the perplexity that is wished
    p_ij = (p_{j|i} + p_{i|j}) / 2N
    q_ij = K(y_i − y_j) / Z           K(v) = 1 / (1 + ‖v‖²)           Z = Σ_{i≠j} K(y_i − y_j)

    ∂KL(p ‖ q)/∂y_i = 4 Σ_j p_ij K(y_i − y_j) (y_i − y_j)  −  4/Z Σ_j K(y_i − y_j)² (y_i − y_j)
                      neighbours attract each other           all repel each other

the first sum is over neighbours only. The second, and Z, are convolutions: points are spread onto
the nodes of a grid, convolved there with K(v) and K(v)² v by Fourier transforms, and read off again
where they are (Linderman et al. 2019). So ten thousand points take seconds and not hours. Nothing
is drawn at random: the same vectors make the same picture.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqloom.core.errors import UsageError
from seqloom.core.progress import check_cancelled
from seqloom.evaluate.word_space import WordSpace
from seqloom.inspect.values import Array

PointKind = Literal["words", "tokens", "sentences"]
MIN_POINTS = 4  # of a plot
FIRST = 50  # components that t-SNE sees
GROUPS = 20  # that are told apart by colour; the others are "other"
EXAGGERATION = 12.0  # p is so many times as large at first, so that groups find together …
EXPLORED = 0.3  # … for this share of the steps
NODE = 0.35  # between two nodes of the grid; K is 1 wide
MOST_NODES = 352  # along a side; of a wider picture, nodes lie farther apart
FEW = 500  # points, whose pairs are sooner added up than spread on a grid
ROWS = 1024  # of a table of distances that are held at a time


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


class Projection(NamedTuple):
    """The first principal components of vectors."""

    points: Array  # (N, C), the first component first
    explained_variance_ratio: Array  # (C,) of the variance


def pca(x: Array, components: int = 2) -> Projection:
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
    return Projection(points, values[:components] / max(float(values.sum()), 1e-30))


def check_points(points: Points, count: int) -> None:
    """Refuse a picture of fewer than four points, or of points that are all the same."""
    if min(count, len(points)) < MIN_POINTS:
        raise UsageError(f"A picture needs four points or more, got {min(count, len(points))}.")
    if float(np.ptp(points.space.unit[:count], axis=0).max()) < 1e-9:
        raise UsageError("These vectors are all the same: there is nothing to draw.")


# --- who is near whom -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Neighbour:
    """A point that is near another."""

    name: str
    index: int  # among the points
    cosine: float


def neighbours(points: Points, name: str, top: int = 12) -> list[Neighbour]:
    """The points whose vectors point most nearly the same way as that of one of them, best first."""
    similar = points.space.similar(name, top)
    return [Neighbour(one.word, points.space.indices[one.word], one.score) for one in similar]


def analogy(points: Points, a: str, b: str, c: str, top: int = 8) -> list[Neighbour]:
    """What stands to c as b stands to a: the nearest to b − a + c, best first."""
    similar = points.space.analogy(a, b, c, top)
    return [Neighbour(one.word, points.space.indices[one.word], one.score) for one in similar]


# --- what they can be coloured by -------------------------------------------------------------------------------------


def colour_by_frequency(counts: Sequence[float] | None, count: int) -> Colouring:
    """How often each was seen, or where that is not known its rank."""
    if counts is not None:
        return Colouring("frequency", "count in the training text", np.asarray(counts, float), log=True)
    return Colouring("frequency", "rank by frequency", np.arange(1.0, count + 1), log=True)


def colour_by_length(names: Sequence[str], words: bool = False) -> Colouring:
    """How many words, or characters, each has."""
    values = [len(name.split()) if words else len(name.strip()) for name in names]
    return Colouring("length", "number of words" if words else "number of characters", np.asarray(values, float))


def colour_by_kind(names: Sequence[str], pieces: bool = False) -> Colouring:
    """By script, and within it by how it is written; `pieces`: whether it begins a word, too."""
    return colour_by_group("kind", "script and form", [kind_of(name, pieces) for name in names])


def colour_by_group(name: str, title: str, members: Sequence[str]) -> Colouring:
    """The largest groups, the largest first, and "other" for all that are left and for those that have none."""
    sizes = Counter(member for member in members if member)
    order = sorted(sizes, key=lambda group: (-sizes[group], group))
    named = order if len(order) <= GROUPS else order[: GROUPS - 1]
    groups = [*named, "other"] if len(named) < len(order) or "" in members else named
    numbers = {group: number for number, group in enumerate(named)}
    return Colouring(name, title, np.asarray([numbers.get(member, len(named)) for member in members], float), groups)


def kind_of(text: str, pieces: bool = False) -> str:
    """punctuation, number, Latin, Latin capitalised, Han …; of pieces of words whether a word begins with them."""
    if text.startswith("<") and text.endswith(">") and len(text) > 2:
        return "special"
    letter = next((letter for letter in text if letter.isalpha()), None)
    if letter is None:
        return "number" if any(letter.isnumeric() for letter in text) else "punctuation"
    script = unicodedata.name(letter, "UNKNOWN").split()[0].split("-")[0].capitalize()
    script = {"Cjk": "Han"}.get(script, script)
    if pieces:
        return f"{script}, begins a word" if text[:1].isspace() else f"{script}, inside a word"
    if script == "Latin":
        return "Latin, capital" if letter.isupper() else "Latin, small"
    return script


# --- t-SNE ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """A picture on its way."""

    step: int
    of: int
    points: Array  # (N, 2) float32


def project_tsne(points: Points, count: int, *, perplexity: float = 30.0) -> Iterator[Layout]:
    """The picture of the first `count` points on its way."""
    check_points(points, count)
    yield from project_unit_vectors(points.space.unit[:count], perplexity)


def project_unit_vectors(unit: Array, perplexity: float = 30.0) -> Iterator[Layout]:
    """Unit vectors (N, D) on their way to points (N, 2), from where PCA puts them."""
    x = pca(unit, FIRST).points
    yield from tsne(x, x[:, :2], perplexity=perplexity)


def tsne(x: Array, begin: Array, *, perplexity: float = 30.0, steps: int = 750, every: int = 25) -> Iterator[Layout]:
    """The picture of x (N, D) on its way, every few steps and at the end, from `begin` (N, 2) on."""
    count = len(x)
    p = affinities(x, min(perplexity, (count - 1) / 3))
    y: Array = (begin / max(float(begin[:, 0].std()), 1e-12) * 1e-4).astype(np.float32)
    grid = RepulsionGrid()
    rate = max(count / EXAGGERATION / 4, 50.0)
    velocity, gains = np.zeros_like(y), np.ones_like(y)
    for step in range(1, steps + 1):
        check_cancelled()
        explores = step <= EXPLORED * steps
        slope = gradient(p, y, grid, EXAGGERATION if explores else 1.0)
        gains = np.maximum(np.where(velocity * slope < 0, gains + 0.2, gains * 0.8), 0.01)
        velocity = (0.5 if explores else 0.8) * velocity - rate * gains * slope
        y = y + velocity
        if step % every == 0 or step == steps:
            yield Layout(step, steps, y - y.mean(axis=0))


class Affinities(NamedTuple):
    """Of each point its nearest ones (N, k), and p_{j|i} / 2N of them; what is not among them is 0."""

    near: NDArray[np.int64]
    p: Array


def gradient(p: Affinities, y: Array, grid: "RepulsionGrid", exaggeration: float = 1.0) -> Array:
    """∂KL/∂y (N, 2)"""
    total, push = grid.repulsion(y)
    across, up = (y[:, None, side] - y[:, side][p.near] for side in (0, 1))  # (N, k)
    pull = p.p / (1 + across**2 + up**2)
    attraction = np.empty((len(y), 2), np.float32)  # Σ_j p_ij K(y_i − y_j) (y_i − y_j)
    for side, way in enumerate((across, up)):
        way *= pull  # what pulls i to j pulls j to i
        attraction[:, side] = way.sum(axis=1) - np.bincount(p.near.ravel(), way.ravel(), len(y))
    return (4 * (exaggeration * attraction - push / total)).astype(np.float32)


def affinities(x: Array, perplexity: float) -> Affinities:
    near, distances = nearest(x, min(len(x) - 1, max(1, round(3 * perplexity))))
    return Affinities(near, (calibrate(distances, perplexity) / (2 * len(x))).astype(np.float32))


def nearest(x: Array, count: int) -> tuple[NDArray[np.int64], Array]:
    """The nearest others of each vector (N, k) and their squared distances, some rows at a time."""
    x = x.astype(np.float32)
    lengths = (x**2).sum(axis=1)
    near, far = np.empty((len(x), count), np.int64), np.empty((len(x), count), np.float32)
    for start in range(0, len(x), ROWS):
        check_cancelled()
        rows = np.arange(start, min(start + ROWS, len(x)))
        table = lengths[rows, None] + lengths - 2 * x[rows] @ x.T
        table[np.arange(len(rows)), rows] = np.inf  # a point is not its own neighbour
        some = np.argpartition(table, count - 1, axis=1)[:, :count]
        near[rows], far[rows] = some, np.take_along_axis(table, some, axis=1)
    return near, np.maximum(far, 0)


def calibrate(distances: Array, perplexity: float) -> Array:
    """p_{j|i} (N, k) of squared distances (N, k), each row of the perplexity that is wished: β by bisection."""
    d = (distances - distances.min(axis=1, keepdims=True)).astype(np.float64)
    low, high = np.zeros(len(d)), np.full(len(d), np.inf)
    beta, wished = 1 / np.maximum(d.mean(axis=1), 1e-12), np.log(perplexity)
    p = np.empty_like(d)
    for _ in range(60):
        p = np.exp(-beta[:, None] * d)
        total = p.sum(axis=1)
        p /= total[:, None]
        entropy = np.log(total) + beta * (p * d).sum(axis=1)
        flat = entropy > wished
        low, high = np.where(flat, beta, low), np.where(flat, high, beta)
        beta = np.where(np.isinf(high), np.minimum(2 * beta, 1e12), (low + high) / 2)
    return p


class RepulsionGrid:
    """Sums over all pairs of points by a grid; the transforms of the kernels are kept while it stays the same size."""

    def __init__(self) -> None:
        self.size: tuple[int, float] = (0, 0.0)  # nodes along a side, and how far apart they are
        self.kernels: list[NDArray[np.complexfloating]] = []  # the transforms of K, K² v_1 and K² v_2

    def repulsion(self, y: Array) -> tuple[float, Array]:
        """Z, and Σ_j K(y_i − y_j)² (y_i − y_j) (N, 2)"""
        if len(y) <= FEW:
            way = y[:, None] - y
            k = 1 / (1 + (way**2).sum(axis=2))
            return max(float(k.sum()) - len(y), 1e-12), np.einsum("ij,ijd->id", k**2, way)
        low = y.min(axis=0)
        nodes, apart = self._resize(float((y.max(axis=0) - low).max()))
        where, share = spread(y, low, nodes, apart)
        density = np.bincount(where.ravel(), share.ravel(), nodes * nodes).astype(np.float32).reshape(nodes, nodes)
        transformed, fields = np.fft.rfft2(density, (2 * nodes, 2 * nodes)), []
        for kernel in self.kernels:
            convolved = np.fft.irfft2(transformed * kernel, (2 * nodes, 2 * nodes))[:nodes, :nodes].ravel()
            fields.append((convolved[where] * share).sum(axis=1))
        # What points feel of themselves by way of the grid, K(0) = 1 each but for interpolation; of K² v that is 0.
        row, column = np.divmod(np.arange(16), 4)
        square = (row[:, None] - row) ** 2 + (column[:, None] - column) ** 2
        own = float(((share @ (1 / (1 + apart**2 * square)).astype(np.float32)) * share).sum())
        return max(float(fields[0].sum() - own), 1e-12), np.stack(fields[1:], axis=1)

    def _resize(self, extent: float) -> tuple[int, float]:
        apart = NODE
        while extent / apart > MOST_NODES - 4:
            apart *= 1.1
        nodes = min(MOST_NODES, -(-(int(extent / apart) + 4) // 32) * 32)
        if (nodes, apart) != self.size:  # kernels on a grid twice as wide, so that its two ends do not meet
            steps = np.fft.fftfreq(2 * nodes, 1 / (2 * nodes)) * apart  # 0, 1, … −2, −1
            across, up = steps[:, None], steps[None, :]
            k = 1 / (1 + across**2 + up**2)
            kernels = (k, k**2 * across, k**2 * up)
            self.size, self.kernels = (nodes, apart), [np.fft.rfft2(own.astype(np.float32)) for own in kernels]
        return self.size


def spread(y: Array, low: Array, nodes: int, apart: float) -> tuple[NDArray[np.int64], Array]:
    """The 16 nodes around each point (N, 16), and its share in each: cubic interpolation."""
    position = (y - low) / apart + 1  # one node is left of the leftmost cell
    cell = np.floor(position).astype(np.int64)
    t = (position - cell).astype(np.float32)  # (N, 2), from 0 to 1
    weights = np.stack(
        [
            -t * (t - 1) * (t - 2) / 6,
            (t + 1) * (t - 1) * (t - 2) / 2,
            -(t + 1) * t * (t - 2) / 2,
            (t + 1) * t * (t - 1) / 6,
        ]
    )  # (4, N, 2)
    around = np.arange(-1, 3)
    where = (cell[:, 0, None, None] + around[:, None]) * nodes + cell[:, 1, None, None] + around
    share = weights[:, :, 0].T[:, :, None] * weights[:, :, 1].T[:, None, :]
    return where.reshape(len(y), 16), share.reshape(len(y), 16)
