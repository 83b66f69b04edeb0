"""Base classes of predictors and predictions, and the grouping of lines into windows and batches."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import asdict, dataclass, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor

from seqloom import accel
from seqloom.core import END, Json
from seqloom.core.device import device_of
from seqloom.core.errors import DataError, ResourceError, SeqloomError, UsageError
from seqloom.core.inputs import check_lengths, check_texts, iterate_texts
from seqloom.core.limits import max_source
from seqloom.core.notebook import description_html
from seqloom.core.progress import check_cancelled
from seqloom.core.words import format_value, one_line
from seqloom.data.corpora import corpora_of_form
from seqloom.data.corpus import Corpus, FilesConfig
from seqloom.data.labelled import load_examples
from seqloom.data.table_profile import NamedColumns
from seqloom.inspect.picture import Picture
from seqloom.predict.evaluation import AnswerRow, Evaluation, MetricsEvaluation
from seqloom.predict.results import Metrics, returns_list
from seqloom.recipes import recipe_of
from seqloom.runs.run import Run
from seqloom.runs.trained import LineReadingModel
from seqloom.tasks import task_info
from seqloom.tasks.base import cached_method
from seqloom.text import Tokenizer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from seqloom.inspect.views.attention import HeadsView
    from seqloom.inspect.views.texts import LinePrediction
    from seqloom.predict.embeddings import Array, SimilarTexts, TextPooling

BATCH_SIZE, WINDOW = 32, 1024  # lines per batch, and lines that are buffered before the first prediction
SHOWN_METRICS = (
    *("loss", "perplexity", "bits_per_character", "bleu", "accuracy", "span_f1", "token_accuracy"),
    *("masked_accuracy", "next_accuracy", "hidden_accuracy", "pearson", "answer_f1"),
)
TOKENS = 8192  # maximum tokens per batch, including padding; a longer line forms its own batch
Answer = TypeVar("Answer")
Line = TypeVar("Line")


@dataclass(frozen=True, kw_only=True)
class Prediction(ABC):
    """The prediction for one line."""

    unknown: tuple[str, ...] = ()  # pieces of the line that are not in the vocabulary
    json_names: ClassVar[tuple[str, ...]] = ()  # attributes to include in the JSON output, in order

    @abstractmethod
    def to_line(self) -> str:
        """Return the prediction as one line of tab-separated fields."""

    def to_json(self) -> dict[str, object]:
        """Return the prediction as JSON values."""
        return {name: json_value(getattr(self, name)) for name in self.json_names}

    def to_columns(self) -> dict[str, object]:
        """Return the prediction as the new cells of a table row, by column name."""
        return self.to_json()


def json_value(value: object) -> object:
    """Convert a value to JSON types recursively: dataclasses become objects, and tuples become arrays."""
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def ranked_fields(ranked: Iterable[tuple[str, float]]) -> str:
    """Return pairs of text and probability as tab-separated fields."""
    return "\t".join(f"{one_line(text)}\t{probability:.4f}" for text, probability in ranked)


def ranked_columns(ranked: Iterable[Mapping[str, object]]) -> dict[str, object]:
    """Return candidates as table columns. The columns of the second and later candidates are numbered: label_2."""
    columns: dict[str, object] = {}
    for rank, candidate in enumerate(ranked, start=1):
        columns |= {name if rank == 1 else f"{name}_{rank}": value for name, value in candidate.items()}
    return columns


P = TypeVar("P", bound=Prediction)


class Predictor(Picture, Generic[P]):
    """A trained model that predicts, returned by `seqloom.load` and `seqloom.train_recipe`."""

    description: ClassVar[str] = "a trained model"  # description in messages
    usage: ClassVar[str] = "use `seqloom evaluate`"
    reads_text: ClassVar[bool] = True
    inputs: ClassVar[tuple[str, ...]] = ("text",)  # the columns of a table that form a line; see `seqloom predict --in`
    reads_files: ClassVar[bool] = False  # whether a line is the path of a file to read
    # Notes on predictions, with the placeholders {lines} and {max_length}. Each note has a function that returns
    # whether the note applies, or its details.
    notes: ClassVar[Mapping[str, Callable[[Any], bool | str]]] = {}

    # Notes on how the data differs from the training data, set after the data has been read
    data_notes: tuple[str, ...] = ()

    def __init__(self, run: Run, device: str = "auto"):
        self.run = run
        self._device = device

    @classmethod
    def class_for(cls, run: Run) -> "type[Predictor[Any]]":
        """Return the predictor class for this run.

        If the predictions depend on the run, the class is a subclass of this class.
        """
        return cls

    @property
    def name(self) -> str:
        return str(self.run.path)

    @property
    def has_trained_output(self) -> bool:
        """Whether the output layer is trained; an imported directory can lack it."""
        return True

    @property
    def longest_source(self) -> int | None:
        """The maximum length of a source in tokens; None means no limit, or that the model reads no source."""
        return None

    def describe_usage(self) -> str:
        """Return a hint that names the commands for this model."""
        return self.usage

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
    def max_length(self) -> int | None:
        """The maximum number of tokens of a text, including special tokens, or None if unlimited."""
        return None

    @property
    def reads_characters(self) -> bool:
        """Whether the model also reads the characters of words."""
        return False

    @returns_list
    def predict(self, lines: str | Iterable[str], *, batch_size: int = BATCH_SIZE, window: int = WINDOW) -> Iterator[P]:
        """Return a list with one prediction per line. The prediction of a blank line is empty.

        Lines are read in windows of `window` lines. Within a window, lines of similar length form batches of
        `batch_size`. With `stream=True`, the result is an iterator, which reads a window of lines when it is needed.
        With `window=1`, the prediction for a line is computed before the next line is read. All methods that return
        predictions accept `stream`.
        """
        raise UsageError(f"{self.name} is {self.description} and cannot predict lines: {self.describe_usage()}.")

    def evaluate(self, split: str = "dev") -> dict[str, float]:
        """Compute all metrics on a split of the run's data and store them in the run."""
        return Metrics(self.report(split).metrics)

    def report(self, split: str = "dev") -> Any:
        """Compute the report on a split of the run's data and store its metrics in the run."""
        report = self.compute_report(split)
        self.save_metrics(split, report.to_dict())
        return report

    def compute_report(self, split: str) -> Any:
        return self.training_task.report(self.model, split)

    def on_file(
        self,
        path: str | Path,
        data: Mapping[str, object] | None = None,
        columns: NamedColumns | None = None,
    ) -> Self:
        """Return this model with the examples of a file as its data, in a split named "other".

        By default, the columns are those of the recipe, or those that `seqloom init` would recognize. `columns` names
        some or all columns, and `data` replaces the section `data` of the recipe.
        """
        forms = task_info(self.recipe.task).forms
        if not any(issubclass(module.Config, FilesConfig) for module in corpora_of_form(*forms).values()):
            raise UsageError(
                f"{self.name} cannot be evaluated on a file: the data of the task {self.recipe.task} is generated."
            )
        corpus = self.read_examples(Path(path), data, columns)
        other = type(self)(copy(self.run), self._device)
        other.model = self.model
        other.training_task = self.task_class.of_corpus(self.recipe, self.run, corpus)
        other.run.data = {**self.run.data, "corpus": str(path), "counts": {"other": corpus.sizes("other")}}
        return other

    def read_examples(self, path: Path, data: Mapping[str, object] | None, columns: NamedColumns | None) -> Corpus[Any]:
        """Read the examples of a file as the split "other". See `on_file`."""
        return load_examples(path, task_info(self.recipe.task).forms[0], self.recipe.data, data, columns)

    def evaluate_documents(self, documents: Sequence[str]) -> dict[str, float]:
        """Compute all metrics on other documents."""
        documents = check_texts(documents, "documents")
        check_lengths(documents=documents)
        return Metrics(self.task(documents).evaluate(self.model, "other"))

    @property
    def evaluation_class(self) -> type[Evaluation]:
        """The subclass of `Evaluation` that `seqloom evaluate` uses for this predictor."""
        return MetricsEvaluation

    def finish_training(self) -> None:
        """Choose settings of the predictions, such as thresholds, on dev. Called once when training has finished."""

    def save_metrics(self, split: str, metrics: Mapping[str, Json]) -> None:
        """Store metrics in the run if the run is writable."""
        if split == "other":
            return
        with suppress(ResourceError):
            self.run.save_metrics(split, metrics)
            from seqloom.predict.card import write_card

            write_card(self.run)

    def embed(
        self,
        texts: str | Iterable[str],
        pooling: "TextPooling" = "mean",
        *,
        normalize: bool = False,
        batch_size: int = BATCH_SIZE,
        window: int = WINDOW,
    ) -> "Array":
        """Return one vector of pooled hidden states for each text (N, H). The vector of a blank text is zero."""
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
        """Return the texts with the highest cosine similarity to each query, best first."""
        from seqloom.predict.embeddings import similar

        return similar(self, queries, texts, top=top, pooling=pooling, batch_size=batch_size, window=window)

    def heads(self, text: str) -> "HeadsView":
        """Return the attention weights of all layers and heads of a Transformer for a text."""
        raise UsageError(
            f"{self.name} is {self.description} without attention. `inspect attention` supports translators, "
            "denoisers, GPTs, BERTs, and other models with a Transformer encoder."
        )

    def task(self, documents: Sequence[str] | None = None) -> Any:
        """Create the task with the run's data, or with other documents as the split "other"."""
        if documents is None:
            task = self.task_class.reopen(self.recipe, self.run)
            self.data_notes = task.corpus.changes if isinstance(task.corpus, Corpus) else ()
            return task
        self.run.tokenizer  # noqa: B018 (raises an error for a run without text)
        return self.task_class.of_documents(self.recipe, self.run, documents)

    @cached_property
    def training_task(self) -> Any:
        """The task with the run's own data."""
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

    def draw(self) -> "Figure":
        """Draw the training curve."""
        from seqloom.inspect.plots.measurements import draw_curves

        return draw_curves([self.run])

    def _repr_html_(self) -> str:
        """Return the description for notebooks and, if matplotlib is installed, the training curve."""
        return description_html(self, self._repr_png_())


