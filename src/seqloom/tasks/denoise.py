"""Denoising: an encoder–decoder reads a damaged text and says what was there.

noise: spans    some spans are hidden behind sentinels, and the target says what they were (T5)
noise: bart     the text is damaged in up to five ways, and the target is the text itself (BART)

`seqloom.data.noise` has both. The loss is −log p of each target token, END included. Dev and test are damaged once and
for all: two evaluations of a split ask the same.
"""

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.config import Discriminator, config
from seqloom.config.constraints import Ge, NonNegativeInt, PositiveInt
from seqloom.core.device import device_of
from seqloom.core.errors import DataError
from seqloom.core.tokens import Specials
from seqloom.core.tree import Tree, to_device
from seqloom.data.corpora import CorpusConfig
from seqloom.data.noise import DenoisingBatches, NoiseConfig, Piece, SpansConfig, cut_pieces, sentinels_of, spans_told
from seqloom.decoding.beam import BeamConfig, beam_search, release_memory
from seqloom.models.transformer import TransformerConfig
from seqloom.nn.softmax import SCORED_AT_ONCE, at_least_float32
from seqloom.tasks.base import BatchedTask, TaskInfo, TaskRecipe, dropout_problems
from seqloom.tasks.text_base import TextTask
from seqloom.text import TokenizerConfig
from seqloom.text.pieces import split_sentences
from seqloom.train.config import FitConfig

EVALUATION = 0  # the seed of the noise of an evaluation, whatever the recipe's
GREEDY = BeamConfig(beam=1)  # how texts are denoised to be measured
LEAST = 8  # tokens of a piece


@config
class BatchConfig:
    """How documents are cut and put together."""

    tokens: PositiveInt = 4096  # most of a batch: texts × longest, padding included
    max_length: Annotated[int, Ge(LEAST)] = 128  # tokens of a text, END included; a longer document is cut into several
    eval_tokens: PositiveInt = 8192  # as `tokens`, when a split is evaluated
    dev_texts: NonNegativeInt | None = 100  # texts of a split that are denoised to be measured; 0: none, null: all


@config
class Recipe(TaskRecipe):
    task: Literal["denoise"] = "denoise"
    noise: NoiseConfig = SpansConfig()
    data: CorpusConfig[str]
    tokenizer: TokenizerConfig
    batch: BatchConfig = BatchConfig()
    model: Annotated[TransformerConfig, Discriminator("kind")] = TransformerConfig()
    decode: BeamConfig = BeamConfig()  # how `seqloom restore` searches, unless it is told otherwise
    train: FitConfig

    def problems(self) -> Iterator[str]:
        yield from dropout_problems(self.tokenizer)
        longest = self.noise.longest(max(self.batch.max_length, LEAST) - 1)
        known_places = self.model.longest_source, self.model.longest_target
        for side, most, known in zip(("source", "target"), longest, known_places, strict=True):
            if known is not None and most > known:
                yield (
                    f"a {side} may have {most} tokens (batch.max_length, noise), and the model knows {known} places "
                    "(model.positions.max_length)"
                )
        if isinstance(self.noise, SpansConfig) and self.noise.mean_length >= 1:
            hidden = self.noise.share * self.batch.max_length + 1
            needed = min(int(hidden / self.noise.mean_length) + 1, int(hidden)) + 1
            if needed > self.noise.sentinels:
                yield (
                    f"noise.sentinels must be at least {needed}, since a text of batch.max_length tokens may have "
                    f"{needed - 1} spans; got {self.noise.sentinels}"
                )


