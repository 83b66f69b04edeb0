"""Vectors of images that are computed once, for models with a frozen image encoder.

The weights of the encoder never change, so the vectors of an image are equal in all epochs. They are computed in fixed
groups of images, so that a resumed run reads exactly the same vectors, and are stored as float16.
"""

import numpy as np
import torch
from torch import Tensor

from seqloom.core.device import device_of
from seqloom.core.limits import available_memory
from seqloom.core.progress import check_cancelled
from seqloom.data.batching import Array
from seqloom.data.images import MAX_CACHE_FRACTION, ImageTable
from seqloom.models.image_encoder import ImageEncoder

GROUP = 32  # images that are encoded together
DTYPE = torch.float16


class VectorTable:
    """The vectors (N, D) of the images of a split. The vectors of a group are computed when one of its images is read.

    If all vectors would take more than `MAX_CACHE_FRACTION` of the available memory, `fits` is False.
    """

    def __init__(self, images: ImageTable, encoder: ImageEncoder) -> None:
        self.images, self.encoder = images, encoder
        self.groups = dict[int, Tensor]()
        free = available_memory()
        size = len(images) * encoder.length * encoder.output_size * DTYPE.itemsize
        self.fits = free is None or size <= MAX_CACHE_FRACTION * free

    def take(self, members: Array) -> Tensor:
        """Return the vectors (B, N, D) of the images with these indices."""
        for group in np.unique(members // GROUP).tolist():
            if group not in self.groups:
                check_cancelled()
                self.groups[group] = self._encode(group)
        return torch.stack([self.groups[index // GROUP][index % GROUP] for index in members.tolist()])

    @torch.no_grad()
    def _encode(self, group: int) -> Tensor:
        indices = np.arange(group * GROUP, min((group + 1) * GROUP, len(self.images)))
        pixels = torch.from_numpy(self.images.take(indices)).to(device_of(self.encoder))
        vectors: Tensor = self.encoder(pixels).to("cpu", DTYPE)
        return vectors
