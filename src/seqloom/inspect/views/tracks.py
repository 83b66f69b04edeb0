"""One track as a model sees it: where it thinks that something is, and was, and how sure it is of that."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from seqloom.core.errors import UsageError
from seqloom.tasks.track import CONFIDENCE, measured

Array = NDArray[np.float64]


@dataclass(frozen=True)
class TrackTrace:
    """Places (T, 2) and covariances (T, 2, 2). NaN where nothing was observed."""

    name: str
    observed: Array
    truth: Array
    filtered: Array
    filtered_covariances: Array
    smoothed: Array
    smoothed_covariances: Array
    figures: dict[str, float]  # of this track: see seqloom.tasks.track

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """Steps of which nothing was observed: the first and the last of each gap."""
        gone = np.isnan(self.observed).all(axis=1)
        edges = np.flatnonzero(np.diff(np.concatenate([[False], gone, [False]]).astype(int)))
        return [(int(first), int(end) - 1) for first, end in zip(edges[::2], edges[1::2], strict=True)]


def track_trace(trained: Any, split: str = "test", number: int = 1) -> TrackTrace:
    """Track `number` of a split, counted from 1."""
    if trained.run.recipe.get("task") != "track":
        raise UsageError(
            f"{trained.name} follows no track: its task is {trained.run.recipe.get('task')}. "
            "Train one that does: seqloom train kalman-track."
        )
    tracks = trained.task().corpus.split(split)
    if not 1 <= number <= len(tracks):
        raise UsageError(f"--number must be from 1 to {len(tracks)}, the tracks of {split}; got {number}.")
    track, model = tracks[number - 1], trained.model
    values = torch.from_numpy(track.observed)[None]
    filtered, smoothed = model.filter(values), model.smooth(values)
    now, then = (
        [part[0].cpu().numpy() for part in model.emitted(found.means, found.factors)] for found in (filtered, smoothed)
    )
    return TrackTrace(
        track.name, track.observed, track.truth, now[0], now[1], then[0], then[1], measured(model, [track])
    )


def ellipse(mean: Array, covariance: Array, points: int = 60) -> Array:
    """The border (points, 2) of what is to hold 95 %: mean + √5.99 · factor · circle."""
    angles = np.linspace(0, 2 * np.pi, points)
    values, vectors = np.linalg.eigh(covariance)
    factor = vectors * np.sqrt(np.maximum(values, 0))
    circle = np.stack([np.cos(angles), np.sin(angles)])
    found: Array = mean + (np.sqrt(-2 * np.log(1 - CONFIDENCE)) * factor @ circle).T
    return found
