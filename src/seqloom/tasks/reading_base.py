"""What tasks share that read texts and predict labels, tags, scores or spans."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import torch
from torch import Tensor

from seqloom.config import config
from seqloom.config.constraints import Ge, NonNegativeFloat, PositiveInt
from seqloom.core.tokens import Specials
from seqloom.data.collate import ExampleRows, RowBatches
from seqloom.data.corpus import Corpus
from seqloom.data.readers import RowReader, SentenceReader, Spellings, TextFrame, TextReader, separate_punctuation
from seqloom.data.word_vectors import FoundVectors, read_vectors, vector_words
from seqloom.evaluate.classification import report
from seqloom.models import has_backbone
from seqloom.models.backbones import BACKBONES, backbone_class
from seqloom.tasks.base import BatchedTask, InitRecipe, M, R, Task, TaskRecipe, dropout_problems
from seqloom.text import Tokenizer

if TYPE_CHECKING:
    from seqloom.runs.run import Run

UNSEEN = -1  # the number of a label, or a tag, that training did not have


# --- recipes ----------------------------------------------------------------------------------------------------------


@config
class BatchConfig:
    """How texts are put together."""

    tokens: PositiveInt = 2048  # most of a batch: texts × longest, padding and END included
    max_shapes: PositiveInt | None = (
        None  # at most so many shapes of batches; null: as many as it takes, which pads less
    )
    max_length: Annotated[int, Ge(2)] | None = 256  # tokens read of a text, END included; null to read them all
    eval_tokens: PositiveInt = 8192  # as `tokens`, when a split is evaluated


@config
class RowBatchConfig(BatchConfig):
    """How rows of several texts are put together."""

    tokens: PositiveInt = 4096  # most of a batch: rows × longest, padding and special tokens included
    max_length: Annotated[int, Ge(5)] | None = (
        256  # tokens of a row, special ones included; null: all the backbone reads
    )
    eval_tokens: PositiveInt = 16384
    split_punctuation: bool = False  # words and marks are read with a space between any two, as WikiText writes them


@config
class RowLossConfig:
    """The loss of a model on a backbone."""

    language_model: NonNegativeFloat = (
        0.0  # λ: of a causal backbone, add λ · the loss of a language model on the same rows
    )


@config
class ReadingRecipe(InitRecipe):
    """The keys and the rules of recipes whose models read texts."""

    @property
    def takes_init(self) -> bool:
        return has_backbone(self.model)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        yield from dropout_problems(self.tokenizer)
        if self.takes_init and self.init is None and self.model.backbone is None:
            kinds = ", ".join(BACKBONES.names())
            yield f"model.backbone: missing; it must be a section of kind {kinds}, or init.from a run that has one"
        if self.loss is None or not self.loss.language_model:
            return
        if not self.takes_init:
            yield f"loss.language_model is for model.kind fine-tuned-classifier; got {self.model.kind}"
        elif self.model.backbone is not None and not backbone_class(self.model.backbone).can_predict(
            self.model.backbone
        ):
            kind = self.model.backbone.kind
            why = "its softmax is not full" if kind == "recurrent-lm" else "it reads both ways"
            yield (f"loss.language_model needs a backbone that predicts the next token; {kind} does not: {why}")


@config
class RowRecipe(ReadingRecipe):
    """The same for models that read several texts in a row."""

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.model.backbone is not None and (most := read_length(self)) is not None and most < 5:
            yield f"the backbone must read at least 5 tokens: two texts and the special tokens around them; got {most}"


# --- readers, in training and in use ----------------------------------------------------------------------------------


def read_length(recipe: TaskRecipe) -> int | None:
    """Return the most tokens of a row that recipe and backbone allow."""
    own: int | None = recipe.batch.max_length
    most: int | None = recipe.model.longest
    return own if most is None or not has_backbone(recipe.model) else min(own or most, most)


def frame_of(recipe: TaskRecipe, tokenizer: Tokenizer) -> TextFrame | None:
    """Return the special tokens around texts, if the model has a backbone."""
    if not has_backbone(recipe.model) or recipe.model.backbone is None:
        return None
    return TextFrame(Specials.after(len(tokenizer)), backbone_class(recipe.model.backbone).form)


def text_reader(recipe: TaskRecipe, tokenizer: Tokenizer, spellings: Spellings | None) -> TextReader:
    """Return the reader of single texts."""
    return TextReader(tokenizer, spellings, read_length(recipe), frame_of(recipe, tokenizer))


def sentence_reader(recipe: TaskRecipe, tokenizer: Tokenizer, spellings: Spellings | None) -> SentenceReader:
    """Return the reader of sentences of words."""
    return SentenceReader(tokenizer, spellings, read_length(recipe), frame_of(recipe, tokenizer))


def row_reader(recipe: TaskRecipe, tokenizer: Tokenizer) -> RowReader:
    """Return the reader of several texts in a row."""
    frame = frame_of(recipe, tokenizer)
    if frame is None:
        raise ValueError("model.backbone must be given, or a run to take it from, init.from")
    return RowReader(tokenizer, frame, read_length(recipe), recipe.batch.split_punctuation)


def spellings_of(run: "Run") -> Spellings | None:
    """Return the spellings of a run's model, if it reads characters."""
    return None if run.characters is None else Spellings(run.characters)


# --- tasks ------------------------------------------------------------------------------------------------------------


