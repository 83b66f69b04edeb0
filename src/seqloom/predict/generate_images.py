"""The predictor for models that generate images."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from seqloom.core.device import make_generator
from seqloom.core.errors import UsageError
from seqloom.core.progress import check_cancelled
from seqloom.core.words import format_count
from seqloom.data.images import Pixels
from seqloom.inspect.picture import Picture
from seqloom.inspect.plots.canvases import Canvases, Frames, draw_grid, draw_steps, encode_animation, to_pixels
from seqloom.predict.base import Prediction, Predictor
from seqloom.predict.evaluation import MetricsEvaluation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BATCH = 64  # number of images that are generated at the same time
MAX_VALUES = 1 << 28  # maximum number of values of all steps of the generated images


@dataclass(frozen=True, repr=False)
class GeneratedImages(Picture):
    """Images that a model has generated, with all steps."""

    canvases: Canvases  # (N, T, H, W, C), from 0 to 1
    frames: Frames | None  # (N, T, 4) regions that the steps write; None without attention

    def __repr__(self) -> str:
        count, steps, height, width, _ = self.canvases.shape
        return f"<{count} images of {height} × {width} pixels, {format_count(steps, 'step')}>"

    @property
    def pixels(self) -> Pixels:
        """The final images (N, H, W, C) as bytes; a byte is 255 times the probability of a white pixel."""
        return to_pixels(self.canvases[:, -1])

    def grid(self) -> Pixels:
        """Return a picture of the final images."""
        return draw_grid(self.canvases)

    def steps(self) -> Pixels:
        """Return a picture with a row of steps for each image."""
        return draw_steps(self.canvases, self.frames)

    def animation(self) -> bytes:
        """Return an animation of all steps as a GIF file."""
        return encode_animation(self.canvases, self.frames)

    def draw(self) -> "Figure":
        from seqloom.inspect.plots.figures import new_figure
        from seqloom.inspect.plots.images import draw_image

        figure = new_figure(5, 5)
        draw_image(figure.subplots(), self.grid())
        return figure


class GenerationEvaluation(MetricsEvaluation):
    """The bounds of a model that generates images."""

    option_groups: tuple[str, ...] = ()


class ImageGeneratorPredictor(Predictor[Prediction]):
    """A trained model that generates images."""

    description = "a model that generates images"
    usage = "use `seqloom generate RUN --grid images.png`"
    reads_text = False
    evaluation_class = GenerationEvaluation

    def generate(self, samples: int = 64, *, seed: int = 0) -> GeneratedImages:
        """Generate images from random latent vectors, which depend only on `samples` and `seed`."""
        model, sizes = self.model, self.run.sizes
        values = samples * model.steps * sizes["height"] * sizes["width"] * sizes["channels"]
        if samples < 1 or values > MAX_VALUES:
            most = samples * MAX_VALUES // max(1, values)
            raise UsageError(f"samples must be at least 1 and at most {most:,} for this model; got {samples:,}.")
        generator = make_generator(seed, "generate images")
        z = torch.randn(samples, model.steps, model.latent, generator=generator)
        parts = list(self._draw(z))
        frames = [frames for _, frames in parts if frames is not None]
        return GeneratedImages(
            np.concatenate([canvases for canvases, _ in parts]), np.concatenate(frames) if frames else None
        )

    @torch.no_grad()
    def _draw(self, z: torch.Tensor) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32] | None]]:
        for part in z.split(BATCH):
            check_cancelled()
            canvases, frames = self.model.draw(part.to(self.device))
            yield canvases.float().cpu().numpy(), None if frames is None else frames.float().cpu().numpy()
