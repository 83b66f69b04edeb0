"""Base classes of tasks that read texts and predict labels, tags, scores or spans."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import torch
from torch import Tensor

from seqloom.config import config
from seqloom.config.constraints import Ge, NonNegativeFloat, PositiveInt
from seqloom.core import Json
from seqloom.core.tokens import Specials
from seqloom.data.collate import ExampleRows, RowBatches
from seqloom.data.corpus import Corpus
from seqloom.data.text_inputs import RowReader, SentenceReader, Spellings, TextFrame, TextReader, separate_punctuation
from seqloom.data.word_vectors import VocabularyVectors, read_vectors, vector_words
from seqloom.evaluate.classification import report
from seqloom.models import has_backbone
from seqloom.models.backbones import BACKBONES, backbone_class
from seqloom.tasks.base import BatchedTask, InitRecipe, M, R, Task, TaskRecipe, dropout_problems
from seqloom.text import Tokenizer

if TYPE_CHECKING:
    from seqloom.runs.run import Run

UNSEEN = -1  # the id of a label or tag that is not in the training data


# --- recipes ----------------------------------------------------------------------------------------------------------


@config
class BatchConfig:
    """Batches of texts."""

    tokens: PositiveInt = 2048  # maximum batch size: texts × length of the longest text, including padding and END
    # maximum number of different batch shapes; null: no limit, which needs less padding
    max_shapes: PositiveInt | None = None
    # maximum length of a text in tokens, including END; longer texts are truncated
    max_length: Annotated[int, Ge(2)] | None = 256
    eval_tokens: PositiveInt = 8192  # as `tokens`, for evaluation


@config
class RowBatchConfig(BatchConfig):
    """Batches of rows of several texts."""

    # maximum batch size: rows × length of the longest row, including padding and special tokens
    tokens: PositiveInt = 4096
    # maximum length of a row in tokens; null: the maximum of the backbone
    max_length: Annotated[int, Ge(5)] | None = 256
    eval_tokens: PositiveInt = 16384
    split_punctuation: bool = False  # separate words and punctuation marks by spaces, as in WikiText


@config
class RowLossConfig:
    """The loss of a model with a backbone."""

    # λ: add λ times the language-model loss of a causal backbone on the same rows
    language_model: NonNegativeFloat = 0.0


@config
class ReadingRecipe(InitRecipe):
    """The keys of recipes whose models read texts, and their consistency checks."""

    @property
    def takes_init(self) -> bool:
        return has_backbone(self.model)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        yield from dropout_problems(self.tokenizer)
        if self.takes_init and self.init is None and self.model.backbone is None:
            kinds = ", ".join(BACKBONES.names())
            yield (
                f"model.backbone: missing; it must be a section of kind {kinds}; or set init.from to a run that has a "
                "backbone"
            )
        if self.loss is None or not self.loss.language_model:
            return
        if not self.takes_init:
            yield f"loss.language_model needs model.kind fine-tuned-classifier; got {self.model.kind}"
        elif self.model.backbone is not None and not backbone_class(self.model.backbone).can_predict(
            self.model.backbone
        ):
            kind = self.model.backbone.kind
            why = "its softmax is not full" if kind == "recurrent-lm" else "it is bidirectional"
            yield (f"loss.language_model needs a backbone that predicts the next token; {kind} does not: {why}")


@config
class RowRecipe(ReadingRecipe):
    """The keys of recipes whose models read several texts in one row, and their consistency checks."""

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.model.backbone is not None and (most := max_row_length(self)) is not None and most < 5:
            yield f"the backbone must read at least 5 tokens: two texts and 3 special tokens; got {most}"


# --- readers ----------------------------------------------------------------------------------------------------------


def max_row_length(recipe: TaskRecipe) -> int | None:
    """Return the maximum number of tokens in a row, as set by the recipe and the backbone."""
    length: int | None = recipe.batch.max_length
    longest: int | None = recipe.model.longest
    return length if longest is None or not has_backbone(recipe.model) else min(length or longest, longest)


def frame_of(recipe: TaskRecipe, tokenizer: Tokenizer) -> TextFrame | None:
    """Return the special tokens around texts, if the model has a backbone."""
    if not has_backbone(recipe.model) or recipe.model.backbone is None:
        return None
    return TextFrame(Specials.after(len(tokenizer)), backbone_class(recipe.model.backbone).form)


def text_reader(recipe: TaskRecipe, tokenizer: Tokenizer, spellings: Spellings | None) -> TextReader:
    """Return the reader of single texts."""
    return TextReader(tokenizer, spellings, max_row_length(recipe), frame_of(recipe, tokenizer))


def sentence_reader(recipe: TaskRecipe, tokenizer: Tokenizer, spellings: Spellings | None) -> SentenceReader:
    """Return the reader of sentences that are already split into words."""
    return SentenceReader(tokenizer, spellings, max_row_length(recipe), frame_of(recipe, tokenizer))


def row_reader(recipe: TaskRecipe, tokenizer: Tokenizer) -> RowReader:
    """Return the reader of rows of several texts."""
    frame = frame_of(recipe, tokenizer)
    if frame is None:
        raise ValueError("model.backbone or init.from must be set")
    return RowReader(tokenizer, frame, max_row_length(recipe), recipe.batch.split_punctuation)


def spellings_of(run: "Run") -> Spellings | None:
    """Return the spellings of a run's model, if it reads characters."""
    return None if run.characters is None else Spellings(run.characters)


