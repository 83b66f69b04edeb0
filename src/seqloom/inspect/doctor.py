"""What would happen if a recipe were trained: its data, its model, its length, its memory, and what to mend first.

`examine` gives plain values. It raises what training would raise where the recipe or its data
cannot be used at all.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from seqloom.config import to_mapping
from seqloom.core.limits import format_bytes
from seqloom.core.words import format_value
from seqloom.data.corpus import Corpus
from seqloom.data.examples import TokenClassificationExample, has_spans, side_counts, tag_counts
from seqloom.inspect.rehearsal import Budget, ModelFacts, Rehearsal, budget_of, free_memory, model_facts, rehearse
from seqloom.inspect.values import Array
from seqloom.tasks import task_info
from seqloom.tasks.base import Task
from seqloom.tasks.reading_base import ReadingTask
from seqloom.tasks.text_base import TextTask
from seqloom.tasks.translate import SIDES
from seqloom.tasks.translate import Task as TranslateTask
from seqloom.train.config import FitConfig
from seqloom.train.state import device_for

REPEATED = 0.10  # of the training examples: more is worth a word
OVERLAP = 0.05  # of a split's texts, or long lines, that stand in train too
UNKNOWN = 0.05  # of a split's tokens read as <unk>, where the model does not read how words are spelled
LONG_LINE = 40  # characters; shorter lines are alike by chance
PADDING = 0.25  # of the cells of an epoch
UNEVEN = 10.0  # times as many examples of the largest class as of the smallest
LEAST_EXAMPLES = 10  # of a class in training: fewer are hard to learn from
FULL = 0.9  # of the memory at hand
SAVED_PER_WEIGHT = {"sgd": 0, "adam": 2, "adamw": 2}  # numbers the optimizer keeps beside each weight and its gradient


@dataclass(frozen=True)
class Lengths:
    """The lengths of documents in tokens, END not counted."""

    min: int
    median: int
    p95: int  # the 95th percentile
    max: int

    @classmethod
    def of(cls, lengths: Array) -> "Lengths":
        if not len(lengths):
            return cls(0, 0, 0, 0)
        return cls(*(int(np.quantile(lengths, share, method="lower")) for share in (0, 0.5, 0.95, 1)))

    @classmethod
    def of_stream(cls, stream: Array, end: int) -> "Lengths":
        """Every document is followed by END, which no text contains: so the stream itself says how long they are."""
        return cls.of(np.diff(np.flatnonzero(stream == end), prepend=-1) - 1)


@dataclass(frozen=True)
class Split:
    """A split of plain texts."""

    name: str
    documents: int
    empty: int
    tokens: int  # END after each document included
    lengths: Lengths
    duplicates: int  # documents that are not empty and stand earlier in the same split too
    in_train: int  # documents that are not empty and stand in train too; 0 for train itself
    line_overlap: float  # the share of long lines that stand in train too
    unknown_rate: float
    new_characters: list[str]  # that never occur in train


@dataclass(frozen=True)
class ExampleSplit:
    """A split of texts with labels, or of tagged sentences."""

    name: str
    examples: int
    tokens: int  # END after each text, or piece of one, or the special tokens around it, included
    lengths: Lengths
    duplicates: int  # texts that stand earlier in the same split too
    in_train: int  # texts that stand in train too; 0 for train itself
    unknown_rate: float
    new_word_rate: float  # the share of words that never occur in train
    unseen_labels: dict[str, int]  # labels or tags that train never has, and how often


@dataclass(frozen=True)
class ExampleFacts:
    """What a classifier, a tagger or another reader of texts learns from."""

    splits: list[ExampleSplit]
    unit: str  # what is counted: texts or sentences
    classes: dict[str, int]  # of train, the largest first: labels, tags, or types of spans
    class_unit: str  # what these are counted in: texts, words or spans
    reads_characters: bool  # whether the model also reads how words are spelled
    truncated: int  # training examples longer than batch.max_length
    max_length: int | None
    tokens: int  # batch.tokens: the budget of a batch
    examples_per_batch: float
    shapes: int  # different shapes of batches
    has_max_shapes: bool  # whether batch.max_shapes says how many there may be
    padding_fraction: float  # the share of an epoch's cells that hold no token


@dataclass(frozen=True)
class Side:
    """One language of a split of sentence pairs."""

    tokens: int  # END after each sentence included
    lengths: Lengths
    unknown_rate: float
    new_characters: list[str]  # that never occur on this side of train


@dataclass(frozen=True)
class PairSplit:
    """A split of sentence pairs."""

    name: str
    pairs: int
    empty: int  # pairs with nothing on one side
    duplicates: int  # pairs that stand earlier in the same split too
    in_train: int  # pairs that stand in train too; 0 for train itself
    sources_in_train: int  # pairs whose source does, whatever its translation
    source: Side
    target: Side


@dataclass(frozen=True)
class PairFacts:
    """What a translator learns from."""

    splits: list[PairSplit]
    skipped: int  # training pairs with a side longer than batch.max_length
    tokens: int  # batch.tokens: the budget of a batch, on its longer side
    pairs_per_batch: float
    shapes: int  # different shapes of batches
    has_max_shapes: bool  # whether batch.max_shapes says how many there may be
    padding_fraction: float  # the share of an epoch's cells that hold no token


@dataclass(frozen=True)
class TokenizerFacts:
    """The tokenizer, measured on train."""

    kind: str
    size: int
    coverage: float  # the share of the training tokens it can spell
    characters_per_token: float


@dataclass(frozen=True)
class Diagnosis:
    """All that an examination finds."""

    task: str
    device: str
    splits: list[Split]
    tokenizer: TokenizerFacts | None
    model: ModelFacts | None  # None for what is counted
    budget: Budget | None
    rehearsal: Rehearsal
    free_memory: int | None  # bytes, of the device
    warnings: list[str]
    pairs: PairFacts | None = None  # of a translator, in place of `splits`
    examples: ExampleFacts | None = None  # of a classifier or a tagger, in place of `splits`
    sizes: dict[str, dict[str, int]] = field(default_factory=dict)  # of any other corpus: what its splits count

    @property
    def seconds(self) -> float | None:
        """How long training will take, evaluations included; at least so long if the rehearsal was broken off."""
        found = self.rehearsal
        if self.budget is None or found.seconds_per_update is None:
            return found.seconds_per_update
        return self.budget.steps * found.seconds_per_update + self.budget.evaluations * (found.evaluation_seconds or 0)


def examine(recipe: Any) -> Diagnosis:
    """Look a recipe over and rehearse it."""
    by_gradient = isinstance(recipe.train, FitConfig)
    device = device_for(recipe.train) if by_gradient else torch.device("cpu")
    task = task_info(recipe.task).task.prepare(recipe)
    budget = budget_of(task) if by_gradient else None
    splits, pairs, examples, tokenizer, sizes = [], None, None, None, {}
    warnings: list[str] = []
    if isinstance(task, TextTask | TranslateTask | ReadingTask):
        tokenizer = tokenizer_facts(task)
    if isinstance(task, TextTask):
        splits = [split_facts(task, name) for name in task.corpus.splits]
        warnings += _about_splits(splits, task.tokenizer.kind)
    elif isinstance(task, TranslateTask):
        pairs = pair_facts(task)
        warnings += about_pairs(pairs)
    elif isinstance(task, ReadingTask):
        examples = example_facts(task)
        warnings += about_examples(examples)
    elif isinstance(task.corpus, Corpus):
        sizes = {split: task.corpus.sizes(split) for split in task.corpus.splits}
    model = model_facts(task, device) if by_gradient else None
    at_hand = free_memory(device)
    rehearsal = None
    if model is not None and at_hand is not None:  # weights, gradients and the optimizer's numbers, four bytes each
        least = 4 * model.parameters * (2 + SAVED_PER_WEIGHT.get(recipe.train.optimizer, 0))
        if least > at_hand:
            needed = f"the parameters, their gradients and the optimizer alone take {format_bytes(least)}"
            rehearsal = Rehearsal(failure=f"out of memory: {needed}", out_of_memory_for="model")
    rehearsal = rehearsal or rehearse(recipe)
    warnings += task.warnings()
    warnings += _about_training(task, budget) if budget is not None else []
    warnings += _about_rehearsal(rehearsal, at_hand, to_mapping(recipe).get("batch") or {})
    facts = (splits, tokenizer, model, budget, rehearsal, at_hand, warnings, pairs, examples, sizes)
    return Diagnosis(recipe.task, str(device), *facts)


# --- data -------------------------------------------------------------------------------------------------------------


def split_facts(task: TextTask, name: str) -> Split:
    documents, train = task.corpus.split(name), task.corpus.split("train")
    real = [document for document in documents if document.strip()]
    known = set(train) if name != "train" else set()
    return Split(
        name=name,
        documents=len(documents),
        empty=len(documents) - len(real),
        tokens=len(task.stream(name)),
        lengths=Lengths.of_stream(task.stream(name).numpy(), task.tokenizer.end),
        duplicates=len(real) - len(set(real)),
        in_train=sum(document in known for document in real),
        line_overlap=share_of_lines(documents, train) if name != "train" else 0.0,
        unknown_rate=task.unknown_rate(name),
        new_characters=sorted(set().union(*documents) - set().union(*train)) if name != "train" else [],
    )


def share_of_lines(documents: Sequence[str], train: Sequence[str]) -> float:
    """The share of long lines that stand in train too: where a document is a whole file, only lines can be alike."""
    lines, known = (
        [line.strip() for document in texts for line in document.split("\n") if len(line.strip()) >= LONG_LINE]
        for texts in (documents, train)
    )
    there = set(known)
    return sum(line in there for line in lines) / len(lines) if lines else 0.0


def example_facts(task: ReadingTask) -> ExampleFacts:
    batches, corpus, frame = task.batches, task.corpus, task.reader().frame
    is_tagged = issubclass(corpus.example_type, TokenClassificationExample)
    splits = []
    for name in corpus.splits:
        texts, read = task.plain_texts(name), task.eval_batches(name).texts
        train = set(task.plain_texts("train")) if name != "train" else set()
        splits.append(
            ExampleSplit(
                name=name,
                examples=len(texts),
                tokens=len(read.ids),
                lengths=Lengths.of(read.lengths - (1 if frame is None else frame.length)),
                duplicates=len(texts) - len(set(texts)),
                in_train=sum(text in train for text in texts),
                unknown_rate=task.unknown_rate(name),
                new_word_rate=corpus.new_words(name) if name != "train" else 0.0,
                unseen_labels=corpus.unseen_labels(name) if task.names else {},
            )
        )
    labels = corpus.label_counts("train") if task.names and not is_tagged else {}
    return ExampleFacts(
        splits=splits,
        unit=task_info(task.recipe.task).examples,
        classes=tag_counts(corpus, "train") if is_tagged else labels,
        class_unit="texts" if not is_tagged else "spans" if has_spans(corpus) else "words",
        reads_characters=task.spellings is not None,
        truncated=task.truncated_count(),
        max_length=task.recipe.batch.max_length,
        tokens=batches.tokens,
        examples_per_batch=len(batches) / batches.steps_per_epoch,
        shapes=len(batches.shapes()),
        has_max_shapes=task.recipe.batch.max_shapes is not None,
        padding_fraction=batches.padding(),
    )


def pair_facts(task: TranslateTask) -> PairFacts:
    batches, splits = task.batches, []
    train = set(zip(*(task.texts("train", side) for side in SIDES), strict=True))
    for name in task.corpus.splits:
        known = train if name != "train" else set()
        sources = {source for source, _ in known}
        texts, sides = list(zip(*(task.texts(name, side) for side in SIDES), strict=True)), {}
        for side in SIDES:
            ids = task.side_tokens(name, side).ids
            new = set().union(*task.texts(name, side)) - set().union(*task.texts("train", side))
            lengths = Lengths.of_stream(ids, task.tokenizer.end)
            sides[side] = Side(len(ids), lengths, task.unknown_rate(name, side), sorted(new))
        splits.append(
            PairSplit(
                name=name,
                pairs=len(texts),
                empty=sum(not (source.strip() and target.strip()) for source, target in texts),
                duplicates=len(texts) - len(set(texts)),
                in_train=sum(pair in known for pair in texts),
                sources_in_train=sum(source in sources for source, _ in texts),
                source=sides["source"],
                target=sides["target"],
            )
        )
    return PairFacts(
        splits=splits,
        skipped=batches.left_out,
        tokens=batches.tokens,
        pairs_per_batch=len(batches.pairs) / batches.steps_per_epoch,
        shapes=len(batches.shapes()),
        has_max_shapes=task.recipe.batch.max_shapes is not None,
        padding_fraction=batches.padding(),
    )


def tokenizer_facts(task: TextTask | TranslateTask | ReadingTask) -> TokenizerFacts:
    """The coverage of train, over both sides where there are two."""
    if isinstance(task, ReadingTask):
        tokens = len(task.batches.texts.ids)
        unknown = tokens * task.unknown_rate("train")
        characters = sum(len(text) + 1 for text in task.plain_texts("train"))  # each end counts as one, as for others
    elif isinstance(task, TranslateTask):
        counts = {side: len(task.side_tokens("train", side).ids) for side in SIDES}
        tokens, unknown = sum(counts.values()), sum(n * task.unknown_rate("train", side) for side, n in counts.items())
        characters = sum(counts.characters for counts in side_counts(task.corpus.split("train")).values())
    else:
        tokens, characters = len(task.stream("train")), task.corpus.counts("train").characters
        unknown = tokens * task.unknown_rate("train")
    return TokenizerFacts(task.tokenizer.kind, len(task.tokenizer), 1 - unknown / tokens, characters / tokens)


# --- what to mend -----------------------------------------------------------------------------------------------------


def _about_repetitions(share: float, what: str) -> Iterator[str]:
    if share > REPEATED:
        yield (
            f"{share:.0%} of the training {what} are repetitions of others. Leave them out, unless they are meant to "
            "weigh more."
        )


def _about_overlap(share: float, what: str, split: str, them: str) -> Iterator[str]:
    if share > OVERLAP:
        yield (
            f"{share:.0%} of the {what} of {split} stand in train too: its figures will flatter the model. Split "
            f"{them} so that nothing is in both."
        )


def _about_padding(facts: ExampleFacts | PairFacts) -> Iterator[str]:
    if facts.padding_fraction > PADDING:
        fix = "Lower batch.tokens: smaller batches mix fewer lengths."
        if facts.has_max_shapes:
            fix = "Raise batch.max_shapes, or set it to null, which allows any batch shape."
        yield f"{facts.padding_fraction:.0%} of the batches is padding. {fix}"


def _about_splits(splits: Sequence[Split], kind: str) -> Iterator[str]:
    for split in splits:
        if split.name == "train":
            yield from _about_repetitions(split.duplicates / max(1, split.documents), "documents")
        documents = split.in_train / max(1, split.documents - split.empty)
        lines = f"lines of {LONG_LINE} characters and more"
        what = "documents" if documents > split.line_overlap else lines
        yield from _about_overlap(max(documents, split.line_overlap), what, split.name, "the text")
    blind = [f"{split.unknown_rate:.1%} of {split.name}" for split in splits if split.unknown_rate > UNKNOWN]
    if blind:
        more = "lower tokenizer.min_count, raise tokenizer.max_size, " if kind == "words" else ""
        yield (
            f"{' and '.join(blind)} {'is' if len(blind) == 1 else 'are'} read as <unk>: the model cannot tell these "
            f"tokens apart. Give more training text, {more}or take tokenizer.kind=byte-pair, which spells everything."
        )


def about_examples(facts: ExampleFacts) -> Iterator[str]:
    """What to mend first. Long texts and unseen labels the task itself speaks of."""
    for split in facts.splits:
        if split.name == "train":
            yield from _about_repetitions(split.duplicates / max(1, split.examples), facts.unit)
        yield from _about_overlap(split.in_train / max(1, split.examples), facts.unit, split.name, "them")
        if split.name != "train" and split.unknown_rate > UNKNOWN and not facts.reads_characters:
            yield (
                f"{split.unknown_rate:.1%} of {split.name} is read as <unk>: the model cannot tell these tokens apart. "
                "Let it read characters too (model.characters.kind=cnn), or take tokenizer.kind=byte-pair."
            )
    counts = list(facts.classes.values())
    if rare := [name for name, count in facts.classes.items() if count < LEAST_EXAMPLES]:
        few = (
            f"{len(rare)} of {len(counts)} classes have" if len(rare) > 1 else f"The class {format_value(rare[0])} has"
        )
        yield f"{few} fewer than {LEAST_EXAMPLES} training {facts.class_unit}: hardly enough to learn from."
    if counts and facts.class_unit == "texts" and max(counts) > UNEVEN * min(counts):
        yield (
            f"The largest class has {max(counts) / min(counts):.0f} times as many texts as the smallest. Watch macro "
            "F1 beside accuracy; loss.class_weights=balanced makes all classes count the same."
        )
    yield from _about_padding(facts)


def about_pairs(facts: PairFacts) -> Iterator[str]:
    """What to mend first. Long pairs and unknown words of train the task itself speaks of."""
    for split in facts.splits:
        if split.name == "train":
            yield from _about_repetitions(split.duplicates / max(1, split.pairs), "pairs")
            continue
        pairs, sources = split.in_train / split.pairs, split.sources_in_train / split.pairs
        share, what = (pairs, "pairs") if pairs > OVERLAP else (sources, "source sentences")
        yield from _about_overlap(share, what, split.name, "the pairs")
        for name, side in (("source", split.source), ("target", split.target)):
            if side.unknown_rate > UNKNOWN:
                yield (
                    f"{side.unknown_rate:.1%} of the {name} side of {split.name} is read as <unk>: the model cannot "
                    "tell these tokens apart. Give more pairs, or take tokenizer.kind=byte-pair: it spells everything."
                )
    yield from _about_padding(facts)


def _about_training(task: Task, budget: Budget) -> Iterator[str]:
    train = task.recipe.train
    yield from train.warnings(budget.steps)
    if train.optimizer in ("adam", "adamw") and train.lr > 0.03:
        yield f"train.lr={train.lr:g} is far above what {train.optimizer} usually bears (1e-4 to 1e-2)."
    if train.clip_norm is None and to_mapping(task.recipe)["model"].get("cell"):
        yield "train.clip_norm is null: gradients through time can explode and ruin the weights in one step. Try 1.0."


def _about_rehearsal(rehearsal: Rehearsal, at_hand: int | None, batch: Mapping[str, object]) -> Iterator[str]:
    sizes = [f"batch.{name}" for name in ("tokens", "size", "length") if name in batch]
    smaller = f"a smaller {', '.join(sizes)}{' or ' if sizes else ''}model"
    room = f" {format_bytes(at_hand)} are free." if at_hand is not None else ""
    failure = rehearsal.failure
    if failure is not None and rehearsal.out_of_memory_for is not None:
        smaller = "a smaller model" if rehearsal.out_of_memory_for == "model" else smaller
        yield f"{failure[0].upper()}{failure[1:]}.{room} Take {smaller}."
    elif failure is not None:
        yield f"The rehearsal failed, and so will training: {failure}"
    elif at_hand is not None and rehearsal.peak is not None and rehearsal.peak > FULL * at_hand:
        yield f"Training needs {format_bytes(rehearsal.peak)} of memory.{room} Take {smaller}."
    if rehearsal.microbatches > 1:
        yield (
            f"A batch does not fit in memory and is split into {rehearsal.microbatches} microbatches: the updates are "
            f"the same, but slower.{room} To save memory, set train.gradient_checkpointing=true or use {smaller}."
        )
    if rehearsal.skipped:
        skipped = f"{rehearsal.skipped} of the first {rehearsal.updates} updates were not finite."
        yield f"{skipped} Lower train.lr, or clip lower."
