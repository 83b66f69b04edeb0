"""Translation and other text-to-text tasks: an encoder–decoder reads a text and writes another text.

In the recipe, `metrics` names the metrics that suit the targets, and `baseline` names the baseline that the evaluation
scores with these metrics.

One tokenizer is trained on both sides of the training data. END follows the source and the target, and the decoder
starts with END. The loss is −log p of each target token, including END, given the source and the previous target
tokens.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
import torch

from seqloom.config import config
from seqloom.config.constraints import Fraction, Ge, NonNegativeFloat, NonNegativeInt, PositiveInt
from seqloom.core import Json
from seqloom.core.device import device_of
from seqloom.core.errors import DataError
from seqloom.core.protocols import Loss
from seqloom.core.tree import Tree, to_device
from seqloom.data.baselines import BASELINES, BaselineName
from seqloom.data.batching import Array, Ragged
from seqloom.data.collate import ParallelBatches, collate_parallel
from seqloom.data.corpora import CorpusConfig
from seqloom.data.corpus import Corpus
from seqloom.data.examples import ParallelExample
from seqloom.decoding.beam import BeamConfig, Hypothesis, beam_search, map_batches, release_memory
from seqloom.evaluate.alignment import ForcedPair, score_alignments
from seqloom.evaluate.perplexity import exp
from seqloom.evaluate.text_metrics import TextMetric, additional_metrics, metric_of
from seqloom.evaluate.translation import (
    TranslatedLine,
    TranslationReport,
    describe_decoding,
    report,
    score_baseline,
    score_translations,
)
from seqloom.models import MODELS
from seqloom.tasks.base import BatchedTask, InitRecipe, ModelSection, TaskInfo, cached_method
from seqloom.tasks.terms_base import TermSearch
from seqloom.text import BytePair, Tokenizer
from seqloom.text.bytepair import DropoutTexts
from seqloom.train.config import FitConfig

if TYPE_CHECKING:
    from seqloom.runs.run import Run

GREEDY = BeamConfig(beam=1)  # search options for translations of dev during training
SIDES = ("source", "target")
MAX_UNKNOWN_RATE = 0.05  # above this fraction of <unk> in one side of the training data, a warning is shown


@config
class BatchConfig:
    """Batches of sentence pairs."""

    # maximum size of the longer side of a batch: pairs × longest sentence, including padding
    tokens: PositiveInt = 2048
    # maximum number of different batch shapes; null: no limit, which needs less padding
    max_shapes: PositiveInt | None = None
    # maximum length of a side in tokens; training omits longer pairs; null: no limit
    max_length: Annotated[int, Ge(2)] | None = 256
    eval_tokens: PositiveInt = 8192  # as `tokens`, for evaluation and translation
    # number of dev pairs to translate at each evaluation in training; 0: none, null: all
    dev_pairs: NonNegativeInt | None = 200


@config
class LossConfig:
    label_smoothing: Fraction = 0.0  # ε: the loss is (1 − ε) · (−log p) + ε · the mean of −log p over the vocabulary
    # α: weight of the divergence between two passes with different dropout masks (R-Drop)
    consistency: NonNegativeFloat = 0.0


@config
class Recipe(InitRecipe):
    task: Literal["translate"] = "translate"
    data: CorpusConfig[ParallelExample]
    batch: BatchConfig = BatchConfig()
    model: Annotated[ModelSection, MODELS.only("recurrent-seq2seq", "transformer")] = MODELS.default(
        "recurrent-seq2seq"
    )
    loss: LossConfig = LossConfig()
    decode: BeamConfig = BeamConfig()  # default search settings
    # Metrics that suit the targets: rouge for summaries, attachment for dependency trees, python for code. BLEU, chrF
    # and exact match are always computed; a baseline is scored with the named metrics only.
    metrics: tuple[TextMetric, ...] = ("bleu",)
    baseline: BaselineName | None = None  # baseline that `evaluate` scores with these metrics
    # dev metric that selects the best checkpoint
    monitor: Literal["loss", "bleu", "chrf", "exact_match", "rouge_l", "labelled_attachment"] = "loss"
    train: FitConfig

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.monitor != "loss" and self.batch.dev_pairs == 0:
            yield f"monitor {self.monitor} needs translations of dev: set batch.dev_pairs above 0, or to null"
        if (metric := metric_of(self.monitor)) not in (None, *self.metrics):
            yield f"monitor {self.monitor} needs the metric {metric}: add it to metrics"
        if len(set(self.metrics)) < len(self.metrics):
            yield f"metrics must be different; got {', '.join(self.metrics)}"
        if self.dropout and self.batch.max_shapes is not None:
            yield "tokenizer.dropout changes the lengths in every epoch, so batch.max_shapes must be null"
        if self.loss.consistency and self.has_hard_attention:
            yield "loss.consistency needs soft attention: set loss.consistency to 0, or model.attention.hard to null"

    @property
    def has_hard_attention(self) -> bool:
        """Whether training samples positions of the source."""
        return self.model.kind == "recurrent-seq2seq" and self.model.has_hard_attention

    @property
    def dropout(self) -> float:
        """The byte-pair dropout, or 0 for other tokenizers."""
        return self.tokenizer.dropout if self.tokenizer is not None and self.tokenizer.kind == "byte-pair" else 0.0


class Task(BatchedTask[Recipe, Any]):
    corpus: Corpus[ParallelExample]
    validates_part = True
    measured_on = "pairs of sentences"

    @classmethod
    def training_texts(cls, recipe: Recipe, corpus: Corpus[ParallelExample]) -> Iterable[str]:
        """Return both sides of the training data for one tokenizer."""
        return (text for pair in corpus.split("train") for text in (pair.source, pair.target))

    @classmethod
    def of_pairs(cls, recipe: Recipe, run: "Run", pairs: Sequence[ParallelExample]) -> Self:
        """Create the task of a run for other pairs of the same languages. These pairs form the only split, "other"."""
        languages = run.data.get("source", ""), run.data.get("target", "")
        return cls(recipe, Corpus("other pairs", "", {"other": pairs}, languages=languages), run.tokenizer)

    @property
    def loss_remark(self) -> str:
        remarks = {"smoothed": self.recipe.loss.label_smoothing, "with policy": self.recipe.has_hard_attention}
        return ", ".join(remark for remark, applies in remarks.items() if applies)

    def describe_data(self) -> dict[str, Json]:
        languages = dict(zip(SIDES, self.corpus.languages, strict=True))
        return {**super().describe_data(), **languages}

    def receiver(self, model: Any) -> Any:
        from seqloom.runs.transfer import CompleteModel

        return CompleteModel(model, len(self.tokenizer))

    def check_model(self) -> None:
        """Reject data with more tokens than the model has positions, and targets that the metrics cannot score."""
        references = self.texts("dev", "target")
        additional_metrics(self.recipe.metrics, references, references)
        is_pretrained = self.recipe.init is not None  # pretrained positions are fixed, so texts of dev are truncated
        for side, longest in self.max_lengths.items():
            for split in ("train",) if is_pretrained else ("train", "dev"):
                lengths = self.encoded(split, side).lengths
                most = int((lengths[self.batches.pairs] if split == "train" else lengths).max())
                if most > longest:
                    advice = (
                        f"Omit longer pairs from training: batch.max_length={min(self.max_lengths.values())}."
                        if is_pretrained
                        else f"Set model.{self.recipe.model.longest_key}={most}."
                    )
                    raise DataError(
                        f"A {side} of {split} has {most:,} tokens, including END, but the model has only "
                        f"{longest:,} positions. {advice}"
                    )

    def warnings(self) -> list[str]:
        warnings = [*super().warnings(), *(f"{note}." for note in self.truncation_notes("dev"))]
        if omitted := self.batches.left_out:
            warnings.append(
                f"{omitted:,} of {len(self.corpus.split('train')):,} training pairs are omitted because a side is "
                f"longer than {self.recipe.batch.max_length} tokens (batch.max_length)."
            )
        for side in SIDES:
            if (rate := self.unknown_rate("train", side)) > MAX_UNKNOWN_RATE:
                warnings.append(
                    f"{rate:.1%} of the {side} tokens of train are <unk>. Use tokenizer.kind=byte-pair, which can "
                    "encode any text, or keep rarer words in the vocabulary."
                )
        return warnings

    # --- data -------------------------------------------------------------------------------------------------------

    def texts(self, split: str, side: str) -> list[str]:
        return [getattr(pair, side) for pair in self.corpus.split(split)]

    @cached_method
    def side_tokens(self, split: str, side: str) -> Ragged:
        """Return the tokens of one side of a split. Texts of dev and test are truncated to the model's positions."""
        texts, most = self.encoded(split, side), self.max_lengths.get(side)
        if split == "train" or most is None or texts.lengths.max(initial=0) <= most:
            return texts
        return texts.truncate_texts(np.minimum(texts.lengths, most))

    @cached_method
    def encoded(self, split: str, side: str) -> Ragged:
        """Return all tokens of one side of a split."""
        return Ragged.of(self.tokenizer_of(side).encode_batch(self.texts(split, side)))

    @property
    def max_lengths(self) -> dict[str, int]:
        """The maximum number of tokens per side, for the sides that have a limit."""
        most = {"source": self.recipe.model.longest_source, "target": self.recipe.model.longest_target}
        return {side: longest for side, longest in most.items() if longest is not None}

    def is_too_long(self, split: str) -> Array:
        """Return a mask (N,) of the pairs in a split that have a side that is too long."""
        over = [self.encoded(split, side).lengths > longest for side, longest in self.max_lengths.items()]
        return np.any([np.zeros(len(self.corpus.split(split)), bool), *over], axis=0)

    def truncation_notes(self, split: str) -> list[str]:
        count, pairs = int(self.is_too_long(split).sum()), len(self.corpus.split(split))
        if not count:
            return []
        limits = " and ".join(f"{longest:,} positions for the {side}" for side, longest in self.max_lengths.items())
        return [
            f"{count:,} of {pairs:,} pairs of {split} are truncated: a side has more tokens than the model has "
            f"positions ({limits})"
        ]

    def tokenizer_of(self, side: str) -> Tokenizer:
        """Return the tokenizer of one side."""
        return self.tokenizer if side == "source" else self.tokenizer.of_targets

    def unknown_rate(self, split: str, side: str) -> float:
        """Return the fraction of the tokens on one side that are <unk>."""
        ids, unknown = self.side_tokens(split, side).ids, self.tokenizer.unknown
        return 0.0 if unknown is None else float((ids == unknown).mean())

    @cached_property
    def batches(self) -> ParallelBatches:
        batch, sides = self.recipe.batch, [self.side_tokens("train", side) for side in SIDES]
        return ParallelBatches(*sides, tokens=batch.tokens, shapes=batch.max_shapes, max_length=batch.max_length)

    @cached_property
    def _dropout_texts(self) -> dict[str, DropoutTexts]:
        assert isinstance(self.tokenizer, BytePair)  # the only tokenizer with dropout
        texts = {side: self.texts("train", side) for side in SIDES}
        return {side: DropoutTexts(self.tokenizer, texts[side], self.recipe.dropout) for side in SIDES}

    def tokens_per_step(self) -> float:
        """Return the mean number of target tokens."""
        return int(self.side_tokens("train", "target").lengths[self.batches.pairs].sum()) / self.steps_per_epoch()

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        """Return a batch of pairs. With byte-pair dropout, the pairs are segmented again at every step."""
        if self.recipe.dropout:
            chosen = self.batches.members(seed, step, rank, world)
            source, target = (
                Ragged.of(self._dropout_texts[side].draw(chosen, seed, side, step, rank, world)) for side in SIDES
            )
            batch = collate_parallel(source, target, np.arange(len(chosen)))
        else:
            batch = self.batches.batch(seed, step, rank, world)
        return {**batch, "read": int(batch["target_mask"].sum())}  # computed here to avoid a GPU synchronization

    def loss(self, model: Any, batch: Tree, carry: Tree) -> Loss:
        options = self.recipe.loss
        value, count = model.loss(batch, options.label_smoothing, options.consistency)
        return Loss(value, None, batch["read"], count)

    # --- evaluation -------------------------------------------------------------------------------------------------

    def validate(self, model: Any) -> dict[str, float]:
        """Compute the loss on dev, and the metrics of greedy translations of evenly spaced dev pairs."""
        pairs, limit = len(self.corpus.split("dev")), self.recipe.batch.dev_pairs
        chosen = np.linspace(0, pairs - 1, pairs if limit is None else min(limit, pairs)).round().astype(int)
        metrics = self.losses(model, "dev")
        if not len(chosen):
            return metrics
        lines = self.translate(model, "dev", replace(GREEDY, max_length=self.max_generated), chosen)
        hypotheses, references = [line.hypothesis for line in lines], [line.reference for line in lines]
        language = self.corpus.languages[1]
        scores = score_translations(hypotheses, references, language=language, metrics=self.recipe.metrics)
        return metrics | scores.metrics

    def mean_target_length(self) -> float:
        return float(self.side_tokens("dev", "target").lengths.mean())

    def report(
        self, model: Any, split: str, decode: BeamConfig | None = None, terms: TermSearch | None = None
    ) -> TranslationReport:
        """Translate a split with the search options of the recipe or with `decode`, and compute all metrics.

        The translations contain the required `terms`.
        """
        options = decode or self.recipe.decode
        translation_report = report(
            self.translate(model, split, options, terms=terms),
            source_language=self.corpus.languages[0],
            target_language=self.corpus.languages[1],
            decoding=describe_decoding(options) + ("" if terms is None else ", glossary"),
            metrics=self.recipe.metrics,
            before=self.losses(model, split),
            after={**self.alignment(model, split), **(baseline := self.baseline_metrics(split))},
        )
        described = BASELINES[self.recipe.baseline].description if self.recipe.baseline and baseline else ""
        return replace(translation_report, notes=tuple(self.truncation_notes(split)), baseline=described)

    @torch.no_grad()
    def losses(self, model: Any, split: str) -> dict[str, float]:
        """Return −log p per target token, including END."""
        total = sum(
            model.target_log_probs(to_device(batch, device_of(model))).double().sum().item()
            for _, batch in self.indexed_batches(split)
        )
        loss = -total / len(self.side_tokens(split, "target").ids)
        return {"loss": loss, "perplexity": exp(loss)}

    def translate(
        self,
        model: Any,
        split: str,
        options: BeamConfig,
        chosen: Array | None = None,
        terms: TermSearch | None = None,
    ) -> list[TranslatedLine]:
        """Translate all pairs of a split or the selected pairs, in order."""
        pairs, device, end = self.corpus.split(split), device_of(model), self.tokenizer.end
        best_only, banned = replace(options, n_best=1), self.tokenizer.banned
        indices = range(len(pairs)) if chosen is None else chosen.tolist()
        required = {index: () if terms is None else terms.required(pairs[index].source) for index in indices}

        def search(item: tuple[Array, Tree]) -> list[list[Hypothesis]]:
            members, batch = item
            source = to_device({"tokens": batch["source"], "mask": batch["source_mask"]}, device)
            of_lines = [required[index] for index in members.tolist()]
            constraints = None if terms is None else terms.constraints(of_lines, device)
            return beam_search(model, source=source, options=best_only, end=end, banned=banned, constraints=constraints)

        batches: list[tuple[Array, Tree]] = []
        for has_terms in (False, True):  # separate batches, because a search without terms is faster
            part = np.array([index for index in indices if bool(required[index]) == has_terms], dtype=int)
            batches += self.indexed_batches(split, part) if len(part) else ()
        decoded = map_batches(search, batches, device)
        release_memory(model)  # free the memory for training
        lines: dict[int, TranslatedLine] = {}
        for (members, _), hypotheses in zip(batches, decoded, strict=True):
            for index, (best,) in zip(members.tolist(), hypotheses, strict=True):
                pair = pairs[index]
                text = self.tokenizer.decode(best.tokens) if pair.source else ""  # blank lines have blank translations
                lines[index] = TranslatedLine(pair.source, pair.target, text)
        return [lines[index] for index in indices]

    def baseline_metrics(self, split: str) -> dict[str, float]:
        """Return the metrics of the baseline of the recipe, which is computed from the training pairs."""
        if self.recipe.baseline is None or split == "train" or "train" not in self.corpus.splits:
            return {}
        predict = BASELINES[self.recipe.baseline].predict
        predictions = predict(self.corpus.split("train"), self.texts(split, "source"))
        references, language = self.texts(split, "target"), self.corpus.languages[1]
        return score_baseline(predictions, references, language=language, metrics=self.recipe.metrics)

    @torch.no_grad()
    def alignment(self, model: Any, split: str) -> dict[str, float]:
        """Compare attention weights with the alignments of the corpus, if the corpus has alignments."""
        pairs, examples = self.corpus.split(split), list[ForcedPair]()
        aligned = np.flatnonzero(np.array([bool(pair.links) for pair in pairs]) & ~self.is_too_long(split))
        for members, batch in self.indexed_batches(split, aligned) if len(aligned) else ():
            weights = model.attention(to_device(batch, device_of(model)))  # (B, T, S)
            if weights is None:
                return {}
            for index, attention in zip(members.tolist(), weights.float().cpu().numpy(), strict=True):
                pair = pairs[index]
                source, target = (self.tokenizer_of(side).spans(getattr(pair, side)) for side in SIDES)
                attention = attention[: len(target) + 1, : len(source) + 1]
                examples.append(ForcedPair(attention, source, target, pair.links))
        return score_alignments(examples) if examples else {}

    def indexed_batches(self, split: str, chosen: Array | None = None) -> Iterator[tuple[Array, Tree]]:
        """Return batches of all pairs of a split or of the selected pairs, with their indices."""
        sides = [self.side_tokens(split, side) for side in SIDES]
        chosen = np.arange(len(sides[0])) if chosen is None else chosen
        batches = ParallelBatches(*(side.take(chosen) for side in sides), tokens=self.recipe.batch.eval_tokens)
        return ((chosen[members], batch) for members, batch in batches.all_batches())


INFO = TaskInfo(
    name="translate",
    recipe=Recipe,
    task=Task,
    predictor="seqloom.predict.translate:TranslatorPredictor",
    command="translate {run}",
    pipeline_tag="translation",
    metric="bleu",
    examples="pairs",
    example="Two children are playing in the park.",
    views=("write", "beam", "vectors", "walk", "heads", "alignment", "cell"),
)
