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
from seqloom.core.device import device_of, generator
from seqloom.core.errors import DataError
from seqloom.core.protocols import Loss
from seqloom.core.tokens import Specials
from seqloom.core.tree import Tree, to_device
from seqloom.core.words import counted
from seqloom.data.corpora import CorpusConfig
from seqloom.data.corpus import SPLITS
from seqloom.data.masking import NO_TARGET, MaskedBatches, Masking, MasksConfig, NextSentencePairs, PackedRows, pack
from seqloom.evaluate.perplexity import exp
from seqloom.models.bert import BERT, BERTConfig
from seqloom.models.electra import Electra, ElectraConfig
from seqloom.nn.softmax import at_least_float32
from seqloom.tasks.base import BatchedTask, TaskInfo, TaskRecipe, dropout_problems, once
from seqloom.tasks.text_base import TextTask
from seqloom.text import TokenizerConfig
from seqloom.train.config import FitConfig

if TYPE_CHECKING:
    from seqloom.runs.run import Run

EVALUATION = 0  # the seed of the masks of an evaluation, whatever the recipe's
ALL_HIDDEN = (1.0, 0.0)  # shares of the chosen tokens that are hidden, and swapped
MIN_ROW_TOKENS = 8  # room for [CLS] a [SEP] b [SEP] with two tokens in each


Objective = Literal["mlm", "mlm+nsp", "electra"]


@config
class BatchConfig:
    """How documents are cut into rows."""

    size: PositiveInt = 32  # read side by side
    max_length: Annotated[int, Ge(MIN_ROW_TOKENS)] = 128  # tokens of a row, [CLS] and [SEP] included
    eval_size: PositiveInt = 64  # rows in evaluation


@config
class Recipe(TaskRecipe):
    task: Literal["masked-lm"] = "masked-lm"
    objective: Objective = "mlm+nsp"  # masked tokens; next sentences too; or replaced tokens
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
        if self.objective == "electra" and (self.masks.mask_replace_prob, self.masks.random_replace_prob) != ALL_HIDDEN:
            yield (
                "objective electra masks every chosen token for the generator: remove masks.mask_replace_prob "
                f"and random_replace_prob; got {self.masks.mask_replace_prob:g}, {self.masks.random_replace_prob:g}"
            )


