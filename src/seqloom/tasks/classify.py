"""Classification: a model reads a text and says which of several labels it has.

The labels are those of train; a text of dev or test with another one counts as wrong. The loss is −log p of the label,
where wanted weighted by class: w_k = N / (K · N_k), so that all K classes count the same however many texts they have.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from seqloom.config import Discriminator, config
from seqloom.core.errors import UsageError
from seqloom.core.protocols import Loss, Monitor
from seqloom.core.tree import Tree, to_device
from seqloom.data import corpora
from seqloom.data.collate import TextBatches
from seqloom.data.corpora import CorpusConfig
from seqloom.data.corpus import Corpus
from seqloom.data.examples import TextClassificationExample
from seqloom.data.readers import Spellings, TextReader
from seqloom.data.word_vectors import FoundVectors, read_vectors, vector_words
from seqloom.evaluate.classification import Report, report
from seqloom.models.bodies import can_predict
from seqloom.models.classifier import Classifier, ClassifierConfig
from seqloom.models.fine_tuned import FineTunedClassifierConfig
from seqloom.nn.softmax import at_least_float32
from seqloom.runs.init import (
    InitConfig,
    Pretrained,
    StillNeeded,
    frame_of,
    init_problems,
    pretrained,
    read_length,
    still_needed,
)
from seqloom.runs.run import Run
from seqloom.tasks import base
from seqloom.tasks.base import TaskInfo
from seqloom.tasks.language_model import device_of, refuse_changed_data
from seqloom.text import Tokenizer, TokenizerConfig, train_tokenizer
from seqloom.train.config import FitConfig

UNSEEN = -1  # the number of a label, or a tag, that training did not have


@config
class BatchConfig:
    """How texts are put together."""

    tokens: int = 2048  # most of a batch: texts × longest, padding and END included
    shapes: int | None = None  # at most so many shapes of batches; null for as many as it takes, which pads less
    max_length: int | None = 256  # tokens read of a text, END included; null to read them all
    eval_tokens: int = 8192  # as `tokens`, when a split is evaluated

    def problems(self) -> Iterator[str]:
        for name, least in (("tokens", 1), ("shapes", 1), ("max_length", 2), ("eval_tokens", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                yield f"{name} must be at least {least}, got {value}"


@config
class LossConfig:
    class_weights: Literal["none", "balanced"] = "none"  # balanced: all classes count the same, however many texts
    label_smoothing: float = 0.0  # ε: the loss is (1 − ε) · (−log p) + ε · mean of −log p over the labels
    consistency: float = 0.0  # α: every text is read twice, and what dropout makes of the two readings shall agree
    language_model: float = 0.0  # λ: of a causal body, add λ · the loss of a language model on the same texts

    def problems(self) -> Iterator[str]:
        if not 0 <= self.label_smoothing < 1:
            yield f"label_smoothing must be at least 0 and below 1, got {self.label_smoothing}"
        if self.consistency < 0:
            yield f"consistency must be at least 0, got {self.consistency}"
        if self.language_model < 0:
            yield f"language_model must be at least 0, got {self.language_model}"


@config
class Recipe:
    task: Literal["classify"] = "classify"
    seed: int = 1
    init: InitConfig | None = None  # begin with a run that was trained on something else
    data: CorpusConfig[TextClassificationExample]
    tokenizer: TokenizerConfig | None = None  # with init, that of the run
    batch: BatchConfig = BatchConfig()
    model: Annotated[ClassifierConfig | FineTunedClassifierConfig, Discriminator("kind")] = ClassifierConfig()
    loss: LossConfig = LossConfig()
    goal: Literal["loss", "accuracy", "macro_f1", "matthews"] = "accuracy"  # which figure of dev chooses the best
    train: FitConfig

    def problems(self) -> Iterator[str]:
        yield from reading_problems(self)
        if self.loss.language_model:
            yield from language_model_problems(self.model)


def language_model_problems(model: Any) -> Iterator[str]:
    """What stands in the way of a language model's loss beside that of the labels."""
    if not hasattr(model, "body"):
        yield f"loss.language_model is for model.kind fine-tuned-classifier; got {model.kind}"
    elif model.body is not None and not can_predict(model.body):
        why = "its softmax is not full" if model.body.kind == "recurrent-lm" else "it reads both ways"
        yield (
            f"loss.language_model needs a body that predicts the next token, and this one, {model.body.kind}, does "
            f"not: {why}"
        )


