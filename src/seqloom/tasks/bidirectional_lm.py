"""A bidirectional language model: every token is told from those before it, and from those after it.

Every document is read by itself, END before it and after it. A long one is cut into rows of `batch.max_length` tokens,
of which each begins with the token that the one before it ended with: so in either direction every token, and one END,
is told exactly once. Documents without a token are left out. Rows of like length are read together.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import torch

from seqloom.config import Discriminator, config
from seqloom.core.protocols import Loss
from seqloom.core.tree import Tree, to_device
from seqloom.data.batching import Ragged
from seqloom.data.collate import TextBatches
from seqloom.data.corpora import CorpusConfig
from seqloom.data.corpus import Counts, TextCorpus
from seqloom.evaluate.perplexity import Totals, exp, metrics
from seqloom.models.bilm import BiLMConfig
from seqloom.tasks.base import TaskInfo
from seqloom.tasks.language_model import TextTask, device_of
from seqloom.text import END, Tokenizer, TokenizerConfig
from seqloom.train.config import FitConfig


@config
class BatchConfig:
    """How documents are cut into rows, and rows put together."""

    tokens: int = 2048  # most of a batch: rows × longest, padding included
    max_length: int = 128  # tokens of a row, END included
    shapes: int | None = None  # at most so many shapes of batches; null for as many as it takes, which pads less
    eval_tokens: int = 8192  # as `tokens`, when a split is evaluated

    def problems(self) -> Iterator[str]:
        for name, least in (("tokens", 1), ("max_length", 2), ("shapes", 1), ("eval_tokens", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                yield f"{name} must be at least {least}, got {value}"


@config
class Recipe:
    task: Literal["bidirectional-lm"] = "bidirectional-lm"
    seed: int = 1
    data: CorpusConfig[str]
    tokenizer: TokenizerConfig
    batch: BatchConfig = BatchConfig()
    model: Annotated[BiLMConfig, Discriminator("kind")] = BiLMConfig()
    train: FitConfig

    def problems(self) -> Iterator[str]:
        if getattr(self.tokenizer, "dropout", 0):
            yield "tokenizer.dropout is for translation; set it to 0"


def rows_of(ids: Sequence[int], length: int) -> Iterator[list[int]]:
    """END and the tokens and END, in rows of at most `length`: the last token of one is the first of the next."""
    whole = [END, *ids, END]
    for start in range(0, len(whole) - 1, length - 1):
        yield whole[start : start + length]


class Task(TextTask):
    recipe: Recipe

    def __init__(self, recipe: Any, corpus: TextCorpus, tokenizer: Tokenizer):
        super().__init__(recipe, corpus, tokenizer)
        self._read: dict[str, TextBatches] = {}

    @classmethod
    def prepare(cls, recipe: Any) -> Self:
        task = super().prepare(recipe)
        task.batches, task.read("dev")  # a split without a token is refused here
        return task

    # --- data -------------------------------------------------------------------------------------------------------

    @cached_property
    def batches(self) -> TextBatches:
        """The training split, as training reads it."""
        return self._made("train", self.recipe.batch.tokens, self.recipe.batch.shapes)

    def read(self, split: str) -> TextBatches:
        """A split as it is evaluated."""
        if split not in self._read:
            self._read[split] = self._made(split, self.recipe.batch.eval_tokens)
        return self._read[split]

    def _made(self, split: str, tokens: int, shapes: int | None = None) -> TextBatches:
        length = self.recipe.batch.max_length
        encoded = self.tokenizer.encode_batch(self.corpus.split(split))
        rows = [row for ids in encoded if ids for row in rows_of(ids, length)]
        return TextBatches(Ragged.plain(rows), tokens=tokens, shapes=shapes)

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

    # --- training and measuring -------------------------------------------------------------------------------------

    def loss(self, model: Any, batch: Tree, carry: Tree) -> Loss:
        """Every row is read by itself, so nothing is carried. What is counted are the tokens read."""
        return Loss(model.loss(batch), None, batch["read"], batch["mask"][:, 1:].sum())

    @torch.no_grad()
    def evaluate(self, model: Any, split: str) -> dict[str, float]:
        """The figures of a language model, of the mean of both directions; and the perplexity of each."""
        sums, tokens = torch.zeros(2, dtype=torch.float64), 0
        for _, batch in self.read(split).every():
            tokens += int(batch["mask"][:, 1:].sum())
            sums += torch.stack(
                [one.double().sum() for one in model.log_probs(to_device(batch, device_of(model)))]
            ).cpu()
        forwards, backwards = (-sums).tolist()
        counts = self._counts(split)
        found = metrics(
            Totals((forwards + backwards) / 2, tokens),
            words=counts.words,
            characters=counts.characters,
            size=counts.bytes,
        )
        both = {name: found.pop(name) for name in ("loss", "perplexity")}
        return {
            **both,
            "forward_perplexity": exp(forwards / tokens),
            "backward_perplexity": exp(backwards / tokens),
            **found,
            "unknown_rate": self.unknown_rate(split),
            "text_kept": self.text_kept(split),
        }

    def _counts(self, split: str) -> Counts:
        """Of the documents that are read."""
        documents = self.corpus.split(split)
        encoded = self.tokenizer.encode_batch(documents)
        return Counts.of([document for document, ids in zip(documents, encoded, strict=True) if ids])


INFO = TaskInfo(
    name="bidirectional-lm",
    recipe=Recipe,
    task=Task,
    forms=("text",),
    predictor="seqloom.predict.embeddings:BidirectionalLM",
    command="embed {run}",
    metric="perplexity",
    views=("vectors", "cell"),
)
