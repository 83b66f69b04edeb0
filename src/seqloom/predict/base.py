"""The base of predictors and predictions, and lines in windows and batches."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, is_dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from seqloom import accel
from seqloom.core import END
from seqloom.core.device import device_of
from seqloom.core.errors import DataError, ResourceError, SeqloomError, UsageError
from seqloom.core.limits import max_source
from seqloom.core.progress import check_cancelled
from seqloom.core.words import format_value, one_line
from seqloom.predict.evaluation import AnswerRow, Evaluation, MetricsEvaluation
from seqloom.recipes import recipe_of
from seqloom.runs.run import Run
from seqloom.runs.trained import LineReadingModel
from seqloom.tasks import task_info
from seqloom.tasks.base import cached_method
from seqloom.text import Tokenizer

if TYPE_CHECKING:
    from seqloom.inspect.views.attention import HeadsView
    from seqloom.inspect.views.texts import LinePrediction
    from seqloom.predict.embeddings import Array, SimilarTexts, TextPooling

BATCH_SIZE, WINDOW = 32, 1024  # lines computed together, and lines read before the first is answered
SHOWN_METRICS = (
    *("loss", "perplexity", "bits_per_character", "bleu", "accuracy", "span_f1", "token_accuracy"),
    *("masked_accuracy", "next_accuracy", "hidden_accuracy", "pearson", "answer_f1"),
)
TOKENS = 8192  # computed together, padding included; a line that has more goes alone
Answer = TypeVar("Answer")
Line = TypeVar("Line")


@dataclass(frozen=True, kw_only=True)
class Prediction(ABC):
    """What a model predicts for one line."""

    unknown: tuple[str, ...] = ()  # pieces of the line that the vocabulary lacks
    json_names: ClassVar[tuple[str, ...]] = ()  # the attributes that JSON has, in their order

    @abstractmethod
    def to_line(self) -> str:
        """Return it as one line of text, with tabs between fields."""

    def to_json(self) -> dict[str, object]:
        """Return it as values that JSON has."""
        return {name: json_value(getattr(self, name)) for name in self.json_names}


def json_value(value: object) -> object:
    """Return a dataclass as an object and a tuple as an array, also within arrays."""
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def ranked_fields(ranked: Iterable[tuple[str, float]]) -> str:
    """Return text, probability, the next text …, with tabs between."""
    return "\t".join(f"{one_line(text)}\t{probability:.4f}" for text, probability in ranked)


P = TypeVar("P", bound=Prediction)


class Predictor(Generic[P]):
    """A trained model, ready for use. Get one from `seqloom.load` or `seqloom.train_recipe`."""

    what: ClassVar[str] = "a trained model"  # in messages
    used_by: ClassVar[str] = "`seqloom evaluate` measures it"
    reads_text: ClassVar[bool] = True
    # notes on predictions, with {lines} for how many and {longest}, and to which each applies
    problems: ClassVar[Mapping[str, Callable[[Any], bool]]] = {}

    def __init__(self, run: Run, device: str = "auto"):
        self.run = run
        self._device = device

    @property
    def name(self) -> str:
        return str(self.run.path)

    def uses(self) -> str:
        """Return a sentence on what the model is for."""
        return self.used_by

    @cached_property
    def model(self) -> Any:
        accel.install()
        return self.run.model(self._device)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.run.tokenizer

    @cached_property
    def device(self) -> torch.device:
        return device_of(self.model)

    @property
    def longest(self) -> int | None:
        """How many tokens are read at once, END or special ones included; None for any number."""
        return None

    @property
    def spells(self) -> bool:
        """Whether the model also reads the characters of words."""
        return False

    def predict(self, lines: str | Iterable[str], *, batch_size: int = BATCH_SIZE, window: int = WINDOW) -> Iterator[P]:
        """Predict each line, exactly one prediction per line, in order; a blank line gets an empty prediction.

        `window` lines are read at a time, and lines of similar length are computed `batch_size` at
        a time; with window=1 every line is answered before the next is read.
        """
        raise UsageError(f"{self.name} is {self.what}, which predicts nothing from lines: {self.uses()}.")

    def evaluate(self, split: str = "dev") -> dict[str, float]:
        """Return every metric of a split of its data, and keep them in the run."""
        metrics: dict[str, float] = self.report(split).metrics
        return metrics

    def report(self, split: str = "dev") -> Any:
        """Return the report on a split of its data, and keep its metrics in the run."""
        report = self.compute_report(split)
        self.save_metrics(split, report.to_dict())
        return report

    def compute_report(self, split: str) -> Any:
        return self.own_task.report(self.model, split)

    def evaluate_documents(self, documents: Sequence[str]) -> dict[str, float]:
        """Return every metric of any other text."""
        metrics: dict[str, float] = self.task(documents).evaluate(self.model, "other")
        return metrics

    @property
    def evaluation_class(self) -> type[Evaluation]:
        """What `seqloom evaluate` shows of it."""
        return MetricsEvaluation

    def save_metrics(self, split: str, metrics: Mapping[str, Any]) -> None:
        """Keep metrics in the run; one that cannot be written to can still be measured."""
        with suppress(ResourceError):
            self.run.save_metrics(split, metrics)

    def embed(
        self,
        texts: str | Iterable[str],
        pooling: "TextPooling" = "mean",
        *,
        normalize: bool = False,
        batch_size: int = BATCH_SIZE,
        window: int = WINDOW,
    ) -> "Array":
        """Return a vector for each text (N, H): its hidden states, pooled; zero if blank."""
        from seqloom.predict.embeddings import embed

        return embed(self, texts, pooling, normalize=normalize, batch_size=batch_size, window=window)

    def similar(
        self,
        queries: str | Iterable[str],
        texts: Iterable[str],
        *,
        top: int = 5,
        pooling: "TextPooling" = "mean",
        batch_size: int = BATCH_SIZE,
        window: int = WINDOW,
    ) -> "list[SimilarTexts]":
        """Return the texts nearest to each query by cosine, best first."""
        from seqloom.predict.embeddings import similar

        return similar(self, queries, texts, top=top, pooling=pooling, batch_size=batch_size, window=window)

    def heads(self, text: str) -> "HeadsView":
        """Return where every layer and head of a Transformer attends while it reads a text."""
        raise UsageError(
            f"{self.name} is {self.what}, whose attention there is none to look at. `inspect attention` takes "
            "translators and denoisers, GPTs and BERTs, and what classifies, tags, matches, chooses or answers with a "
            "Transformer."
        )

    def task(self, documents: Sequence[str] | None = None) -> Any:
        """Return its task on its own data, or on other documents, the split "other"."""
        if documents is None:
            return self.task_class.reopen(self.recipe, self.run)
        self.run.tokenizer  # noqa: B018 (a run that is not about text says so here)
        return self.task_class.of_documents(self.recipe, self.run, documents)

    @cached_property
    def own_task(self) -> Any:
        """The task it was trained for, on its own data; opened once."""
        return self.task()

    @cached_property
    def recipe(self) -> Any:
        return recipe_of(self.run)

    @property
    def task_class(self) -> Any:
        return task_info(self.recipe.task).task

    def __repr__(self) -> str:
        metrics = self.run.metrics("dev") or {}
        values = ", ".join(f"{name} {metrics[name]:.4g}" for name in SHOWN_METRICS if name in metrics)
        what = f"{self.run.recipe['model']['kind']} on {self.run.data['corpus']}, {self.run.path}"
        return f"<{what}; dev: {values or 'not evaluated'}>"

    def _repr_png_(self) -> bytes | None:
        """Return the training curve, for notebooks; None where matplotlib is missing."""
        from seqloom.inspect.plots.figures import to_bytes
        from seqloom.inspect.plots.measurements import draw_curves

        try:
            return to_bytes(draw_curves([self.run]))
        except ResourceError:
            return None


AnyPredictor = Predictor[Any]


@dataclass(frozen=True, kw_only=True)
class RecordPrediction(Prediction):
    """Named values, as `Task.predict` returns them."""

    record: Mapping[str, object]

    def to_line(self) -> str:
        return "\t".join(str(value) for value in self.record.values())

    def to_json(self) -> dict[str, object]:
        return dict(self.record)


class TaskPredictor(Predictor[RecordPrediction]):
    """The predictor of every task that names no other: `Task.predict` does the work."""

    def predict(
        self, lines: str | Iterable[str], *, batch_size: int = BATCH_SIZE, window: int = WINDOW
    ) -> Iterator[RecordPrediction]:
        return predict_windows(lines, self._predict, batch_size=batch_size, window=window)

    def _predict(self, lines: list[str], batch_size: int) -> Iterator[RecordPrediction]:
        for start in range(0, len(lines), batch_size):
            batch = lines[start : start + batch_size]
            for record in self.task_class.predict(self.recipe, self.run, self.model, batch):
                yield RecordPrediction(record=record)


class SplitPredictor(Predictor[P], LineReadingModel):
    """A predictor that also predicts whole splits of its data, each only once."""

    @property
    def longest(self) -> int | None:
        from seqloom.tasks.reading_base import max_row_length

        return max_row_length(self.recipe)

    @property
    def spells(self) -> bool:
        return self.run.characters is not None

    @cached_method
    def outputs(self, split: str = "dev") -> Any:
        """Return what the model predicts for each example of a split, which is read once."""
        return self.own_task.outputs(self.model, split)

    def compute_report(self, split: str) -> Any:
        return self.own_task.measure(self.outputs(split), split)

    def answer_rows(self, split: str) -> Iterator[AnswerRow]:
        """Yield every example of a split with what the model predicts, for `AnswersEvaluation`."""
        raise NotImplementedError

    def heads(self, text: str) -> "HeadsView":
        from seqloom.inspect.views.attention import reader_heads_view

        return reader_heads_view(self, self.read_line(text))

    def read_line(self, text: str) -> "LinePrediction":
        """Return a text as the model reads it, and what it predicts, for views of its inside."""
        from seqloom.inspect.views.texts import one_line

        return self.read_one(one_line(text, "text"))

    def read_one(self, line: str) -> "LinePrediction":
        raise UsageError(
            f"{self.name} is {self.what}: heads are shown of models that read one text, and this one reads several."
        )


# --- lines in windows and batches -------------------------------------------------------------------------------------


def predict_windows(
    lines: str | Iterable[Line],
    predict: Callable[..., Iterable[Answer]],
    *,
    batch_size: int,
    window: int,
    **options: Any,
) -> Iterator[Answer]:
    """Give `predict` a window of lines at a time, and with it `batch_size` and the options.

    Lines before one that cannot be read are still answered.
    """
    check_sizes(batch_size=batch_size, window=window, top=options.get("top"))
    read: Iterable[Any] = as_lines(lines) if isinstance(lines, str) else lines
    return (answer for some in windows(read, window) for answer in predict(some, batch_size=batch_size, **options))


def predict_filled(
    lines: Sequence[Line],
    is_filled: Callable[[Line], object],
    predict: Callable[[list[Line]], Iterable[Answer]],
    blank: Callable[[Line], Answer],
) -> Iterator[Answer]:
    """Yield what `predict` gives for filled lines and `blank` for the others, in order."""
    filled = [line for line in lines if is_filled(line)]
    answers = iter(predict(filled) if filled else ())
    return (next(answers) if is_filled(line) else blank(line) for line in lines)


def predict_batches(
    lengths: Sequence[int],
    batch_size: int,
    predict: Callable[[list[int]], Iterable[Answer]],
    tokens: int = TOKENS,
) -> list[Answer]:
    """Return an answer per index; `predict` gets indices of similar lengths together."""
    answers: dict[int, Answer] = {}
    for indices in similar_lengths(lengths, batch_size, tokens):
        answers.update(zip(indices, predict(indices), strict=True))
    return [answers[index] for index in range(len(lengths))]


def similar_lengths(lengths: Sequence[int], batch_size: int, tokens: int = TOKENS) -> Iterator[list[int]]:
    """Yield batches of indices of similar lengths, fewer where they are long."""
    check_cancelled()
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) == batch_size or (len(batch) + 1) * lengths[index] > tokens):
            yield batch
            check_cancelled()
            batch = []
        batch.append(index)
    if batch:
        yield batch


def windows(lines: Iterable[Line], size: int) -> Iterator[list[Line]]:
    """Yield `size` lines at a time, also those before a line that cannot be read."""
    read: list[Line] = []
    try:
        for line in lines:
            read.append(line)
            if len(read) == size:
                yield read
                read = []
    except SeqloomError:
        if read:
            yield read
        raise
    if read:
        yield read


def as_lines(lines: str | Iterable[str]) -> Iterable[str]:
    """Return a single text as a list of one."""
    return [lines] if isinstance(lines, str) else lines


def split_columns(lines: Iterable[str], least: int, what: str, most: int | None = None) -> Iterator[list[str]]:
    """Yield the fields between the tabs of each line; a blank line has `least` empty ones."""
    for number, line in enumerate(lines, start=1):
        cells = line.split("\t") if line.strip() else [""] * least
        if len(cells) < least or (most is not None and len(cells) > most):
            found = "no tab" if len(cells) == 1 else f"{len(cells)} columns"
            raise DataError(
                f"Line {number:,} must hold {what} with a tab between; it has {found}: {format_value(line)}."
            )
        yield cells


def pad_rows(rows: Sequence[list[int]], device: torch.device, padding: int = END) -> tuple[Tensor, Tensor]:
    """Return rows of tokens with padding, and the mask of real tokens, both (B, S)."""
    longest = max(map(len, rows))
    tokens = torch.tensor([row + [padding] * (longest - len(row)) for row in rows], device=device)
    lengths = torch.tensor([[len(row)] for row in rows], device=device)
    return tokens, torch.arange(longest, device=device) < lengths


def check_sizes(**sizes: int | None) -> None:
    for name, value in sizes.items():
        if value is not None and value < 1:
            raise UsageError(f"{name} must be at least 1, got {value}.")


def check_source(number: int, tokens: int, longest: int | None, key: str) -> None:
    """Refuse a text with more tokens, its end included, than an encoder–decoder can read."""
    most = max_source()
    if longest is not None and tokens > longest:
        raise DataError(
            f"Line {number:,} has {tokens:,} tokens, its end included, and this model knows only {longest:,} places. "
            f"Cut the line, or train with a larger {key}."
        )
    if tokens > most:
        raise DataError(
            f"Line {number:,} has {tokens:,} tokens, its end included; at most {most:,} are read at once. Cut the "
            f"line into sentences, or allow more: SEQLOOM_MAX_SOURCE={tokens}."
        )