def reading_problems(recipe: Any) -> Iterator[str]:
    """What does not go together in how text is read."""
    yield from init_problems(recipe)
    longest, read = recipe.model.longest, recipe.batch.max_length
    if hasattr(recipe.model, "body"):  # which reads no more than it can, see `read_length`
        if read is not None and read < 3:
            yield f"batch.max_length must be at least 3: a token between two special ones; got {read}"
    elif longest is not None and (read is None or read > longest):
        yield f"batch.max_length must be at most {longest}, the places the model's encoder knows; got {read or 'null'}"
    if getattr(recipe.tokenizer, "dropout", 0):
        yield "tokenizer.dropout is for translation; set it to 0"
    if recipe.model.characters is not None and getattr(recipe.tokenizer, "kind", None) == "characters":
        yield "model.characters spells words, and tokenizer.kind is characters: leave one of them out"


class ReadingTask(base.Task, ABC):
    """What tasks share that read texts and answer in names: labels of texts, or tags of words.

    `names` are what a model can say, in the order of its output; `spellings` are there where characters are read too.
    """

    counted = "tokens"
    read_by_model = ("characters", "vectors", "body")  # what its section says of how the data is read
    pretrained: Pretrained | StillNeeded | None = None  # where its model's body comes from
    recipe: Any
    corpus: Corpus[Any]
    tokenizer: Tokenizer
    names: Sequence[str]
    spellings: Spellings | None

    def __init__(self) -> None:
        self._read: dict[str, TextBatches] = {}

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """What the data decides of the model besides its vocabulary: the other arguments of its config's `build`."""

    @abstractmethod
    def plain_texts(self, split: str) -> list[str]:
        """The texts of a split, to be compared with those of another."""

    @abstractmethod
    def reader(self) -> Any:
        """What makes rows of tokens of its texts: it has a `frame` where special tokens stand around them."""

    @abstractmethod
    def cut(self) -> int:
        """How many training texts are too long to be read as one."""

    @abstractmethod
    def _batches(self, split: str, **options: Any) -> TextBatches:
        """A split in batches; `options` are those of `ExampleBatches`."""

    @cached_property
    def batches(self) -> TextBatches:
        """The training split, as training reads it."""
        return self._batches("train", tokens=self.recipe.batch.tokens, shapes=self.recipe.batch.shapes)

    def read(self, split: str) -> TextBatches:
        """A split as it is evaluated."""
        if split not in self._read:
            self._read[split] = self._batches(split, tokens=self.recipe.batch.eval_tokens)
        return self._read[split]

    def documents(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "tokenizer.json": self.tokenizer.to_json(),
            "labels.json": list(self.names),
            "sizes.json": self.sizes(),
            "data.json": describe(self.corpus),
        }
        if isinstance(self.pretrained, Pretrained):
            found["data.json"]["init"] = self.pretrained.described(self.recipe.init)
        if self.spellings is not None:
            found["characters.json"] = self.spellings.alphabet.to_json()
        return found

    def alphabet_size(self) -> dict[str, int]:
        return {} if self.spellings is None else {"characters": len(self.spellings.alphabet)}

    def built(self) -> Any:
        """The model, with the weights and the vectors it is to begin with."""
        model = self.recipe.model.build(len(self.tokenizer), **self.sizes())
        if self.pretrained is not None and self.recipe.init.weights:
            self.pretrained.give(model.body)
        if self.vectors is not None:
            model.lexicon.set_vectors(self.vectors.rows, self.vectors.found)
        return model

    @cached_property
    def vectors(self) -> FoundVectors | None:
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

    def steps_per_epoch(self) -> int:
        return self.batches.steps_per_epoch

    def tokens_per_step(self) -> float:
        """On average."""
        return len(self.batches.texts.ids) / self.steps_per_epoch()

    def largest_step(self, seed: int) -> int:
        """The batch of the first epoch that takes most memory: what a rehearsal must not miss."""
        return self.batches.largest_step(seed)

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        batch = self.batches.batch(seed, step, rank, world)
        return {**batch, "read": int(batch["mask"].sum())}  # counted here, where nothing waits for a GPU

    def begins_with(self, source: Pretrained | None) -> None:
        """The run its model's body comes from. What cannot be used, here or of a file of vectors, is refused now."""
        self.pretrained = source
        self.vectors  # noqa: B018
        if source is not None and self.recipe.init.weights:
            source.sha256  # noqa: B018

    def warnings(self) -> list[str]:
        """What a person should know before training begins."""
        found = [f"{note}." for note in self.corpus.notes]
        if self.vectors is not None:
            found.append(f"{self.vectors.coverage(self.token_counts())}.")
        return found


