"""Bidirectional language modelling: predict every token from the previous tokens and from the following tokens.

Each document is read separately, with END at both ends. If a document is long, it is split into rows of
`batch.max_length` tokens that overlap by one token. Each direction therefore predicts every token and one END exactly
once. Documents without tokens are omitted. Rows of similar length form batches.
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
    """Batches of rows of documents."""

    tokens: PositiveInt = 2048  # maximum batch size: rows × length of the longest row, including padding
    max_length: Annotated[int, Ge(2)] = 128  # maximum length of a row in tokens, including END
    # maximum number of different batch shapes; null: no limit, which needs less padding
    max_shapes: PositiveInt | None = None
    eval_tokens: PositiveInt = 8192  # as `tokens`, for evaluation


@config
class Recipe(TextRecipe):
    task: Literal["bidirectional-lm"] = "bidirectional-lm"
    data: CorpusConfig[str]
    batch: BatchConfig = BatchConfig()
    model: Annotated[BiLMConfig, Discriminator("kind")] = BiLMConfig()
    train: FitConfig


def rows_of(ids: Sequence[int], length: int) -> Iterator[list[int]]:
    """Split the tokens of a document, with END at both ends, into rows that overlap by one token."""
    tokens = [END, *ids, END]
    for start in range(0, len(tokens) - 1, length - 1):
        yield tokens[start : start + length]


class Task(TextTask[Recipe, BiLM], BatchedTask[Recipe, BiLM]):
    def check(self) -> None:
        self.batches, self.eval_batches("dev")  # raises an error for a split without tokens

    def make_batches(self, split: str, *, tokens: int, shapes: int | None = None) -> TextBatches:
        length = self.recipe.batch.max_length
        encoded = self.tokenizer.encode_batch(self.corpus.split(split))
        rows = [row for ids in encoded if ids for row in rows_of(ids, length)]
        return TextBatches(Ragged.plain(rows), tokens=tokens, shapes=shapes)

    def loss(self, model: BiLM, batch: Tree, carry: Tree) -> Loss:
        return Loss(model.loss(batch), None, batch["read"], batch["mask"][:, 1:].sum())

    @torch.no_grad()
    def evaluate(self, model: BiLM, split: str) -> dict[str, float]:
        """Return the metrics of the mean loss over both directions, and the perplexity of each direction."""
        sums, tokens = torch.zeros(2, dtype=torch.float64), 0
        for _, batch in self.eval_batches(split).all_batches():
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
    pipeline_tag="feature-extraction",
    metric="perplexity",
    views=("vectors", "cell"),
)