class SplitTask(Task[R, M]):
    """A task that is measured by what a model predicts for each example of a split."""

    def outputs(self, model: M, split: str) -> Any:
        """Return what a model predicts for each example of a split."""
        raise NotImplementedError

    def measure(self, outputs: Any, split: str) -> Any:
        """Return the report on what a model predicts for a split."""
        raise NotImplementedError

    def report(self, model: M, split: str) -> Any:
        return self.measure(self.outputs(model, split), split)

    def numbers(self, labels: Iterable[str]) -> list[int]:
        """Return the number of each label, or tag; UNSEEN for one that training did not have."""
        known = {label: number for number, label in enumerate(self.names)}
        return [known.get(label, UNSEEN) for label in labels]


class LabelTask(SplitTask[R, M]):
    """A task whose model predicts one label of each example."""

    @classmethod
    def predicts_labels(cls, recipe: R) -> bool:
        return True

    def labels(self, split: str) -> list[int]:
        """Return the number of each example's label."""
        return self.numbers(example.label for example in self.corpus.split(split))

    def measure(self, outputs: Tensor, split: str) -> Any:
        """Return every metric, given log p of each label of each example (N, L)."""
        expected = [example.label for example in self.corpus.split(split)]
        return report(expected, outputs.numpy(), self.names)


class ReadingTask(BatchedTask[R, M], SplitTask[R, M]):
    """A task whose model reads texts, and with `spellings` the characters of words."""

    read_by_model = ("characters", "vectors", "backbone")
    spellings: Spellings | None = None

    @classmethod
    def prepare(cls, recipe: R) -> Self:
        task = super().prepare(recipe)
        if recipe.model.characters is not None:
            task.spellings = Spellings.of_words(cls.spelled_texts(task.corpus))
        return task

    @classmethod
    def reopen(cls, recipe: R, run: "Run") -> Self:
        task = super().reopen(recipe, run)
        task.spellings = spellings_of(run)
        return task

    @classmethod
    def spelled_texts(cls, corpus: Corpus[Any]) -> Iterable[str]:
        """Return the texts, or words, whose characters a model learns to read."""
        return (text for example in corpus.split("train") for text in example.texts())

    def check(self) -> None:
        super().check()
        self.vectors  # noqa: B018 (a file of vectors that cannot be used is refused before the run is made)

    def plain_texts(self, split: str) -> list[str]:
        """Return the texts of a split, to be compared with those of another."""
        return ["\n".join(example.texts()) for example in self.corpus.split(split)]

    def reader(self) -> Any:
        """Return what makes rows of tokens of its texts; its `frame` is what stands around them."""
        raise NotImplementedError

    def cut(self) -> int:
        """Return how many training examples are too long to be read as one."""
        return int(self.batches.cut)

    def about_cut(self, cut: int) -> str:
        """Return a sentence on training examples that are too long."""
        raise NotImplementedError

    def documents(self) -> dict[str, Any]:
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
            model.lexicon.set_vectors(self.vectors.rows, self.vectors.found)
        return model

    def receiver(self, model: Any) -> Any:
        return model.backbone

    @cached_property
    def vectors(self) -> FoundVectors | None:
        """The word vectors its model begins with."""
        chosen = self.recipe.model.vectors
        if chosen is None:
            return None
        words, width = vector_words(self.tokenizer), self.recipe.model.embedding
        return read_vectors(Path(chosen.file), words, width, lowercase=chosen.lowercase)

    def unknown_rate(self, split: str) -> float:
        """Return the share of tokens read as <unk>."""
        ids, unknown = self.read(split).texts.ids, self.tokenizer.unknown
        return 0.0 if unknown is None else float((ids == unknown).mean())

    def warnings(self) -> list[str]:
        notes = super().warnings()
        if self.vectors is not None:
            counts = torch.bincount(torch.from_numpy(self.batches.texts.ids), minlength=len(self.tokenizer))
            notes.append(f"{self.vectors.coverage(counts)}.")
        if cut := self.cut():
            notes.append(self.about_cut(cut))
        return notes


class RowTask(ReadingTask[R, M]):
    """A task whose model reads several texts at once, in rows between special tokens."""

    @classmethod
    def training_texts(cls, recipe: R, corpus: Corpus[Any]) -> Iterable[str]:
        texts = corpus.texts("train")
        return map(separate_punctuation, texts) if recipe.batch.split_punctuation else texts

    @property
    def loss_remark(self) -> str:
        return "with a language model's" if self.recipe.loss.language_model else ""

    def reader(self) -> RowReader:
        return row_reader(self.recipe, self.tokenizer)

    def examples(self, reader: RowReader, split: str) -> list[ExampleRows]:
        """Return the rows of each example of a split."""
        raise NotImplementedError

    def values(self, split: str) -> dict[str, Sequence[float]]:
        """Return what is to be predicted of each example."""
        raise NotImplementedError

    def make_batches(self, split: str, *, tokens: int, shapes: int | None = None) -> RowBatches:
        reader = self.reader()
        reader.read_ahead(self.corpus.texts(split))
        rows, values = self.examples(reader, split), self.values(split)
        return RowBatches(rows, values=values, tokens=tokens, shapes=shapes)

    def loss_options(self) -> Sequence[float]:
        return (self.recipe.loss.language_model,)

    def about_cut(self, cut: int) -> str:
        return (
            f"{cut:,} of {len(self.batches):,} training examples have more than {read_length(self.recipe)} tokens "
            "in a row: their texts are cut (batch.max_length, and what the backbone can read)."
        )
