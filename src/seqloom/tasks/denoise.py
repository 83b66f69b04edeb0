"""Denoising: an encoder–decoder reads a corrupted text and reconstructs it.

noise: spans    spans are replaced by sentinels, and the target consists of the spans (T5)
noise: bart     the text is corrupted in up to five ways, and the target is the text (BART)

`seqloom.data.noise` implements both kinds of noise. The loss is −log p of each target token, including END. The noise
for dev and test is fixed, so that evaluations are comparable.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.config import config
from seqloom.config.constraints import Ge, NonNegativeInt, PositiveInt
from seqloom.core.device import device_of
from seqloom.core.errors import DataError
from seqloom.core.tokens import Specials
from seqloom.core.tree import Tree, to_device
from seqloom.data.corpora import CorpusConfig
from seqloom.data.noise import DenoisingBatches, NoiseConfig, SpansConfig, cut_pieces, parse_spans, sentinels_of
from seqloom.decoding.beam import BeamConfig, beam_search, release_memory
from seqloom.evaluate.perplexity import exp
from seqloom.models import MODELS
from seqloom.models.transformer import Transformer, TransformerConfig
from seqloom.nn.softmax import SCORED_POSITIONS, at_least_float32
from seqloom.tasks.base import BatchedTask, TaskInfo, TaskRecipe, dropout_problems
from seqloom.tasks.text_base import TextTask
from seqloom.text import TokenizerConfig
from seqloom.train.config import FitConfig

EVALUATION_SEED = 0  # the noise seed of evaluations, which is equal for all recipes
MAX_SAMPLED = 200  # number of texts from which the mean length of the targets is estimated
GREEDY = BeamConfig(beam=1)  # search options for the reconstructions in evaluations


@config
class BatchConfig:
    """Batches of texts."""

    tokens: PositiveInt = 4096  # maximum batch size: texts × length of the longest text, including padding
    # maximum length of a text in tokens, including END; longer documents are split
    max_length: Annotated[int, Ge(8)] = 128
    eval_tokens: PositiveInt = 8192  # as `tokens`, for evaluation
    dev_texts: NonNegativeInt | None = 100  # number of texts to reconstruct in an evaluation; 0: none, null: all


@config
class Recipe(TaskRecipe):
    task: Literal["denoise"] = "denoise"
    noise: NoiseConfig = SpansConfig()
    data: CorpusConfig[str]
    tokenizer: TokenizerConfig
    batch: BatchConfig = BatchConfig()
    model: Annotated[TransformerConfig, MODELS.only("transformer")] = MODELS.default("transformer")
    decode: BeamConfig = BeamConfig()  # default search settings of `seqloom denoise`
    train: FitConfig

    def problems(self) -> Iterator[str]:
        yield from dropout_problems(self.tokenizer)
        lengths = self.noise.max_lengths(self.batch.max_length - 1)
        positions = self.model.longest_source, self.model.longest_target
        for side, length, limit in zip(("source", "target"), lengths, positions, strict=True):
            if limit is not None and length > limit:
                yield (
                    f"a {side} may have {length} tokens (batch.max_length, noise), but the model has {limit} positions "
                    "(model.positions.max_length)"
                )
        if isinstance(self.noise, SpansConfig) and self.noise.mean_span_length >= 1:
            hidden = self.noise.noise_density * self.batch.max_length + 1
            needed = min(int(hidden / self.noise.mean_span_length) + 1, int(hidden)) + 1
            if needed > self.noise.sentinels:
                yield (
                    f"noise.sentinels must be at least {needed}, since a text of batch.max_length tokens may have "
                    f"{needed - 1} spans; got {self.noise.sentinels}"
                )


class Task(TextTask[Recipe, Transformer], BatchedTask[Recipe, Transformer]):
    loss_unit = "nats per target token"

    def check(self) -> None:
        self.batches, self.eval_batches("dev")  # raises an error for a split without texts

    def sizes(self) -> dict[str, int]:
        """Return the number of special tokens of the model."""
        return {"extra": self.recipe.noise.extra}

    def make_batches(self, split: str, *, tokens: int, shapes: int | None = None) -> DenoisingBatches:
        pieces = cut_pieces(self.encode_sentences(split), self.recipe.batch.max_length - 1)
        if not pieces:
            raise DataError(f"The {split} split of {self.corpus.name} has no tokens to corrupt.")
        return DenoisingBatches(pieces, self.recipe.noise, vocabulary=len(self.tokenizer), tokens=tokens)

    @cached_property
    def batches(self) -> DenoisingBatches:
        return self.make_batches("train", tokens=self.recipe.batch.tokens)

    def tokens_per_step(self) -> float:
        """Return the mean number of tokens of the texts."""
        return self.batches.total / self.steps_per_epoch()

    def mean_target_length(self) -> float:
        batches = self.eval_batches("dev")
        sample = batches.numbers[:MAX_SAMPLED].tolist()
        return float(np.mean([len(batches.corrupt(number, EVALUATION_SEED, 0).target) for number in sample]))

    # --- evaluation -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(self, model: Transformer, split: str) -> dict[str, float]:
        batches, sums = self.eval_batches(split), torch.zeros(5, dtype=torch.float64)
        for _, batch in batches.all_batches(EVALUATION_SEED):
            sums += sum_targets(model, to_device(batch, device_of(model))).cpu()
        nll, correct, targets, correct_hidden, hidden = sums.tolist()
        return {
            "loss": nll / targets,
            "perplexity": exp(nll / targets),
            "target_accuracy": correct / targets,
            # A short text may have no hidden tokens
            **({"hidden_accuracy": correct_hidden / hidden} if hidden else {}),
            **self.exact_fraction(model, batches),
            "unknown_rate": self.unknown_rate(split),
        }

    def exact_fraction(self, model: Transformer, batches: DenoisingBatches) -> dict[str, float]:
        """Return the fraction of spans or texts that greedy search reconstructs exactly.

        The texts are evenly spaced.
        """
        count, total = self.recipe.batch.dev_texts, len(batches.texts)
        chosen = np.unique(np.linspace(0, total - 1, total if count is None else min(count, total)).round())
        if not len(chosen):
            return {}
        noise, end, correct = self.recipe.noise, self.tokenizer.end, list[bool]()
        sentinels = sentinels_of(noise, len(self.tokenizer)) if isinstance(noise, SpansConfig) else None
        banned = tuple(Specials.after(len(self.tokenizer)).names)  # tokens that never occur in a target
        part = batches.only(chosen.astype(int).tolist(), self.recipe.batch.eval_tokens)
        for members, batch in part.all_batches(EVALUATION_SEED):
            source = to_device({"tokens": batch["source"], "mask": batch["source_mask"]}, device_of(model))
            options = replace(GREEDY, max_length=self.max_generated)
            hypotheses = beam_search(model, source=source, options=options, end=end, banned=banned)
            for number, (best,) in zip(members.tolist(), hypotheses, strict=True):
                target = batches.corrupt(number, EVALUATION_SEED, 0).target
                if sentinels is None:
                    correct.append(best.tokens == target)
                else:  # the last sentinel is not followed by a span
                    predicted, spans = parse_spans(best.tokens, sentinels), parse_spans(target, sentinels)
                    correct += [predicted.get(sentinel) == span for sentinel, span in spans.items() if span]
        release_memory(model)  # free the memory for training
        return {f"exact_{'texts' if sentinels is None else 'spans'}": sum(correct) / len(correct)}


def sum_targets(model: Transformer, batch: Tree) -> Tensor:
    """Return the sum of −log p over the targets of a batch, and the numbers of correct targets and of all targets.

    Two further numbers count the correct targets and all targets among those that do not occur in the source.
    """
    mask = batch["target_mask"]
    r, targets, hidden = model.teacher_force(batch)[0][mask], batch["targets"][mask], batch["hidden"][mask]
    sums = torch.zeros(5, dtype=torch.float64, device=mask.device)
    for states, expected, unseen in zip(*(part.split(SCORED_POSITIONS) for part in (r, targets, hidden)), strict=True):
        logits = at_least_float32(model.output(model.before_output(states)))
        correct = logits.argmax(dim=1) == expected
        counts = correct.sum(), torch.ones_like(expected).sum(), (correct & unseen).sum(), unseen.sum()
        sums += torch.stack([F.cross_entropy(logits, expected, reduction="sum").double(), *map(Tensor.double, counts)])
    return sums


INFO = TaskInfo(
    name="denoise",
    recipe=Recipe,
    task=Task,
    predictor="seqloom.predict.gaps:DenoiserPredictor",
    command="denoise {run}",
    pipeline_tag="fill-mask",
    metric="target_accuracy",
    example="The class statement defines a new [MASK] of object.",
    views=("write", "beam", "vectors", "heads", "alignment"),
)