AnyPredictor = Predictor[Any]


class SplitPredictor(Predictor[P], LineReadingModel):
    """A predictor that also predicts the splits of its data and caches the results."""

    @property
    def max_length(self) -> int | None:
        from seqloom.tasks.reading_base import max_row_length

        return max_row_length(self.recipe)

    @property
    def reads_characters(self) -> bool:
        return self.run.characters is not None

    @cached_method
    def outputs(self, split: str = "dev") -> Any:
        """Compute the outputs of the model for all examples of a split."""
        return self.training_task.outputs(self.model, split)

    def compute_report(self, split: str) -> Any:
        return self.training_task.measure(self.outputs(split), split)

    def answer_rows(self, split: str) -> Iterator[AnswerRow]:
        """Yield all examples of a split with their predictions, for `AnswersEvaluation`."""
        raise NotImplementedError

    def heads(self, text: str) -> "HeadsView":
        from seqloom.inspect.views.attention import reader_heads_view

        return reader_heads_view(self, self.read_line(text))

    def read_line(self, text: str) -> "LinePrediction":
        """Return the text as read by the model, with its prediction. The views of `inspect` use this method."""
        from seqloom.inspect.views.texts import one_line

        return self._read_line(one_line(text, "text"))

    def _read_line(self, line: str) -> "LinePrediction":
        raise UsageError(f"{self.name} is {self.description}: this view needs a model that reads a single text.")