class Task(TextTask, BatchedTask):
    recipe: Recipe

    def check(self) -> None:
        self.batches, self.read("dev")  # a split without a text is refused here

    def loss_unit(self) -> str:
        return "nats per token that is said"

    def sizes(self) -> dict[str, int]:
        """How many tokens the model has beside the tokenizer's."""
        return {"extra": self.recipe.noise.extra}

    # --- data -------------------------------------------------------------------------------------------------------

    def texts(self, split: str) -> list[Piece]:
        cut = [split_sentences(document) for document in self.corpus.split(split)]
        encoded = iter(self.tokenizer.encode_batch(sentence for document in cut for sentence in document))
        found = cut_pieces(([next(encoded) for _ in document] for document in cut), self.recipe.batch.max_length - 1)
        if not found:
            raise DataError(f"The {split} split of {self.corpus.name} has no tokens: there is nothing to damage.")
        return found

    def make_batches(self, split: str, *, tokens: int, shapes: int | None = None) -> DenoisingBatches:
        return DenoisingBatches(self.texts(split), self.recipe.noise, vocabulary=len(self.tokenizer), tokens=tokens)

    @cached_property
    def batches(self) -> DenoisingBatches:
        return self.make_batches("train", tokens=self.recipe.batch.tokens)

    def tokens_per_step(self) -> float:
        """Those of the texts, on average."""
        return self.batches.total / self.steps_per_epoch()

    # --- measuring --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(self, model: Any, split: str) -> dict[str, float]:
        read, sums = self.read(split), torch.zeros(5, dtype=torch.float64)
        for _, batch in read.every(EVALUATION):
            sums += _sums(model, to_device(batch, device_of(model))).cpu()
        nll, right, said, told, hidden = sums.tolist()
        loss = nll / said
        return {
            "loss": loss,
            "perplexity": math.exp(loss) if loss < 700 else math.inf,
            "target_accuracy": right / said,
            **({"hidden_accuracy": told / hidden} if hidden else {}),  # of a short text there may be none
            **self.exact_share(model, read),
            "unknown_rate": self.unknown_rate(split),
        }

    def exact_share(self, model: Any, read: DenoisingBatches) -> dict[str, float]:
        """Of some texts spread over a split, what greedy search finds: the share of spans, or of texts, that are told
        to the last token."""
        wanted, total = self.recipe.batch.dev_texts, len(read.texts)
        chosen = np.unique(np.linspace(0, total - 1, total if wanted is None else min(wanted, total)).round())
        if not len(chosen):
            return {}
        right = told = 0
        for members, batch in read.only(chosen.astype(int).tolist(), self.recipe.batch.eval_tokens).every(EVALUATION):
            source = to_device({"tokens": batch["source"], "mask": batch["source_mask"]}, device_of(model))
            found = beam_search(model, source=source, options=GREEDY, end=self.tokenizer.end, banned=self.unsaid)
            for number, (best,) in zip(members.tolist(), found, strict=True):
                own = self._exact(best.tokens, read.damage(number, EVALUATION, 0).target)
                right, told = right + sum(own), told + len(own)
        release_memory(model)  # it may learn on, and would need the memory
        return {f"exact_{'spans' if self.spans else 'texts'}": right / told}

    def _exact(self, said: list[int], meant: list[int]) -> list[bool]:
        if not self.spans:
            return [said == meant]
        sentinels = sentinels_of(self.recipe.noise, len(self.tokenizer))
        found, wanted = spans_told(said, sentinels), spans_told(meant, sentinels)
        return [found.get(number) == span for number, span in wanted.items() if span]  # the last sentinel hides none

    @property
    def spans(self) -> bool:
        return isinstance(self.recipe.noise, SpansConfig)

    @property
    def unsaid(self) -> tuple[int, ...]:
        """Tokens that no target has."""
        return tuple(Specials.after(len(self.tokenizer)).names)


def _sums(model: Any, batch: Tree) -> Tensor:
    """Of a batch: −log p of its targets, how many were told right, how many there were; the last two of those that the
    source does not show."""
    mask = batch["target_mask"]
    r, targets, hidden = model.taught(batch)[0][mask], batch["targets"][mask], batch["hidden"][mask]
    sums = torch.zeros(5, dtype=torch.float64, device=mask.device)
    for rows, own, unseen in zip(*(part.split(SCORED_AT_ONCE) for part in (r, targets, hidden)), strict=True):
        logits = at_least_float32(model.output(model.before_output(rows)))
        right = logits.argmax(dim=1) == own
        counts = right.sum(), torch.ones_like(own).sum(), (right & unseen).sum(), unseen.sum()
        sums += torch.stack([F.cross_entropy(logits, own, reduction="sum").double(), *(one.double() for one in counts)])
    return sums


INFO = TaskInfo(
    name="denoise",
    recipe=Recipe,
    task=Task,
    predictor="seqloom.predict.gaps:DenoiserPredictor",
    command="restore {run}",
    metric="target_accuracy",
    example="The class statement defines a new [MASK] of object.",
    views=("write", "beam", "vectors", "heads", "alignment"),
)
