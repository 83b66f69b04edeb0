"""Pairs: a model reads two texts and says how they go together: one of several labels, or a score.

    class    does the one follow from the other?     −log p of the label is made small, as for single texts
    score    how much alike are they?                (y − ŷ)² / σ² is, σ² the variance of the training scores

A score has no first and second text: a body that reads from left to right is given both orders, and what it makes of
them is added (GPT, 2018). One that reads both ways sees both texts at once, and is given one.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal, Self, cast

import torch

from seqloom.config import Discriminator, config
from seqloom.core.errors import DataError, UsageError
from seqloom.core.protocols import Monitor
from seqloom.core.tree import to_device
from seqloom.data import corpora
from seqloom.data.collate import RowBatches
from seqloom.data.corpora import CorpusConfig
from seqloom.data.corpus import Corpus
from seqloom.data.examples import SentencePairExample, check_labels, scores_of
from seqloom.data.row_readers import RowReader, set_apart
from seqloom.evaluate import correlation
from seqloom.evaluate.figures import Figures
from seqloom.models.bodies import form_of
from seqloom.models.matching import FineTunedPair, FineTunedPairConfig, spread
from seqloom.runs.init import InitConfig, frame_of, init_problems, pretrained, read_length, still_needed
from seqloom.runs.run import Run
from seqloom.tasks import classify
from seqloom.tasks.base import TaskInfo
from seqloom.tasks.classify import LossConfig, ReadingTask, language_model_problems, loss_unit, tokenizer_for
from seqloom.tasks.language_model import device_of, refuse_changed_data
from seqloom.text import Tokenizer, TokenizerConfig
from seqloom.train.config import FitConfig


@config
class BatchConfig:
    """How rows of two texts are put together."""

    tokens: int = 4096  # most of a batch: rows × longest, padding and special tokens included
    shapes: int | None = None  # at most so many shapes of batches; null for as many as it takes, which pads less
    max_length: int | None = 256  # tokens of a row, special ones included; null for as many as the body can read
    eval_tokens: int = 16384  # as `tokens`, when a split is evaluated
    apart: bool = False  # words and marks are read with a space between any two, as WikiText writes them

    def problems(self) -> Iterator[str]:
        for name, least in (("tokens", 1), ("shapes", 1), ("max_length", 5), ("eval_tokens", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                yield f"{name} must be at least {least}, got {value}"


@config
class Recipe:
    task: Literal["pair"] = "pair"
    seed: int = 1
    init: InitConfig | None = None  # begin with a run that was trained on something else
    data: CorpusConfig[SentencePairExample]
    tokenizer: TokenizerConfig | None = None  # with init, that of the run
    target: Literal["class", "score"] = "class"  # what the labels are: classes, or numbers that mean more or less
    symmetric: bool | None = None  # read both orders and add; null: for a score, where the body reads left to right
    batch: BatchConfig = BatchConfig()
    model: Annotated[FineTunedPairConfig, Discriminator("kind")] = FineTunedPairConfig()
    loss: LossConfig = LossConfig()
    goal: Literal["loss", "accuracy", "macro_f1", "matthews", "pearson", "spearman"] | None = (
        None  # which figure of dev chooses the best; null: accuracy, or of scores pearson
    )
    train: FitConfig

    def problems(self) -> Iterator[str]:
        yield from row_problems(self)
        of_scores = ("pearson", "spearman")
        if self.goal not in (None, "loss") and (self.goal in of_scores) != (self.target == "score"):
            choice = "loss, pearson or spearman" if self.target == "score" else "loss, accuracy, macro_f1 or matthews"
            yield f"goal must be {choice} with target={self.target}; got {self.goal}"
        loss = self.loss
        if self.target == "score" and (loss.class_weights != "none" or loss.label_smoothing or loss.consistency):
            yield "loss.class_weights, loss.label_smoothing and loss.consistency are for target=class"

    @property
    def both_orders(self) -> bool:
        """Whether a pair is two rows."""
        body = self.model.body
        causal = body is not None and form_of(body) == "causal"
        return self.target == "score" and causal if self.symmetric is None else self.symmetric


def row_problems(recipe: Any) -> Iterator[str]:
    """What does not go together in how rows are read."""
    yield from init_problems(recipe)
    if recipe.model.body is not None and (most := read_length(recipe)) is not None and most < 5:
        yield f"the body must be able to read 5 tokens at least: two texts and what stands around them; got {most}"
    if getattr(recipe.tokenizer, "dropout", 0):
        yield "tokenizer.dropout is for translation; set it to 0"
    if recipe.loss.language_model:
        yield from language_model_problems(recipe.model)


class RowTask(ReadingTask):
    """What tasks share whose model reads several texts at once, in rows between special tokens."""

    names: Sequence[str] = ()
    spellings = None
    recipe: Any
    corpus: Any
    command = ""  # what uses such a model

    def __init__(self, recipe: Any, corpus: Any, tokenizer: Tokenizer):
        super().__init__()
        self.recipe, self.corpus, self.tokenizer = recipe, corpus, tokenizer

    @classmethod
    @abstractmethod
    def load(cls, recipe: Any) -> Any:
        """The corpus of a recipe, fit to be learned from."""

    @classmethod
    def prepare(cls, recipe: Any) -> Self:
        source = pretrained(recipe)
        corpus = cls.load(recipe)
        corpus.split("dev")  # there is no choosing without one: say so before the work, not after it
        texts = cls.read_texts(corpus, "train")
        written = map(set_apart, texts) if recipe.batch.apart else texts
        task = cls(recipe, corpus, tokenizer_for(recipe, source, written))
        task.begins_with(source)
        return task

    @classmethod
    def reopen(cls, recipe: Any, run: Run) -> Self:
        corpus = cls.load(recipe)
        refuse_changed_data(run, corpus)
        task = cls(recipe, corpus, run.tokenizer)
        task.pretrained = still_needed(recipe, run)
        return task

    @classmethod
    def of_documents(cls, recipe: Any, run: Run, documents: Sequence[str]) -> Self:
        raise UsageError(
            f"{run.path} is measured on examples like those it learned from, not on a text. Name a --split, or let it "
            f"answer: seqloom {cls.command.format(run=run.path)}."
        )

    @classmethod
    def read_texts(cls, corpus: Any, split: str) -> Iterable[str]:
        """Everything there is to read in a split, each text once."""
        found: Iterable[str] = corpus.texts(split)
        return found

    def documents(self) -> dict[str, Any]:
        found = super().documents()
        if not self.names:
            del found["labels.json"]
        return found

    def sizes(self) -> dict[str, int]:
        return {"outputs": len(self.tokenizer)} if self.recipe.loss.language_model else {}

    def model(self) -> Any:
        return self.built()

    def reader(self) -> RowReader:
        return row_reader(self.recipe, self.tokenizer)

    def cut(self) -> int:
        return self.batches.cut

    def examples(self, reader: RowReader, split: str) -> Any:
        """The rows of each example of a split."""
        raise NotImplementedError

    def values(self, split: str) -> dict[str, Sequence[float]]:
        """What is to be found out about each example."""
        raise NotImplementedError

    def _batches(self, split: str, **options: Any) -> Any:
        reader = self.reader()
        reader.read_ahead(self.read_texts(self.corpus, split))
        return RowBatches(self.examples(reader, split), values=self.values(split), **options)

    def warnings(self) -> list[str]:
        found = ReadingTask.warnings(self)
        if cut := self.cut():
            found.append(
                f"{cut:,} of {len(self.batches):,} training examples have more than {read_length(self.recipe)} tokens "
                "in a row: their texts are cut (batch.max_length, and what the body can read)."
            )
        return found


def row_reader(recipe: Any, tokenizer: Tokenizer) -> RowReader:
    """How rows are read, in training and in use."""
    frame = frame_of(recipe.model, tokenizer)
    if frame is None:
        raise ValueError("model.body must be given, or a run to take it from, init.from")
    return RowReader(tokenizer, frame, read_length(recipe), recipe.batch.apart)


class Task(RowTask, classify.Task):
    corpus: Corpus[SentencePairExample]
    command = "match {run} < pairs.tsv"

    def __init__(self, recipe: Recipe, corpus: Corpus[SentencePairExample], tokenizer: Tokenizer):
        self.scored = recipe.target == "score"
        labels = () if self.scored else corpus.labels
        classify.Task.__init__(self, cast(Any, recipe), corpus, tokenizer, labels, None)  # the same keys are read
        metric = recipe.goal or ("pearson" if self.scored else "accuracy")
        unit = "squared error / variance" if self.scored else loss_unit(recipe.loss).replace("text", "pair", 1)
        self.monitor = Monitor(metric, higher_is_better=metric != "loss", unit=unit)

    @classmethod
    def load(cls, recipe: Recipe) -> Corpus[SentencePairExample]:
        corpus = corpora.load(recipe.data)
        if recipe.target == "class":
            return check_labels(corpus)
        scores = {split: scores_of(corpus, split) for split in corpus.splits}  # what is no number is named here
        if len(scores.get("dev", ())) == 1:
            raise DataError(
                "With target=score dev must have two pairs or more, so that they can be correlated; it has one. Raise "
                "data.dev_fraction, or give more pairs."
            )
        return corpus

    def sizes(self) -> dict[str, int]:
        own = {"scores": 1} if self.scored else {"labels": len(self.names)}
        return {**own, **RowTask.sizes(self)}

    def model(self) -> FineTunedPair:
        model: FineTunedPair = self.built()
        if self.scored:
            model.set_scores(*spread(scores_of(self.corpus, "train")))
        return model

    def reader(self) -> Any:
        return RowTask.reader(self)

    def examples(self, reader: RowReader, split: str) -> Any:
        both = self.recipe.both_orders
        return [reader.pair(pair.first, pair.second, both) for pair in self.corpus.split(split)]

    def values(self, split: str) -> dict[str, Sequence[float]]:
        return {"scores": scores_of(self.corpus, split)} if self.scored else {"labels": self.labels(split)}

    # --- scores -----------------------------------------------------------------------------------------------------

    def report(self, model: Any, split: str) -> Any:
        if not self.scored:
            return super().report(model, split)
        return self.score_figures(self.scores(model, split), split)

    def score_figures(self, scores: Sequence[float], split: str) -> Figures:
        """Every figure of scores, given what a model said of each pair."""
        expected = scores_of(self.corpus, split)
        found = correlation.report(expected, scores)
        variance = spread(scores_of(self.corpus, "train"))[1] ** 2
        return Figures({"loss": found.metrics["rmse"] ** 2 / variance, **found.metrics}, found.intervals)

    @torch.no_grad()
    def scores(self, model: Any, split: str) -> list[float]:
        """What a model says of every pair of a split."""
        batches = self.read(split)
        found = torch.zeros(len(batches))
        for members, batch in batches.every():
            found[torch.from_numpy(members)] = model(to_device(batch, device_of(model)))[: len(members)].float().cpu()
        return [float(score) for score in found]


INFO = TaskInfo(
    name="pair",
    recipe=Recipe,
    task=Task,
    forms=("matched",),
    predictor="seqloom.predict.matcher:Matcher",
    command="match {run}",
    metric="accuracy",
    loss_per="pair",
    examples="pairs",
    views=("understand", "vectors"),
)
