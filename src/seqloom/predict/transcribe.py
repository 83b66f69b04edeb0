"""The predictor of models that transcribe recordings.

(prediction,) = seqloom.load("runs/pen-letters").transcribe("strokes.json", n_best=3, alignment=True)
prediction.text                       the best text
prediction.candidates[1].score        the next best texts follow
prediction.alignment[0].start         where the first token was written, in points of the pen or in seconds
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from seqloom.core import END
from seqloom.core.errors import DataError, UsageError
from seqloom.core.tree import to_device
from seqloom.core.words import LINE_BREAKS, one_line
from seqloom.data.files import expand_home
from seqloom.data.transcriptions import Signal, SignalFeatures, TranscribedExample, pad_vectors
from seqloom.decoding.fusion import FusedLanguageModel
from seqloom.decoding.rules import Hypothesis
from seqloom.evaluate.written_texts import WrittenTextReport
from seqloom.nn.ctc import best_alignment
from seqloom.predict.base import (
    Prediction,
    Predictor,
    as_lines,
    predict_batches,
    predict_windows,
    ranked_columns,
)
from seqloom.predict.image_to_text import TRUNCATED, TextCandidate
from seqloom.predict.results import returns_list
from seqloom.predict.transcription_evaluation import TranscriptionEvaluation
from seqloom.predict.translate import change_search
from seqloom.tasks.transcription_base import TranscriptionSearchConfig, search

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from seqloom.predict.language_model import LanguageModelPredictor

RecordingInput = str | Path | Signal | Sequence[Any] | NDArray[Any]  # a file, a recording, or its values
BATCH_SIZE = 32  # recordings per batch
LM_WEIGHT = 0.3  # default weight of a language model
ALIGNED = 0.5  # a token is aligned with the vectors whose weight is at least this fraction of its largest weight
# The function that draws an aligned transcription, for each kind of features
PLOTS = {
    "pen-offsets": "seqloom.inspect.plots.strokes:draw_transcription",
    "log-mel": "seqloom.inspect.plots.sound:draw_transcription",
}
SILENT = {"{lines} silent: the text is empty": lambda answer: answer.signal is not None and answer.signal.is_silent}
CLIPPED = {
    "{lines} with a clipped sound: many samples are at full scale": lambda answer: (
        answer.signal is not None and not answer.signal.is_silent and bool(answer.signal.quality)
    )
}


@dataclass(frozen=True)
class AlignedToken:
    """A token of a text, and the part of the recording in which it was read."""

    text: str
    start: float  # the position of the first vector: the number of a point of the pen, or seconds
    end: float  # the position of the last vector
    weights: NDArray[np.float64]  # (S,) the attention of the token to each vector, or 1 at the vectors of its label

    def to_json(self) -> dict[str, object]:
        return {"text": self.text, "start": self.start, "end": self.end}


@dataclass(frozen=True)
class Transcription(Prediction):
    """A recording and its texts, best first. A blank line has a blank text."""

    recording: str  # the name of the recording
    candidates: list[TextCandidate]
    alignment: tuple[AlignedToken, ...] | None = None  # of the best text, if requested
    signal: Signal | None = None

    @property
    def best(self) -> TextCandidate:
        return self.candidates[0]

    @property
    def text(self) -> str:
        return self.best.text

    @property
    def score(self) -> float:
        return self.best.score

    def to_line(self) -> str:
        return one_line(self.text)

    def to_json(self) -> dict[str, object]:
        aligned = {} if self.alignment is None else {"alignment": [token.to_json() for token in self.alignment]}
        part = None if self.signal is None else self.signal.part
        return {
            "recording": self.recording,
            **({} if part is None else {"start": part[0], "end": part[1]}),
            "text": self.text,
            "score": self.score,
            "log_prob": self.best.log_prob,
            **aligned,
            "candidates": [candidate.to_json() for candidate in self.candidates],
        }

    def to_columns(self) -> dict[str, object]:
        return ranked_columns({"text": each.text, "score": each.score} for each in self.candidates)


BLANK_TRANSCRIPTION = Transcription("", [TextCandidate("", 0.0, 0.0)])


class Transcriber(Predictor[Transcription]):
    """A trained model that transcribes recordings."""

    description = "a transcription model"
    usage = "use `seqloom transcribe`"
    inputs = ("recording",)
    reads_text = False
    reads_files = True
    evaluation_class = TranscriptionEvaluation
    notes: ClassVar = {**TRUNCATED, **SILENT, **CLIPPED}

    @property
    def features(self) -> SignalFeatures:
        """The config that converts recordings to vectors."""
        features: SignalFeatures = self.recipe.features
        return features

    @property
    def decode(self) -> TranscriptionSearchConfig:
        """The recipe section `decode`."""
        options: TranscriptionSearchConfig = self.recipe.decode
        return options

    def decode_options(self, **changes: Any) -> TranscriptionSearchConfig:
        """Return the search options of the recipe with the changes applied."""
        options = change_search(self.decode, changes)
        loss = self.recipe.model.loss
        if options.by not in ("model", loss) and loss != "joint":
            raise UsageError(
                f"by={options.by} needs a model with the loss joint or {options.by}; this model has {loss}."
            )
        return options

    @returns_list
    def predict(
        self, lines: str | Iterable[str], *, batch_size: int = BATCH_SIZE, window: int = 1024
    ) -> Iterator[Transcription]:
        """Transcribe one recording per line, which is the path of its file. A blank line has a blank text."""
        return self.transcribe(
            (self._only_recording(line) for line in as_lines(lines)), batch_size=batch_size, window=window, stream=True
        )

    def _only_recording(self, line: str) -> "Signal | str":
        if not line.strip():
            return ""
        first, *others = self.features.read_file(expand_home(Path(line)))
        if others:
            raise DataError(f"{line} must contain one recording; got {1 + len(others)}. Use `seqloom transcribe`.")
        return first

    @returns_list
    def transcribe(
        self,
        recordings: RecordingInput | Iterable[RecordingInput],
        *,
        alignment: bool = False,
        language_model: "str | Path | LanguageModelPredictor | None" = None,
        lm_weight: float = LM_WEIGHT,
        lm_bonus: float = 0.0,
        batch_size: int = BATCH_SIZE,
        window: int = BATCH_SIZE,
        **options: Any,
    ) -> Iterator[Transcription]:
        """Return one prediction for each recording.

        A recording is a file, which may contain several recordings, or a `Signal`. A model of handwriting also reads a
        list of strokes. With `alignment`, predictions include the part of the recording in which each token was read.
        The search adds `lm_weight` · log p of a `language_model`, a run or a loaded model, to the score of a text. With
        CTC, it also adds `lm_bonus` for each token. `options` are fields of `TranscriptionSearchConfig`, such as beam
        and n_best, and override the recipe.
        """
        several = [recordings] if isinstance(recordings, str | Path | Signal) else recordings
        search_options = self.decode_options(**options)
        return predict_windows(
            self.read(several),
            self._transcribe,
            batch_size=batch_size,
            window=window,
            options=search_options,
            alignment=alignment,
            fused=self.fuse(language_model, lm_weight, lm_bonus),
        )

    def fuse(
        self,
        language_model: "str | Path | LanguageModelPredictor | None",
        weight: float = LM_WEIGHT,
        bonus: float = 0.0,
    ) -> FusedLanguageModel | None:
        """Return a language model for the search; raise `UsageError` if it lacks tokens of this model."""
        if language_model is None:
            return None
        from seqloom.predict.language_model import LanguageModelPredictor
        from seqloom.predict.loader import load

        model = language_model
        if not isinstance(model, LanguageModelPredictor):
            model = load(model, str(self.device), LanguageModelPredictor)
        ids, tokenizer = [END], self.tokenizer
        for token in range(1, len(tokenizer)):
            piece = tokenizer.spell(token).decode(errors="replace")
            found = model.tokenizer.encode(piece) if piece else []
            ids.append(found[0] if len(found) == 1 and found[0] != model.tokenizer.unknown else -1)
        missing = [token for token, other in enumerate(ids) if other < 0 and token not in tokenizer.banned]
        if missing:
            raise UsageError(
                f"The language model {model.name} must have every token of {self.name} as one token, but it lacks "
                f"{tokenizer.token(missing[0])!r}. Train both with the same kind of tokenizer, such as characters."
            )
        return FusedLanguageModel(model.model, weight, torch.tensor(ids), bonus)

    def read(self, recordings: Iterable[RecordingInput]) -> Iterator[Signal | None]:
        """Yield the recordings of files and of values; None stands for a blank line."""
        for recording in recordings:
            if isinstance(recording, str) and not recording.strip():
                yield None
            elif isinstance(recording, str | Path):
                yield from self.features.read_file(expand_home(Path(recording)))
            elif isinstance(recording, Signal) and not isinstance(recording, self.features.signal_type):
                raise UsageError(f"{self.name} reads {self.features.recordings}; got a {type(recording).__name__}.")
            else:
                yield self.features.as_signal(recording)

    def read_stream(self, stream: BinaryIO) -> Iterator[Signal]:
        """Yield the recordings of an open file."""
        return self.features.read_stream(stream)

    def _transcribe(
        self,
        signals: Sequence[Signal | None],
        batch_size: int,
        options: TranscriptionSearchConfig,
        alignment: bool,
        fused: FusedLanguageModel | None,
    ) -> Iterator[Transcription]:
        is_read = [signal is not None and not signal.is_silent for signal in signals]
        vectors = [self.features.vectors(s) if is_heard else None for s, is_heard in zip(signals, is_read, strict=True)]
        filled = [index for index, each in enumerate(vectors) if each is not None]
        rows = [each for each in vectors if each is not None]

        def predict(indices: list[int]) -> Iterator[Transcription]:
            batch = pad_vectors([rows[i] for i in indices], len(indices), max(len(rows[i]) for i in indices))
            batch = to_device(batch, self.device)
            has_parts = any(signal is not None and signal.part is not None for signal in signals)
            is_aligned = alignment or (has_parts and (self._writes_by_ctc(options) or self.recipe.model.has_attention))
            needs_attention = is_aligned and not self._writes_by_ctc(options)
            found = search(self.model, batch, options, self.tokenizer, needs_attention, fused)
            for index, hypotheses in zip(indices, found, strict=True):
                signal = signals[filled[index]]
                assert signal is not None
                aligned = self._align(hypotheses[0], rows[index], options) if is_aligned else None
                if signal.part is not None and aligned is not None:
                    best, aligned = self._keep_part(signal, hypotheses[0], aligned)
                    hypotheses = [best]
                candidates = list(map(self._candidate, hypotheses))
                yield Transcription(signal.name, candidates, aligned if alignment else None, signal)

        limit = self.recipe.batch.eval_tokens
        answers = iter(predict_batches([len(row) for row in rows], batch_size, predict, limit) if rows else ())
        for signal, is_heard in zip(signals, is_read, strict=True):
            yield next(answers) if is_heard else self._blank(signal, alignment)

    def _blank(self, signal: Signal | None, alignment: bool) -> Transcription:
        """Return the prediction for a blank line or for a silent recording."""
        if signal is None:
            return BLANK_TRANSCRIPTION
        return replace(BLANK_TRANSCRIPTION, recording=signal.name, alignment=() if alignment else None, signal=signal)

    def _keep_part(
        self, signal: Signal, hypothesis: Hypothesis, aligned: tuple[AlignedToken, ...]
    ) -> tuple[Hypothesis, tuple[AlignedToken, ...]]:
        """Return the tokens of a window without those in the overlap, and move their positions by its start."""
        assert signal.part is not None
        moved = [replace(each, start=each.start + signal.start, end=each.end + signal.start) for each in aligned]
        first, last = signal.part
        kept = [index for index, each in enumerate(moved) if first <= (each.start + each.end) / 2 < last]
        tokens = type(hypothesis.tokens)(hypothesis.tokens[index] for index in kept)
        return replace(hypothesis, tokens=tokens), tuple(moved[index] for index in kept)

    def has_alignment(self, by: str | None = None) -> bool:
        """Whether texts written with the option `by` can be aligned with a recording."""
        options = self.decode_options(**({"by": by} if by else {}))
        return self._writes_by_ctc(options) or bool(self.recipe.model.has_attention)

    def _writes_by_ctc(self, options: TranscriptionSearchConfig) -> bool:
        return options.kind(self.recipe.model) == "ctc"

    def _candidate(self, hypothesis: Hypothesis) -> TextCandidate:
        text = self.tokenizer.decode(hypothesis.tokens).translate(LINE_BREAKS).strip()
        return TextCandidate(text, hypothesis.score, hypothesis.log_prob, hypothesis.finished)

    # --- alignment --------------------------------------------------------------------------------------------------

    def _align(
        self, hypothesis: Hypothesis, vectors: NDArray[np.float32], options: TranscriptionSearchConfig
    ) -> tuple[AlignedToken, ...]:
        """Return the alignment of the tokens of a hypothesis with the vectors (S, D) of its recording."""
        if self._writes_by_ctc(options):
            weights = self._align_by_ctc(hypothesis, vectors)
        elif hypothesis.attention is None:
            raise UsageError(f"{self.name} has no alignment: it was trained without attention.")
        else:
            weights = hypothesis.attention.double().numpy()[: len(hypothesis.tokens)]
        spread = np.repeat(weights, self.recipe.model.reduction, axis=1)[:, : len(vectors)]
        times = self.features.times(len(vectors))
        return tuple(
            AlignedToken(self.tokenizer.token(token), *aligned_part(row, times), row)
            for token, row in zip(hypothesis.tokens, spread, strict=True)
        )

    @torch.no_grad()
    def _align_by_ctc(self, hypothesis: Hypothesis, vectors: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return 1 at the frames of each token in the most probable alignment (T, S')."""
        h, _ = self.model.encode(to_device(pad_vectors([vectors], 1, len(vectors)), self.device))
        tokens = torch.tensor(hypothesis.tokens, dtype=torch.long)
        owners, _ = best_alignment(self.model.label_log_probs(h)[0].cpu(), tokens)
        numbers = np.arange(len(tokens))[:, None]
        return (owners.numpy() == numbers).astype(np.float64)

    def draw_alignment(self, prediction: Transcription) -> "Figure":
        """Draw a recording with the alignment of its text."""
        if prediction.alignment is None or prediction.signal is None:
            raise UsageError("This prediction has no alignment: compute it with alignment=True.")
        module, _, name = PLOTS[self.recipe.features.kind].partition(":")
        draw: Callable[..., Figure] = getattr(import_module(module), name)
        return draw(self.features, prediction)

    # --- evaluation -------------------------------------------------------------------------------------------------

    def report(
        self,
        split: str = "dev",
        *,
        language_model: "str | Path | LanguageModelPredictor | None" = None,
        lm_weight: float = LM_WEIGHT,
        lm_bonus: float = 0.0,
        **options: Any,
    ) -> WrittenTextReport[TranscribedExample]:
        """Transcribe a split of the run's data and compute all metrics.

        The metrics are stored in the run for `compare`, unless the search is changed or uses a language model.
        """
        decode, fused = self.decode_options(**options), self.fuse(language_model, lm_weight, lm_bonus)
        report: WrittenTextReport[TranscribedExample] = self.training_task.report(self.model, split, decode, fused)
        if decode == self.decode and fused is None:
            self.save_metrics(split, report.to_dict())
        return report


def aligned_part(weights: NDArray[np.float64], times: NDArray[np.float64]) -> tuple[float, float]:
    """Return the positions of the first and the last vector of the part around the largest weight."""
    if not len(weights) or weights.max() <= 0:
        return 0.0, 0.0
    best = int(weights.argmax())
    is_low = weights < ALIGNED * weights[best]
    before, after = np.flatnonzero(is_low[:best]), np.flatnonzero(is_low[best:])
    first = int(before[-1]) + 1 if len(before) else 0
    last = best + int(after[0]) - 1 if len(after) else len(weights) - 1
    return float(times[first]), float(times[last])
