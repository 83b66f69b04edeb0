"""Words, tokens or texts as points in the plane: projections, neighbours and colourings.

    PCA     y_i = Wᵀ (x_i − x̄), where W contains the two directions of largest variance
    t-SNE   points whose neighbours are those of the vectors; large distances are not meaningful

Both methods use unit vectors, x / ‖x‖, so that near points have a large cosine. In t-SNE

    p_{j|i} ∝ exp(−β_i ‖x_i − x_j‖²)  over the nearest j of i, β_i such that p_{·|i} has the given perplexity
    p_ij = (p_{j|i} + p_{i|j}) / 2N
    q_ij = K(y_i − y_j) / Z           K(v) = 1 / (1 + ‖v‖²)           Z = Σ_{i≠j} K(y_i − y_j)

    ∂KL(p ‖ q)/∂y_i = 4 Σ_j p_ij K(y_i − y_j) (y_i − y_j)  −  4/Z Σ_j K(y_i − y_j)² (y_i − y_j)
                      neighbours attract each other           all repel each other

The first sum is only over neighbours. The second sum and Z are convolutions: points are interpolated onto the nodes of
a grid, convolved with K(v) and K(v)² v by Fourier transforms, and interpolated back (Linderman et al. 2019). As a
result, ten thousand points take seconds instead of hours. The projection is deterministic: the same vectors produce the
same plot.
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
MIN_POINTS = 4  # minimum points of a plot
TSNE_COMPONENTS = 50  # number of principal components, which are the input of t-SNE
MAX_GROUPS = 20  # maximum number of groups with a separate colour; all other groups are "other"
EXAGGERATION = 12.0  # factor of p in the first phase, which lets clusters form
EXAGGERATED_FRACTION = 0.3  # fraction of the steps in the first phase
GRID_SPACING = 0.35  # distance between two nodes; K has width 1
MAX_GRID_NODES = 352  # per side; a wider layout has a larger spacing
MAX_EXACT_POINTS = 500  # up to this number of points, summing all pairs is faster than the grid
DISTANCE_ROWS = 1024  # maximum rows of the distance matrix in memory


@dataclass(frozen=True)
class Colouring:
    """A number or a group for each point."""

    name: str  # frequency, length, kind, label
    title: str  # description
    values: Array  # (N,) numbers, or group indices
    groups: list[str] = field(default_factory=list)  # group names; empty if values are numbers
    log: bool = False  # whether a logarithmic scale is better


@dataclass(frozen=True)
class Points:
    """Items with vectors, most important first."""

    kind: PointKind
    space: WordSpace
    colourings: list[Colouring]
    source: str  # description of the origin of the vectors

    def __len__(self) -> int:
        return len(self.space.words)

    @property
    def nbytes(self) -> int:
        """The size of the vectors and the unit vectors in bytes."""
        return 2 * self.space.vectors.nbytes


class Projection(NamedTuple):
    """The first principal components of vectors."""

    points: Array  # (N, C), the first component first
    explained_variance_ratio: Array  # (C,)


def pca(x: Array, components: int = 2) -> Projection:
    """Compute the first components of vectors (N, D). The farthest point is positive on each axis."""
    x = np.asarray(x, dtype=np.float64)
    centred = x - x.mean(axis=0)
    values, directions = np.linalg.eigh(centred.T @ centred)  # ascending
    values, directions = np.maximum(values[::-1], 0), directions[:, ::-1][:, :components]
    points = centred @ directions
    far = np.abs(points).argmax(axis=0)
    points *= np.where(points[far, np.arange(points.shape[1])] < 0, -1.0, 1.0)
    if points.shape[1] < 2:  # the vectors are one-dimensional
        points = np.pad(points, ((0, 0), (0, 1)))
    return Projection(points, values[:components] / max(float(values.sum()), 1e-30))


def check_points(points: Points, count: int) -> None:
    """Raise an error if there are fewer than four points, or if all points are equal."""
    if min(count, len(points)) < MIN_POINTS:
        raise UsageError(f"A plot needs at least {MIN_POINTS} points; got {min(count, len(points))}.")
    if float(np.ptp(points.space.unit[:count], axis=0).max()) < 1e-9:
        raise UsageError("All vectors are the same, so there is nothing to plot.")


# --- neighbours -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Neighbour:
    """A neighbour of a point."""

    name: str
    index: int  # index among the points
    cosine: float


def neighbours(points: Points, name: str, top: int = 12) -> list[Neighbour]:
    """Return the points with the largest cosine to a point, best first."""
    similar = points.space.similar(name, top)
    return [Neighbour(match.word, points.space.indices[match.word], match.score) for match in similar]


def analogy(points: Points, a: str, b: str, c: str, top: int = 8) -> list[Neighbour]:
    """Return the points nearest to b − a + c, best first. The result is to c as b is to a."""
    similar = points.space.analogy(a, b, c, top)
    return [Neighbour(match.word, points.space.indices[match.word], match.score) for match in similar]


# --- colourings -------------------------------------------------------------------------------------------------------


def colour_by_frequency(counts: Sequence[float] | None, count: int) -> Colouring:
    """Colour by frequency, or by frequency rank if counts are unknown."""
    if counts is not None:
        return Colouring("frequency", "count in the training text", np.asarray(counts, float), log=True)
    return Colouring("frequency", "rank by frequency", np.arange(1.0, count + 1), log=True)


def colour_by_length(names: Sequence[str], words: bool = False) -> Colouring:
    """Colour by the number of characters or words."""
    values = [len(name.split()) if words else len(name.strip()) for name in names]
    return Colouring("length", "number of words" if words else "number of characters", np.asarray(values, float))


def colour_by_kind(names: Sequence[str], pieces: bool = False) -> Colouring:
    """Colour by script and form; with `pieces`, also by whether a piece begins a word."""
    return colour_by_group("kind", "script and form", [kind_of(name, pieces) for name in names])


def colour_by_group(name: str, title: str, members: Sequence[str]) -> Colouring:
    """Colour by group, largest group first. Small groups and items without a group become "other"."""
    sizes = Counter(member for member in members if member)
    order = sorted(sizes, key=lambda group: (-sizes[group], group))
    named = order if len(order) <= MAX_GROUPS else order[: MAX_GROUPS - 1]
    groups = [*named, "other"] if len(named) < len(order) or "" in members else named
    numbers = {group: number for number, group in enumerate(named)}
    return Colouring(name, title, np.asarray([numbers.get(member, len(named)) for member in members], float), groups)


def kind_of(text: str, pieces: bool = False) -> str:
    """Return the kind of a text: punctuation, number, Latin, Han …; for a piece, also whether it begins a word."""
    if text.startswith("<") and text.endswith(">") and len(text) > 2:
        return "special"
    character = next((character for character in text if character.isalpha()), None)
    if character is None:
        return "number" if any(character.isnumeric() for character in text) else "punctuation"
    script = unicodedata.name(character, "UNKNOWN").split()[0].split("-")[0].capitalize()
    script = {"Cjk": "Han"}.get(script, script)
    if pieces:
        return f"{script}, begins a word" if text[:1].isspace() else f"{script}, inside a word"
    if script == "Latin":
        return "Latin, capital" if character.isupper() else "Latin, small"
    return script


# --- t-SNE ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """An intermediate or final layout."""

    step: int
    of: int
    points: Array  # (N, 2) float32


def project_tsne(points: Points, count: int, *, perplexity: float = 30.0) -> Iterator[Layout]:
    """Yield t-SNE layouts of the first `count` points."""
    check_points(points, count)
    yield from project_unit_vectors(points.space.unit[:count], perplexity)


def project_unit_vectors(unit: Array, perplexity: float = 30.0) -> Iterator[Layout]:
    """Yield layouts (N, 2) of unit vectors (N, D), initialized by PCA."""
    x = pca(unit, TSNE_COMPONENTS).points
    yield from tsne(x, x[:, :2], perplexity=perplexity)


def tsne(x: Array, initial: Array, *, perplexity: float = 30.0, steps: int = 750, every: int = 25) -> Iterator[Layout]:
    """Yield layouts of x (N, D) every few steps and at the end, from `initial` (N, 2)."""
    count = len(x)
    p = affinities(x, min(perplexity, (count - 1) / 3))
    y: Array = (initial / max(float(initial[:, 0].std()), 1e-12) * 1e-4).astype(np.float32)
    grid = RepulsionGrid()
    rate = max(count / EXAGGERATION / 4, 50.0)
    velocity, gains = np.zeros_like(y), np.ones_like(y)
    for step in range(1, steps + 1):
        check_cancelled()
        is_exaggerated = step <= EXAGGERATED_FRACTION * steps
        slope = gradient(p, y, grid, EXAGGERATION if is_exaggerated else 1.0)
        gains = np.maximum(np.where(velocity * slope < 0, gains + 0.2, gains * 0.8), 0.01)
        velocity = (0.5 if is_exaggerated else 0.8) * velocity - rate * gains * slope
        y = y + velocity
        if step % every == 0 or step == steps:
            yield Layout(step, steps, y - y.mean(axis=0))


class Affinities(NamedTuple):
    """The nearest neighbours of each point (N, k), and p_{j|i} / 2N; p is 0 for all other pairs."""

    near: NDArray[np.int64]
    p: Array


def gradient(p: Affinities, y: Array, grid: "RepulsionGrid", exaggeration: float = 1.0) -> Array:
    """Return ∂KL/∂y (N, 2)."""
    total, push = grid.repulsion(y)
    across, up = (y[:, None, side] - y[:, side][p.near] for side in (0, 1))  # (N, k)
    pull = p.p / (1 + across**2 + up**2)
    attraction = np.empty((len(y), 2), np.float32)  # Σ_j p_ij K(y_i − y_j) (y_i − y_j)
    for side, difference in enumerate((across, up)):
        difference *= pull  # the force acts on both points
        attraction[:, side] = difference.sum(axis=1) - np.bincount(p.near.ravel(), difference.ravel(), len(y))
    return (4 * (exaggeration * attraction - push / total)).astype(np.float32)


def affinities(x: Array, perplexity: float) -> Affinities:
    near, distances = nearest(x, min(len(x) - 1, max(1, round(3 * perplexity))))
    return Affinities(near, (calibrate(distances, perplexity) / (2 * len(x))).astype(np.float32))


def nearest(x: Array, count: int) -> tuple[NDArray[np.int64], Array]:
    """Return the nearest neighbours of each vector (N, k) and their squared distances, computed in chunks of rows."""
    x = x.astype(np.float32)
    lengths = (x**2).sum(axis=1)
    near, far = np.empty((len(x), count), np.int64), np.empty((len(x), count), np.float32)
    for start in range(0, len(x), DISTANCE_ROWS):
        check_cancelled()
        rows = np.arange(start, min(start + DISTANCE_ROWS, len(x)))
        table = lengths[rows, None] + lengths - 2 * x[rows] @ x.T
        table[np.arange(len(rows)), rows] = np.inf  # a point is not a neighbour of itself
        nearest_columns = np.argpartition(table, count - 1, axis=1)[:, :count]
        near[rows], far[rows] = nearest_columns, np.take_along_axis(table, nearest_columns, axis=1)
    return near, np.maximum(far, 0)


def calibrate(distances: Array, perplexity: float) -> Array:
    """Compute p_{j|i} (N, k) from squared distances (N, k).

    For each row, bisection finds the β at which the row has the requested perplexity.
    """
    d = (distances - distances.min(axis=1, keepdims=True)).astype(np.float64)
    low, high = np.zeros(len(d)), np.full(len(d), np.inf)
    beta, target = 1 / np.maximum(d.mean(axis=1), 1e-12), np.log(perplexity)
    p = np.empty_like(d)
    for _ in range(60):
        p = np.exp(-beta[:, None] * d)
        total = p.sum(axis=1)
        p /= total[:, None]
        entropy = np.log(total) + beta * (p * d).sum(axis=1)
        flat = entropy > target
        low, high = np.where(flat, beta, low), np.where(flat, high, beta)
        beta = np.where(np.isinf(high), np.minimum(2 * beta, 1e12), (low + high) / 2)
    return p


class RepulsionGrid:
    """Sums over all pairs of points, computed on a grid.

    Kernel transforms are cached while the grid size is unchanged.
    """

    def __init__(self) -> None:
        self.size: tuple[int, float] = (0, 0.0)  # nodes per side, and their spacing
        self.kernels: list[NDArray[np.complexfloating]] = []  # the transforms of K, K² v_1 and K² v_2

    def repulsion(self, y: Array) -> tuple[float, Array]:
        """Return Z, and Σ_j K(y_i − y_j)² (y_i − y_j) (N, 2)."""
        if len(y) <= MAX_EXACT_POINTS:
            difference = y[:, None] - y
            k = 1 / (1 + (difference**2).sum(axis=2))
            return max(float(k.sum()) - len(y), 1e-12), np.einsum("ij,ijd->id", k**2, difference)
        low = y.min(axis=0)
        nodes, spacing = self._resize(float((y.max(axis=0) - low).max()))
        nodes_around, weights = spread(y, low, nodes, spacing)
        density = np.bincount(nodes_around.ravel(), weights.ravel(), nodes * nodes).astype(np.float32)
        density = density.reshape(nodes, nodes)
        transformed, fields = np.fft.rfft2(density, (2 * nodes, 2 * nodes)), []
        for kernel in self.kernels:
            convolved = np.fft.irfft2(transformed * kernel, (2 * nodes, 2 * nodes))[:nodes, :nodes].ravel()
            fields.append((convolved[nodes_around] * weights).sum(axis=1))
        # Subtract the action of each point on itself: K(0) = 1 except for interpolation errors; for K² v it is 0.
        row, column = np.divmod(np.arange(16), 4)
        square = (row[:, None] - row) ** 2 + (column[:, None] - column) ** 2
        self_action = float(((weights @ (1 / (1 + spacing**2 * square)).astype(np.float32)) * weights).sum())
        return max(float(fields[0].sum() - self_action), 1e-12), np.stack(fields[1:], axis=1)

    def _resize(self, extent: float) -> tuple[int, float]:
        spacing = GRID_SPACING
        while extent / spacing > MAX_GRID_NODES - 4:
            spacing *= 1.1
        nodes = min(MAX_GRID_NODES, -(-(int(extent / spacing) + 4) // 32) * 32)
        if (nodes, spacing) != self.size:  # kernels on a grid of twice the width, without wrap-around
            steps = np.fft.fftfreq(2 * nodes, 1 / (2 * nodes)) * spacing  # 0, 1, … −2, −1
            across, up = steps[:, None], steps[None, :]
            k = 1 / (1 + across**2 + up**2)
            kernels = (k, k**2 * across, k**2 * up)
            self.size, self.kernels = (nodes, spacing), [np.fft.rfft2(kernel.astype(np.float32)) for kernel in kernels]
        return self.size


def spread(y: Array, low: Array, nodes: int, spacing: float) -> tuple[NDArray[np.int64], Array]:
    """Return the 16 nodes around each point (N, 16), and the weights of cubic interpolation."""
    position = (y - low) / spacing + 1  # one node lies left of the first cell
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
    node = (cell[:, 0, None, None] + around[:, None]) * nodes + cell[:, 1, None, None] + around
    products = weights[:, :, 0].T[:, :, None] * weights[:, :, 1].T[:, None, :]
    return node.reshape(len(y), 16), products.reshape(len(y), 16)