# --- lines in windows and batches -------------------------------------------------------------------------------------


def predict_windows(
    lines: Iterable[Line],
    predict: Callable[..., Iterable[Answer]],
    *,
    batch_size: int,
    window: int,
    **options: Any,
) -> Iterator[Answer]:
    """Yield the predictions of `predict`, which is called once per window of lines.

    If a line is unreadable, the lines before it are still predicted.
    """
    check_sizes(batch_size=batch_size, window=window, top=options.get("top"))
    parts = split_windows(lines, window)
    return (answer for part in parts for answer in predict(part, batch_size=batch_size, **options))


def predict_filled(
    lines: Sequence[Line],
    is_filled: Callable[[Line], object],
    predict: Callable[[list[Line]], Iterable[Answer]],
    blank: Callable[[Line], Answer],
) -> Iterator[Answer]:
    """Yield, in order, the output of `predict` for each nonblank line and that of `blank` for each blank line."""
    filled = [line for line in lines if is_filled(line)]
    answers = iter(predict(filled) if filled else ())
    return (next(answers) if is_filled(line) else blank(line) for line in lines)


def predict_batches(
    lengths: Sequence[int],
    batch_size: int,
    predict: Callable[[list[int]], Iterable[Answer]],
    tokens: int = TOKENS,
) -> list[Answer]:
    """Return one output per index. `predict` is called on batches of indices with similar lengths."""
    answers: dict[int, Answer] = {}
    for indices in batch_by_length(lengths, batch_size, tokens):
        answers.update(zip(indices, predict(indices), strict=True))
    return [answers[index] for index in range(len(lengths))]


