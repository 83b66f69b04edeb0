"""Multiple choice: a model reads a text with each of its options. The loss is −log p of the correct option."""

from collections.abc import Sequence
from typing import Annotated, Literal

import torch

from seqloom.config import Discriminator, config
from seqloom.data.collate import ExampleRows
from seqloom.data.corpora import CorpusConfig
from seqloom.data.corpus import Corpus
from seqloom.data.examples import MultipleChoiceExample
from seqloom.data.text_inputs import RowReader
from seqloom.evaluate.answers import report_choices
from seqloom.evaluate.intervals import MetricReport
from seqloom.models.fine_tuned import FineTunedChoice, FineTunedChoiceConfig
from seqloom.tasks.base import TaskInfo
from seqloom.tasks.reading_base import RowBatchConfig, RowLossConfig, RowRecipe, RowTask
from seqloom.train.config import FitConfig


@config
class Recipe(RowRecipe):
    task: Literal["choice"] = "choice"
    data: CorpusConfig[MultipleChoiceExample]
    batch: RowBatchConfig = RowBatchConfig()
    model: Annotated[FineTunedChoiceConfig, Discriminator("kind")] = FineTunedChoiceConfig()
    loss: RowLossConfig = RowLossConfig()
    monitor: Literal["loss", "accuracy"] = "accuracy"  # dev metric that selects the best checkpoint
    train: FitConfig


class Task(RowTask[Recipe, FineTunedChoice]):
    corpus: Corpus[MultipleChoiceExample]

    def examples(self, reader: RowReader, split: str) -> list[ExampleRows]:
        return [reader.choice(choice.text, choice.options) for choice in self.corpus.split(split)]

    def targets(self, split: str) -> dict[str, Sequence[float]]:
        return {"answers": [choice.answer for choice in self.corpus.split(split)]}

    @torch.no_grad()
    def outputs(self, model: FineTunedChoice, split: str) -> list[list[float]]:
        """Return log p of each option of each example of a split."""
        rows: list[list[float]] = self.for_each_example(model, split, lambda batch: model.log_probs(batch).tolist())
        return [row[: len(choice.options)] for row, choice in zip(rows, self.corpus.split(split), strict=True)]

    def measure(self, outputs: Sequence[Sequence[float]], split: str) -> MetricReport:
        return report_choices([choice.answer for choice in self.corpus.split(split)], outputs)


INFO = TaskInfo(
    name="choice",
    recipe=Recipe,
    task=Task,
    predictor="seqloom.predict.matching:ChoicePredictor",
    command="choose {run}",
    pipeline_tag="multiple-choice",
    metric="accuracy",
    loss_per="example",
    examples="examples",
    views=("understand", "vectors"),
)
