"""Translation: an encoder–decoder reads a sentence of one language and writes it in another.

One tokenizer serves both languages; it is learned from both sides of train. Source and target are followed by END, and
END is what the decoder reads before its first token. The loss is −log p of each target token, END included, given the
source and the target before it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch

from seqloom.config import Discriminator, config
from seqloom.core.errors import DataError, UsageError
from seqloom.core.protocols import Loss, Monitor
from seqloom.core.tree import Tree, to_device
from seqloom.data import corpora
from seqloom.data.batching import Array, Ragged
from seqloom.data.collate import ParallelBatches, collate_parallel
from seqloom.data.copy_baseline import copy_baseline
from seqloom.data.corpora import CorpusConfig
from seqloom.data.corpus import Corpus
from seqloom.data.examples import ParallelExample
from seqloom.decoding.batches import map_batches
from seqloom.decoding.beam import BeamConfig, Hypothesis, beam_search, release_memory
from seqloom.evaluate.alignment import Example, score_alignments
from seqloom.evaluate.translation import Line, Report, bleu, decoding_in_words, report, score_translations
from seqloom.models.recurrent_seq2seq import RecurrentSeq2SeqConfig
from seqloom.models.transformer import TransformerConfig
from seqloom.runs.init import InitConfig, Pretrained, StillNeeded, Tokens, pretrained, still_needed
from seqloom.runs.run import Run
from seqloom.tasks import base
from seqloom.tasks.base import TaskInfo
from seqloom.tasks.language_model import device_of, refuse_changed_data
from seqloom.text import BytePair, Tokenizer, TokenizerConfig, train_tokenizer
from seqloom.text.bytepair_dropout import DropoutTexts
from seqloom.text.spans import token_spans
from seqloom.train.config import FitConfig

GREEDY = BeamConfig(beam=1)  # how dev is translated while a model trains
SIDES = ("source", "target")
MUCH_UNKNOWN = 0.05  # of the tokens of a side of train read as <unk>: more is worth a word


@config
class BatchConfig:
    """How the pairs are put together."""

    tokens: int = 2048  # most of a batch on its longer side: pairs × longest, padding included
    shapes: int | None = None  # at most so many shapes of batches; null for as many as it takes, which pads less
    max_length: int | None = 256  # training leaves out pairs with a longer side, in tokens; null to read them all
    eval_tokens: int = 8192  # as `tokens`, when a split is evaluated or translated
    dev_pairs: int | None = 200  # pairs of dev translated at each evaluation in training; 0 for none, null for all

    def problems(self) -> Iterator[str]:
        for name, least in (("tokens", 1), ("shapes", 1), ("max_length", 2), ("eval_tokens", 1), ("dev_pairs", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                yield f"{name} must be at least {least}, got {value}"


@config
class LossConfig:
    label_smoothing: float = 0.0  # ε: the loss is (1 − ε) · (−log p) + ε · mean of −log p over the vocabulary
    consistency: float = 0.0  # α: every pair is read twice, and what dropout makes of the two readings shall agree

    def problems(self) -> Iterator[str]:
        if self.consistency < 0:
            yield f"consistency must be at least 0, got {self.consistency}"
        if not 0 <= self.label_smoothing < 1:
            yield f"label_smoothing must be at least 0 and below 1, got {self.label_smoothing}"


@config
class Recipe:
    task: Literal["translate"] = "translate"
    seed: int = 1
    init: InitConfig | None = None  # go on with an encoder–decoder that was trained on something else
    data: CorpusConfig[ParallelExample]
    tokenizer: TokenizerConfig | None = None  # with init, that of the run
    batch: BatchConfig = BatchConfig()
    model: Annotated[RecurrentSeq2SeqConfig | TransformerConfig, Discriminator("kind")] = RecurrentSeq2SeqConfig()
    loss: LossConfig = LossConfig()
    decode: BeamConfig = BeamConfig()  # how it translates, unless a command says otherwise
    goal: Literal["loss", "bleu", "chrf"] = "loss"  # which figure of dev chooses the best checkpoint
    train: FitConfig

    def problems(self) -> Iterator[str]:
        if self.init is not None and self.tokenizer is not None:
            yield "tokenizer is that of the run in init.from: leave the section out"
        if self.init is None and self.tokenizer is None:
            yield "tokenizer: missing; it must be a section, or init.from, a run that has one"
        if self.goal != "loss" and self.batch.dev_pairs == 0:
            yield f"goal {self.goal} needs translations of dev: set batch.dev_pairs above 0, or to null"
        if self.dropout and self.batch.shapes is not None:
            yield "tokenizer.dropout changes the lengths at every reading, so batch.shapes must be null"

    @property
    def dropout(self) -> float:
        """Of byte pairs; the other tokenizers have none."""
        return getattr(self.tokenizer, "dropout", 0.0)


class Task(base.Task):
    validates_part = True
    pretrained: Pretrained | StillNeeded | None = None

    def __init__(self, recipe: Recipe, corpus: Corpus[ParallelExample], tokenizer: Tokenizer):
        self.recipe, self.corpus, self.tokenizer = recipe, corpus, tokenizer
        smoothed = "nats, smoothed" if recipe.loss.label_smoothing else "nats"  # exp of the first is no perplexity
        self.monitor = Monitor(recipe.goal, higher_is_better=recipe.goal != "loss", unit=smoothed)
        self._sides: dict[tuple[str, str], Ragged] = {}
        self._cut: dict[tuple[str, str, int], Ragged] = {}  # and to how many places

    @classmethod
    def metric_of(cls, recipe: Recipe) -> str:
        return recipe.goal

    @classmethod
    def prepare(cls, recipe: Recipe) -> Self:
        corpus = corpora.load(recipe.data)
        corpus.split("dev")  # there is no choosing without one: say so before the work, not after it
        source = pretrained(recipe)
        task = cls(recipe, corpus, _tokenizer(recipe, corpus) if source is None else source.tokenizer)
        task.pretrained = source
        task.check_model()
        return task

    @classmethod
    def reopen(cls, recipe: Recipe, run: Run) -> Self:
        corpus = corpora.load(recipe.data)
        refuse_changed_data(run, corpus)
        task = cls(recipe, corpus, run.tokenizer)
        task.pretrained = still_needed(recipe, run)
        return task

    @classmethod
    def of_pairs(cls, recipe: Recipe, run: Run, pairs: Sequence[ParallelExample]) -> Self:
        """The same task on other pairs of the same languages, its only split "other"."""
        languages = run.data.get("source", ""), run.data.get("target", "")
        return cls(recipe, Corpus("other pairs", "", "", "", {"other": pairs}, languages=languages), run.tokenizer)

    @classmethod
    def of_documents(cls, recipe: Recipe, run: Run, documents: Sequence[str]) -> Self:
        raise UsageError(
            f"{run.path} translates: it is measured on pairs of sentences, not on a text. "
            "Name a --split, or files of your own: --source FILE --reference FILE."
        )

    def documents(self) -> dict[str, Any]:
        described, init = describe(self.corpus), self.recipe.init
        if init is not None and isinstance(self.pretrained, Pretrained):
            described["init"] = self.pretrained.described(init)
        return {"tokenizer.json": self.tokenizer.to_json(), "data.json": described}

    def model(self) -> Any:
        model, init = self.recipe.model.build(len(self.tokenizer)), self.recipe.init
        if self.pretrained is not None and init is not None and init.weights:
            self.pretrained.give(Tokens(model, len(self.tokenizer)))
        return model

    def check_model(self) -> None:
        """What the model cannot read is said before the work, not in the midst of it."""
        begun = self.recipe.init is not None  # then the places are as they are, and dev is cut
        for side, longest in self.places.items():
            for split in ("train",) if begun else ("train", "dev"):
                lengths = self._whole(split, side).lengths
                most = int((lengths[self.batches.pairs] if split == "train" else lengths).max())
                if most > longest:
                    advice = (
                        f"Leave longer pairs out of training: batch.max_length={min(self.places.values())}."
                        if begun
                        else f"Set model.{self.recipe.model.longest_key}={most}."
                    )
                    raise DataError(
                        f"A {side} of {split} has {most:,} tokens, its end included, and this model knows only "
                        f"{longest:,} places. {advice}"
                    )

    def warnings(self) -> list[str]:
        """What a person should know before training begins."""
        found = [f"{note}." for note in (*self.corpus.notes, *self.cut_notes("dev"))]
        if out := self.batches.left_out:
            found.append(
                f"{out:,} of {len(self.corpus.split('train')):,} training pairs are left out: one of their sides is "
                f"longer than {self.recipe.batch.max_length} tokens (batch.max_length)."
            )
        for side in SIDES:
            if (rate := self.unknown_rate("train", side)) > MUCH_UNKNOWN:
                found.append(
                    f"{rate:.1%} of the {side} tokens of train are read as <unk>. Take tokenizer.kind=byte-pair, which "
                    "spells everything, or let the vocabulary keep rarer words."
                )
        return found

    # --- data -------------------------------------------------------------------------------------------------------

    def texts(self, split: str, side: str) -> list[str]:
        return [getattr(pair, side) for pair in self.corpus.split(split)]

    def side(self, split: str, side: str) -> Ragged:
        """The tokens of one side of a split; but in train, of a text with more than the model can read the first."""
        found, most = self._whole(split, side), self.places.get(side)
        if split == "train" or most is None or found.lengths.max(initial=0) <= most:
            return found
        if (split, side, most) not in self._cut:
            self._cut[split, side, most] = found.truncate_texts(np.minimum(found.lengths, most))
        return self._cut[split, side, most]

    def _whole(self, split: str, side: str) -> Ragged:
        if (split, side) not in self._sides:
            self._sides[split, side] = Ragged.of(self._reader(side).encode_batch(self.texts(split, side)))
        return self._sides[split, side]

    @property
    def places(self) -> dict[str, int]:
        """The most tokens of each side that the model can read; a side that may have any number is not there."""
        most = {"source": self.recipe.model.longest_source, "target": self.recipe.model.longest_target}
        return {side: longest for side, longest in most.items() if longest is not None}

    def cut(self, split: str) -> Array:
        """Which pairs (N,) of a split have a side with more tokens than that; only its beginning is read."""
        over = [self._whole(split, side).lengths > longest for side, longest in self.places.items()]
        return np.any([np.zeros(len(self.corpus.split(split)), bool), *over], axis=0)

    def cut_notes(self, split: str) -> list[str]:
        count, pairs = int(self.cut(split).sum()), len(self.corpus.split(split))
        if not count:
            return []
        places = " and ".join(f"{longest:,} places for the {side}" for side, longest in self.places.items())
        return [
            f"Of {count:,} of {pairs:,} pairs of {split} only the beginning is read: a side has more tokens than the "
            f"model has places ({places})"
        ]

    def _reader(self, side: str) -> Tokenizer:
        return self.tokenizer if side == "source" else self.tokenizer.of_targets

    def unknown_rate(self, split: str, side: str) -> float:
        """The share of tokens read as <unk>."""
        ids, unknown = self.side(split, side).ids, self.tokenizer.unknown
        return 0.0 if unknown is None else float((ids == unknown).mean())

    @cached_property
    def batches(self) -> ParallelBatches:
        batch, sides = self.recipe.batch, [self.side("train", side) for side in SIDES]
        return ParallelBatches(*sides, tokens=batch.tokens, shapes=batch.shapes, max_length=batch.max_length)

    @cached_property
    def _dropped(self) -> dict[str, DropoutTexts]:
        assert isinstance(self.tokenizer, BytePair)  # no other has a dropout
        texts = {side: self.texts("train", side) for side in SIDES}
        return {side: DropoutTexts(self.tokenizer, texts[side], self.recipe.dropout) for side in SIDES}

    def steps_per_epoch(self) -> int:
        return self.batches.steps_per_epoch

    def tokens_per_step(self) -> float:
        """Target tokens, on average."""
        return int(self.side("train", "target").lengths[self.batches.pairs].sum()) / self.steps_per_epoch()

    def largest_step(self, seed: int) -> int:
        """The batch of the first epoch that takes most memory: what a rehearsal must not miss."""
        return self.batches.largest_step(seed)

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        """With byte-pair dropout every reading is segmented anew, and padded to the longest it has come to."""
        if self.recipe.dropout:
            chosen = self.batches.members(seed, step, rank, world)
            source, target = (
                Ragged.of(self._dropped[side].draw(chosen, seed, side, step, rank, world)) for side in SIDES
            )
            batch = collate_parallel(source, target, np.arange(len(chosen)))
        else:
            batch = self.batches.batch(seed, step, rank, world)
        return {**batch, "read": int(batch["target_mask"].sum())}  # counted here, where nothing waits for a GPU

    def loss(self, model: Any, batch: Tree, carry: Tree) -> Loss:
        """Every sentence begins afresh, so nothing is carried. What is counted are the target tokens."""
        wanted = self.recipe.loss
        value, count = model.loss(batch, wanted.label_smoothing, wanted.consistency)
        return Loss(value, None, batch["read"], count)

    # --- measuring --------------------------------------------------------------------------------------------------

    def validate(self, model: Any) -> dict[str, float]:
        """Dev while a model trains: the loss of all of it, and of a few pairs spread over it greedy translations."""
        pairs, wanted = len(self.corpus.split("dev")), self.recipe.batch.dev_pairs
        chosen = np.linspace(0, pairs - 1, pairs if wanted is None else min(wanted, pairs)).round().astype(int)
        found = self.losses(model, "dev")
        if not len(chosen):
            return found
        lines = self.translated(model, "dev", GREEDY, chosen)
        said, meant = [line.hypothesis for line in lines], [line.reference for line in lines]
        return found | score_translations(said, meant, language=self.corpus.languages[1]).metrics

    def evaluate(self, model: Any, split: str) -> dict[str, float]:
        return self.report(model, split).metrics

    def report(self, model: Any, split: str, decode: BeamConfig | None = None) -> Report:
        """Every figure of a split, all of it translated as the recipe says, or as `decode` does."""
        options = decode or self.recipe.decode
        found = report(
            self.translated(model, split, options),
            source_language=self.corpus.languages[0],
            target_language=self.corpus.languages[1],
            decoding=decoding_in_words(options),
            before=self.losses(model, split),
            after={**self.alignment(model, split), **self.copying(split)},
        )
        return replace(found, notes=tuple(self.cut_notes(split)))

    @torch.no_grad()
    def losses(self, model: Any, split: str) -> dict[str, float]:
        """−log p per target token, END included."""
        total = sum(
            model.target_log_probs(to_device(batch, device_of(model))).double().sum().item()
            for _, batch in self._every(split)
        )
        loss = -total / len(self.side(split, "target").ids)
        return {"loss": loss, "perplexity": math.exp(loss) if loss < 700 else math.inf}

    def translated(self, model: Any, split: str, options: BeamConfig, chosen: Array | None = None) -> list[Line]:
        """Pairs of a split and what the model makes of them, in the order of the split."""
        pairs = self.corpus.split(split)
        chosen = np.arange(len(pairs)) if chosen is None else chosen
        unwanted = self.tokenizer.banned
        one = replace(options, n_best=1)
        said: dict[int, str] = {}
        device, end = device_of(model), self.tokenizer.end

        def search(batch: Tree) -> list[list[Hypothesis]]:
            source = to_device({"tokens": batch["source"], "mask": batch["source_mask"]}, device)
            return beam_search(model, source=source, options=one, end=end, banned=unwanted)

        batches = list(self._every(split, chosen))
        decoded = map_batches(search, [batch for _, batch in batches], device)
        release_memory(model)  # it may learn on, and would need the memory
        for (members, _), found in zip(batches, decoded, strict=True):
            for index, (best,) in zip(members.tolist(), found, strict=True):
                said[index] = self.tokenizer.decode(best.tokens) if pairs[index].source else ""  # blank stays blank
        return [Line(pairs[index].source, pairs[index].target, said[index]) for index in chosen.tolist()]

    def copying(self, split: str) -> dict[str, float]:
        """On `cldr`, whose sentences are new combinations of parts that were seen, what looking them up would reach."""
        if self.corpus.name != "cldr" or split == "train":
            return {}
        said = copy_baseline(self.corpus.split("train"), self.texts(split, "source"))
        return {"copy_bleu": bleu(said, self.texts(split, "target"), language=self.corpus.languages[1])}

    @torch.no_grad()
    def alignment(self, model: Any, split: str) -> dict[str, float]:
        """How well attention finds the parts that say the same, where the corpus knows them; {} where it does not."""
        pairs = self.corpus.split(split)
        known = np.flatnonzero(np.array([bool(pair.links) for pair in pairs]) & ~self.cut(split))
        if not len(known) or not hasattr(model, "attention"):
            return {}
        return score_alignments(self._looked(model, split, known))

    def _looked(self, model: Any, split: str, chosen: Array) -> Iterator[Example]:
        pairs, (reader, speaker) = self.corpus.split(split), map(self._reader, SIDES)
        for members, batch in self._every(split, chosen):
            weights = model.attention(to_device(batch, device_of(model)))  # (B, T, S)
            if weights is None:
                return
            rows = zip(members.tolist(), weights.float().cpu().numpy(), strict=True)
            for pair, looked in ((pairs[index], looked) for index, looked in rows):
                source, target = token_spans(reader, pair.source), token_spans(speaker, pair.target)
                yield Example(looked[: len(target) + 1, : len(source) + 1], source, target, pair.links)

    def _every(self, split: str, chosen: Array | None = None) -> Iterator[tuple[Array, Tree]]:
        """Each pair of a split once, or each of those chosen: batches, with the places of their pairs in the split."""
        sides = [self.side(split, side) for side in SIDES]
        chosen = np.arange(len(sides[0])) if chosen is None else chosen
        batches = ParallelBatches(*(side.take(chosen) for side in sides), tokens=self.recipe.batch.eval_tokens)
        return ((chosen[members], batch) for members, batch in batches.every())


def _tokenizer(recipe: Recipe, corpus: Corpus[ParallelExample]) -> Tokenizer:
    """One for both languages, learned from both sides of train."""
    assert recipe.tokenizer is not None  # the recipe says so where it is missing
    texts = (text for pair in corpus.split("train") for text in (pair.source, pair.target))
    return train_tokenizer(recipe.tokenizer, texts)


def describe(corpus: Corpus[ParallelExample]) -> dict[str, Any]:
    """What a run remembers of its data."""
    return {
        "corpus": corpus.name,
        "version": corpus.version,
        "licence": corpus.licence,
        "source": corpus.languages[0],
        "target": corpus.languages[1],
        "sha256": corpus.fingerprint(),
        "counts": {split: corpus.sizes(split) for split in corpus.splits},
        "notes": list(corpus.notes),
    }


INFO = TaskInfo(
    name="translate",
    recipe=Recipe,
    task=Task,
    forms=("pairs",),
    predictor="seqloom.predict.translator:Translator",
    command="translate {run}",
    metric="bleu",
    examples="pairs",
    views=("write", "vectors", "walk", "heads", "alignment", "cell"),
)