class Task(ReadingTask):
    corpus: Corpus[TextClassificationExample]

    def __init__(
        self,
        recipe: Recipe,
        corpus: Corpus[TextClassificationExample],
        tokenizer: Tokenizer,
        labels: Sequence[str],
        spellings: Spellings | None,
    ):
        super().__init__()
        self.recipe, self.corpus, self.tokenizer = recipe, corpus, tokenizer
        self.names, self.spellings = labels, spellings
        self._numbers = {label: number for number, label in enumerate(labels)}
        self.monitor = Monitor(recipe.goal, higher_is_better=recipe.goal != "loss", unit=loss_unit(recipe.loss))

    @classmethod
    def metric_of(cls, recipe: Recipe) -> str:
        return recipe.goal

    @classmethod
    def prepare(cls, recipe: Recipe) -> Self:
        source = pretrained(recipe)
        corpus = corpora.load(recipe.data)
        corpus.split("dev")  # there is no choosing without one: say so before the work, not after it
        texts = [example.text for example in corpus.split("train")]
        tokenizer, spellings = tokenizer_for(recipe, source, texts), None
        if recipe.model.characters is not None:
            spellings = Spellings.learned(texts)
        task = cls(recipe, corpus, tokenizer, corpus.labels, spellings)
        task.begins_with(source)
        return task

    @classmethod
    def reopen(cls, recipe: Recipe, run: Run) -> Self:
        corpus = corpora.load(recipe.data)
        refuse_changed_data(run, corpus)
        task = cls(recipe, corpus, run.tokenizer, run.labels, spellings_of(run))
        task.pretrained = still_needed(recipe, run)
        return task

    @classmethod
    def of_documents(cls, recipe: Recipe, run: Run, documents: Sequence[str]) -> Self:
        raise UsageError(
            f"{run.path} classifies: it is measured on texts with labels, not on a text. Name a --split, or let it "
            f"answer: seqloom classify {run.path} < FILE."
        )

    def sizes(self) -> dict[str, int]:
        outputs = {"outputs": len(self.tokenizer)} if self.recipe.loss.language_model else {}
        return {"labels": len(self.names), **self.alphabet_size(), **outputs}

    def model(self) -> Any:
        model = self.built()
        if isinstance(model, Classifier):
            model.set_documents(*self.found_in())
        return model

    def found_in(self) -> tuple[Tensor, int]:
        """In how many training texts each token is (V,), and how many texts there are."""
        texts = self.batches.texts
        rows = np.repeat(np.arange(len(texts)), texts.lengths)
        once = np.unique(rows * len(self.tokenizer) + texts.ids) % len(self.tokenizer)
        return torch.from_numpy(np.bincount(once, minlength=len(self.tokenizer))), len(texts)

    # --- data -------------------------------------------------------------------------------------------------------

    def reader(self) -> TextReader:
        return text_reader(self.recipe, self.tokenizer, self.spellings)

    def labels(self, split: str) -> list[int]:
        """The number of each text's label."""
        return [self._numbers.get(example.label, UNSEEN) for example in self.corpus.split(split)]

    def plain_texts(self, split: str) -> list[str]:
        return [example.text for example in self.corpus.split(split)]

    def cut(self) -> int:
        return self.batches.cut

    def _batches(self, split: str, **options: Any) -> TextBatches:
        return self.reader().batches(self.plain_texts(split), values={"labels": self.labels(split)}, **options)

    def warnings(self) -> list[str]:
        found = super().warnings()
        if cut := self.cut():
            found.append(
                f"{cut:,} of {len(self.batches):,} training texts {'is' if cut == 1 else 'are'} longer than "
                f"{read_length(self.recipe)} tokens: only the beginning is read (batch.max_length)."
            )
        return found

    # --- training and measuring -------------------------------------------------------------------------------------

    @cached_property
    def class_weights(self) -> Tensor | None:
        """w_k = N / (K · N_k) (L,), or None where all texts count the same."""
        if self.recipe.loss.class_weights == "none":
            return None
        counts = torch.bincount(torch.tensor(self.labels("train")), minlength=len(self.names))
        return counts.sum() / (len(counts) * counts.float())

    def loss(self, model: Any, batch: Tree, carry: Tree) -> Loss:
        """Every text is read by itself, so nothing is carried. What is counted are the tokens read."""
        weights = self.class_weights
        if weights is not None:
            weights = weights.to(batch["tokens"].device, non_blocking=True)
        wanted = self.recipe.loss
        also = {"language_model": wanted.language_model} if wanted.language_model else {}
        value, count = model.loss(batch, weights, wanted.label_smoothing, wanted.consistency, **also)
        if weights is not None:  # then it is a weighted mean
            count = (weights[batch["labels"].clamp(min=0)] * (batch["labels"] >= 0)).sum()
        return Loss(value, None, batch["read"], count)

    def evaluate(self, model: Any, split: str) -> dict[str, float]:
        return self.report(model, split).metrics

    def report(self, model: Any, split: str) -> Report:
        """Every figure of a split."""
        return self.figures(self.log_probs(model, split), split)

    def figures(self, log_probs: Tensor, split: str) -> Report:
        """Every figure, given what a model thought of each text (N, L)."""
        expected = [example.label for example in self.corpus.split(split)]
        return report(expected, log_probs.numpy(), self.names)

    @torch.no_grad()
    def log_probs(self, model: Any, split: str) -> Tensor:
        """log p (N, L) of every label of every text of a split, on the CPU."""
        batches = self.read(split)
        found = torch.zeros(len(batches), len(self.names))
        for members, batch in batches.every():
            log_probs = at_least_float32(model(to_device(batch, device_of(model)))).log_softmax(dim=1)
            found[torch.from_numpy(members)] = log_probs[: len(members)].float().cpu()
        return found