class Task(TextTask[Recipe, Any], BatchedTask[Recipe, Any]):
    def check(self) -> None:
        self.batches, self.read("dev")  # what cannot be made into rows is refused here

    @property
    def loss_unit(self) -> str:
        if isinstance(self.recipe.model, ElectraConfig):
            return f"nats per masked token + {self.recipe.model.detection_weight:g} times per token"
        return "nats per masked token" + " and pair" * self.pairs

    @classmethod
    def complete(cls, mapping: Mapping[str, Any]) -> dict[str, Any]:
        """With `objective: electra`, make a bert an electra, and let all masks hide."""
        if mapping.get("objective") != "electra":
            return dict(mapping)
        model, masks = (mapping.get(name) or {} for name in ("model", "masks"))
        completed = dict(mapping)
        if isinstance(model, Mapping) and model.get("kind", "bert") == "bert":
            completed["model"] = {**model, "kind": "electra"}
        if isinstance(masks, Mapping):
            completed["masks"] = {"mask_replace_prob": ALL_HIDDEN[0], "random_replace_prob": ALL_HIDDEN[1], **masks}
        return completed

    @classmethod
    def of_documents(cls, recipe: Recipe, run: "Run", documents: Sequence[str]) -> Self:
        """Do not ask other texts for next sentences: there may be one document."""
        alone: Objective = "mlm" if recipe.objective == "mlm+nsp" else recipe.objective
        return super().of_documents(replace(recipe, objective=alone), run, documents)

    @property
    def pairs(self) -> bool:
        return self.recipe.objective == "mlm+nsp"

    # --- data -------------------------------------------------------------------------------------------------------

    @cached_property
    def batches(self) -> MaskedBatches:
        return self._make_batches("train")

    @once
    def read(self, split: str) -> MaskedBatches:
        batches = self._make_batches(split)
        if (batches.epoch(EVALUATION, 0)["targets"] == NO_TARGET).all():
            raise DataError(
                f"{self._named(split)} is too short: none of its tokens is hidden (masks.mlm_probability is "
                f"{self.recipe.masks.mlm_probability:g}), so there is nothing to measure. Give more text."
            )
        return batches

    def _named(self, split: str) -> str:
        return f"The {split} split of {self.corpus.name}" if split in SPLITS else "The text"

    def _make_batches(self, split: str) -> MaskedBatches:
        recipe, specials = self.recipe, Specials.after(len(self.tokenizer))
        rows: NextSentencePairs | PackedRows
        if self.pairs:
            documents = self.encode_sentences(split)
            rows = NextSentencePairs(documents, specials, recipe.batch.max_length, f"the {split} split")
        else:
            texts = list(self.tokenizer.encode_batch(self.corpus.split(split)))
            if not any(texts):
                raise DataError(f"{self._named(split)} has no tokens: there is nothing to hide.")
            rows = pack(texts, specials, recipe.batch.max_length)
        return MaskedBatches(
            rows,
            masks=recipe.masks,
            masking=recipe.masking,
            specials=specials,
            vocabulary=len(self.tokenizer),
            size=recipe.batch.size,
        )

    def warnings(self) -> list[str]:
        notes, source, documents = list[str](), self.batches.source, len(self.corpus.split("train"))
        if isinstance(source, NextSentencePairs) and source.alone:
            notes.append(
                f"{source.alone:,} of {documents:,} training documents have one sentence: they make no pair, and are "
                "left out (objective=mlm reads them too)."
            )
        total, wanted = self.batches.total, self.recipe.batch.size
        if total < wanted:
            notes.append(
                f"The training text makes {counted(total, 'row')}, fewer than batch.size, {wanted}: every step reads "
                "all of it. Give more text, or lower batch.size or batch.max_length."
            )
        return notes

    def largest_step(self, seed: int) -> None:
        """All batches have one shape."""

    def tokens_per_step(self) -> float:
        return float(self.batches.epoch(self.recipe.seed, 0)["mask"].sum()) / self.batches.total * self.batches.size

    # --- training and measuring -------------------------------------------------------------------------------------

    def loss(self, model: Any, batch: Tree, carry: Tree) -> Loss:
        return Loss(model.loss(batch), None, batch["read"], (batch["targets"] >= 0).sum())

    @torch.no_grad()
    def evaluate(self, model: Any, split: str) -> dict[str, float]:
        """Measure masked tokens, and next sentences or replaced tokens."""
        batches, rows, sums = self.read(split), self.recipe.batch.eval_size, dict[str, float]()
        draws = torch.rand(batches.epoch(EVALUATION, 0)["targets"].shape, generator=generator(EVALUATION, "replaced"))
        for batch, own in zip(batches.every(EVALUATION, rows), draws.split(rows), strict=True):
            batch, own = to_device((batch, own), device_of(model))
            found = sum_replaced(model, batch, own) if isinstance(model, Electra) else sum_masked(model, batch)
            for name, value in zip(found, torch.stack([*map(Tensor.double, found.values())]).tolist(), strict=True):
                sums[name] = sums.get(name, 0.0) + value
        masked_loss = sums["nll"] / sums["chosen"]
        metrics = {
            "loss": masked_loss,
            "masked_loss": masked_loss,
            "masked_perplexity": exp(masked_loss),
            "masked_accuracy": sums["right"] / sums["chosen"],
        }
        if isinstance(model, Electra):
            tokens, replaced, said, hits = (sums[name] for name in ("tokens", "replaced", "said", "hits"))
            other_loss = sums["detection_nll"] / tokens
            metrics |= {
                "loss": masked_loss + model.config.detection_weight * other_loss,
                "detection_loss": other_loss,
                "replaced_rate": replaced / tokens,
                "replaced_accuracy": (tokens - replaced - said + 2 * hits) / tokens,
                "replaced_precision": hits / max(said, 1),
                "replaced_recall": hits / max(replaced, 1),
                "replaced_f1": 2 * hits / max(said + replaced, 1),
            }
        elif self.pairs:
            other_loss = sums["next_nll"] / sums["pairs"]
            metrics |= {
                "loss": masked_loss + other_loss,
                "next_loss": other_loss,
                "next_accuracy": sums["agreed"] / sums["pairs"],
            }
        return {**metrics, "unknown_rate": self.unknown_rate(split)}


def sum_replaced(model: Electra, batch: Tree, draws: Tensor) -> dict[str, Tensor]:
    """Sum over the gaps of a batch, and over its tokens, replaced or not."""
    told, targets = model(batch, draws), batch["targets"]
    filling, detecting = model.losses(told, targets)
    said, replaced = (told.logits > 0) & told.counted, told.replaced & told.counted
    return {
        "nll": filling,
        "right": (told.masked.argmax(dim=2) == targets).sum(),
        "chosen": (targets >= 0).sum(),
        "detection_nll": detecting,
        "tokens": told.counted.sum(),
        "replaced": replaced.sum(),
        "said": said.sum(),
        "hits": (said & replaced).sum(),
    }


def sum_masked(model: BERT, batch: Tree) -> dict[str, Tensor]:
    """Sum over the chosen tokens of a batch, and over its pairs, if it has any."""
    told, targets = model(batch), batch["targets"]
    logits, known = at_least_float32(told.masked), targets >= 0
    losses = F.cross_entropy(logits.flatten(0, 1), targets.clamp(min=0).flatten(), reduction="none").view_as(targets)
    sums = {
        "nll": losses.where(known, 0).sum(),
        "right": (logits.argmax(dim=2) == targets).sum(),  # never where nothing was chosen
        "chosen": known.sum(),
    }
    if "other" in batch:
        answers, other = at_least_float32(told.next), batch["other"]
        sums["next_nll"] = F.cross_entropy(answers, other, reduction="sum")
        sums["agreed"] = (answers.argmax(dim=1) == other).sum()
        sums["pairs"] = torch.ones_like(other).sum()
    return sums


INFO = TaskInfo(
    name="masked-lm",
    recipe=Recipe,
    task=Task,
    predictor="seqloom.predict.gaps:MaskedLMPredictor",
    command="fill-mask {run}",
    metric="masked_accuracy",
    views=("write", "vectors", "walk", "heads"),
)
