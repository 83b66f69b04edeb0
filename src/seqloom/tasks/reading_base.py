"""What tasks share whose models read texts, or several texts in a row, and predict labels, tags, scores or spans."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import torch
from torch import Tensor

from seqloom.config import config
from seqloom.config.constraints import Ge, NonNegativeFloat, PositiveInt
from seqloom.data.collate import RowBatches
from seqloom.data.corpus import Corpus
from seqloom.data.readers import Frame, RowReader, SentenceReader, Spellings, TextReader, set_apart
from seqloom.data.word_vectors import FoundVectors, read_vectors, vector_words
from seqloom.models.bodies import BODIES, can_predict, form_of
from seqloom.runs.models import has_body
from seqloom.tasks.base import BatchedTask, InitRecipe, dropout_problems
from seqloom.text import Tokenizer
from seqloom.text.specials import Specials

if TYPE_CHECKING:
    from seqloom.runs.run import Run

UNSEEN = -1  # the number of a label, or a tag, that training did not have


# --- recipes ----------------------------------------------------------------------------------------------------------


@config
class BatchConfig:
    """How texts are put together."""

    tokens: PositiveInt = 2048  # most of a batch: texts × longest, padding and END included
    shapes: PositiveInt | None = None  # at most so many shapes of batches; null: as many as it takes, which pads less
    max_length: Annotated[int, Ge(2)] | None = 256  # tokens read of a text, END included; null to read them all
    eval_tokens: PositiveInt = 8192  # as `tokens`, when a split is evaluated


@config
class RowBatchConfig(BatchConfig):
    """How rows of several texts are put together."""

    tokens: PositiveInt = 4096  # most of a batch: rows × longest, padding and special tokens included
    max_length: Annotated[int, Ge(5)] | None = 256  # tokens of a row, special ones included; null: all the body reads
    eval_tokens: PositiveInt = 16384
    apart: bool = False  # words and marks are read with a space between any two, as WikiText writes them


@config
class RowLossConfig:
    """The loss of a model on a body."""

    language_model: NonNegativeFloat = 0.0  # λ: of a causal body, add λ · the loss of a language model on the same rows

    def unit(self, example: str) -> str:
        """The unit of the training loss; only that of plain nats may be compared with dev's."""
        return f"nats per {example}" + (", with a language model's" if self.language_model else "")


@config
class ReadingRecipe(InitRecipe):
    """The keys and the rules of recipes whose models read texts."""

    if TYPE_CHECKING:
        batch: Any = None
        loss: Any = None
    else:
        loss = None

    @property
    def takes_init(self) -> bool:
        return has_body(self.model)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        yield from dropout_problems(self.tokenizer)
        if self.takes_init and self.init is None and self.model.body is None:
            kinds = ", ".join(BODIES)
            yield f"model.body: missing; it must be a section of kind {kinds}, or init.from a run that has one"
        if self.loss is not None and self.loss.language_model:
            yield from language_model_problems(self.model)


@config
class RowRecipe(ReadingRecipe):
    """The same for models that read several texts in a row."""

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.model.body is not None and (most := read_length(self)) is not None and most < 5:
            yield f"the body must be able to read 5 tokens at least: two texts and what stands around them; got {most}"


def language_model_problems(model: Any) -> Iterator[str]:
    """What stands in the way of a language model's loss beside that of the labels."""
    if not has_body(model):
        yield f"loss.language_model is for model.kind fine-tuned-classifier; got {model.kind}"
    elif model.body is not None and not can_predict(model.body):
        why = "its softmax is not full" if model.body.kind == "recurrent-lm" else "it reads both ways"
        yield (
            f"loss.language_model needs a body that predicts the next token, and this one, {model.body.kind}, does "
            f"not: {why}"
        )


# --- readers, in training and in use ----------------------------------------------------------------------------------


def read_length(recipe: Any) -> int | None:
    """The most tokens of a row: as the recipe says, and no more than the body was made for."""
    own, most = recipe.batch.max_length, recipe.model.longest
    return own if most is None or not has_body(recipe.model) else min(own or most, most)


def frame_of(model: Any, tokenizer: Tokenizer) -> Frame | None:
    """How texts stand in the rows that a model reads: between special tokens, if it has a body."""
    if not has_body(model) or model.body is None:
        return None
    return Frame(Specials.after(len(tokenizer)), form_of(model.body))


def text_reader(recipe: Any, tokenizer: Tokenizer, spellings: Spellings | None) -> TextReader:
    return TextReader(tokenizer, spellings, read_length(recipe), frame_of(recipe.model, tokenizer))


def sentence_reader(recipe: Any, tokenizer: Tokenizer, spellings: Spellings | None) -> SentenceReader:
    return SentenceReader(tokenizer, spellings, read_length(recipe), frame_of(recipe.model, tokenizer))


def row_reader(recipe: Any, tokenizer: Tokenizer) -> RowReader:
    frame = frame_of(recipe.model, tokenizer)
    if frame is None:
        raise ValueError("model.body must be given, or a run to take it from, init.from")
    return RowReader(tokenizer, frame, read_length(recipe), recipe.batch.apart)


