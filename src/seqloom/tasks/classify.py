"""Text classification: a model reads a text and predicts its label, or any number of labels.

The model predicts only labels of the training data; a dev or test text with another label counts as an error. The loss
is −log p of the label. With balanced class weights, w_k = N / (K · N_k), all K classes have the same total weight.

If the data has several labels per text (`data.multi_label`), each label is a separate decision. The loss is the binary
cross-entropy. With balanced class weights, the texts with label k have the weight (N − N_k) / N_k for this label.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom.config import config
from seqloom.config.constraints import Fraction, NonNegativeFloat
from seqloom.core.protocols import Loss
from seqloom.core.tree import Tree
from seqloom.data.collate import TextBatches
from seqloom.data.corpora import CorpusConfig, is_multi_label
from seqloom.data.corpus import Corpus
from seqloom.data.examples import MultiLabelExample, TextClassificationExample
from seqloom.data.text_inputs import TextReader
from seqloom.evaluate import multi_label
from seqloom.models import MODELS, has_backbone
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

SINGLE_LABEL_METRICS = ("accuracy", "matthews")
MULTI_LABEL_METRICS = ("average_precision", "micro_f1", "samples_f1", "subset_accuracy")
ClassMetric = Literal[
    "loss", "macro_f1", "accuracy", "matthews", "average_precision", "micro_f1", "samples_f1", "subset_accuracy"
]


@config
class ClassLossConfig:
    class_weights: Literal["none", "balanced"] = "none"  # balanced: all classes have the same total weight
    label_smoothing: Fraction = 0.0  # ε: the loss is (1 − ε) · (−log p) + ε · the mean of −log p over the labels
    # α: weight of the divergence between two passes with different dropout masks (R-Drop)
    consistency: NonNegativeFloat = 0.0
    # λ: add λ times the language-model loss of a causal backbone on the same texts
    language_model: NonNegativeFloat = 0.0

    @property
    def remark(self) -> str:
        """A remark on how the training loss differs from the dev loss."""
        changes = ["smoothed"] * bool(self.label_smoothing) + ["weighted"] * (self.class_weights != "none")
        changes += ["with consistency"] * bool(self.consistency)
        changes += ["with language model"] * bool(self.language_model)
        return ", ".join(changes)


@config
class Recipe(ReadingRecipe):
    task: Literal["classify"] = "classify"
    data: CorpusConfig[TextClassificationExample | MultiLabelExample]
    batch: BatchConfig = BatchConfig()
    model: Annotated[ModelSection, MODELS.only("classifier", "fine-tuned-classifier")] = MODELS.default("classifier")
    loss: ClassLossConfig = ClassLossConfig()
    # dev metric that selects the best checkpoint; null: accuracy, or average_precision
    monitor: ClassMetric | None = None
    train: FitConfig

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        yield from length_problems(self)
        other = SINGLE_LABEL_METRICS if self.is_multi_label else MULTI_LABEL_METRICS
        if self.monitor in other:
            kind = "several labels" if self.is_multi_label else "a single label"
            allowed = MULTI_LABEL_METRICS if self.is_multi_label else SINGLE_LABEL_METRICS
            yield f"monitor must be loss, macro_f1, {' or '.join(allowed)} with {kind} per text; got {self.monitor}"
        if self.is_multi_label and self.loss.consistency:
            yield "loss.consistency needs a single label per text; remove it"

    @property
    def is_multi_label(self) -> bool:
        """Whether a text can have any number of labels."""
        return is_multi_label(self.data)


def length_problems(recipe: TaskRecipe) -> Iterator[str]:
    """Check that the maximum text length is consistent with the model and the tokenizer."""
    longest, length = recipe.model.longest, recipe.batch.max_length
    if has_backbone(recipe.model):  # `max_row_length` respects the maximum of the backbone
        if length is not None and length < 3:
            yield f"batch.max_length must be at least 3: a token between two special tokens; got {length}"
    elif longest is not None and (length is None or length > longest):
        yield f"batch.max_length must be at most {longest}, the positions of the encoder; got {length or 'null'}"
    if recipe.model.characters is not None and recipe.tokenizer is not None and recipe.tokenizer.kind == "characters":
        yield "model.characters needs a tokenizer of words, but tokenizer.kind is characters: leave one of them out"


class TextLabelTask(ReadingTask[R, Any], LabelTask[R, Any]):
    """A task whose model reads one or more texts per example and predicts a label."""

    @property
    def loss_remark(self) -> str:
        return self.recipe.loss.remark

    @cached_property
    def class_weights(self) -> Tensor | None:
        """The class weights w_k = N / (K · N_k) (L,), or None if all examples have the same weight."""
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
        if weights is not None and not model.multi_label:  # the loss is a weighted mean
            count = (weights[batch["labels"].clamp(min=0)] * (batch["labels"] >= 0)).sum()
        return Loss(value, None, batch["read"], count)

    @torch.no_grad()
    def outputs(self, model: Any, split: str) -> Tensor:
        """Return log p (N, L) of every label of every example of a split, on the CPU."""
        return torch.stack(self.for_each_example(model, split, lambda batch: model.log_probs(batch).float().cpu()))


class Task(TextLabelTask[Recipe]):
    corpus: Corpus[TextClassificationExample]
    measured_on = "texts with labels"

    @classmethod
    def training_texts(cls, recipe: Recipe, corpus: Corpus[TextClassificationExample]) -> Iterable[str]:
        return [example.text for example in corpus.split("train")]

    @classmethod
    def metric_of(cls, recipe: Recipe) -> str:
        return recipe.monitor or ("average_precision" if recipe.is_multi_label else "accuracy")

    @property
    def loss_unit(self) -> str:
        return "nats per label" if self.recipe.is_multi_label else super().loss_unit

    def sizes(self) -> dict[str, int]:
        several = {"multi_label": 1} if self.recipe.is_multi_label else {}
        return {"labels": len(self.names), **several, **super().sizes()}

    def model(self) -> Any:
        model = super().model()
        if self.recipe.model.kind == "classifier":
            model.set_documents(*self.document_frequencies())
        return model

    def document_frequencies(self) -> tuple[Tensor, int]:
        """Return the number of training texts that contain each token (V,), and the number of training texts."""
        texts = self.batches.texts
        rows = np.repeat(np.arange(len(texts)), texts.lengths)
        distinct = np.unique(rows * len(self.tokenizer) + texts.ids) % len(self.tokenizer)
        return torch.from_numpy(np.bincount(distinct, minlength=len(self.tokenizer))), len(texts)

    def reader(self) -> TextReader:
        return text_reader(self.recipe, self.tokenizer, self.spellings)

    def make_batches(self, split: str, *, tokens: int, shapes: int | None = None) -> TextBatches:
        values = {"labels": self.label_matrix(split) if self.recipe.is_multi_label else self.labels(split)}
        return self.reader().batches(self.plain_texts(split), values=values, tokens=tokens, shapes=shapes)

    def truncation_note(self, count: int) -> str:
        return (
            f"{count:,} of {len(self.batches):,} training texts {'is' if count == 1 else 'are'} longer than "
            f"{max_row_length(self.recipe)} tokens and truncated (batch.max_length)."
        )

    # --- multi-label data -------------------------------------------------------------------------------------------

    def label_sets(self, split: str) -> list[Sequence[str]]:
        """Return the labels of each text."""
        return [example.labels() for example in self.corpus.split(split)]

    def label_matrix(self, split: str) -> NDArray[np.int8]:
        """Return a matrix (N, L) that is 1 if a text has a label and 0 otherwise."""
        return multi_label.label_matrix(self.label_sets(split), self.names)

    @cached_property
    def class_weights(self) -> Tensor | None:
        """The class weights (L,). With several labels per text, these are the weights of the texts with each label."""
        if not self.recipe.is_multi_label or self.recipe.loss.class_weights == "none":
            return super().class_weights
        present = torch.from_numpy(self.label_matrix("train").sum(axis=0, dtype=np.int64)).float()
        return (len(self.corpus.split("train")) - present) / present

    @torch.no_grad()
    def outputs(self, model: Any, split: str) -> Tensor:
        """Return log p (N, L) of every label of every example of a split.

        With several labels per text, return logits.
        """
        if not self.recipe.is_multi_label:
            return super().outputs(model, split)
        return torch.stack(self.for_each_example(model, split, lambda batch: model.scaled_logits(batch).float().cpu()))

    def measure(self, outputs: Tensor, split: str, thresholds: Sequence[float] | None = None) -> Any:
        """Compute all metrics from the outputs. `thresholds` are used for data with several labels per text."""
        if not self.recipe.is_multi_label:
            return super().measure(outputs, split)
        return multi_label.report(self.label_sets(split), outputs.numpy(), self.names, thresholds)

    def report(self, model: Any, split: str) -> Any:
        """Evaluate a model. With several labels per text, the thresholds on dev maximize F1, as after training."""
        outputs, thresholds = self.outputs(model, split), None
        if self.recipe.is_multi_label and split == "dev":
            thresholds = multi_label.f1_thresholds(outputs.numpy(), self.label_matrix("dev"))
        return self.measure(outputs, split, thresholds)


INFO = TaskInfo(
    name="classify",
    recipe=Recipe,
    task=Task,
    predictor="seqloom.predict.classify:ClassifierPredictor",
    command="classify {run}",
    pipeline_tag="text-classification",
    metric="accuracy",
    loss_per="text",
    example="a funny and moving story",
    views=("understand", "vectors", "walk", "heads", "cell"),
)
