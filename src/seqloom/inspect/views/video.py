"""Explanations of a clip's label: which frames support the label.

occlusion    p(label) − p(label | the clip without the frame), for each frame; 0 for a clip of one frame
attention    the weights of attention pooling, for each frame
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from seqloom.core.device import device_of
from seqloom.core.progress import check_cancelled
from seqloom.core.tree import to_device
from seqloom.data.clips import collate_clips
from seqloom.data.images import Pixels
from seqloom.inspect.values import Array
from seqloom.models.video import VideoClassifier

BATCH_SIZE = 64  # shortened copies of the clip per batch
TOP = 3  # number of frames in a line


@dataclass(frozen=True)
class FrameReasons:
    """The weights of the frames of one clip; a larger value means a more important frame."""

    label: str
    maps: Mapping[str, Array]  # (T,)

    def to_fields(self) -> list[str]:
        """Return the most important frames, counted from 1, as fields of a line."""
        drops = self.maps["occlusion"]
        order = np.argsort(-drops, kind="stable")[:TOP].tolist()
        return [f"frame {index + 1}: {drops[index]:+.3f}" for index in order]


@torch.no_grad()
def explain_clip(model: VideoClassifier, pixels: Pixels, label: int, name: str) -> FrameReasons:
    """Compute the weights of the frames of a clip (T, H, W, C) for a label."""
    device, count = device_of(model), len(pixels)
    batch = to_device(collate_clips([pixels], [count]), device)
    before = model.probabilities(batch)[0, label]
    drops = torch.zeros(count)
    for start in range(0, count if count > 1 else 0, BATCH_SIZE):
        check_cancelled()
        chosen = range(start, min(start + BATCH_SIZE, count))
        shortened = [np.delete(pixels, index, axis=0) for index in chosen]
        part = to_device(collate_clips(shortened, [count - 1] * len(shortened)), device)
        drops[start : start + len(shortened)] = (before - model.probabilities(part)[:, label]).cpu()
    maps = {"occlusion": drops.double().numpy()}
    weights = model.attention(batch)
    if weights is not None:
        maps["attention"] = weights[0].double().cpu().numpy()
    return FrameReasons(name, maps)
