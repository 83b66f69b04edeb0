"""A masked language model: it learns to tell tokens that are hidden, and whether one text follows another.

objective: mlm        documents packed into rows of `batch.max_length`, none seen from another (RoBERTa)
objective: mlm+nsp    pairs of texts, of which the second follows the first or is from elsewhere (BERT)
objective: electra    as mlm; a generator fills the gaps, and the model tells which tokens it replaced (ELECTRA)

The loss is that of the hidden tokens, and with pairs the sum of it and of theirs, with a generator that of both. Dev
and test are read with masks, pairs and replacements that are drawn once and for all: two evaluations ask the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.config import Discriminator, config
from seqloom.config.constraints import Ge, PositiveInt
from seqloom.core.device import device_of
from seqloom.core.errors import DataError
from seqloom.core.protocols import Loss
from seqloom.core.seeding import generator
from seqloom.core.tokens import Specials
from seqloom.core.tree import Tree, to_device
from seqloom.core.words import counted
from seqloom.data.corpora import CorpusConfig
from seqloom.data.corpus import SPLITS
from seqloom.data.masking import NONE, MaskedBatches, Masking, MasksConfig, NextSentencePairs, Packed, pack
from seqloom.evaluate.perplexity import exp
from seqloom.models.bert import BERTConfig
from seqloom.models.electra import Detected, Electra, ElectraConfig
from seqloom.nn.softmax import at_least_float32
from seqloom.tasks.base import BatchedTask, TaskInfo, TaskRecipe, dropout_problems
from seqloom.tasks.text_base import TextTask
from seqloom.text import TokenizerConfig
from seqloom.text.pieces import split_sentences
from seqloom.train.config import FitConfig

if TYPE_CHECKING:
    from seqloom.runs.run import Run

EVALUATION = 0  # the seed of the masks of an evaluation, whatever the recipe's
ALL_HIDDEN = (1.0, 0.0)  # shares of the chosen tokens that are hidden, and swapped
LEAST = 8  # tokens of a row: room for [CLS] a [SEP] b [SEP] with two tokens in each


@config
class BatchConfig:
    """How documents are cut into rows."""

    rows: PositiveInt = 32  # read side by side
    max_length: Annotated[int, Ge(LEAST)] = 128  # tokens of a row, [CLS] and [SEP] included
    eval_rows: PositiveInt = 64  # rows in evaluation


@config
class Recipe(TaskRecipe):
    task: Literal["masked-lm"] = "masked-lm"
    objective: Literal["mlm", "mlm+nsp", "electra"] = "mlm+nsp"  # masked tokens; next sentences too; or replaced tokens
    masking: Masking = "dynamic"  # other masks in every epoch, or (static) always those of the first
    masks: MasksConfig = MasksConfig()
    data: CorpusConfig[str]
    tokenizer: TokenizerConfig
    batch: BatchConfig = BatchConfig()
    model: Annotated[BERTConfig | ElectraConfig, Discriminator("kind")] = BERTConfig()
    train: FitConfig

    def problems(self) -> Iterator[str]:
        yield from dropout_problems(self.tokenizer)
        longest = self.model.longest
        if longest is not None and self.batch.max_length > longest:
            yield (
                f"batch.max_length must be at most {longest}, what the model reads at once (model.context, "
                f"model.positions.max_length); got {self.batch.max_length}"
            )
        if isinstance(self.model, ElectraConfig) != (self.objective == "electra"):
            yield f"model.kind electra and objective electra go together; got {self.model.kind} and {self.objective}"
        if self.objective == "electra" and (self.masks.hidden, self.masks.swapped) != ALL_HIDDEN:
            yield (
                "with objective electra every chosen token is hidden, for the generator to fill in: leave masks.hidden "
                f"and masks.swapped out; got {self.masks.hidden:g} and {self.masks.swapped:g}"
            )


class Task(TextTask, BatchedTask):
    recipe: Recipe

    def check(self) -> None:
        self.batches, self.read("dev")  # what cannot be made into rows is refused here

    def loss_unit(self) -> str:
        if isinstance(self.recipe.model, ElectraConfig):
            return f"nats per masked token + {self.recipe.model.detection:g} times per token"
        return "nats per masked token" + " and pair" * self.pairs

    @classmethod
    def complete(cls, mapping: Mapping[str, Any]) -> dict[str, Any]:
        """With `objective: electra`, make a bert an electra of the same shape, and let all masks hide."""
        if mapping.get("objective") != "electra":
            return dict(mapping)
        model, masks = (mapping.get(name) or {} for name in ("model", "masks"))
        found = dict(mapping)
        if isinstance(model, Mapping) and model.get("kind", "bert") == "bert":
            found["model"] = {**model, "kind": "electra"}
        if isinstance(masks, Mapping):
            found["masks"] = {"hidden": ALL_HIDDEN[0], "swapped": ALL_HIDDEN[1], **masks}
        return found

    @classmethod
    def of_documents(cls, recipe: Any, run: "Run", documents: Sequence[str]) -> Self:
        """Another text, which may be a single document: it is asked for no next sentences."""
        alone = "mlm" if recipe.objective == "mlm+nsp" else recipe.objective
        return super().of_documents(replace(recipe, objective=alone), run, documents)

    @property
    def specials(self) -> Specials:
        return Specials.after(len(self.tokenizer))

    @property
    def pairs(self) -> bool:
        return self.recipe.objective == "mlm+nsp"

    # --- data -------------------------------------------------------------------------------------------------------

    @cached_property
    def batches(self) -> MaskedBatches:
        return self._make_batches("train")

    def read(self, split: str) -> MaskedBatches:
        if split not in self._read:
            self._read[split] = made = self._make_batches(split)
            if (made.epoch(EVALUATION, 0)["targets"] == NONE).all():
                raise DataError(
                    f"{self._named(split)} is too short: none of its tokens is hidden (masks.share is "
                    f"{self.recipe.masks.share:g}), so there is nothing to measure. Give more text."
                )
        found: MaskedBatches = self._read[split]
        return found

    def _named(self, split: str) -> str:
        return f"The {split} split of {self.corpus.name}" if split in SPLITS else "The text"

    def _make_batches(self, split: str) -> MaskedBatches:
        recipe = self.recipe
        return MaskedBatches(
            self._pairs(split) if self.pairs else self._packed(split),
            masks=recipe.masks,
            masking=recipe.masking,
            specials=self.specials,
            vocabulary=len(self.tokenizer),
            size=recipe.batch.rows,
        )

    def _packed(self, split: str) -> Packed:
        texts = list(self.tokenizer.encode_batch(self.corpus.split(split)))
        if not any(texts):
            raise DataError(f"{self._named(split)} has no tokens: there is nothing to hide.")
        return pack(texts, self.specials, self.recipe.batch.max_length)

    def _pairs(self, split: str) -> NextSentencePairs:
        cut = [split_sentences(document) for document in self.corpus.split(split)]
        encoded = iter(self.tokenizer.encode_batch(sentence for document in cut for sentence in document))
        documents = [[next(encoded) for _ in document] for document in cut]
        return NextSentencePairs(documents, self.specials, self.recipe.batch.max_length, f"the {split} split")

    def warnings(self) -> list[str]:
        return [*self._left_out(), *self._few_rows()]

    def _left_out(self) -> Iterator[str]:
        source, documents = self.batches.source, len(self.corpus.split("train"))
        if isinstance(source, NextSentencePairs) and source.alone:
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

    def largest_step(self, seed: int) -> None:
        """All batches have one shape."""

    def tokens_per_step(self) -> float:
        """On average."""
        return float(self.batches.epoch(self.recipe.seed, 0)["mask"].sum()) / self.batches.total * self.batches.size

    # --- training and measuring -------------------------------------------------------------------------------------

    def loss(self, model: Any, batch: Tree, carry: Tree) -> Loss:
        """Every row is read by itself, so nothing is carried. What is counted are the tokens read."""
        return Loss(model.loss(batch), None, batch["read"], (batch["targets"] >= 0).sum())

    @torch.no_grad()
    def evaluate(self, model: Any, split: str) -> dict[str, float]:
        if isinstance(model, Electra):
            return self._detected(model, split)
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

    def _detected(self, model: Electra, split: str) -> dict[str, float]:
        """What the generator fills in, and what of it the model notices."""
        batches, rows = self.read(split), self.recipe.batch.eval_rows
        draws = torch.rand(batches.epoch(EVALUATION, 0)["targets"].shape, generator=generator(EVALUATION, "replaced"))
        sums = torch.zeros(8, dtype=torch.float64)
        for batch, own in zip(batches.every(EVALUATION, rows), draws.split(rows), strict=True):
            batch, own = to_device((batch, own), device_of(model))
            sums += _electra_sums(model, model(batch, own), batch["targets"]).cpu()
        filling, right, chosen, detecting, tokens, replaced, said, hits = sums.tolist()
        masked_loss, detection_loss = filling / chosen, detecting / tokens
        return {
            "loss": masked_loss + model.config.detection * detection_loss,
            "masked_loss": masked_loss,
            "masked_perplexity": exp(masked_loss),
            "masked_accuracy": right / chosen,
            "detection_loss": detection_loss,
            "replaced_rate": replaced / tokens,
            "replaced_accuracy": (tokens - replaced - said + 2 * hits) / tokens,
            "replaced_precision": hits / max(said, 1),
            "replaced_recall": hits / max(replaced, 1),
            "replaced_f1": 2 * hits / max(said + replaced, 1),
            "unknown_rate": self.unknown_rate(split),
        }


def _electra_sums(model: Electra, told: Detected, targets: Tensor) -> Tensor:
    """−log p of the gaps, how many were filled right, how many there were; −log p of all tokens, how many there are,
    how many of them were replaced, how many the model says were, and in how many of those it is right."""
    filling, detecting = model.losses(told, targets)
    right = told.masked.argmax(dim=2) == targets
    said, replaced = (told.logits > 0) & told.counted, told.replaced & told.counted
    counts = ((targets >= 0), told.counted, replaced, said, said & replaced)
    chosen, tokens, *others = (one.sum() for one in counts)
    return torch.stack([one.double() for one in (filling, right.sum(), chosen, detecting, tokens, *others)])


def _sums(model: Any, batch: Tree) -> Tensor:
    """Of a batch: −log p of its chosen tokens, how many were told right, how many there were; the same of its pairs."""
    told, targets = model(batch), batch["targets"]
    logits, known = at_least_float32(told.masked), targets >= 0
    losses = F.cross_entropy(logits.flatten(0, 1), targets.clamp(min=0).flatten(), reduction="none").view_as(targets)
    right = logits.argmax(dim=2) == targets  # never where nothing was chosen
    found = [losses.where(known, 0).sum(), right.sum(), known.sum()]
    if "other" in batch:
        answers, other = at_least_float32(told.next), batch["other"]
        agreed = answers.argmax(dim=1) == other
        found += [F.cross_entropy(answers, other, reduction="sum"), agreed.sum(), torch.ones_like(other).sum()]
    else:
        found += [known.new_zeros(())] * 3
    return torch.stack([one.double() for one in found])


INFO = TaskInfo(
    name="masked-lm",
    recipe=Recipe,
    task=Task,
    predictor="seqloom.predict.gaps:MaskedLMPredictor",
    command="fill {run}",
    metric="masked_accuracy",
    views=("write", "vectors", "walk", "heads"),
)