def batch_by_length(lengths: Sequence[int], batch_size: int, tokens: int = TOKENS) -> Iterator[list[int]]:
    """Yield batches of indices with similar lengths and at most `tokens` tokens."""
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


def split_windows(lines: Iterable[Line], size: int) -> Iterator[list[Line]]:
    """Yield windows of `size` lines. If a line is unreadable, yield the lines before it, then raise the error."""
    read: list[Line] = []
    try:
        for line in lines:
            read.append(line)
            if len(read) == size:
                yield read
                read = []
    except (SeqloomError, TypeError, ValueError):
        if read:
            yield read
        raise
    if read:
        yield read


def as_lines(lines: str | Iterable[str], name: str = "texts") -> Iterator[str]:
    """Return an iterator over lines that checks that each line is a text. A single text is one line."""
    return iterate_texts([lines] if isinstance(lines, str) else lines, name)


def split_columns(lines: Iterable[str], least: int, what: str, most: int | None = None) -> Iterator[list[str]]:
    """Yield the tab-separated fields of each line. A blank line has `least` empty fields."""
    for number, line in enumerate(lines, start=1):
        cells = line.split("\t") if line.strip() else [""] * least
        if len(cells) < least or (most is not None and len(cells) > most):
            received = "no tab" if len(cells) == 1 else f"{len(cells)} columns"
            raise DataError(
                f"Line {number:,} must have {what}, separated by tabs, but has {received}: {format_value(line)}."
            )
        yield cells


def pad_rows(rows: Sequence[list[int]], device: torch.device, padding: int = END) -> tuple[Tensor, Tensor]:
    """Pad rows of tokens, and return them with the mask of real tokens, both (B, S)."""
    longest = max(map(len, rows))
    tokens = torch.tensor([row + [padding] * (longest - len(row)) for row in rows], device=device)
    lengths = torch.tensor([[len(row)] for row in rows], device=device)
    return tokens, torch.arange(longest, device=device) < lengths


def check_sizes(**sizes: int | None) -> None:
    for name, value in sizes.items():
        if value is not None and (not isinstance(value, int) or value < 1):
            raise UsageError(f"{name} must be at least 1; got {format_value(value)}.")


def check_source_length(number: int, tokens: int, max_length: int | None, key: str) -> None:
    """Check that an encoder–decoder can read a text with this number of tokens, including END."""
    most = max_source()
    if max_length is not None and tokens > max_length:
        raise DataError(
            f"Line {number:,} has {tokens:,} tokens including END, but the model has only {max_length:,} positions. "
            f"Shorten the line, or train with a larger {key}."
        )
    if tokens > most:
        raise DataError(
            f"Line {number:,} has {tokens:,} tokens including END; the limit is {most:,}. Split the line into "
            f"sentences, or raise the limit: SEQLOOM_MAX_SOURCE={tokens}."
        )
