"""The base class of tasks whose model reads an image, and optionally a text, and writes a text.

Every target text of an example is correct. Training reads each pair of an image and a target text once per epoch; the
last, incomplete batch is dropped. END follows every text, and the decoder starts with END. The loss is −log p of each
target token, including END, given the image, the source text and the previous target tokens.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from seqloom.config import Discriminator, config
from seqloom.config.constraints import Fraction, NonNegativeFloat, NonNegativeInt
from seqloom.core.device import device_of
from seqloom.core.errors import DataError
from seqloom.core.protocols import Loss
from seqloom.core.tree import Tree, to_device
from seqloom.data.batching import Array, Ragged, ShuffleSampler
from seqloom.data.collate import shift_right
from seqloom.data.corpus import Corpus
from seqloom.data.image_texts import DescribedExample
from seqloom.data.images import ImageOptions, Pixels
from seqloom.decoding.beam import BeamConfig, beam_search, map_batches, release_memory
from seqloom.evaluate.perplexity import exp
from seqloom.evaluate.translation import describe_decoding
from seqloom.evaluate.written_texts import WrittenText, WrittenTextReport
from seqloom.models.image_to_text import ImageToTextConfig
from seqloom.tasks.base import TaskRecipe, cached_method, dropout_problems
from seqloom.tasks.image_base import AugmentConfig, BatchConfig, ImageTask
from seqloom.text import TokenizerConfig
from seqloom.train.config import FitConfig

GREEDY = BeamConfig(beam=1)  # search options for texts of dev during training


@config
class ImageTextBatchConfig(BatchConfig):
    """Batches of images with texts; `size` is the number of pairs of an image and a target text."""

    # number of dev images for which texts are written at each evaluation in training; 0: none, null: all
    dev_images: NonNegativeInt | None = 200


@config
class TextLossConfig:
    label_smoothing: Fraction = 0.0  # ε: the loss is (1 − ε) · (−log p) + ε · the mean of −log p over the vocabulary
    # λ: add λ Σ_j (1 − Σ_t α_tj)² to the loss of a text, so that it attends to all locations
    doubly_stochastic: NonNegativeFloat = 0.0


@config
class DescribingRecipe(TaskRecipe):
    """The keys of a recipe whose model writes texts about an image or a clip."""

    data: object
    tokenizer: TokenizerConfig
    batch: ImageTextBatchConfig = ImageTextBatchConfig()
    loss: TextLossConfig = TextLossConfig()
    decode: BeamConfig = BeamConfig()  # default search settings
    train: FitConfig

    def problems(self) -> Iterator[str]:
        yield from dropout_problems(self.tokenizer)
        if self.loss.doubly_stochastic and not self.model.has_attention:
            yield "loss.doubly_stochastic needs attention: set model.seq2seq.attention, or loss.doubly_stochastic=0"
        if self.monitor not in (None, "loss") and self.batch.dev_images == 0:
            yield f"monitor {self.monitor} needs texts of dev: set batch.dev_images above 0, or to null"


@config
class ImageToTextRecipe(DescribingRecipe):
    """The keys of a recipe whose model writes texts about an image."""

    images: ImageOptions = ImageOptions()
    augment: AugmentConfig = AugmentConfig()
    model: Annotated[ImageToTextConfig, Discriminator("kind")] = ImageToTextConfig()


ImageTextR = TypeVar("ImageTextR", bound=DescribingRecipe)


def make_source(images: Pixels | Tensor, vectors: int, text: tuple[Tensor, Tensor] | None = None) -> dict[str, Tree]:
    """Return the source and the mask of images (B, H, W, C) and of the tokens and masks of texts, both (B, S).

    `images` is an array, or a tensor with the vectors of the images (B, N, D). `vectors` is N.
    """
    source = {"vectors": images} if isinstance(images, Tensor) else {"images": torch.from_numpy(images)}
    mask = torch.ones(len(images), vectors, dtype=torch.bool)
    if text is not None:
        source["text"], text_mask = text
        mask = torch.cat([mask, text_mask], dim=1)  # (B, N + S)
    return {"source": source, "source_mask": mask}


class ImageToTextTask(ImageTask[ImageTextR, Any]):
    """A task whose model reads an image, and optionally a text, and writes a text.

    Subclasses define `score`, and set `reads_texts` if the model reads the source texts.
    """

    corpus: Corpus[DescribedExample]
    reads_tokens = True
    reads_texts: ClassVar[bool] = False  # whether the model reads the source text of an example
    validates_part = True

    @classmethod
    def training_texts(cls, recipe: ImageTextR, corpus: Corpus[DescribedExample]) -> Iterable[str]:
        """Return the source and target texts of train for one tokenizer."""
        return (text for example in corpus.split("train") for text in example.texts())

    def score(self, lines: Sequence[WrittenText]) -> dict[str, float]:
        """Compute the metrics of written texts."""
        raise NotImplementedError

    @property
    def loss_remark(self) -> str:
        loss = self.recipe.loss
        remarks = {
            "smoothed": loss.label_smoothing,
            "regularized": loss.doubly_stochastic,
            "with policy": self.recipe.model.has_hard_attention,
        }
        return ", ".join(remark for remark, applies in remarks.items() if applies)

    def sizes(self) -> dict[str, int]:
        return {**super().sizes(), **({"texts": 1} if self.reads_texts else {})}

    def check_model(self) -> None:
        """Reject images that cannot be read, and data with more vectors or tokens than the model has positions."""
        super().check_model()
        model = self.recipe.model
        for split in self.corpus.splits:
            source = self.vectors_per_image
            if self.reads_texts:
                source += int(self.sources(split).lengths.max())
            target = int(self.targets(split).lengths.max())
            for side, length, longest in (
                ("source", source, model.longest_source),
                ("target", target, model.longest_target),
            ):
                if longest is not None and length > longest:
                    unit = "tokens" if side == "target" else "vectors of an image and its text"
                    raise DataError(
                        f"A {side} of {split} has {length:,} {unit}, but the model has only {longest:,} positions. "
                        f"Set model.{model.longest_key}={length}."
                    )

    # --- data -------------------------------------------------------------------------------------------------------

    def source_text(self, example: DescribedExample) -> str:
        """Return the text that the model reads beside the image."""
        return example.source_text

    @cached_method
    def sources(self, split: str) -> Ragged:
        """Return the tokens of the source text of each example."""
        return Ragged.of(self.tokenizer.encode_batch(map(self.source_text, self.corpus.split(split))))

    @cached_method
    def targets(self, split: str) -> Ragged:
        """Return the tokens of all target texts, in the order of the examples."""
        texts = (text for example in self.corpus.split(split) for text in example.target_texts)
        return Ragged.of(self.tokenizer.encode_batch(texts))

    @cached_method
    def examples_of_targets(self, split: str) -> Array:
        """Return the index of the example of each target text (P,)."""
        counts = [len(example.target_texts) for example in self.corpus.split(split)]
        return np.repeat(np.arange(len(counts)), counts)

    @cached_property
    def sampler(self) -> ShuffleSampler:
        count = len(self.targets("train"))
        return ShuffleSampler(count, min(self.recipe.batch.size, count), "images")

    def tokens_per_step(self) -> float:
        """Return the mean number of target tokens."""
        return len(self.targets("train").ids) / len(self.targets("train")) * self.sampler.size

    def source_batch(self, split: str, members: Array, images: Array | None = None) -> dict[str, Tree]:
        """Return the source and the mask of these examples; `images` replace the images of the split."""
        read: Array | Tensor | None = images
        if read is None:
            table = self.vectors(split)
            read = self.table(split).take(members) if table is None else table.take(members)
        text = None
        if self.reads_texts:
            sources = self.sources(split)
            text = sources.pad(members, len(members), int(sources.lengths[members].max()))
        return make_source(read, self.vectors_per_image, text)

    def target_batch(self, split: str, pairs: Array) -> dict[str, Tree]:
        """Return the inputs and targets of the decoder (B, T) for these target texts, padded to the longest."""
        texts = self.targets(split)
        targets, mask = texts.pad(pairs, len(pairs), int(texts.lengths[pairs].max()))
        return {"inputs": shift_right(targets), "targets": targets, "target_mask": mask}

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        """Return a batch of pairs of an image and a target text, with random changes to the images."""
        _, pairs = self.sampler.choose(seed, step, rank, world)
        members = self.examples_of_targets("train")[pairs]
        images = None
        if self.recipe.augment.is_active:
            images = self.recipe.augment.apply(self.table("train").take(members), seed, step * world + rank)
        return {**self.source_batch("train", members, images), **self.target_batch("train", pairs), "read": len(pairs)}

    def loss(self, model: Any, batch: Tree, carry: Tree) -> Loss:
        options = self.recipe.loss
        value, count = model.loss(batch, options.label_smoothing, doubly_stochastic=options.doubly_stochastic)
        return Loss(value, None, batch["read"], count)

    # --- evaluation -------------------------------------------------------------------------------------------------

    def validate(self, model: Any) -> dict[str, float]:
        """Compute the loss on dev, and the metrics of greedily written texts for evenly spaced dev images."""
        images, limit = len(self.corpus.split("dev")), self.recipe.batch.dev_images
        chosen = np.linspace(0, images - 1, images if limit is None else min(limit, images)).round().astype(int)
        search = replace(GREEDY, max_length=self.max_generated)
        scores = self.score(self.write(model, "dev", search, chosen)) if len(chosen) else {}
        return self.losses(model, "dev") | scores

    def mean_target_length(self) -> float:
        return float(self.targets("dev").lengths.mean())

    def report(self, model: Any, split: str, decode: BeamConfig | None = None) -> WrittenTextReport:
        """Write a text for each image with the search options of the recipe or with `decode`; compute all metrics."""
        options = decode or self.recipe.decode
        lines = self.write(model, split, options)
        metrics = {**self.losses(model, split), **self.score(lines)}
        return WrittenTextReport(metrics, describe_decoding(options), lines)

    @torch.no_grad()
    def losses(self, model: Any, split: str) -> dict[str, float]:
        """Return −log p per target token, including END."""
        self.adopt_encoder(model)
        targets, total = self.targets(split), 0.0
        for pairs in self.parts(np.arange(len(targets))):
            source = self.source_batch(split, self.examples_of_targets(split)[pairs])
            batch = to_device({**source, **self.target_batch(split, pairs)}, device_of(model))
            total += model.target_log_probs(batch).double().sum().item()
        loss = -total / len(targets.ids)
        return {"loss": loss, "perplexity": exp(loss)}

    def write(self, model: Any, split: str, options: BeamConfig, chosen: Array | None = None) -> list[WrittenText]:
        """Return the best text for each example of a split, or for each selected example, in order."""
        self.adopt_encoder(model)
        examples, device = self.corpus.split(split), device_of(model)

        def search(members: Array) -> list[str]:
            batch = to_device(self.source_batch(split, members), device)
            hypotheses = beam_search(
                model,
                source={"tokens": batch["source"], "mask": batch["source_mask"]},
                options=options,
                end=self.tokenizer.end,
                banned=self.tokenizer.banned,
            )
            return [self.tokenizer.decode(best.tokens) for best, *_ in hypotheses]

        members = np.arange(len(examples)) if chosen is None else chosen
        texts = [text for part in map_batches(search, list(self.parts(members)), device) for text in part]
        release_memory(model)  # free the memory for training
        return [WrittenText(examples[index], text) for index, text in zip(members.tolist(), texts, strict=True)]

    def parts(self, members: Array) -> Iterator[Array]:
        """Divide indices into batches for evaluation."""
        size = self.recipe.batch.eval_size
        return (members[start : start + size] for start in range(0, len(members), size))
