"""Transcription: a model reads a recording, such as the strokes of a pen, and writes its text.

The section `features` of a recipe converts recordings to vectors. The loss is −log p per target token; see
`seqloom.models.vectors_to_text`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch

from seqloom.config import config
from seqloom.config.constraints import Fraction, NonNegativeInt, PositiveInt
from seqloom.core.device import device_of
from seqloom.core.errors import DataError, UsageError
from seqloom.core.tree import Tree, to_device
from seqloom.data.batching import Array, Ragged
from seqloom.data.corpora import CorpusConfig
from seqloom.data.corpus import Corpus
from seqloom.data.transcriptions import (
    FEATURES,
    RaggedVectors,
    SignalFeatures,
    TranscribedExample,
    TranscriptionBatches,
)
from seqloom.decoding.beam import release_memory
from seqloom.decoding.fusion import FusedLanguageModel
from seqloom.evaluate.transcription import score_transcriptions
from seqloom.evaluate.written_texts import WrittenText, WrittenTextReport
from seqloom.models import MODELS
from seqloom.tasks.base import BatchedTask, TaskInfo, TaskRecipe, cached_method, dropout_problems
from seqloom.tasks.transcription_base import TranscriptionSearchConfig, describe_search, search
from seqloom.text import TokenizerConfig
from seqloom.train.config import FitConfig

if TYPE_CHECKING:
    from seqloom.models.vectors_to_text import VectorsToText, VectorsToTextConfig
else:
    VectorsToText = VectorsToTextConfig = Any


@config
class TranscriptionBatchConfig:
    """Batches of recordings of similar length."""

    tokens: PositiveInt = 4096  # maximum number of vectors per batch, including padding
    eval_tokens: PositiveInt = 16384  # maximum number of vectors per batch in evaluation
    max_shapes: PositiveInt | None = None  # maximum number of batch shapes, for GPUs; null: no limit
    # number of dev recordings that are transcribed at each evaluation in training; 0: none, null: all
    dev_recordings: NonNegativeInt | None = 300


@config
class TranscriptionLossConfig:
    label_smoothing: Fraction = 0.0  # ε: the loss of the decoder is (1 − ε) · (−log p) + ε · the mean of −log p


@config
class Recipe(TaskRecipe):
    task: Literal["transcribe"] = "transcribe"
    data: CorpusConfig[TranscribedExample]
    features: Annotated[Any, FEATURES] = FEATURES.default("pen-offsets")
    tokenizer: TokenizerConfig
    batch: TranscriptionBatchConfig = TranscriptionBatchConfig()
    model: Annotated[VectorsToTextConfig, MODELS.only("vectors-to-text")] = MODELS.default("vectors-to-text")
    loss: TranscriptionLossConfig = TranscriptionLossConfig()
    decode: TranscriptionSearchConfig = TranscriptionSearchConfig()  # default search settings
    # dev metric that selects the best checkpoint
    monitor: Literal["loss", "character_error_rate", "word_error_rate", "exact_match"] = "character_error_rate"
    train: FitConfig

    def problems(self) -> Iterator[str]:
        yield from dropout_problems(self.tokenizer)
        if self.monitor != "loss" and self.batch.dev_recordings == 0:
            yield f"monitor {self.monitor} needs texts of dev: set batch.dev_recordings above 0, or to null"


TranscribedLine = WrittenText[TranscribedExample]


class Task(BatchedTask[Recipe, VectorsToText]):
    corpus: Corpus[TranscribedExample]
    speed_unit = "vectors"
    validates_part = True
    measured_on = "recordings with transcriptions"

    @property
    def features(self) -> SignalFeatures:
        """The config that converts recordings to vectors."""
        features: SignalFeatures = self.recipe.features
        return features

    @property
    def loss_unit(self) -> str:
        """Not "nats", because exp of a loss of CTC is not a perplexity."""
        return "nats per token"

    @property
    def loss_remark(self) -> str:
        changes = ["smoothed"] * bool(self.recipe.loss.label_smoothing) + ["augmented"] * self.features.augments
        return ", ".join(changes)

    def sizes(self) -> dict[str, int]:
        return {"size": self.features.size}

    def check_model(self) -> None:
        """Reject recordings of another form, and data with more vectors or tokens than the model has positions."""
        for split in self.corpus.splits:
            for example in self.corpus.split(split)[:1]:
                if not isinstance(example.signal, self.features.signal_type):
                    raise UsageError(
                        f"features.kind must match the corpus: {self.recipe.features.kind} reads "
                        f"{self.features.recordings}, but {self.corpus.name} contains other recordings."
                    )
            model = self.recipe.model
            limits = (
                ("vectors", self.vectors(split).lengths, model.longest_vectors, model.longest_vectors_key),
                ("tokens", self.targets(split).lengths, model.longest_target, model.longest_key),
            )
            for unit, lengths, longest, key in limits:
                if longest is not None and lengths.max() > longest:
                    raise DataError(
                        f"A recording of {split} has {lengths.max():,} {unit}, but the model has only {longest:,} "
                        f"positions. Set model.{key}={lengths.max()}."
                    )

    def warnings(self) -> list[str]:
        warnings = super().warnings()
        if self.recipe.model.has_ctc and (count := int(self.is_too_short("train").sum())):
            warnings.append(
                f"{count:,} of {len(self.corpus.split('train')):,} training recordings have fewer vectors than CTC "
                "needs for their texts. CTC ignores them; use more vectors or a larger tokenizer."
            )
        return warnings

    # --- data -------------------------------------------------------------------------------------------------------

    @cached_method
    def vectors(self, split: str) -> RaggedVectors:
        """Return the vectors of the recordings of a split."""
        vectors = (self.features.vectors(example.signal) for example in self.corpus.split(split))
        return RaggedVectors.of(vectors, self.features.size)

    @cached_method
    def targets(self, split: str) -> Ragged:
        """Return the tokens of the transcriptions of a split."""
        return Ragged.of(self.tokenizer.encode_batch(example.text for example in self.corpus.split(split)))

    def is_too_short(self, split: str) -> Array:
        """Return which recordings (N,) have fewer frames than CTC needs: one per token, and between equal tokens."""
        targets = self.targets(split)
        repeats = np.append(targets.ids[1:] == targets.ids[:-1], False)
        repeats[targets.starts[1:] - 1] = False
        needed = targets.lengths - 1 + np.add.reduceat(repeats, targets.starts[:-1])
        frames: Array = -(-self.vectors(split).lengths // self.recipe.model.reduction)
        return frames < needed

    def make_batches(self, split: str, *, tokens: int, shapes: int | None = None) -> TranscriptionBatches:
        features = self.features if split == "train" and self.features.augments else None
        return TranscriptionBatches(
            self.vectors(split), self.targets(split), tokens=tokens, shapes=shapes, features=features
        )

    @cached_method
    def eval_batches(self, split: str) -> TranscriptionBatches:
        return TranscriptionBatches(self.vectors(split), self.targets(split), tokens=self.recipe.batch.eval_tokens)

    def tokens_per_step(self) -> float:
        """Return the mean number of target tokens."""
        return len(self.targets("train").ids) / self.steps_per_epoch()

    def loss_options(self) -> Sequence[float]:
        return [self.recipe.loss.label_smoothing]

    # --- evaluation -------------------------------------------------------------------------------------------------

    def validate(self, model: VectorsToText) -> dict[str, float]:
        """Compute the loss on dev, and the metrics of greedily written texts of evenly spaced dev recordings."""
        count, limit = len(self.corpus.split("dev")), self.recipe.batch.dev_recordings
        chosen = np.linspace(0, count - 1, count if limit is None else min(limit, count)).round().astype(int)
        options = replace(self.recipe.decode, beam=1, n_best=1)
        lines = self.write(model, "dev", options, chosen) if len(chosen) else []
        return {**self.losses(model, "dev"), **(score(lines) if lines else {})}

    def report(
        self,
        model: VectorsToText,
        split: str,
        decode: TranscriptionSearchConfig | None = None,
        language_model: FusedLanguageModel | None = None,
    ) -> WrittenTextReport[TranscribedExample]:
        """Transcribe a split with the search options of the recipe or with `decode`, and compute all metrics."""
        options = decode or self.recipe.decode
        lines = self.write(model, split, options, language_model=language_model)
        decoding = describe_search(options, model.config)
        return WrittenTextReport[TranscribedExample]({**self.losses(model, split), **score(lines)}, decoding, lines)

    @torch.no_grad()
    def losses(self, model: VectorsToText, split: str) -> dict[str, float]:
        """Return the loss per target token, END included, and the losses of both parts of a joint model."""

        def compute(batch: Tree) -> list[dict[str, float]]:
            likelihoods = model.log_likelihoods(batch)
            values = torch.stack(list(likelihoods.values()), dim=1).double().tolist()
            return [dict(zip(likelihoods, row, strict=True)) for row in values]

        rows = self.for_each_example(model, split, compute)
        count = len(self.targets(split).ids)
        losses = {
            name: -sum(row[name] for row in rows if np.isfinite(row[name])) / count
            for name in (rows[0] if rows else ())
        }
        if len(losses) == 1:
            return {"loss": next(iter(losses.values()))}
        weight = self.recipe.model.ctc_weight
        joint = (1 - weight) * losses["attention"] + weight * losses["ctc"]
        return {"loss": joint, "attention_loss": losses["attention"], "ctc_loss": losses["ctc"]}

    def write(
        self,
        model: VectorsToText,
        split: str,
        options: TranscriptionSearchConfig,
        chosen: Array | None = None,
        language_model: FusedLanguageModel | None = None,
    ) -> list[TranscribedLine]:
        """Return the best text for each recording of a split, or for each selected recording, in order."""
        members = np.arange(len(self.corpus.split(split))) if chosen is None else chosen
        vectors = self.vectors(split)
        selected = RaggedVectors.of([vectors[index] for index in members.tolist()], self.features.size)
        batches = TranscriptionBatches(
            selected, self.targets(split).take(members), tokens=self.recipe.batch.eval_tokens
        )
        texts: dict[int, str] = {}
        for indices, batch in batches.all_batches():
            read = to_device(batch, device_of(model))
            found = search(model, read, options, self.tokenizer, language_model=language_model)
            for index, (best, *_) in zip(members[indices].tolist(), found, strict=True):
                texts[index] = self.tokenizer.decode(best.tokens)
        if model.seq2seq is not None:
            release_memory(model.seq2seq)  # free the memory for training
        examples = self.corpus.split(split)
        return [TranscribedLine(examples[index], texts[index]) for index in members.tolist()]


def score(lines: Sequence[TranscribedLine]) -> dict[str, float]:
    """Compute the metrics of written texts."""
    return score_transcriptions([line.text for line in lines], [line.example.text for line in lines])


INFO = TaskInfo(
    name="transcribe",
    recipe=Recipe,
    task=Task,
    predictor="seqloom.predict.transcribe:Transcriber",
    command="transcribe {run}",
    metric="character_error_rate",
    examples="recordings",
    example="strokes.json",
)
