"""t-SNE: points of a plane that have the same neighbours as vectors have; little else about them means anything.

    p_{j|i} ∝ exp(−β_i ‖x_i − x_j‖²)  over the nearest j of i, β_i such that p_{·|i} has the perplexity that is wished
    p_ij = (p_{j|i} + p_{i|j}) / 2N
    q_ij = K(y_i − y_j) / Z           K(v) = 1 / (1 + ‖v‖²)           Z = Σ_{i≠j} K(y_i − y_j)

    ∂KL(p ‖ q)/∂y_i = 4 Σ_j p_ij K(y_i − y_j) (y_i − y_j)  −  4/Z Σ_j K(y_i − y_j)² (y_i − y_j)
                      neighbours attract each other           all repel each other

The first sum is over neighbours only. The second, and Z, are convolutions: points are spread onto the nodes of a grid,
convolved there with K(v) and K(v)² v by Fourier transforms, and read off again where they are (Linderman et al. 2019).
So ten thousand points take seconds and not hours. Nothing is drawn at random: the same vectors make the same picture.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from seqloom.core.progress import check_cancelled

Array = np.ndarray[Any, Any]

EXAGGERATION, EXPLORED = (
    12.0,
    0.3,
)  # p is so many times as large for this share of the steps, so that groups find together
NODE = 0.35  # between two nodes of the grid; K is 1 wide
MOST_NODES = 352  # along a side; of a wider picture, nodes lie farther apart
FEW = 500  # points, whose pairs are sooner added up than spread on a grid
ROWS = 1024  # of a table of distances that are held at a time


@dataclass(frozen=True)
class Layout:
    step: int
    of: int
    points: Array  # (N, 2) float32


@dataclass(frozen=True)
class Affinities:
    """Of each point its nearest ones (N, k), and p_{j|i} / 2N of them; what is not among them is 0."""

    near: Array
    p: Array


def tsne(x: Array, begin: Array, *, perplexity: float = 30.0, steps: int = 750, every: int = 25) -> Iterator[Layout]:
    """The picture of x (N, D) on its way, every few steps and at the end, from `begin` (N, 2) on."""
    count = len(x)
    p = affinities(x, min(perplexity, (count - 1) / 3))
    y = (begin / max(float(begin[:, 0].std()), 1e-12) * 1e-4).astype(np.float32)
    grid = Grid()
    rate = max(count / EXAGGERATION / 4, 50.0)
    moved, gains = np.zeros_like(y), np.ones_like(y)
    for step in range(1, steps + 1):
        check_cancelled()
        explores = step <= EXPLORED * steps
        slope = gradient(p, y, grid, EXAGGERATION if explores else 1.0)
        gains = np.maximum(np.where(moved * slope < 0, gains + 0.2, gains * 0.8), 0.01)
        moved = (0.5 if explores else 0.8) * moved - rate * gains * slope
        y = y + moved
        if step % every == 0 or step == steps:
            yield Layout(step, steps, y - y.mean(axis=0))


def gradient(p: Affinities, y: Array, grid: "Grid", exaggeration: float = 1.0) -> Array:
    """∂KL/∂y (N, 2)"""
    total, push = grid.repulsion(y)
    found: Array = (4 * (exaggeration * attraction(p, y) - push / total)).astype(np.float32)
    return found


def attraction(p: Affinities, y: Array) -> Array:
    """Σ_j p_ij K(y_i − y_j) (y_i − y_j) (N, 2)"""
    count = len(y)
    across, up = (y[:, None, side] - y[:, side][p.near] for side in (0, 1))  # (N, k)
    pull = p.p / (1 + across**2 + up**2)
    found = np.empty((count, 2), np.float32)
    for side, way in enumerate((across, up)):
        way *= pull  # what pulls i to j pulls j to i
        found[:, side] = way.sum(axis=1) - np.bincount(p.near.ravel(), way.ravel(), count)
    return found


# --- who is near whom -------------------------------------------------------------------------------------------------


def affinities(x: Array, perplexity: float) -> Affinities:
    near, distances = nearest(x, min(len(x) - 1, max(1, round(3 * perplexity))))
    p = calibrated(distances, perplexity)
    return Affinities(near, (p / (2 * len(x))).astype(np.float32))


def nearest(x: Array, count: int) -> tuple[Array, Array]:
    """The nearest others of each vector (N, k) and their squared distances, some rows at a time."""
    x = x.astype(np.float32)
    lengths = (x**2).sum(axis=1)
    near, far = np.empty((len(x), count), np.int64), np.empty((len(x), count), np.float32)
    for start in range(0, len(x), ROWS):
        check_cancelled()
        rows = np.arange(start, min(start + ROWS, len(x)))
        table = lengths[rows, None] + lengths - 2 * x[rows] @ x.T
        table[np.arange(len(rows)), rows] = np.inf  # nobody is near to himself
        some = np.argpartition(table, count - 1, axis=1)[:, :count]
        near[rows], far[rows] = some, np.take_along_axis(table, some, axis=1)
    return near, np.maximum(far, 0)


def calibrated(distances: Array, perplexity: float) -> Array:
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


# --- all push all -----------------------------------------------------------------------------------------------------


def by_pairs(y: Array) -> tuple[float, Array]:
    """The same sums, of few points, as they are written."""
    way = y[:, None] - y
    k = 1 / (1 + (way**2).sum(axis=2))
    return max(float(k.sum()) - len(y), 1e-12), np.einsum("ij,ijd->id", k**2, way)


class Grid:
    """Sums over all pairs of points by a grid; the transforms of the kernels are kept while it stays the same size."""

    def __init__(self) -> None:
        self.made: tuple[int, float] = (0, 0.0)  # nodes along a side, and how far apart they are
        self.kernels: list[Array] = []

    def repulsion(self, y: Array) -> tuple[float, Array]:
        """Z, and Σ_j K(y_i − y_j)² (y_i − y_j) (N, 2)"""
        if len(y) <= FEW:
            return by_pairs(y)
        low = y.min(axis=0)
        nodes, apart = self._sized(float((y.max(axis=0) - low).max()))
        where, share = spread(y, low, nodes, apart)
        density = np.bincount(where.ravel(), share.ravel(), nodes * nodes).astype(np.float32).reshape(nodes, nodes)
        transformed = np.fft.rfft2(density, (2 * nodes, 2 * nodes))
        felt = [self._read(transformed * kernel, nodes, where, share) for kernel in self.kernels]
        total = float(felt[0].sum() - self_felt(share, apart))
        return max(total, 1e-12), np.stack(felt[1:], axis=1)

    @staticmethod
    def _read(transformed: Array, nodes: int, where: Array, share: Array) -> Array:
        field = np.fft.irfft2(transformed, (2 * nodes, 2 * nodes))[:nodes, :nodes].ravel()
        found: Array = (field[where] * share).sum(axis=1)
        return found

    def _sized(self, extent: float) -> tuple[int, float]:
        apart = NODE
        while extent / apart > MOST_NODES - 4:
            apart *= 1.1
        nodes = min(MOST_NODES, -(-(int(extent / apart) + 4) // 32) * 32)
        if (nodes, apart) != self.made:
            self.made, self.kernels = (nodes, apart), kernels_of(nodes, apart)
        return self.made


def kernels_of(nodes: int, apart: float) -> list[Array]:
    """The transforms of K, K² v_1 and K² v_2 on a grid twice as wide, so that its two ends do not meet."""
    steps = np.fft.fftfreq(2 * nodes, 1 / (2 * nodes)) * apart  # 0, 1, … −2, −1
    across, up = steps[:, None], steps[None, :]
    k = 1 / (1 + across**2 + up**2)
    return [np.fft.rfft2(kernel.astype(np.float32)) for kernel in (k, k**2 * across, k**2 * up)]


def self_felt(share: Array, apart: float) -> float:
    """What points feel of themselves by way of the grid, K(0) = 1 each but for interpolation; of K² v that is 0."""
    row, column = np.divmod(np.arange(16), 4)
    square = (row[:, None] - row) ** 2 + (column[:, None] - column) ** 2
    return float(((share @ (1 / (1 + apart**2 * square)).astype(np.float32)) * share).sum())


def spread(y: Array, low: Array, nodes: int, apart: float) -> tuple[Array, Array]:
    """The 16 nodes around each point (N, 16), and its share in each: cubic interpolation."""
    place = (y - low) / apart + 1  # one node is left of the leftmost cell
    cell = np.floor(place).astype(np.int64)
    t = (place - cell).astype(np.float32)  # (N, 2), from 0 to 1
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
