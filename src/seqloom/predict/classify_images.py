"""The predictor for classifiers of images."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from seqloom.core.errors import UsageError
from seqloom.core.tree import Tree, to_device
from seqloom.core.words import did_you_mean, one_line
from seqloom.data.images import Decoded, ImageShape, Pixels
from seqloom.inspect.views.images import ImageReasons, explain_image
from seqloom.inspect.views.video import FrameReasons
from seqloom.predict.base import as_lines, json_value, predict_windows
from seqloom.predict.classify import ABSTAINED, ClassifierEvaluation, LabelPrediction, LabelPredictor
from seqloom.predict.images import ANIMATED, ONE_IMAGE, ImageInput, as_image, is_blank, name_of
from seqloom.predict.results import returns_list
from seqloom.tasks.image_base import shape_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class ImageClassification(LabelPrediction):
    """The labels of an image or a clip."""

    image: str = ""  # the name of the file
    notes: tuple[str, ...] = ()  # notes on parts of the file that were not used
    why: ImageReasons | FrameReasons | None = None  # the parts that support the label, if requested

    def to_line(self) -> str:
        """Return tab-separated labels and probabilities. With `why`, the most important parts follow."""
        return super().to_line() if self.why is None else "\t".join([super().to_line(), *self.why.to_fields()])

    def to_json(self) -> dict[str, object]:
        reasons = {} if self.why is None else {"why": json_value(self.why)}
        return {"image": self.image, **super().to_json(), "notes": list(self.notes), **reasons}


class ImageClassifierPredictor(LabelPredictor[ImageClassification]):
    """A trained classifier of images."""

    description = "a classifier of images"
    usage = "use `seqloom classify`"
    inputs = ("image",)
    evaluation_class = ClassifierEvaluation
    reads_text = False
    reads_files = True
    notes: ClassVar = {**ABSTAINED, ANIMATED: lambda answer: bool(answer.notes)}

    @property
    def max_length(self) -> int | None:
        return None

    @property
    def shape(self) -> ImageShape:
        """The shape to which images are converted."""
        return shape_of(self.recipe, self.run)

    @returns_list
    def predict(
        self, lines: str | Iterable[str], *, batch_size: int = 128, window: int = 1024
    ) -> Iterator[ImageClassification]:
        """Classify one image file per line. A blank line has no labels."""
        return self.classify(as_lines(lines), top=1, batch_size=batch_size, window=window, stream=True)

    @returns_list
    def classify(
        self,
        images: ImageInput | Iterable[ImageInput],
        *,
        top: int | None = None,
        why: bool = False,
        batch_size: int = 128,
        window: int = 1024,
    ) -> Iterator[ImageClassification]:
        """Return one classification per image.

        An image is a file, the content of a file, or an array of bytes (H, W) or (H, W, C).
        `top` limits the number of labels; by default, all labels are returned. With `why`, each classification includes
        the parts of the image that support its label. `window` and `batch_size` work as in `predict`.
        """
        several = [images] if isinstance(images, ONE_IMAGE) else images
        return predict_windows(several, self._classify, batch_size=batch_size, window=window, top=top, why=why)

    def _classify(
        self, images: Sequence[ImageInput], batch_size: int, top: int | None, why: bool
    ) -> Iterator[ImageClassification]:
        for start in range(0, len(images), batch_size):
            part = images[start : start + batch_size]
            decoded = [self.decode(image) for image in part if not is_blank(image)]
            rows = (
                iter(())
                if not decoded
                else iter(zip(decoded, self._probabilities([each.pixels for each in decoded]), strict=True))
            )
            for image in part:
                if is_blank(image):
                    yield ImageClassification([], image=str(image))
                    continue
                (pixels, notes), row = next(rows)
                candidates = self.rank(row, top)
                reasons = self.explain(pixels, candidates[0].label) if why else None
                abstains = self.abstains(candidates)
                yield ImageClassification(candidates, abstains, image=name_of(image), notes=notes, why=reasons)

    def decode(self, image: ImageInput) -> Decoded:
        """Decode an image and convert it to the shape that the model reads."""
        return as_image(image).decode(self.shape)

    def batch(self, pixels: Sequence[Pixels]) -> Tree:
        """Return the batch of decoded images."""
        return {"images": torch.from_numpy(np.stack(pixels))}

    def _probabilities(self, pixels: Sequence[Pixels]) -> list[list[float]]:
        rows: list[list[float]] = self.model.probabilities(to_device(self.batch(pixels), self.device)).tolist()
        return rows

    def why(self, image: ImageInput, label: str | None = None) -> ImageReasons | FrameReasons:
        """Compute which parts of an image support a label, by default the most probable label."""
        pixels = self.decode(image).pixels
        if label is None:
            label = self.rank(self._probabilities([pixels])[0], 1)[0].label
        if label not in self.labels:
            raise UsageError(f"{self.name} has no label {label!r}: {did_you_mean(label, self.labels)}.")
        return self.explain(pixels, label)

    def explain(self, pixels: Pixels, label: str) -> ImageReasons | FrameReasons:
        """Compute which parts of a decoded image support a label."""
        return explain_image(self.model, pixels, self.labels.index(label), label)

    def draw_why(self, answer: ImageClassification) -> "Figure":
        """Draw the image of a classification and the parts that support its label."""
        from seqloom.inspect.plots.images import draw_image_reasons

        assert isinstance(answer.why, ImageReasons), "the classification was computed without why=True"
        pixels = self.decode(answer.image).pixels
        return draw_image_reasons(pixels, answer.why.maps, [describe_answer(answer)], answer.why.glimpses)


def describe_answer(answer: ImageClassification) -> str:
    """Return the title of a plot: the file, the label that is explained, and the highest probability."""
    label = answer.label if answer.why is None else answer.why.label
    return f"{one_line(answer.image)}: {one_line(label)} ({answer.probability:.1%})"