# --- tasks ------------------------------------------------------------------------------------------------------------


class SplitTask(Task[R, M]):
    """A task whose evaluation uses the prediction for each example in a split."""

    def outputs(self, model: M, split: str) -> Any:
        """Return the predictions for each example of a split."""
        raise NotImplementedError

    def measure(self, outputs: Any, split: str) -> Any:
        """Return the report on the predictions for a split."""
        raise NotImplementedError

    def report(self, model: M, split: str) -> Any:
        return self.measure(self.outputs(model, split), split)

    def label_ids(self, labels: Iterable[str]) -> list[int]:
        """Return the id of each label or tag, or UNSEEN if it is not in the training data."""
        ids = {label: number for number, label in enumerate(self.names)}
        return [ids.get(label, UNSEEN) for label in labels]


class LabelTask(SplitTask[R, M]):
    """A task whose model predicts one label per example."""

    @classmethod
    def predicts_labels(cls, recipe: R) -> bool:
        return True

    def labels(self, split: str) -> list[int]:
        """Return the label id of each example."""
        return self.label_ids(example.label for example in self.corpus.split(split))

    def measure(self, outputs: Tensor, split: str) -> Any:
        """Compute all metrics from log p of each label of each example (N, L)."""
        expected = [example.label for example in self.corpus.split(split)]
        return report(expected, outputs.numpy(), self.names)


