"""Denoising: an encoder–decoder reads a damaged text and says what was there.

noise: spans    some spans are hidden behind sentinels, and the target says what they were (T5)
noise: bart     the text is damaged in up to five ways, and the target is the text itself (BART)

`seqloom.data.noise` has both. The loss is −log p of each target token, END included. Dev and test are damaged once and
for all: two evaluations of a split ask the same.
"""

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.config import Discriminator, config
from seqloom.core.errors import DataError
from seqloom.core.protocols import Loss, Monitor
from seqloom.core.specials import Specials
from seqloom.core.tree import Tree, to_device
from seqloom.data.corpora import CorpusConfig
from seqloom.data.corpus import TextCorpus
from seqloom.data.denoising import DenoisingBatches, Piece, cut_pieces
from seqloom.data.noise import NoiseConfig, SpansConfig, sentinels_of, spans_told
from seqloom.decoding.beam import BeamConfig, beam_search, release_memory
from seqloom.models.transformer import TransformerConfig
from seqloom.nn.softmax import SCORED_AT_ONCE, at_least_float32
from seqloom.tasks.base import TaskInfo
from seqloom.tasks.language_model import TextTask, device_of
from seqloom.text import Tokenizer, TokenizerConfig
from seqloom.text.pieces import split_sentences
from seqloom.train.config import FitConfig

EVALUATION = 0  # the seed of the noise of an evaluation, whatever the recipe's
GREEDY = BeamConfig(beam=1)  # how texts are restored to be measured
LEAST = 8  # tokens of a piece


@config
class BatchConfig:
    """How documents are cut and put together."""

    tokens: int = 4096  # most of a batch: texts × longest, padding included
    max_length: int = 128  # tokens of a text, END included; a longer document is cut, where a sentence ends
    eval_tokens: int = 8192  # as `tokens`, when a split is evaluated
    dev_texts: int | None = 100  # texts of a split that are restored to be measured; 0 for none, null for all

    def problems(self) -> Iterator[str]:
        for name, least in (("tokens", 1), ("max_length", LEAST), ("eval_tokens", 1), ("dev_texts", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                yield f"{name} must be at least {least}, got {value}"


@config
class Recipe:
    task: Literal["denoise"] = "denoise"
    seed: int = 1
    noise: NoiseConfig = SpansConfig()
    data: CorpusConfig[str]
    tokenizer: TokenizerConfig
    batch: BatchConfig = BatchConfig()
    model: Annotated[TransformerConfig, Discriminator("kind")] = TransformerConfig()
    decode: BeamConfig = BeamConfig()  # how `seqloom restore` searches, unless it is told otherwise
    train: FitConfig

    def problems(self) -> Iterator[str]:
        longest = self.noise.longest(max(self.batch.max_length, LEAST) - 1)
        for side, most in zip(("source", "target"), longest, strict=True):
            known = getattr(self.model, f"longest_{side}")
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
        if getattr(self.tokenizer, "dropout", 0):
            yield "tokenizer.dropout is for translation; set it to 0"


class Task(TextTask):
    recipe: Recipe

    def __init__(self, recipe: Any, corpus: TextCorpus, tokenizer: Tokenizer):
        super().__init__(recipe, corpus, tokenizer)
        self.monitor = Monitor("loss", unit="nats per token that is said")
        self._read: dict[str, DenoisingBatches] = {}

    @classmethod
    def prepare(cls, recipe: Any) -> Self:
        task = super().prepare(recipe)
        task.batches, task.read("dev")  # a split without a text is refused here
        return task

    def sizes(self) -> dict[str, int]:
        """What else a model must know to be built: how many tokens it has beside the tokenizer's."""
        return {"extra": self.recipe.noise.extra}

    def documents(self) -> dict[str, Any]:
        return {**super().documents(), "sizes.json": self.sizes()}

    def model(self) -> Any:
        return self.recipe.model.build(len(self.tokenizer), **self.sizes())

    # --- data -------------------------------------------------------------------------------------------------------

    def texts(self, split: str) -> list[Piece]:
        cut = [split_sentences(document) for document in self.corpus.split(split)]
        encoded = iter(self.tokenizer.encode_batch(sentence for document in cut for sentence in document))
        found = cut_pieces(([next(encoded) for _ in document] for document in cut), self.recipe.batch.max_length - 1)
        if not found:
            raise DataError(f"The {split} split of {self.corpus.name} has no tokens: there is nothing to damage.")
        return found

    @cached_property
    def batches(self) -> DenoisingBatches:
        """The training split, as training reads it."""
        return self._made("train", self.recipe.batch.tokens)

    def read(self, split: str) -> DenoisingBatches:
        """A split as it is evaluated."""
        if split not in self._read:
            self._read[split] = self._made(split, self.recipe.batch.eval_tokens)
        return self._read[split]

    def _made(self, split: str, tokens: int) -> DenoisingBatches:
        return DenoisingBatches(self.texts(split), self.recipe.noise, vocabulary=len(self.tokenizer), tokens=tokens)

    def steps_per_epoch(self) -> int:
        return self.batches.steps_per_epoch

    def tokens_per_step(self) -> float:
        """Those of the texts, on average."""
        return self.batches.total / self.steps_per_epoch()

    def largest_step(self, seed: int) -> int:
        return self.batches.largest_step(seed)

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        return self.batches.batch(seed, step, rank, world)

    # --- training and measuring -------------------------------------------------------------------------------------

    def loss(self, model: Any, batch: Tree, carry: Tree) -> Loss:
        """Every text stands by itself, so nothing is carried. What is counted are the tokens that are said."""
        value, count = model.loss(batch)
        return Loss(value, None, batch["read"], count)

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
            **self.restored(model, read),
            "unknown_rate": self.unknown_rate(split),
        }

    def restored(self, model: Any, read: DenoisingBatches) -> dict[str, float]:
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
    forms=("text",),
    predictor="seqloom.predict.denoiser:Denoiser",
    command="restore {run}",
    metric="target_accuracy",
    views=("write", "vectors", "heads", "alignment"),
)
