"""A bidirectional language model: every token is told from those before it, and from those after it.

Every document is read by itself, END before it and after it. A long one is cut into rows of
`batch.max_length` tokens, of which each begins with the token that the one before it ended with: so
in either direction every token, and one END, is told exactly once. Documents without a token are
left out. Rows of like length are read together.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import torch

from seqloom.config import Discriminator, config
from seqloom.config.constraints import Ge, PositiveInt
from seqloom.core.device import device_of
from seqloom.core.protocols import Loss
from seqloom.core.tree import Tree, to_device
from seqloom.data.batching import Ragged
from seqloom.data.collate import TextBatches
from seqloom.data.corpora import CorpusConfig
from seqloom.data.corpus import TextCounts
from seqloom.evaluate.perplexity import Totals, exp
from seqloom.models.bilm import BiLM, BiLMConfig
from seqloom.tasks.base import BatchedTask, TaskInfo
from seqloom.tasks.text_base import TextRecipe, TextTask, perplexity_metrics
from seqloom.text import END
from seqloom.train.config import FitConfig


@config
class BatchConfig:
    """How documents are cut into rows, and rows put together."""

    tokens: PositiveInt = 2048  # most of a batch: rows × longest, padding included
    max_length: Annotated[int, Ge(2)] = 128  # tokens of a row, END included
    max_shapes: PositiveInt | None = (
        None  # at most so many shapes of batches; null: as many as it takes, which pads less
    )
    eval_tokens: PositiveInt = 8192  # as `tokens`, when a split is evaluated


@config
class Recipe(TextRecipe):
    task: Literal["bidirectional-lm"] = "bidirectional-lm"
    data: CorpusConfig[str]
    batch: BatchConfig = BatchConfig()
    model: Annotated[BiLMConfig, Discriminator("kind")] = BiLMConfig()
    train: FitConfig


def rows_of(ids: Sequence[int], length: int) -> Iterator[list[int]]:
    """Cut END, tokens and END into rows; the last token of one is the first of the next."""
    whole = [END, *ids, END]
    for start in range(0, len(whole) - 1, length - 1):
        yield whole[start : start + length]


class Task(TextTask[Recipe, BiLM], BatchedTask[Recipe, BiLM]):
    def check(self) -> None:
        self.batches, self.read("dev")  # a split without a token is refused here

    def make_batches(self, split: str, *, tokens: int, shapes: int | None = None) -> TextBatches:
        length = self.recipe.batch.max_length
        encoded = self.tokenizer.encode_batch(self.corpus.split(split))
        rows = [row for ids in encoded if ids for row in rows_of(ids, length)]
        return TextBatches(Ragged.plain(rows), tokens=tokens, shapes=shapes)

    def loss(self, model: BiLM, batch: Tree, carry: Tree) -> Loss:
        return Loss(model.loss(batch), None, batch["read"], batch["mask"][:, 1:].sum())

    @torch.no_grad()
    def evaluate(self, model: BiLM, split: str) -> dict[str, float]:
        """Return the metrics of the mean of both directions, and the perplexity of each."""
        sums, tokens = torch.zeros(2, dtype=torch.float64), 0
        for _, batch in self.read(split).every():
            tokens += int(batch["mask"][:, 1:].sum())
            log_probs = model.log_probs(to_device(batch, device_of(model)))
            sums += torch.stack([direction.double().sum() for direction in log_probs]).cpu()
        forwards, backwards = (-sums).tolist()
        documents = self.corpus.split(split)
        encoded = self.tokenizer.encode_batch(documents)
        counts = TextCounts.of([document for document, ids in zip(documents, encoded, strict=True) if ids])
        metrics = perplexity_metrics(Totals((forwards + backwards) / 2, tokens), counts)
        return {
            **{name: metrics.pop(name) for name in ("loss", "perplexity")},
            "forward_perplexity": exp(forwards / tokens),
            "backward_perplexity": exp(backwards / tokens),
            **metrics,
            **self.tokenizer_metrics(split),
        }


INFO = TaskInfo(
    name="bidirectional-lm",
    recipe=Recipe,
    task=Task,
    predictor="seqloom.predict.embeddings:BidirectionalLMPredictor",
    command="embed {run}",
    metric="perplexity",
    views=("vectors", "cell"),
)