class ReadingTask(BatchedTask[R, M], SplitTask[R, M]):
    """A task whose model reads texts and, with `spellings`, the characters of words."""

    read_by_model = ("characters", "vectors", "backbone")
    spellings: Spellings | None = None

    @classmethod
    def prepare(cls, recipe: R) -> Self:
        task = super().prepare(recipe)
        if recipe.model.characters is not None:
            task.spellings = Spellings.of_words(cls.spelled_texts(task.corpus))
        return task

    @classmethod
    def of_corpus(cls, recipe: R, run: "Run", corpus: Any) -> Self:
        task = super().of_corpus(recipe, run, corpus)
        task.spellings = spellings_of(run)
        return task

    @classmethod
    def spelled_texts(cls, corpus: Corpus[Any]) -> Iterable[str]:
        """Return the texts or words that define the alphabet."""
        return (text for example in corpus.split("train") for text in example.texts())

    def check(self) -> None:
        super().check()
        self.vectors  # noqa: B018 (reads the file of vectors, so that its errors are raised before the run is created)

    def plain_texts(self, split: str) -> list[str]:
        """Return each example of a split as one text."""
        return ["\n".join(example.texts()) for example in self.corpus.split(split)]

    def reader(self) -> Any:
        """Return the reader that converts texts to rows of tokens.

        The `frame` of the reader contains the special tokens.
        """
        raise NotImplementedError

    def truncated_count(self) -> int:
        """Return the number of training examples that are too long."""
        return int(self.batches.cut)

    def truncation_note(self, count: int) -> str:
        """Return a sentence about `count` training examples that are too long."""
        raise NotImplementedError

    def documents(self) -> dict[str, Json]:
        documents = super().documents()
        if self.spellings is not None:
            documents["characters.json"] = self.spellings.alphabet.to_json()
        return documents

    def sizes(self) -> dict[str, int]:
        characters = {} if self.spellings is None else {"characters": len(self.spellings.alphabet)}
        predicts_tokens = self.recipe.loss is not None and self.recipe.loss.language_model
        return {**characters, **({"outputs": len(self.tokenizer)} if predicts_tokens else {})}

    def model(self) -> Any:
        model: Any = super().model()
        if self.vectors is not None:
            model.lexicon.set_vectors(self.vectors.rows, self.vectors.has_vector)
        return model

    def receiver(self, model: Any) -> Any:
        return model.backbone

    def pretrained_part(self, model: Any) -> Any:
        return model.backbone

    @cached_property
    def vectors(self) -> VocabularyVectors | None:
        """The initial word vectors of the model."""
        config = self.recipe.model.vectors
        if config is None:
            return None
        words, size = vector_words(self.tokenizer), self.recipe.model.embedding
        return read_vectors(Path(config.file), words, size, lowercase=config.lowercase)

    def unknown_rate(self, split: str) -> float:
        """Return the fraction of the split's tokens that are <unk>."""
        ids, unknown = self.eval_batches(split).texts.ids, self.tokenizer.unknown
        return 0.0 if unknown is None else float((ids == unknown).mean())

    def warnings(self) -> list[str]:
        notes = super().warnings()
        if self.vectors is not None:
            counts = torch.bincount(torch.from_numpy(self.batches.texts.ids), minlength=len(self.tokenizer))
            notes.append(f"{self.vectors.coverage(counts)}.")
        if count := self.truncated_count():
            notes.append(self.truncation_note(count))
        return notes


class RowTask(ReadingTask[R, M]):
    """A task whose model reads several texts in one row, separated by special tokens."""

    @classmethod
    def training_texts(cls, recipe: R, corpus: Corpus[Any]) -> Iterable[str]:
        texts = corpus.texts("train")
        return map(separate_punctuation, texts) if recipe.batch.split_punctuation else texts

    @property
    def loss_remark(self) -> str:
        return "with language model" if self.recipe.loss.language_model else ""

    def reader(self) -> RowReader:
        return row_reader(self.recipe, self.tokenizer)

    def examples(self, reader: RowReader, split: str) -> list[ExampleRows]:
        """Return the rows of each example of a split."""
        raise NotImplementedError

    def targets(self, split: str) -> dict[str, Sequence[float]]:
        """Return the targets of each example."""
        raise NotImplementedError

    def make_batches(self, split: str, *, tokens: int, shapes: int | None = None) -> RowBatches:
        reader = self.reader()
        reader.read_ahead(self.corpus.texts(split))
        rows, targets = self.examples(reader, split), self.targets(split)
        return RowBatches(rows, values=targets, tokens=tokens, shapes=shapes)

    def loss_options(self) -> Sequence[float]:
        return (self.recipe.loss.language_model,)

    def truncation_note(self, count: int) -> str:
        return (
            f"{count:,} of {len(self.batches):,} training examples have more than {max_row_length(self.recipe)} tokens "
            "per row and are truncated (batch.max_length, or the maximum of the backbone)."
        )
