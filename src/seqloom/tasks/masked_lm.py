"""A masked language model: it learns to tell tokens that are hidden, and whether one text follows another.

objective: mlm        documents packed into rows of `batch.max_length`, none seen from another (RoBERTa)
objective: mlm+nsp    pairs of texts, of which the second follows the first or is from elsewhere (BERT)

The loss is that of the hidden tokens, and with pairs the sum of it and of theirs. Dev and test are read with masks, and
pairs, that are drawn once and for all: two evaluations of a split ask the same.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.core.config import Discriminator, config
from seqloom.core.errors import DataError
from seqloom.core.protocols import Goal, Loss
from seqloom.core.specials import Specials
from seqloom.core.tree import Tree, to_device
from seqloom.core.words import counted
from seqloom.data.corpora import CorpusConfig
from seqloom.data.corpus import SPLITS, Corpus
from seqloom.data.masked_batches import MaskedBatches, Masking
from seqloom.data.masking import NONE, MasksConfig
from seqloom.data.packing import Packed, pack
from seqloom.data.sentence_pairs import SentencePairs
from seqloom.data.sentences import sentences
from seqloom.evaluate.perplexity import exp
from seqloom.models.bert import BERTConfig
from seqloom.nn.softmax import precise
from seqloom.runs.run import Run
from seqloom.tasks.language_model import TextTask, device_of
from seqloom.text import Tokenizer, TokenizerConfig
from seqloom.train.fit import FitConfig

EVALUATION = 0  # the seed of the masks of an evaluation, whatever the recipe's
LEAST = 8  # tokens of a row: room for [CLS] a [SEP] b [SEP] with two tokens in each


@config
class BatchConfig:
    """How documents are cut into rows."""

    rows: int = 32  # read side by side
    max_length: int = 128  # tokens of a row, [CLS] and [SEP] included
    eval_rows: int = 64  # rows in evaluation

    def problems(self) -> Iterator[str]:
        for name, least in (("rows", 1), ("max_length", LEAST), ("eval_rows", 1)):
            if getattr(self, name) < least:
                yield f"{name} must be at least {least}, got {getattr(self, name)}"


@config
class Recipe:
    task: Literal["masked-lm"] = "masked-lm"
    seed: int = 1
    objective: Literal["mlm", "mlm+nsp"] = "mlm+nsp"  # masked tokens alone, or next sentences too
    masking: Masking = "dynamic"  # other masks in every epoch, or (static) always those of the first
    masks: MasksConfig = MasksConfig()
    data: CorpusConfig
    tokenizer: TokenizerConfig
    batch: BatchConfig = BatchConfig()
    model: Annotated[BERTConfig, Discriminator("kind")] = BERTConfig()
    train: FitConfig

    def problems(self) -> Iterator[str]:
        longest = self.model.longest
        if longest is not None and self.batch.max_length > longest:
            yield (
                f"batch.max_length must be at most {longest}, what the model reads at once (model.context, "
                f"model.positions.max_length); got {self.batch.max_length}"
            )
        if getattr(self.tokenizer, "dropout", 0):
            yield "tokenizer.dropout is for translation; set it to 0"


class Task(TextTask):
    recipe: Recipe

    def __init__(self, recipe: Any, corpus: Corpus, tokenizer: Tokenizer):
        super().__init__(recipe, corpus, tokenizer)
        self.specials = Specials.after(len(tokenizer))
        self.goal = Goal("loss", unit="nats per masked token" + " and pair" * self.pairs)
        self._batches: dict[str, MaskedBatches] = {}

    @classmethod
    def prepare(cls, recipe: Any) -> Self:
        task = super().prepare(recipe)
        task.batches, task.read("dev")  # what cannot be made into rows is refused here
        return task

    @classmethod
    def of_documents(cls, recipe: Any, run: Run, documents: Sequence[str]) -> Self:
        """Another text, which may be a single document: it is asked for its masked tokens alone."""
        return super().of_documents(replace(recipe, objective="mlm"), run, documents)

    @property
    def pairs(self) -> bool:
        return self.recipe.objective == "mlm+nsp"

    # --- data -------------------------------------------------------------------------------------------------------

    @cached_property
    def batches(self) -> MaskedBatches:
        """The training split, as training reads it."""
        return self._made("train")

    def read(self, split: str) -> MaskedBatches:
        """A split as it is evaluated."""
        if split not in self._batches:
            self._batches[split] = made = self._made(split)
            if (made.epoch(EVALUATION, 0)["targets"] == NONE).all():
                raise DataError(
                    f"{self._named(split)} is too short: none of its tokens is hidden (masks.share is "
                    f"{self.recipe.masks.share:g}), so there is nothing to measure. Give more text."
                )
        return self._batches[split]

    def _named(self, split: str) -> str:
        return f"The {split} split of {self.corpus.name}" if split in SPLITS else "The text"

    def _made(self, split: str) -> MaskedBatches:
        recipe = self.recipe
        return MaskedBatches(
            self._pairs(split) if self.pairs else self._packed(split),
            masks=recipe.masks,
            masking=recipe.masking,
            specials=self.specials,
            vocabulary=len(self.tokenizer),
            rows=recipe.batch.rows,
        )

    def _packed(self, split: str) -> Packed:
        texts = list(self.tokenizer.encode_batch(self.corpus.split(split)))
        if not any(texts):
            raise DataError(f"{self._named(split)} has no tokens: there is nothing to hide.")
        return pack(texts, self.specials, self.recipe.batch.max_length)

    def _pairs(self, split: str) -> SentencePairs:
        cut = [sentences(document) for document in self.corpus.split(split)]
        encoded = iter(self.tokenizer.encode_batch(sentence for document in cut for sentence in document))
        documents = [[next(encoded) for _ in document] for document in cut]
        return SentencePairs(documents, self.specials, self.recipe.batch.max_length, f"the {split} split")

    def warnings(self) -> list[str]:
        return [*self._left_out(), *self._few_rows()]

    def _left_out(self) -> Iterator[str]:
        source, documents = self.batches.source, len(self.corpus.split("train"))
        if isinstance(source, SentencePairs) and source.alone:
            yield (
                f"{source.alone:,} of {documents:,} training documents have one sentence: they make no pair, and are "
                "left out (objective=mlm reads them too)."
            )

    def _few_rows(self) -> Iterator[str]:
        made, wanted = self.batches.total, self.recipe.batch.rows
        if made < wanted:
            yield (
                f"The training text makes {counted(made, 'row')}, fewer than batch.rows, {wanted}: every step reads "
                "all of it. Give more text, or lower batch.rows or batch.max_length."
            )

    def steps_per_epoch(self) -> int:
        return self.batches.steps_per_epoch

    def tokens_per_step(self) -> float:
        """On average."""
        return float(self.batches.epoch(self.recipe.seed, 0)["mask"].sum()) / self.batches.total * self.batches.rows

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        return self.batches.batch(seed, step, rank, world)

    # --- training and measuring -------------------------------------------------------------------------------------

    def loss(self, model: Any, batch: Tree, carry: Tree) -> Loss:
        """Every row is read by itself, so nothing is carried. What is counted are the tokens read."""
        return Loss(model.loss(batch), None, batch["read"])

    @torch.no_grad()
    def evaluate(self, model: Any, split: str) -> dict[str, float]:
        sums = torch.zeros(6, dtype=torch.float64)
        for batch in self.read(split).every(EVALUATION, self.recipe.batch.eval_rows):
            sums += _sums(model, to_device(batch, device_of(model))).cpu()
        masked, right, chosen, unfit, told, pairs = sums.tolist()
        masked_loss = masked / chosen
        found = {
            "loss": masked_loss + (unfit / pairs if self.pairs else 0.0),
            "masked_loss": masked_loss,
            "masked_perplexity": exp(masked_loss),
            "masked_accuracy": right / chosen,
        }
        if self.pairs:
            found |= {"next_loss": unfit / pairs, "next_accuracy": told / pairs}
        return {**found, "unknown_rate": self.unknown_rate(split)}


def _sums(model: Any, batch: Tree) -> Tensor:
    """Of a batch: −log p of its chosen tokens, how many were told right, how many there were; the same of its pairs."""
    told, targets = model(batch), batch["targets"]
    logits, known = precise(told.masked), targets >= 0
    losses = F.cross_entropy(logits.flatten(0, 1), targets.clamp(min=0).flatten(), reduction="none").view_as(targets)
    right = logits.argmax(dim=2) == targets  # never where nothing was chosen
    found = [losses.where(known, 0).sum(), right.sum(), known.sum()]
    if "other" in batch:
        answers, other = precise(told.next), batch["other"]
        agreed = answers.argmax(dim=1) == other
        found += [F.cross_entropy(answers, other, reduction="sum"), agreed.sum(), torch.ones_like(other).sum()]
    else:
        found += [known.new_zeros(())] * 3
    return torch.stack([one.double() for one in found])
