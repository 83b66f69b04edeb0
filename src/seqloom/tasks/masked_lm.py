"""Masked language modelling: prediction of masked tokens, next sentences or replaced tokens.

objective: mlm        documents packed into rows of `batch.max_length`, without attention between them (RoBERTa)
objective: mlm+nsp    pairs of texts; the second text follows the first or comes from another document (BERT)
objective: electra    like mlm; a generator fills the masks, and the model detects the replaced tokens (ELECTRA)

The loss is the masked-token loss, plus the next-sentence or detection loss if the objective has one. Masks, pairs and
replacements for dev and test are fixed, so that evaluations are comparable.
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
from seqloom.core import Json
from seqloom.core.device import device_of, make_generator
from seqloom.core.errors import DataError
from seqloom.core.protocols import Loss
from seqloom.core.tokens import Specials
from seqloom.core.tree import Tree, to_device
from seqloom.core.words import format_count
from seqloom.data.corpora import CorpusConfig
from seqloom.data.corpus import SPLITS
from seqloom.data.masking import NO_TARGET, MaskedBatches, Masking, MasksConfig, NextSentencePairs, PackedRows, pack
from seqloom.evaluate.perplexity import exp
from seqloom.models.bert import BERT, BERTConfig
from seqloom.models.electra import Electra, ElectraConfig
from seqloom.nn.softmax import at_least_float32
from seqloom.tasks.base import BatchedTask, TaskInfo, TaskRecipe, cached_method, dropout_problems
from seqloom.tasks.text_base import TextTask
from seqloom.text import TokenizerConfig
from seqloom.train.config import FitConfig

if TYPE_CHECKING:
    from seqloom.runs.run import Run

EVALUATION_SEED = 0  # the mask seed of evaluations, which is equal for all recipes
ALL_MASKED = (1.0, 0.0)  # probabilities that a chosen token is masked, and that it is replaced at random
MIN_ROW_TOKENS = 8  # enough for [CLS] a [SEP] b [SEP] with at least two tokens in each text


Objective = Literal["mlm", "mlm+nsp", "electra"]


@config
class BatchConfig:
    """Batches of rows of tokens."""

    size: PositiveInt = 32  # number of rows per batch
    max_length: Annotated[int, Ge(MIN_ROW_TOKENS)] = 128  # length of a row in tokens, including [CLS] and [SEP]
    eval_size: PositiveInt = 64  # number of rows per batch in evaluation


@config
class Recipe(TaskRecipe):
    task: Literal["masked-lm"] = "masked-lm"
    objective: Objective = "mlm+nsp"  # predict masked tokens, masked tokens and next sentences, or replaced tokens
    masking: Masking = "dynamic"  # dynamic: new masks in every epoch; static: the masks of the first epoch
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
                f"batch.max_length must be at most {longest}, the context of the model (model.context, "
                f"model.positions.max_length); got {self.batch.max_length}"
            )
        if isinstance(self.model, ElectraConfig) != (self.objective == "electra"):
            yield f"model.kind electra needs objective electra and vice versa; got {self.model.kind}, {self.objective}"
        if self.objective == "electra" and (self.masks.mask_replace_prob, self.masks.random_replace_prob) != ALL_MASKED:
            yield (
                "objective electra masks every chosen token for the generator: remove masks.mask_replace_prob "
                f"and random_replace_prob; got {self.masks.mask_replace_prob:g}, {self.masks.random_replace_prob:g}"
            )


class Task(TextTask[Recipe, Any], BatchedTask[Recipe, Any]):
    def check(self) -> None:
        self.batches, self.eval_batches("dev")  # raises an error for data without rows

    @property
    def loss_unit(self) -> str:
        if isinstance(self.recipe.model, ElectraConfig):
            return f"nats per masked token + {self.recipe.model.detection_weight:g} times per token"
        return "nats per masked token" + " and pair" * self.pairs

    @classmethod
    def complete(cls, mapping: Mapping[str, Json]) -> dict[str, Json]:
        """With `objective: electra`, replace the model kind bert by electra, and mask all chosen tokens."""
        if mapping.get("objective") != "electra":
            return dict(mapping)
        model, masks = (mapping.get(name) or {} for name in ("model", "masks"))
        completed = dict(mapping)
        if isinstance(model, Mapping) and model.get("kind", "bert") == "bert":
            completed["model"] = {**model, "kind": "electra"}
        if isinstance(masks, Mapping):
            completed["masks"] = {"mask_replace_prob": ALL_MASKED[0], "random_replace_prob": ALL_MASKED[1], **masks}
        return completed

    @classmethod
    def of_documents(cls, recipe: Recipe, run: "Run", documents: Sequence[str]) -> Self:
        """Create the task without next-sentence prediction, because there may be only one document."""
        objective: Objective = "mlm" if recipe.objective == "mlm+nsp" else recipe.objective
        return super().of_documents(replace(recipe, objective=objective), run, documents)

    @property
    def pairs(self) -> bool:
        return self.recipe.objective == "mlm+nsp"

    # --- data -------------------------------------------------------------------------------------------------------

    @cached_property
    def batches(self) -> MaskedBatches:
        return self._make_batches("train")

    @cached_method
    def eval_batches(self, split: str) -> MaskedBatches:
        batches = self._make_batches(split)
        if (batches.epoch(EVALUATION_SEED, 0)["targets"] == NO_TARGET).all():
            raise DataError(
                f"{self._split_name(split)} is too short: none of its tokens is masked (masks.mlm_probability is "
                f"{self.recipe.masks.mlm_probability:g}), so there is nothing to evaluate. Use more text."
            )
        return batches

    def _split_name(self, split: str) -> str:
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
                raise DataError(f"{self._split_name(split)} has no tokens to mask.")
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
                f"{source.alone:,} of {documents:,} training documents are omitted because they have only one "
                "sentence and form no pair (objective=mlm includes them)."
            )
        total, size = self.batches.total, self.recipe.batch.size
        if total < size:
            notes.append(
                f"The training text has {format_count(total, 'row')}, fewer than batch.size={size}: every step reads "
                "all of it. Use more text, or lower batch.size or batch.max_length."
            )
        return notes

    def largest_step(self, seed: int) -> None:
        """Return None, because all batches have the same shape."""

    def tokens_per_step(self) -> float:
        return float(self.batches.epoch(self.recipe.seed, 0)["mask"].sum()) / self.batches.total * self.batches.size

    # --- training and evaluation ------------------------------------------------------------------------------------

    def loss(self, model: Any, batch: Tree, carry: Tree) -> Loss:
        return Loss(model.loss(batch), None, batch["read"], (batch["targets"] >= 0).sum())

    @torch.no_grad()
    def evaluate(self, model: Any, split: str) -> dict[str, float]:
        """Compute the metrics of masked tokens, and of next sentences or replaced tokens."""
        batches, rows, sums = self.eval_batches(split), self.recipe.batch.eval_size, dict[str, float]()
        shape = batches.epoch(EVALUATION_SEED, 0)["targets"].shape
        draws = torch.rand(shape, generator=make_generator(EVALUATION_SEED, "replaced"))
        for batch, batch_draws in zip(batches.all_batches(EVALUATION_SEED, rows), draws.split(rows), strict=True):
            batch, batch_draws = to_device((batch, batch_draws), device_of(model))
            is_electra = isinstance(model, Electra)
            parts = sum_replaced(model, batch, batch_draws) if is_electra else sum_masked(model, batch)
            for name, value in zip(parts, torch.stack([*map(Tensor.double, parts.values())]).tolist(), strict=True):
                sums[name] = sums.get(name, 0.0) + value
        masked_loss = sums["nll"] / sums["chosen"]
        metrics = {
            "loss": masked_loss,
            "masked_loss": masked_loss,
            "masked_perplexity": exp(masked_loss),
            "masked_accuracy": sums["right"] / sums["chosen"],
        }
        if isinstance(model, Electra):
            tokens, replaced, predicted, hits = (sums[name] for name in ("tokens", "replaced", "predicted", "hits"))
            other_loss = sums["detection_nll"] / tokens
            metrics |= {
                "loss": masked_loss + model.config.detection_weight * other_loss,
                "detection_loss": other_loss,
                "replaced_rate": replaced / tokens,
                "replaced_accuracy": (tokens - replaced - predicted + 2 * hits) / tokens,
                "replaced_precision": hits / max(predicted, 1),
                "replaced_recall": hits / max(replaced, 1),
                "replaced_f1": 2 * hits / max(predicted + replaced, 1),
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
    """Sum losses and counts over the masked tokens of a batch.

    For the detection of replaced tokens, sum losses and counts over all tokens.
    """
    outputs, targets = model(batch, draws), batch["targets"]
    generator_loss, detection_loss = model.losses(outputs, targets)
    predicted, replaced = (outputs.logits > 0) & outputs.counted, outputs.replaced & outputs.counted
    return {
        "nll": generator_loss,
        "right": (outputs.masked.argmax(dim=2) == targets).sum(),
        "chosen": (targets >= 0).sum(),
        "detection_nll": detection_loss,
        "tokens": outputs.counted.sum(),
        "replaced": replaced.sum(),
        "predicted": predicted.sum(),
        "hits": (predicted & replaced).sum(),
    }


def sum_masked(model: BERT, batch: Tree) -> dict[str, Tensor]:
    """Sum losses and counts over the chosen tokens of a batch and, if the batch has pairs, over the pairs."""
    outputs, targets = model(batch), batch["targets"]
    logits, is_chosen = at_least_float32(outputs.masked), targets >= 0
    losses = F.cross_entropy(logits.flatten(0, 1), targets.clamp(min=0).flatten(), reduction="none").view_as(targets)
    sums = {
        "nll": losses.where(is_chosen, 0).sum(),
        "right": (logits.argmax(dim=2) == targets).sum(),  # tokens that were not chosen have negative targets
        "chosen": is_chosen.sum(),
    }
    if "other" in batch:
        pair_logits, other = at_least_float32(outputs.next), batch["other"]
        sums["next_nll"] = F.cross_entropy(pair_logits, other, reduction="sum")
        sums["agreed"] = (pair_logits.argmax(dim=1) == other).sum()
        sums["pairs"] = torch.ones_like(other).sum()
    return sums


INFO = TaskInfo(
    name="masked-lm",
    recipe=Recipe,
    task=Task,
    predictor="seqloom.predict.gaps:MaskedLMPredictor",
    command="fill-mask {run}",
    pipeline_tag="fill-mask",
    metric="masked_accuracy",
    views=("write", "vectors", "walk", "heads"),
)
