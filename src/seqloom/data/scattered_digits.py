"""Images of digits on a larger canvas, with or without clutter (Mnih et al. 2014).

    translated    each digit is at a random position of a black canvas
    cluttered     in addition, the canvas contains squares that are cut out of other digits, at random positions

Where squares and digits overlap, the larger value of a pixel is kept. The positions depend only on the seed and on the
order of the digits.
"""

import numpy as np
from numpy.typing import NDArray

PIECE = 8  # side of a square of clutter in pixels
Digits = NDArray[np.uint8]  # (N, H, W)


def scatter(digits: Digits, side: int, pieces: int, draws: np.random.Generator) -> Digits:
    """Place each digit (N, H, W) at a random position of a canvas (N, side, side), with `pieces` squares of clutter."""
    (N, H, W), canvas = digits.shape, np.zeros((len(digits), side, side), dtype=np.uint8)
    paste(canvas, digits, draws.integers(0, (side - H + 1, side - W + 1), size=(N, 2)))
    for _ in range(pieces):
        others = (np.arange(N) + draws.integers(1, N, size=N)) % N if N > 1 else np.zeros(N, dtype=np.int64)
        first = draws.integers(0, (H - PIECE + 1, W - PIECE + 1), size=(N, 2))
        squares = digits[others[:, None, None], rows_of(first, PIECE), columns_of(first, PIECE)]
        paste(canvas, squares, draws.integers(0, side - PIECE + 1, size=(N, 2)))
    return canvas


def paste(canvas: Digits, parts: Digits, first: NDArray[np.int64]) -> None:
    """Add a part (N, n, m) to each canvas at its first row and column (N, 2); the larger value of a pixel is kept."""
    numbers = np.arange(len(canvas))[:, None, None]
    place = numbers, rows_of(first, parts.shape[1]), columns_of(first, parts.shape[2])
    canvas[place] = np.maximum(canvas[place], parts)


def rows_of(first: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    return (first[:, :1] + np.arange(count))[:, :, None]


def columns_of(first: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    return (first[:, 1:] + np.arange(count))[:, None, :]
