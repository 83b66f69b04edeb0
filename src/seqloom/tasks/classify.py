"""Text classification: a model reads a text and predicts its label.

The labels are those of the training data; a dev or test text with another label counts as wrong.
The loss is −log p of the label. Balanced class weights, w_k = N / (K · N_k), give all K classes the
same total weight.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from seqloom.config import config
from seqloom.config.constraints import Fraction, NonNegativeFloat
from seqloom.core.protocols import Loss
from seqloom.core.tree import Tree
from seqloom.data.collate import TextBatches
from seqloom.data.corpora import CorpusConfig
from seqloom.data.corpus import Corpus
from seqloom.data.examples import TextClassificationExample
from seqloom.data.readers import TextReader
from seqloom.models import MODELS, has_backbone
from seqloom.nn.softmax import at_least_float32
from seqloom.tasks.base import ModelSection, R, TaskInfo, TaskRecipe
from seqloom.tasks.reading_base import (
    BatchConfig,
    LabelTask,
    ReadingRecipe,
    ReadingTask,
    max_row_length,
    text_reader,
)
from seqloom.train.config import FitConfig


@config
class ClassLossConfig:
    class_weights: Literal["none", "balanced"] = "none"  # balanced: all classes have the same total weight
    label_smoothing: Fraction = 0.0  # ε: the loss is (1 − ε) · (−log p) + ε · mean of −log p over the labels
    consistency: NonNegativeFloat = 0.0  # α: weight of the divergence of two passes with different dropout (R-Drop)
    language_model: NonNegativeFloat = 0.0  # λ: add λ · the language-model loss of a causal backbone on these texts

    @property
    def remark(self) -> str:
        """How the training loss differs from the dev loss."""
        changes = ["smoothed"] * bool(self.label_smoothing) + ["weighted"] * (self.class_weights != "none")
        changes += ["with consistency"] * bool(self.consistency)
        changes += ["with language model"] * bool(self.language_model)
        return ", ".join(changes)


@config
class Recipe(ReadingRecipe):
    task: Literal["classify"] = "classify"
    data: CorpusConfig[TextClassificationExample]
    batch: BatchConfig = BatchConfig()
    model: Annotated[ModelSection, MODELS.only("classifier", "fine-tuned-classifier")] = MODELS.default("classifier")
    loss: ClassLossConfig = ClassLossConfig()
    monitor: Literal["loss", "accuracy", "macro_f1", "matthews"] = "accuracy"  # dev metric for the best checkpoint
    train: FitConfig

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        yield from length_problems(self)


def length_problems(recipe: TaskRecipe) -> Iterator[str]:
    """Check the rules between keys about the lengths of single texts."""
    longest, length = recipe.model.longest, recipe.batch.max_length
    if has_backbone(recipe.model):  # `max_row_length` respects the maximum of the backbone
        if length is not None and length < 3:
            yield f"batch.max_length must be at least 3: a token between two special tokens; got {length}"
    elif longest is not None and (length is None or length > longest):
        yield f"batch.max_length must be at most {longest}, the positions of the encoder; got {length or 'null'}"
    if recipe.model.characters is not None and recipe.tokenizer is not None and recipe.tokenizer.kind == "characters":
        yield "model.characters needs a tokenizer of words, but tokenizer.kind is characters: leave one of them out"


class TextLabelTask(ReadingTask[R, Any], LabelTask[R, Any]):
    """A task whose model reads one or several texts per example and predicts a label."""

    @property
    def loss_remark(self) -> str:
        return self.recipe.loss.remark

    @cached_property
    def class_weights(self) -> Tensor | None:
        """w_k = N / (K · N_k) (L,), or None if all examples have the same weight."""
        if self.recipe.loss.class_weights == "none":
            return None
        counts = torch.bincount(torch.tensor(self.labels("train")), minlength=len(self.names))
        return counts.sum() / (len(counts) * counts.float())

    def loss(self, model: Any, batch: Tree, carry: Tree) -> Loss:
        weights, config = self.class_weights, self.recipe.loss
        if weights is not None:
            weights = weights.to(batch["tokens"].device, non_blocking=True)
        options = {"language_model": config.language_model} if config.language_model else {}
        value, count = model.loss(batch, weights, config.label_smoothing, config.consistency, **options)
        if weights is not None:  # the loss is a weighted mean
            count = (weights[batch["labels"].clamp(min=0)] * (batch["labels"] >= 0)).sum()
        return Loss(value, None, batch["read"], count)

    @torch.no_grad()
    def outputs(self, model: Any, split: str) -> Tensor:
        """Return log p (N, L) of every label of every example of a split, on the CPU."""
        return torch.stack(
            self.for_each_example(
                model, split, lambda batch: at_least_float32(model(batch)).log_softmax(dim=1).float().cpu()
            )
        )


class Task(TextLabelTask[Recipe]):
    corpus: Corpus[TextClassificationExample]
    measured_on = "texts with labels"

    @classmethod
    def training_texts(cls, recipe: Recipe, corpus: Corpus[TextClassificationExample]) -> Iterable[str]:
        return [example.text for example in corpus.split("train")]

    def sizes(self) -> dict[str, int]:
        return {"labels": len(self.names), **super().sizes()}

    def model(self) -> Any:
        model = super().model()
        if self.recipe.model.kind == "classifier":
            model.set_documents(*self.document_frequencies())
        return model

    def document_frequencies(self) -> tuple[Tensor, int]:
        """Return the number of training texts with each token (V,), and the number of texts."""
        texts = self.batches.texts
        rows = np.repeat(np.arange(len(texts)), texts.lengths)
        distinct = np.unique(rows * len(self.tokenizer) + texts.ids) % len(self.tokenizer)
        return torch.from_numpy(np.bincount(distinct, minlength=len(self.tokenizer))), len(texts)

    def reader(self) -> TextReader:
        return text_reader(self.recipe, self.tokenizer, self.spellings)

    def make_batches(self, split: str, *, tokens: int, shapes: int | None = None) -> TextBatches:
        values = {"labels": self.labels(split)}
        return self.reader().batches(self.plain_texts(split), values=values, tokens=tokens, shapes=shapes)

    def truncation_note(self, count: int) -> str:
        return (
            f"{count:,} of {len(self.batches):,} training texts {'is' if count == 1 else 'are'} longer than "
            f"{max_row_length(self.recipe)} tokens and truncated (batch.max_length)."
        )


INFO = TaskInfo(
    name="classify",
    recipe=Recipe,
    task=Task,
    predictor="seqloom.predict.classify:ClassifierPredictor",
    command="classify {run}",
    metric="accuracy",
    loss_per="text",
    example="a funny and moving story",
    views=("understand", "vectors", "walk", "heads", "cell"),
)
