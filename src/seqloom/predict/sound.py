"""The predictor of models that label the frames of sounds."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from seqloom.core.tree import to_device
from seqloom.core.words import one_line
from seqloom.data.features_sound import LogMelConfig
from seqloom.data.files import expand_home
from seqloom.data.sound import Sound
from seqloom.data.transcriptions import pad_vectors
from seqloom.evaluate.tagging import TagReport
from seqloom.predict.base import Prediction, as_lines, json_value, predict_batches, predict_windows
from seqloom.predict.evaluation import LabelEvaluation
from seqloom.predict.frames import FrameTagger
from seqloom.predict.results import returns_list

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SoundInput = str | Path | Sound


@dataclass(frozen=True)
class SoundSegment:
    """Neighbouring frames with the same label: their start and end in seconds, and the mean of p(label)."""

    label: str
    start: float
    end: float
    probability: float


@dataclass(frozen=True)
class TaggedSound(Prediction):
    """The labels of the frames of a sound."""

    sound: str  # the name of the file
    segments: tuple[SoundSegment, ...] = ()
    signal: Sound | None = None
    json_names: ClassVar = ("sound", "segments")

    def to_line(self) -> str:
        """Return the labels with their starts in seconds, separated by tabs."""
        return "\t".join(f"{segment.start:.2f} {one_line(segment.label)}" for segment in self.segments)

    def to_columns(self) -> dict[str, object]:
        return {"segments": json_value(self.segments)}


class SoundFrameEvaluation(LabelEvaluation):
    """The evaluation of a model that labels the frames of sounds."""

    model: "SoundTagger"
    report: TagReport
    matrix_units = ("label", "frames")

    def answers(self) -> Iterator[str]:
        """Yield tab-separated rows with the recording, the start of the frame, and its true and predicted label."""
        yield "recording\tstart\texpected\tpredicted\n"
        task = self.model.training_task
        examples, predicted = task.corpus.split(self.split), self.model.outputs(self.split)[0]
        for example, expected, labels in zip(examples, task.frame_labels(self.split), predicted, strict=True):
            times = self.model.features.times(len(labels))
            for time, pair in zip(times, zip(expected, labels, strict=True), strict=True):
                yield "\t".join([one_line(example.signal.name), f"{time:.3f}", *map(one_line, pair)]) + "\n"


class SoundTagger(FrameTagger[TaggedSound]):
    """A trained model that labels the frames of sounds."""

    description = "a model that labels the frames of sounds"
    inputs = ("sound",)
    evaluation_class = SoundFrameEvaluation

    @property
    def features(self) -> LogMelConfig:
        """The config that converts sounds to vectors."""
        features: LogMelConfig = self.recipe.features
        return features

    @returns_list
    def predict(self, lines: str | Iterable[str], *, batch_size: int = 32, window: int = 128) -> Iterator[TaggedSound]:
        """Label the frames of one sound file per line. A blank line has no frames."""
        return self.tag(as_lines(lines), batch_size=batch_size, window=window, stream=True)

    @returns_list
    def tag(
        self, sounds: SoundInput | Iterable[SoundInput], *, batch_size: int = 32, window: int = 128
    ) -> Iterator[TaggedSound]:
        """Return the labels of the frames of each sound: a WAV, FLAC or OGG file, or a `Sound`.

        A long file is read in windows, each with its own result.
        """
        several = [sounds] if isinstance(sounds, str | Path | Sound) else sounds
        return predict_windows(self.read(several), self._tag, batch_size=batch_size, window=window)

    def read(self, sounds: Iterable[SoundInput]) -> Iterator[Sound | None]:
        """Yield the sounds of files; None stands for a blank line."""
        for sound in sounds:
            if isinstance(sound, str) and not sound.strip():
                yield None
            elif isinstance(sound, str | Path):
                yield from self.features.read_file(expand_home(Path(sound)))
            else:
                yield self.features.as_signal(sound)

    def _tag(self, sounds: Sequence[Sound | None], batch_size: int) -> Iterator[TaggedSound]:
        filled = [sound for sound in sounds if sound is not None]
        rows = [self.features.vectors(sound) for sound in filled]

        def predict(indices: list[int]) -> Iterator[TaggedSound]:
            batch = pad_vectors([rows[i] for i in indices], len(indices), max(len(rows[i]) for i in indices))
            batch = to_device({**batch, "words": batch["mask"]}, self.device)
            best, probabilities = self.model.predict_with_probabilities(batch)
            values = probabilities.gather(2, best.unsqueeze(2)).squeeze(2).tolist()  # (B, S)
            for index, labels, confidences in zip(indices, best.tolist(), values, strict=True):
                length = len(rows[index])
                segments = self.join_frames(filled[index], labels[:length], confidences[:length])
                yield TaggedSound(filled[index].name, tuple(segments), filled[index])

        limit = self.recipe.batch.eval_tokens
        answers = iter(predict_batches([len(row) for row in rows], batch_size, predict, limit) if rows else ())
        return (TaggedSound("") if sound is None else next(answers) for sound in sounds)

    def join_frames(self, sound: Sound, labels: Sequence[int], values: Sequence[float]) -> Iterator[SoundSegment]:
        """Yield the parts of a sound with the same label, from the middle of a frame to the middle of another."""
        step = self.features.step_ms / 1000
        position = sound.start + (self.features.frame_ms / 1000 - step) / 2  # the frame is labelled at its middle
        for label, group in groupby(zip(labels, values, strict=True), key=lambda pair: pair[0]):
            confidences = [value for _, value in group]
            end = position + step * len(confidences)
            start = round(position, 4)
            yield SoundSegment(self.labels[label], start, round(end, 4), sum(confidences) / len(confidences))
            position = end

    def draw_tags(self, answer: TaggedSound) -> "Figure":
        """Draw the spectrogram of a sound with its labels."""
        from seqloom.inspect.plots.sound import LabelledPart, draw_sound

        assert answer.signal is not None, "the sound has no frames"
        parts = [
            LabelledPart(each.label, each.start - answer.signal.start, each.end - answer.signal.start)
            for each in answer.segments
        ]
        return draw_sound(self.features, answer.signal, [("labels", parts)], [one_line(answer.sound)])