def spellings_of(run: "Run") -> Spellings | None:
    """The spellings of a run's model, if it reads characters."""
    return None if run.characters is None else Spellings(run.characters)


# --- tasks ------------------------------------------------------------------------------------------------------------


class ReadingTask(BatchedTask):
    """A task whose model reads texts. `spellings` are there where it reads the characters of words, too."""

    read_by_model = ("characters", "vectors", "body")
    spellings: Spellings | None = None

    @classmethod
    def prepare(cls, recipe: Any) -> Self:
        task = super().prepare(recipe)
        if recipe.model.characters is not None:
            task.spellings = Spellings.learned(cls.spelled_texts(task.corpus))
        return task

    @classmethod
    def reopen(cls, recipe: Any, run: "Run") -> Self:
        task = super().reopen(recipe, run)
        task.spellings = spellings_of(run)
        return task

    @classmethod
    def spelled_texts(cls, corpus: Any) -> Iterable[str]:
        """The texts, or words, whose characters a model learns to read."""
        return cls.training_texts(None, corpus)

    def check(self) -> None:
        super().check()
        self.vectors  # noqa: B018 (a file of vectors that cannot be used is refused before the run is made)

    def numbers(self, labels: Iterable[str]) -> list[int]:
        """The number of each label, or tag; UNSEEN for one that training did not have."""
        known = {label: number for number, label in enumerate(self.names)}
        return [known.get(label, UNSEEN) for label in labels]

    def plain_texts(self, split: str) -> list[str]:
        """The texts of a split, to be compared with those of another."""
        raise NotImplementedError

    def reader(self) -> Any:
        """What makes rows of tokens of its texts; its `frame` is what stands around them."""
        raise NotImplementedError

    def cut(self) -> int:
        """How many training examples are too long to be read as one."""
        cut: int = self.batches.cut
        return cut

    def documents(self) -> dict[str, Any]:
        found = super().documents()
        return found if self.spellings is None else found | {"characters.json": self.spellings.alphabet.to_json()}

    def alphabet_size(self) -> dict[str, int]:
        return {} if self.spellings is None else {"characters": len(self.spellings.alphabet)}

    def model(self) -> Any:
        model = super().model()
        if self.vectors is not None:
            model.lexicon.set_vectors(self.vectors.rows, self.vectors.found)
        return model

    def receiver(self, model: Any) -> Any:
        return model.body

    @cached_property
    def vectors(self) -> FoundVectors | None:
        """The word vectors its model begins with."""
        chosen = self.recipe.model.vectors
        if chosen is None:
            return None
        words, width = vector_words(self.tokenizer), self.recipe.model.embedding
        return read_vectors(Path(chosen.file), words, width, lowercase=chosen.lowercase)

    def token_counts(self) -> Tensor:
        """How often each token is in train (V,)."""
        return torch.bincount(torch.from_numpy(self.batches.texts.ids), minlength=len(self.tokenizer))

    def unknown_rate(self, split: str) -> float:
        """The share of tokens read as <unk>."""
        ids, unknown = self.read(split).texts.ids, self.tokenizer.unknown
        return 0.0 if unknown is None else float((ids == unknown).mean())

    def warnings(self) -> list[str]:
        found = super().warnings()
        if self.vectors is not None:
            found.append(f"{self.vectors.coverage(self.token_counts())}.")
        if cut := self.cut():
            found.append(self.about_cut(cut))
        return found

    def about_cut(self, cut: int) -> str:
        """A sentence on training examples that are too long."""
        raise NotImplementedError


class RowTask(ReadingTask):
    """A task whose model reads several texts at once, in rows between special tokens."""

    recipe: Any
    corpus: Corpus[Any]

    @classmethod
    def training_texts(cls, recipe: Any, corpus: Any) -> Iterable[str]:
        texts = corpus.texts("train")
        return map(set_apart, texts) if recipe.batch.apart else texts

    def sizes(self) -> dict[str, int]:
        return {"outputs": len(self.tokenizer)} if self.recipe.loss.language_model else {}

    def plain_texts(self, split: str) -> list[str]:
        return ["\n".join(example.texts()) for example in self.corpus.split(split)]

    def reader(self) -> RowReader:
        return row_reader(self.recipe, self.tokenizer)

    def examples(self, reader: RowReader, split: str) -> Any:
        """The rows of each example of a split."""
        raise NotImplementedError

    def values(self, split: str) -> dict[str, Sequence[float]]:
        """What is to be predicted of each example."""
        raise NotImplementedError

    def make_batches(self, split: str, *, tokens: int, shapes: int | None = None) -> Any:
        reader = self.reader()
        reader.read_ahead(self.corpus.texts(split))
        rows, values = self.examples(reader, split), self.values(split)
        return RowBatches(rows, values=values, tokens=tokens, shapes=shapes)

    def about_cut(self, cut: int) -> str:
        return (
            f"{cut:,} of {len(self.batches):,} training examples have more than {read_length(self.recipe)} tokens "
            "in a row: their texts are cut (batch.max_length, and what the body can read)."
        )
