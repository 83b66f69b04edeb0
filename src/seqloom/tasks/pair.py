"""Sentence pairs: a model reads two texts and predicts a label or a score.

    class    such as entailment     loss: −log p of the label
    score    such as similarity     loss: (y − ŷ)² / σ², with σ² the variance of the training scores

A score must not depend on the order of the texts. A causal backbone therefore reads both orders, and its outputs are
added (GPT, 2018). A bidirectional backbone reads one order.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import torch

from seqloom.config import Discriminator, config
from seqloom.core.errors import DataError
from seqloom.data.collate import ExampleRows
from seqloom.data.corpora import CorpusConfig
from seqloom.data.corpus import Corpus
from seqloom.data.examples import SentencePairExample, check_labels, scores_of
from seqloom.data.text_inputs import RowReader
from seqloom.evaluate import correlation
from seqloom.evaluate.intervals import MetricReport
from seqloom.models.backbones import backbone_class
from seqloom.models.fine_tuned import FineTunedPairConfig, mean_and_deviation
from seqloom.tasks.base import TaskInfo
from seqloom.tasks.classify import ClassLossConfig, TextLabelTask
from seqloom.tasks.reading_base import RowBatchConfig, RowRecipe, RowTask
from seqloom.train.config import FitConfig


@config
class Recipe(RowRecipe):
    task: Literal["pair"] = "pair"
    data: CorpusConfig[SentencePairExample]
    target: Literal["class", "score"] = "class"  # type of the labels: classes, or numbers
    # read each pair in both orders and add the outputs; null: for scores with a causal backbone
    symmetric: bool | None = None
    batch: RowBatchConfig = RowBatchConfig()
    model: Annotated[FineTunedPairConfig, Discriminator("kind")] = FineTunedPairConfig()
    loss: ClassLossConfig = ClassLossConfig()
    # dev metric that selects the best checkpoint; null: accuracy, or pearson for scores
    monitor: Literal["loss", "accuracy", "macro_f1", "matthews", "pearson", "spearman"] | None = None
    train: FitConfig

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        of_scores = ("pearson", "spearman")
        if self.monitor not in (None, "loss") and (self.monitor in of_scores) != (self.target == "score"):
            choice = "loss, pearson or spearman" if self.target == "score" else "loss, accuracy, macro_f1 or matthews"
            yield f"monitor must be {choice} with target={self.target}; got {self.monitor}"
        loss = self.loss
        if self.target == "score" and (loss.class_weights != "none" or loss.label_smoothing or loss.consistency):
            yield "loss.class_weights, loss.label_smoothing and loss.consistency require target=class"

    @property
    def both_orders(self) -> bool:
        """Whether the model reads each pair in both orders."""
        backbone = self.model.backbone
        causal = backbone is not None and backbone_class(backbone).form == "causal"
        return self.target == "score" and causal if self.symmetric is None else self.symmetric


class Task(TextLabelTask[Recipe], RowTask[Recipe, Any]):
    corpus: Corpus[SentencePairExample]

    @property
    def predicts_scores(self) -> bool:
        """Whether the labels are scores."""
        return self.recipe.target == "score"

    @classmethod
    def predicts_labels(cls, recipe: Recipe) -> bool:
        return recipe.target == "class"

    @classmethod
    def metric_of(cls, recipe: Recipe) -> str:
        return recipe.monitor or ("pearson" if recipe.target == "score" else "accuracy")

    @property
    def loss_unit(self) -> str:
        return "squared error / variance" if self.predicts_scores else super().loss_unit

    @classmethod
    def load(cls, recipe: Recipe) -> Corpus[SentencePairExample]:
        corpus: Corpus[SentencePairExample] = super().load(recipe)
        if recipe.target == "class":
            return check_labels(corpus)
        # Raises an error for labels that are not numbers
        scores = {split: scores_of(corpus, split) for split in corpus.splits}
        if len(scores.get("dev", ())) == 1:
            raise DataError(
                "With target=score, dev must have at least two pairs to compute a correlation, but it has one. Raise "
                "data.dev_fraction, or use more pairs."
            )
        return corpus

    def sizes(self) -> dict[str, int]:
        return {**({"scores": 1} if self.predicts_scores else {"labels": len(self.names)}), **super().sizes()}

    def model(self) -> Any:
        model = super().model()
        if self.predicts_scores:
            model.set_score_scale(*mean_and_deviation(scores_of(self.corpus, "train")))
        return model

    def examples(self, reader: RowReader, split: str) -> list[ExampleRows]:
        both = self.recipe.both_orders
        return [reader.pair(pair.first, pair.second, both) for pair in self.corpus.split(split)]

    def targets(self, split: str) -> dict[str, Sequence[float]]:
        return {"scores": scores_of(self.corpus, split)} if self.predicts_scores else {"labels": self.labels(split)}

    @torch.no_grad()
    def outputs(self, model: Any, split: str) -> Any:
        """Return log p of each label of each pair (N, L), or the score of each pair."""
        if not self.predicts_scores:
            return super().outputs(model, split)
        return self.for_each_example(model, split, lambda batch: model(batch).float().cpu().tolist())

    def measure(self, outputs: Any, split: str) -> Any:
        if not self.predicts_scores:
            return super().measure(outputs, split)
        correlations = correlation.report(scores_of(self.corpus, split), outputs)
        variance = mean_and_deviation(scores_of(self.corpus, "train"))[1] ** 2
        return MetricReport(
            {"loss": correlations.metrics["rmse"] ** 2 / variance, **correlations.metrics}, correlations.intervals
        )


INFO = TaskInfo(
    name="pair",
    recipe=Recipe,
    task=Task,
    predictor="seqloom.predict.matching:PairPredictor",
    command="match {run}",
    pipeline_tag="text-classification",
    metric="accuracy",
    loss_per="pair",
    examples="pairs",
    views=("understand", "vectors"),
)
