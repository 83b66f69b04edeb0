"""Predictors for models of clips: labels of clips, labels of frames, and captions."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from seqloom.core.errors import UsageError
from seqloom.core.tree import Tree, to_device
from seqloom.core.words import one_line
from seqloom.data.clips import Clip, EncodedClip, PixelClip, StoredClip, collate_clips
from seqloom.data.files import expand_home
from seqloom.data.images import Decoded, ImageShape, Pixels, check_bytes
from seqloom.decoding.rules import Hypothesis
from seqloom.evaluate.alignment import Word, group_words, merge
from seqloom.evaluate.tagging import TagReport
from seqloom.inspect.views.image_texts import AttendedWord
from seqloom.inspect.views.video import FrameReasons, explain_clip
from seqloom.predict.base import Prediction, as_lines, json_value, predict_windows
from seqloom.predict.classify import ABSTAINED
from seqloom.predict.classify_images import ImageClassification, ImageClassifierPredictor, describe_answer
from seqloom.predict.evaluation import LabelEvaluation
from seqloom.predict.frames import FrameTagger
from seqloom.predict.image_to_text import TRUNCATED, Caption, Captioner, ImageQuery
from seqloom.predict.images import ONE_IMAGE, ImageInput, is_blank, name_of
from seqloom.predict.results import returns_list
from seqloom.tasks.caption_video import clip_source
from seqloom.tasks.image_base import shape_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONG = {"{lines} with a long clip: only evenly spaced frames were used": lambda answer: bool(answer.notes)}


def as_clip(clip: ImageInput) -> Clip:
    """Return the handle of a clip. Raise `UsageError` if the argument is not a clip, such as an array of floats."""
    if isinstance(clip, Clip):
        return clip
    if isinstance(clip, str | Path):
        return StoredClip(expand_home(Path(clip)))
    if isinstance(clip, bytes):
        check_bytes(len(clip), "the clip")
        return EncodedClip("the clip", clip)
    if not isinstance(clip, np.ndarray):
        raise UsageError(f"A clip must be a file, a folder of frames or an array; got {type(clip).__name__}.")
    pixels: NDArray[np.uint8] = clip[..., None] if clip.ndim == 3 else clip
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[3] not in (1, 3) or 0 in pixels.shape:
        raise UsageError(
            "A clip must be an array of bytes (uint8) with the shape (T, H, W), (T, H, W, 1) or (T, H, W, 3); got "
            f"{clip.dtype} {clip.shape}."
        )
    return PixelClip("array", pixels)


# --- labels of clips --------------------------------------------------------------------------------------------------


class VideoClassifierPredictor(ImageClassifierPredictor):
    """A trained classifier of clips. A clip is an animated image, a folder of frames, or an array (T, H, W, C)."""

    description = "a classifier of clips"
    inputs = ("clip",)
    notes: ClassVar = {**ABSTAINED, **LONG}

    def decode(self, image: ImageInput) -> Decoded:
        return as_clip(image).decode(self.shape, self.recipe.images.frames)

    def batch(self, pixels: Sequence[Pixels]) -> Tree:
        return collate_clips(pixels, list(map(len, pixels)))

    def explain(self, pixels: Pixels, label: str) -> FrameReasons:
        return explain_clip(self.model, pixels, self.labels.index(label), label)

    def draw_why(self, answer: ImageClassification) -> "Figure":
        """Draw the frames of a classification and their weights."""
        from seqloom.inspect.plots.video import draw_frames

        assert answer.why is not None, "the classification was computed without why=True"
        return draw_frames(self.decode(answer.image).pixels, [describe_answer(answer)], weights=answer.why.maps)


# --- labels of frames -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelledFrame:
    """The label of a frame and its probability."""

    label: str
    probability: float


@dataclass(frozen=True)
class TaggedClip(Prediction):
    """The labels of the frames of a clip."""

    clip: str  # the name of the file
    frames: list[LabelledFrame] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    json_names: ClassVar = ("clip", "frames", "notes")

    def to_line(self) -> str:
        """Return the labels of the frames, separated by tabs."""
        return "\t".join(one_line(frame.label) for frame in self.frames)

    def to_columns(self) -> dict[str, object]:
        return {"frames": json_value(self.frames)}


class FrameEvaluation(LabelEvaluation):
    """The evaluation of a model that labels frames."""

    model: "VideoTaggerPredictor"
    report: TagReport
    matrix_units = ("label", "frames")

    def answers(self) -> Iterator[str]:
        """Yield tab-separated rows with the clip, the number of the frame, its true label and its predicted label."""
        yield "clip\tframe\texpected\tpredicted\n"
        task = self.model.training_task
        rows = zip(
            task.corpus.split(self.split),
            task.frame_labels(self.split),
            self.model.outputs(self.split)[0],
            strict=True,
        )
        for example, expected, predicted in rows:
            for number, pair in enumerate(zip(expected, predicted, strict=True), start=1):
                yield "\t".join([one_line(example.text), str(number), *map(one_line, pair)]) + "\n"


class VideoTaggerPredictor(FrameTagger[TaggedClip]):
    """A trained model that labels the frames of clips."""

    description = "a model that labels the frames of clips"
    inputs = ("clip",)
    evaluation_class = FrameEvaluation
    notes: ClassVar = LONG

    @property
    def shape(self) -> ImageShape:
        """The shape to which frames are converted."""
        return shape_of(self.recipe, self.run)

    @returns_list
    def predict(self, lines: str | Iterable[str], *, batch_size: int = 32, window: int = 128) -> Iterator[TaggedClip]:
        """Label the frames of one clip per line. A blank line has no frames."""
        return self.tag(as_lines(lines), batch_size=batch_size, window=window, stream=True)

    @returns_list
    def tag(
        self, clips: ImageInput | Iterable[ImageInput], *, batch_size: int = 32, window: int = 128
    ) -> Iterator[TaggedClip]:
        """Return the labels of the frames of each clip.

        A clip is an animated image, a folder of frames, or an array of bytes (T, H, W, C).
        """
        several = [clips] if isinstance(clips, ONE_IMAGE) else clips
        return predict_windows(several, self._tag, batch_size=batch_size, window=window)

    def decode(self, clip: ImageInput) -> Decoded:
        """Decode a clip and convert it to the shape that the model reads."""
        return as_clip(clip).decode(self.shape, self.recipe.images.frames)

    def _tag(self, clips: Sequence[ImageInput], batch_size: int) -> Iterator[TaggedClip]:
        for start in range(0, len(clips), batch_size):
            part = clips[start : start + batch_size]
            decoded = [self.decode(clip) for clip in part if not is_blank(clip)]
            rows = iter(self._tag_decoded(decoded) if decoded else ())
            for clip in part:
                yield TaggedClip("") if is_blank(clip) else TaggedClip(name_of(clip), *next(rows))

    def _tag_decoded(self, decoded: Sequence[Decoded]) -> Iterator[tuple[list[LabelledFrame], tuple[str, ...]]]:
        clips = [pixels for pixels, _ in decoded]
        batch = to_device(collate_clips(clips, list(map(len, clips))), self.device)
        best, probabilities = self.model.predict_with_probabilities({**batch, "words": batch["mask"]})
        best_probabilities = probabilities.gather(2, best.unsqueeze(2)).squeeze(2)  # (B, T)
        for (pixels, notes), labels, values in zip(decoded, best.tolist(), best_probabilities.tolist(), strict=True):
            pairs = zip(labels[: len(pixels)], values[: len(pixels)], strict=True)
            yield [LabelledFrame(self.labels[label], value) for label, value in pairs], notes

    def draw_tags(self, answer: TaggedClip) -> "Figure":
        """Draw the frames of a clip with their labels."""
        from seqloom.inspect.plots.video import draw_frames

        names = [frame.label for frame in answer.frames]
        return draw_frames(self.decode(answer.clip).pixels, [one_line(answer.clip)], names)


# --- captions ---------------------------------------------------------------------------------------------------------


class VideoCaptioner(Captioner):
    """A trained model that writes captions of clips. Its attention weights of a word have the shape (1, T)."""

    description = "a captioning model of clips"
    inputs = ("clip",)
    notes: ClassVar = {**LONG, **TRUNCATED}

    def decode_image(self, image: ImageInput) -> Decoded:
        return as_clip(image).decode(self.shape, self.recipe.images.frames)

    def source(self, pixels: Sequence[Pixels], text: tuple[Tensor, Tensor] | None) -> dict[str, Tree]:
        return clip_source(collate_clips(pixels, list(map(len, pixels))))

    def shown_pixels(self, image: ImageInput) -> Pixels:
        return self.decode_image(image).pixels

    def attended_words(self, hypothesis: Hypothesis, text: str, query: ImageQuery) -> tuple[AttendedWord, ...]:
        """Return the attention of each word to the frames."""
        weights, words = (
            self.attention_of(hypothesis),
            group_words(text, self.tokenizer.decoded_spans(hypothesis.tokens)),
        )
        frames = [Word(str(number), (number,)) for number in range(weights.shape[1])]
        if not words:
            return ()
        merged = merge(weights, words, frames)
        return tuple(AttendedWord(word.text, row[None], row[:0]) for word, row in zip(words, merged, strict=True))

    def draw_attention(self, prediction: Caption) -> "Figure":
        """Draw the frames of a prediction, and the attention weights of each word of the best text."""
        from seqloom.inspect.plots.video import draw_frame_attention, draw_frames

        if prediction.pixels is None or prediction.words is None:
            raise UsageError("This prediction has no attention weights: compute it with attention=True.")
        title = [text for text in (prediction.image, prediction.text) if text]
        if not prediction.words:
            return draw_frames(prediction.pixels, title)
        count = len(prediction.pixels)
        weights = np.stack([word.weights[0, :count] for word in prediction.words])
        return draw_frame_attention(prediction.pixels, [word.text for word in prediction.words], weights, title)
