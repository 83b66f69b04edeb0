"""Plots of words: labels and leader lines do not overlap."""

import numpy as np
import pytest

from seqloom.evaluate.word_space import WordSpace
from seqloom.inspect.plots.inputs import WordSelection, draw_words, project

pytest.importorskip("matplotlib")


def crowd(seed: int = 0, count: int = 90) -> WordSpace:
    """Build many words in a few clusters."""
    random = np.random.default_rng(seed)
    heaps = random.normal(size=(6, 8))[random.integers(6, size=count)]
    vectors = heaps + 0.15 * random.normal(size=(count, 8))
    return WordSpace([f"word{number}" for number in range(count)], vectors.astype(np.float32))


def test_labels_and_leader_lines_do_not_overlap() -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    space = crowd()
    figure = draw_words(space, WordSelection(list(space.words), [-1] * 90, []), "pca", "words")
    renderer, axes = FigureCanvasAgg(figure).get_renderer(), figure.axes[0]
    boxes = [text.get_window_extent(renderer) for text in axes.texts]
    assert len(boxes) > 50 and len(axes.lines) > 5
    for number, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:number])
    for line in axes.lines:
        points = line.get_transform().transform(line.get_xydata())[:-1]  # the last line ends at its label
        inside = [box for box in boxes if any(box.x0 < x < box.x1 and box.y0 < y < box.y1 for x, y in points)]
        assert not inside


def test_tsne_uses_cosine_similarities_without_centring() -> None:
    """The mean has the second of three directions. If vectors were not centred, its words would be noise."""
    group = np.arange(60) % 3
    vectors = np.array([[1.0, 0.3, 0], [1.0, 0, 0], [1.0, -0.3, 0]])[group]
    vectors = vectors + 0.02 * np.random.default_rng(1).normal(size=(60, 3))
    points, shares = project(vectors, "tsne")
    assert shares is None
    apart = np.linalg.norm(points[:, None] - points, axis=2) + 1e9 * np.eye(60)
    assert (group[apart.argmin(axis=1)] == group).all()
    middles = np.array([points[group == one].mean(axis=0) for one in range(3)])
    spread = max(np.linalg.norm(points[group == one] - middles[one], axis=1).max() for one in range(3))
    assert spread < min(np.linalg.norm(middles[a] - middles[b]) for a, b in ((0, 1), (1, 2), (0, 2)))