def loss_unit(loss: LossConfig) -> str:
    """What the training loss is; only that of `nats` may be compared with dev's."""
    changes = ["smoothed"] * bool(loss.label_smoothing) + ["weighted"] * (loss.class_weights != "none")
    changes += ["with consistency"] * bool(loss.consistency)
    changes += ["with a language model's"] * bool(loss.language_model)
    return ", ".join(["nats per text", *changes])


def tokenizer_for(recipe: Any, source: Pretrained | None, texts: Iterable[str]) -> Tokenizer:
    """That of the run the training begins with, or a new one, learned from these texts."""
    return train_tokenizer(recipe.tokenizer, texts) if source is None else source.tokenizer


def text_reader(recipe: Any, tokenizer: Tokenizer, spellings: Spellings | None) -> TextReader:
    """How texts are read, in training and in use."""
    return TextReader(tokenizer, spellings, read_length(recipe), frame_of(recipe.model, tokenizer))


def spellings_of(run: Run) -> Spellings | None:
    """What the alphabet of a run's model is, if it reads characters."""
    alphabet = run.characters
    return None if alphabet is None else Spellings(alphabet)


def describe(corpus: Corpus[Any]) -> dict[str, Any]:
    """What a run remembers of its data."""
    return {
        "corpus": corpus.name,
        "version": corpus.version,
        "licence": corpus.licence,
        "sha256": corpus.fingerprint(),
        "counts": {split: corpus.sizes(split) for split in corpus.splits},
        "notes": list(corpus.notes),
    }


INFO = TaskInfo(
    name="classify",
    recipe=Recipe,
    task=Task,
    forms=("labelled",),
    predictor="seqloom.predict.classifier:Classifier",
    command="classify {run}",
    metric="accuracy",
    loss_per="text",
    views=("understand", "vectors", "walk", "heads", "cell"),
)
