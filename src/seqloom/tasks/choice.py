"""Choices: a model reads a text with each of its options and says which is right. −log p of that one is made small."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import torch

from seqloom.config import Discriminator, config
from seqloom.core.protocols import Loss, Monitor
from seqloom.core.tree import Tree, to_device
from seqloom.data import corpora
from seqloom.data.corpora import CorpusConfig
from seqloom.data.corpus import Corpus
from seqloom.data.examples import MultipleChoiceExample
from seqloom.data.row_readers import RowReader
from seqloom.evaluate.choices import report
from seqloom.evaluate.figures import Figures
from seqloom.models.matching import FineTunedChoiceConfig
from seqloom.nn.softmax import at_least_float32
from seqloom.runs.init import InitConfig
from seqloom.tasks.base import TaskInfo
from seqloom.tasks.language_model import device_of
from seqloom.tasks.pair import BatchConfig, RowTask, row_problems
from seqloom.text import Tokenizer, TokenizerConfig
from seqloom.train.config import FitConfig


@config
class LossConfig:
    language_model: float = 0.0  # λ: of a causal body, add λ · the loss of a language model on the same rows

    def problems(self) -> Iterator[str]:
        if self.language_model < 0:
            yield f"language_model must be at least 0, got {self.language_model}"

    def unit(self, of: str) -> str:
        """What the training loss is; only that of `nats` may be compared with dev's."""
        return f"nats per {of}" + (", with a language model's" if self.language_model else "")


@config
class Recipe:
    task: Literal["choice"] = "choice"
    seed: int = 1
    init: InitConfig | None = None  # begin with a run that was trained on something else
    data: CorpusConfig[MultipleChoiceExample]
    tokenizer: TokenizerConfig | None = None  # with init, that of the run
    batch: BatchConfig = BatchConfig()
    model: Annotated[FineTunedChoiceConfig, Discriminator("kind")] = FineTunedChoiceConfig()
    loss: LossConfig = LossConfig()
    goal: Literal["loss", "accuracy"] = "accuracy"  # which figure of dev chooses the best
    train: FitConfig

    def problems(self) -> Iterator[str]:
        yield from row_problems(self)


class Task(RowTask):
    corpus: Corpus[MultipleChoiceExample]
    command = "choose {run} < choices.tsv"

    def __init__(self, recipe: Recipe, corpus: Corpus[MultipleChoiceExample], tokenizer: Tokenizer):
        super().__init__(recipe, corpus, tokenizer)
        self.monitor = Monitor(recipe.goal, higher_is_better=recipe.goal != "loss", unit=recipe.loss.unit("example"))

    @classmethod
    def metric_of(cls, recipe: Recipe) -> str:
        return recipe.goal

    @classmethod
    def load(cls, recipe: Recipe) -> Corpus[MultipleChoiceExample]:
        return corpora.load(recipe.data)

    def plain_texts(self, split: str) -> list[str]:
        return ["\n".join(choice.texts()) for choice in self.corpus.split(split)]

    def examples(self, reader: RowReader, split: str) -> Any:
        return [reader.choice(choice.text, choice.options) for choice in self.corpus.split(split)]

    def values(self, split: str) -> dict[str, Sequence[float]]:
        return {"answers": [choice.answer for choice in self.corpus.split(split)]}

    def loss(self, model: Any, batch: Tree, carry: Tree) -> Loss:
        """Every example is read by itself, so nothing is carried. What is counted are the tokens read."""
        value, count = model.loss(batch, self.recipe.loss.language_model)
        return Loss(value, None, batch["read"], count)

    def evaluate(self, model: Any, split: str) -> dict[str, float]:
        return self.report(model, split).metrics

    def report(self, model: Any, split: str) -> Figures:
        """Every figure of a split."""
        return self.figures(self.log_probs(model, split), split)

    def figures(self, log_probs: Sequence[Sequence[float]], split: str) -> Figures:
        """Every figure, given what a model thought of each option."""
        return report([choice.answer for choice in self.corpus.split(split)], log_probs)

    @torch.no_grad()
    def log_probs(self, model: Any, split: str) -> list[list[float]]:
        """log p of every option of every example of a split."""
        choices = self.corpus.split(split)
        found: list[list[float]] = [[] for _ in choices]
        for members, batch in self.read(split).every():
            rows = at_least_float32(model(to_device(batch, device_of(model)))).log_softmax(dim=1).tolist()
            for place, row in zip(members.tolist(), rows, strict=False):
                found[place] = row[: len(choices[place].options)]
        return found


INFO = TaskInfo(
    name="choice",
    recipe=Recipe,
    task=Task,
    forms=("choices",),
    predictor="seqloom.predict.matcher:Chooser",
    command="choose {run}",
    metric="accuracy",
    loss_per="example",
    examples="examples",
    views=("understand", "vectors"),
)
