"""Predictors for models that read images, or images and texts, and write texts.

    (prediction,) = seqloom.load("runs/caption-shapes").caption("photo.jpg", n_best=3, attention=True)
    prediction.text                       the best caption
    prediction.candidates[1].score        the next best captions follow
    prediction.words[0].weights           attention to the locations of the image when the first word was written

`ImageToTextPredictor.write` accepts any `ImageQuery`, an image with an optional text such as a question. A subclass
sets the class of its predictions, which contains the names of both texts, and can define a method for its task.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from seqloom.core.errors import DataError, UsageError
from seqloom.core.inputs import check_text
from seqloom.core.tree import Tree, select_rows, to_device
from seqloom.core.words import LINE_BREAKS, one_line
from seqloom.data.collate import shift_right
from seqloom.data.images import Decoded, ImageShape, Pixels
from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.decoding.choices import choice_probabilities, score_choices
from seqloom.decoding.rules import Hypothesis
from seqloom.evaluate.alignment import Word, group_words
from seqloom.evaluate.written_texts import WrittenTextReport
from seqloom.inspect.values import Array
from seqloom.inspect.views.image_texts import AttendedWord, attended_words, image_encoder_of
from seqloom.predict.base import (
    Prediction,
    Predictor,
    as_lines,
    pad_rows,
    predict_filled,
    predict_windows,
    ranked_columns,
    split_columns,
)
from seqloom.predict.image_to_text_evaluation import ImageToTextEvaluation
from seqloom.predict.images import ANIMATED, ONE_IMAGE, ImageInput, as_image, is_blank, name_of, shown_shape
from seqloom.predict.results import returns_list
from seqloom.predict.translate import change_search
from seqloom.tasks.image_base import shape_of
from seqloom.tasks.image_to_text_base import make_source

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from seqloom.inspect.views.attention import HeadsView

BATCH_SIZE = 32  # images per batch
TRUNCATED = {"{lines}: the text was truncated (--max-length)": lambda prediction: not prediction.best.finished}


class ImageQuery(NamedTuple):
    """An image, and a text that the model reads with it, such as a question.

    With `choices`, the model chooses one of these texts instead of writing a text.
    """

    image: ImageInput
    text: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class TextCandidate:
    """A text that a model wrote."""

    text: str  # without line breaks
    score: float  # log_prob with the length penalty, which determines the rank
    log_prob: float
    finished: bool = True  # whether END was predicted before the maximum length
    words: tuple[AttendedWord, ...] | None = None  # attention of each word, if requested
    probability: float | None = None  # p(text | choices), if the model chose among given texts

    def to_json(self) -> dict[str, object]:
        values = {name: getattr(self, name) for name in ("text", "score", "log_prob", "finished")}
        values |= {} if self.probability is None else {"probability": self.probability}
        if self.words is None:
            return values
        words = ({"word": word.text, "weights": word.weights.tolist()} for word in self.words)
        return {**values, "words": list(words)}


@dataclass(frozen=True)
class ImageText(Prediction):
    """An image and the texts that a model wrote for it, best first. A blank line has a blank text."""

    text_name: ClassVar[str] = "text"  # the name of the written text in the output
    query_name: ClassVar[str] = ""  # the name of the text that the model read, or "" if it reads only images

    image: str  # the name of the file
    query: str  # the text that the model read
    candidates: list[TextCandidate]
    notes: tuple[str, ...] = ()  # notes on parts of the file that were not used
    pixels: Pixels | None = None  # the image for plots; only with attention

    @property
    def best(self) -> TextCandidate:
        return self.candidates[0]

    @property
    def text(self) -> str:
        return self.best.text

    @property
    def score(self) -> float:
        return self.best.score

    @property
    def log_prob(self) -> float:
        return self.best.log_prob

    @property
    def words(self) -> tuple[AttendedWord, ...] | None:
        return self.best.words

    def to_line(self) -> str:
        return one_line(self.text)

    def to_json(self) -> dict[str, object]:
        read = {self.query_name: self.query, "unknown": list(self.unknown)} if self.query_name else {}
        return {
            "image": self.image,
            **read,
            self.text_name: self.text,
            "score": self.score,
            "log_prob": self.log_prob,
            "candidates": [candidate.to_json() for candidate in self.candidates],
            "notes": list(self.notes),
        }

    def to_columns(self) -> dict[str, object]:
        return ranked_columns(
            {self.text_name: each.text, "score": each.score, "log_prob": each.log_prob} for each in self.candidates
        )


W = TypeVar("W", bound=ImageText)


class ImageToTextPredictor(Predictor[W]):
    """The base class of predictors for models that read an image, and optionally a text, and write a text.

    Subclasses set `prediction_class`. If the task reads texts, a line of `predict` has a path, a tab and a text.
    """

    prediction_class: type[W]
    inputs: ClassVar[tuple[str, ...]] = ("image",)
    reads_text = False
    reads_files = True
    evaluation_class = ImageToTextEvaluation
    notes: ClassVar = {
        ANIMATED: lambda prediction: bool(prediction.notes),
        **TRUNCATED,
    }

    @property
    def reads_queries(self) -> bool:
        """Whether the model reads a text with each image."""
        return bool(self.task_class.reads_texts)

    @property
    def shape(self) -> ImageShape:
        """The shape to which images are converted."""
        return shape_of(self.recipe, self.run)

    @property
    def grid(self) -> tuple[int, int]:
        """The numbers of rows and columns of the locations of an image."""
        return image_encoder_of(self.model).grid

    @property
    def vectors_per_image(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def decode(self) -> BeamConfig:
        """The recipe section `decode`."""
        options: BeamConfig = self.recipe.decode
        return options

    def decode_options(self, **changes: Any) -> BeamConfig:
        """Return the search options of the recipe with the changes applied."""
        return change_search(self.decode, changes)

    @returns_list
    def predict(self, lines: str | Iterable[str], *, batch_size: int = BATCH_SIZE, window: int = 1024) -> Iterator[W]:
        """Write a text for each line, which is the path of an image. A blank line has a blank text."""
        if self.reads_queries:
            columns = split_columns(as_lines(lines), 2, "an image and a text", most=2)
            queries = (ImageQuery(image, text) for image, text in columns)
        else:
            queries = (ImageQuery(line) for line in as_lines(lines))
        return self.write(queries, batch_size=batch_size, window=window, stream=True)

    @returns_list
    def write(
        self,
        queries: Iterable[ImageQuery],
        *,
        attention: bool = False,
        batch_size: int = BATCH_SIZE,
        window: int = 1024,
        **options: Any,
    ) -> Iterator[W]:
        """Return one prediction for each query.

        With `attention`, candidates include the attention weights of each word. `options` are fields of `BeamConfig`,
        such as beam and n_best, and override the recipe. `window` and `batch_size` work as in `predict`.
        """
        search = self.decode_options(**options)
        return predict_windows(
            queries, self._write, batch_size=batch_size, window=window, search=search, attention=attention
        )

    def _write(
        self, queries: Sequence[ImageQuery], batch_size: int, search: BeamConfig, attention: bool
    ) -> Iterator[W]:
        for start in range(0, len(queries), batch_size):
            yield from predict_filled(
                queries[start : start + batch_size],
                lambda query: not is_blank(query.image),
                lambda filled: self._write_batch(filled, search, attention),
                lambda query: self.prediction_class("", query.text, [TextCandidate("", 0.0, 0.0)]),
            )

    def _write_batch(self, queries: Sequence[ImageQuery], search: BeamConfig, attention: bool) -> Iterator[W]:
        decoded = [self.decode_image(query.image) for query in queries]
        batch = self._make_batch(queries, decoded)
        found = self._find(queries, batch, search, attention)
        for query, image, hypotheses in zip(queries, decoded, found, strict=True):
            yield self._prediction(query, image, hypotheses, attention)

    def _make_batch(self, queries: Sequence[ImageQuery], decoded: Sequence[Decoded]) -> dict[str, Tree]:
        """Return the source and its mask."""
        text = None
        if self.reads_queries:
            rows = [self.encode_query(query) for query in queries]
            text = pad_rows(rows, torch.device("cpu"), self.tokenizer.end)
        batch: dict[str, Tree] = to_device(self.source([image.pixels for image in decoded], text), self.device)
        return batch

    def _prediction(self, query: ImageQuery, image: Decoded, hypotheses: Sequence[Hypothesis], attention: bool) -> W:
        return self.prediction_class(
            name_of(query.image),
            query.text,
            self._candidates(hypotheses, query, attention),
            image.notes,
            self.shown_pixels(query.image) if attention else None,
            unknown=tuple(self.tokenizer.unknown_pieces(query.text)) if self.reads_queries else (),
        )

    @torch.no_grad()
    def force(self, image: ImageInput | ImageQuery, text: str) -> W:
        """Return the log-probability and the attention of a given text for an image."""
        query = image if isinstance(image, ImageQuery) else ImageQuery(image)
        ids = [*self.tokenizer.encode(check_text(text, "text").strip()), self.tokenizer.end]
        longest: int | None = self.model.longest_target
        if longest is not None and len(ids) > longest:
            raise DataError(f"A text may have at most {longest:,} tokens including END; got {len(ids):,}. Shorten it.")
        targets, decoded = torch.tensor([ids], device=self.device), self.decode_image(query.image)
        target = {"inputs": shift_right(targets), "targets": targets, "target_mask": torch.ones_like(targets).bool()}
        batch = {**self._make_batch([query], [decoded]), **target}
        log_probs = self.model.target_log_probs(batch)[0].double().tolist()
        weights, log_prob = self.model.attention(batch), sum(log_probs)
        score = log_prob / len(ids) ** self.decode.length_penalty
        attention = None if weights is None else weights[0].float().cpu()
        hypothesis = Hypothesis(ids[:-1], True, log_prob, score, log_probs, attention)
        return self._prediction(query, decoded, [hypothesis], True)

    def decode_image(self, image: ImageInput) -> Decoded:
        """Decode an image and convert it to the shape that the model reads."""
        return as_image(image).decode(self.shape)

    def source(self, pixels: Sequence[Pixels], text: tuple[Tensor, Tensor] | None) -> dict[str, Tree]:
        """Return the source and the mask of decoded images and of the tokens and masks of texts."""
        return make_source(np.stack(pixels), self.vectors_per_image, text)

    def shown_pixels(self, image: ImageInput) -> Pixels:
        """Return an image as it is plotted."""
        handle = as_image(image)
        return handle.decode(shown_shape(handle, self.shape)).pixels

    def _find(
        self, queries: Sequence[ImageQuery], batch: dict[str, Tree], search: BeamConfig, attention: bool
    ) -> list[list[Hypothesis]]:
        """Return the best outputs of queries without choices, and all choices of other queries in their order."""
        found: dict[int, list[Hypothesis]] = {}
        end, banned = self.tokenizer.end, self.tokenizer.banned
        for has_choices in (False, True):
            chosen = [index for index, query in enumerate(queries) if bool(query.choices) == has_choices]
            if not chosen:
                continue
            part = select_rows(batch, torch.tensor(chosen, device=self.device))
            source = {"tokens": part["source"], "mask": part["source_mask"]}
            if has_choices:
                choices = [list(map(self.tokenizer.encode, queries[index].choices)) for index in chosen]
                penalty = search.length_penalty
                outputs = score_choices(
                    self.model, choices, source=source, end=end, length_penalty=penalty, attention=attention
                )
            else:
                outputs = beam_search(
                    self.model, source=source, options=search, end=end, banned=banned, attention=attention
                )
            found.update(zip(chosen, outputs, strict=True))
        return [found[index] for index in range(len(queries))]

    def encode_query(self, query: ImageQuery) -> list[int]:
        """Return the tokens of the text of a query, including END."""
        ids = [*self.tokenizer.encode(query.text.strip()), self.tokenizer.end]
        longest = self.recipe.model.longest_source
        if longest is not None and self.vectors_per_image + len(ids) > longest:
            raise DataError(
                f"A text may have at most {longest - self.vectors_per_image:,} tokens including END, but "
                f"{query.text!r} has {len(ids):,}. Shorten it, or train with a larger "
                f"model.{self.recipe.model.longest_key}."
            )
        return ids

    def _candidates(self, hypotheses: Sequence[Hypothesis], query: ImageQuery, attention: bool) -> list[TextCandidate]:
        """Return the candidates of a query, best first."""
        if not query.choices:
            return [self._candidate(each, self.tokenizer.decode(each.tokens), query, attention) for each in hypotheses]
        rows = zip(hypotheses, query.choices, choice_probabilities(hypotheses), strict=True)
        candidates = [
            replace(self._candidate(hypothesis, choice, query, attention), probability=probability)
            for hypothesis, choice, probability in rows
        ]
        return sorted(candidates, key=lambda candidate: -candidate.score)

    def _candidate(self, hypothesis: Hypothesis, text: str, query: ImageQuery, attention: bool) -> TextCandidate:
        words = self.attended_words(hypothesis, self.tokenizer.decode(hypothesis.tokens), query) if attention else None
        written = text.translate(LINE_BREAKS).strip()
        return TextCandidate(written, hypothesis.score, hypothesis.log_prob, hypothesis.finished, words)

    def attended_words(self, hypothesis: Hypothesis, text: str, query: ImageQuery) -> tuple[AttendedWord, ...]:
        """Return the attention of each word of a hypothesis."""
        words = group_words(text, self.tokenizer.decoded_spans(hypothesis.tokens))
        return attended_words(self.model, self.attention_of(hypothesis), words, self.query_words(query))

    def attention_of(self, hypothesis: Hypothesis) -> Array:
        """Return the attention weights (T, S) of the tokens of a hypothesis; raise `UsageError` without attention."""
        if hypothesis.attention is None:
            raise UsageError(f"{self.name} has no attention weights: it was trained without attention.")
        weights: Array = hypothesis.attention.numpy()
        return weights

    def query_words(self, query: ImageQuery) -> list[Word]:
        """Return the words of the text of a query and its END, with the positions of their tokens."""
        text = query.text.strip()
        return group_words(text, self.tokenizer.spans(text), end="") if self.reads_queries else []

    def draw_attention(self, prediction: W) -> "Figure":
        """Draw the image of a prediction with attention, and the attention of each word of its best text."""
        from seqloom.inspect.plots.images import draw_attended_words

        if prediction.pixels is None or prediction.words is None:
            raise UsageError("This prediction has no attention weights: compute it with attention=True.")
        title = [text for text in (Path(prediction.image).name, prediction.query, prediction.text) if text]
        return draw_attended_words(prediction.pixels, prediction.words, title)

    def heads(self, text: str) -> "HeadsView":
        raise UsageError(f"{self.name} attends to images. To plot its attention, {self.usage} with --attention.")

    def report(self, split: str = "dev", **options: Any) -> WrittenTextReport:
        """Write texts for a split of the run's data and compute all metrics.

        The metrics are stored in the run for `compare`, unless `options` change the search.
        """
        decode = self.decode_options(**options)
        report: WrittenTextReport = self.training_task.report(self.model, split, decode)
        if decode == self.decode:
            self.save_metrics(split, report.to_dict())
        return report


@dataclass(frozen=True)
class Caption(ImageText):
    """An image and its captions, best first."""

    text_name = "caption"


class Captioner(ImageToTextPredictor[Caption]):
    """A trained model that writes captions of images."""

    description = "a captioning model"
    usage = "use `seqloom caption`"
    prediction_class = Caption

    @returns_list
    def caption(
        self,
        images: ImageInput | Iterable[ImageInput],
        *,
        attention: bool = False,
        batch_size: int = BATCH_SIZE,
        window: int = 1024,
        **options: Any,
    ) -> Iterator[Caption]:
        """Return the captions of each image.

        An image is a file, the content of a file, or an array of bytes (H, W) or (H, W, C). The other arguments work as
        in `write`.
        """
        several = [images] if isinstance(images, ONE_IMAGE) else images
        queries = map(ImageQuery, several)
        return self.write(queries, attention=attention, batch_size=batch_size, window=window, stream=True, **options)
