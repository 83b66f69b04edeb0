"""How long the documents of a stream are.

What the doctor says of texts with labels and of tagged sentences: lengths, balance, what is unknown, batches.

What the doctor says of sentence pairs: both sides, what stands in two splits, and how they fall into batches.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from seqloom.core.words import shown
from seqloom.data.examples import TokenClassificationExample, has_spans, tag_counts
from seqloom.tasks import task_info
from seqloom.tasks.reading_base import ReadingTask
from seqloom.tasks.translate import SIDES, Task


@dataclass(frozen=True)
class Lengths:
    """Of documents, in tokens, END not counted."""

    shortest: int
    median: int
    most: int  # 95 % are no longer than this
    longest: int


def lengths(stream: Any, end: int) -> Lengths:
    """Every document is followed by END, which no text contains: so the stream itself says how long they are."""
    return spread(np.diff(np.flatnonzero(stream == end), prepend=-1) - 1)


def spread(found: Any) -> Lengths:
    """Of the lengths themselves (N,)."""
    if not len(found):
        return Lengths(0, 0, 0, 0)
    quantile = [int(np.quantile(found, share, method="lower")) for share in (0, 0.5, 0.95, 1)]
    return Lengths(*quantile)


# ---------------------------------------------------------------------------------------------------------------------

REPEATED = 0.10  # of the training examples: more is worth a word
OVERLAP = 0.05  # of a split's texts that stand in train too
UNKNOWN = 0.05  # of a split's tokens read as <unk>, where the model does not read how words are spelled
PADDING = 0.25  # of the cells of an epoch
UNEVEN = 10.0  # times as many examples of the largest class as of the smallest
FEW = 10  # training examples of a class: fewer are hard to learn from


@dataclass(frozen=True)
class ExampleSplit:
    name: str
    examples: int
    tokens: int  # END after each text, or piece of one, or the special tokens around it, included
    lengths: Lengths
    duplicates: int  # texts that stand earlier in the same split too
    in_train: int  # texts that stand in train too; 0 for train itself
    unknown_rate: float
    new_words: float  # the share of words that never occur in train
    unseen: dict[str, int]  # labels or tags that train never has, and how often


@dataclass(frozen=True)
class ExampleFacts:
    splits: list[ExampleSplit]
    unit: str  # what is counted: texts or sentences
    classes: dict[str, int]  # of train, the largest first: labels, tags, or types of spans
    of_classes: str  # what these are counted in: texts, words or spans
    spelled: bool  # whether the model also reads how words are spelled
    cut: int  # training examples longer than batch.max_length
    max_length: int | None
    tokens: int  # batch.tokens: the budget of a batch
    per_batch: float
    shapes: int  # different shapes of batches
    fixed: bool  # whether batch.shapes says how many there may be
    padding: float  # the share of an epoch's cells that hold no token


def example_facts(task: ReadingTask) -> ExampleFacts:
    batches, corpus = task.batches, task.corpus
    tagged = issubclass(corpus.example_type, TokenClassificationExample)
    classes = tag_counts(corpus, "train") if tagged else _label_counts(task)
    spans = tagged and has_spans(corpus)
    return ExampleFacts(
        splits=[_example_split(task, name) for name in corpus.splits],
        unit=task_info(task.recipe.task).examples,
        classes=classes,
        of_classes="spans" if spans else "words" if tagged else "texts",
        spelled=task.spellings is not None,
        cut=task.cut(),
        max_length=task.recipe.batch.max_length,
        tokens=batches.tokens,
        per_batch=len(batches) / batches.steps_per_epoch,
        shapes=len(batches.shapes()),
        fixed=task.recipe.batch.shapes is not None,
        padding=batches.padding(),
    )


def _label_counts(task: ReadingTask) -> dict[str, int]:
    """How many examples each label has, where there are labels to tell apart."""
    return task.corpus.label_counts("train") if task.names else {}


def _unseen(task: ReadingTask, split: str) -> dict[str, int]:
    return task.corpus.unseen_labels(split) if task.names else {}


def _example_split(task: ReadingTask, name: str) -> ExampleSplit:
    corpus = task.corpus
    texts = task.plain_texts(name)
    train = set(task.plain_texts("train")) if name != "train" else set()
    read, frame = task.read(name).texts, task.reader().frame
    return ExampleSplit(
        name=name,
        examples=len(texts),
        tokens=len(read.ids),
        lengths=spread(read.lengths - (1 if frame is None else frame.length)),
        duplicates=len(texts) - len(set(texts)),
        in_train=sum(text in train for text in texts),
        unknown_rate=task.unknown_rate(name),
        new_words=corpus.new_words(name) if name != "train" else 0.0,
        unseen=_unseen(task, name),
    )


def about_examples(found: ExampleFacts) -> Iterator[str]:
    """What to mend first. Long texts and unseen labels the task itself speaks of."""
    for split in found.splits:
        if split.name == "train" and split.duplicates > REPEATED * split.examples:
            yield (
                f"{split.duplicates / split.examples:.0%} of the training {found.unit} are repetitions of others. "
                "Leave them out, unless they are meant to weigh more."
            )
        if split.in_train > OVERLAP * split.examples:
            yield (
                f"{split.in_train / split.examples:.0%} of the {found.unit} of {split.name} stand in train too: its "
                "figures will flatter the model. Split them so that nothing is in both."
            )
        if split.name != "train" and split.unknown_rate > UNKNOWN and not found.spelled:
            yield (
                f"{split.unknown_rate:.1%} of {split.name} is read as <unk>: the model cannot tell these tokens apart. "
                "Let it read characters too (model.characters.kind=cnn), or take tokenizer.kind=byte-pair."
            )
    yield from _about_classes(found)
    if found.padding > PADDING:
        less = "Raise batch.shapes, or set it to null for batches cut to measure."
        fewer = "Lower batch.tokens: smaller batches hold fewer different lengths."
        yield f"{found.padding:.0%} of what a batch holds is padding. {less if found.fixed else fewer}"


def _about_classes(found: ExampleFacts) -> Iterator[str]:
    if not found.classes:
        return
    counts = list(found.classes.values())
    rare = [name for name, count in found.classes.items() if count < FEW]
    if rare:
        few = f"{len(rare)} of {len(counts)} classes have" if len(rare) > 1 else f"The class {shown(rare[0])} has"
        yield f"{few} fewer than {FEW} training {found.of_classes}: hardly enough to learn from."
    if found.of_classes == "texts" and max(counts) > UNEVEN * min(counts):
        yield (
            f"The largest class has {max(counts) / min(counts):.0f} times as many texts as the smallest. Watch macro "
            "F1 beside accuracy; loss.class_weights=balanced makes all classes count the same."
        )


# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Side:
    tokens: int  # END after each sentence included
    lengths: Lengths
    unknown_rate: float
    new_characters: list[str]  # that never occur on this side of train


@dataclass(frozen=True)
class PairSplit:
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
    splits: list[PairSplit]
    left_out: int  # training pairs with a side longer than batch.max_length
    tokens: int  # batch.tokens: the budget of a batch, on its longer side
    pairs_per_batch: float
    shapes: int  # different shapes of batches
    fixed: bool  # whether batch.shapes says how many there may be
    padding: float  # the share of an epoch's cells that hold no token


def pair_facts(task: Task) -> PairFacts:
    batches = task.batches
    return PairFacts(
        splits=[_pair_split(task, name) for name in task.corpus.splits],
        left_out=batches.left_out,
        tokens=batches.tokens,
        pairs_per_batch=len(batches.pairs) / batches.steps_per_epoch,
        shapes=len(batches.shapes()),
        fixed=task.recipe.batch.shapes is not None,
        padding=batches.padding(),
    )


def _pair_split(task: Task, name: str) -> PairSplit:
    texts = list(zip(*(task.texts(name, side) for side in SIDES), strict=True))
    train = set(zip(*(task.texts("train", side) for side in SIDES), strict=True)) if name != "train" else set()
    sources = {source for source, _ in train}
    source, target = (_side(task, name, side) for side in SIDES)
    return PairSplit(
        name=name,
        pairs=len(texts),
        empty=sum(not (source.strip() and target.strip()) for source, target in texts),
        duplicates=len(texts) - len(set(texts)),
        in_train=sum(pair in train for pair in texts),
        sources_in_train=sum(source in sources for source, _ in texts),
        source=source,
        target=target,
    )


def _side(task: Task, name: str, side: str) -> Side:
    ids = task.side(name, side).ids
    new = set().union(*task.texts(name, side)) - set().union(*task.texts("train", side))
    return Side(len(ids), lengths(ids, task.tokenizer.end), task.unknown_rate(name, side), sorted(new))


def about_pairs(found: PairFacts) -> Iterator[str]:
    """What to mend first. Long pairs and unknown words of train the task itself speaks of."""
    for split in found.splits:
        if split.name == "train":
            if split.duplicates > REPEATED * split.pairs:
                yield (
                    f"{split.duplicates / split.pairs:.0%} of the training pairs are repetitions of others. Leave them "
                    "out, unless they are meant to weigh more."
                )
            continue
        both, source = split.in_train / split.pairs, split.sources_in_train / split.pairs
        if max(both, source) > OVERLAP:
            what = f"{both:.0%} of the pairs" if both > OVERLAP else f"{source:.0%} of the source sentences"
            yield (
                f"{what} of {split.name} stand in train too: its figures will flatter the model. Split the pairs so "
                "that nothing is in both."
            )
        for name, side in (("source", split.source), ("target", split.target)):
            if side.unknown_rate > UNKNOWN:
                yield (
                    f"{side.unknown_rate:.1%} of the {name} side of {split.name} is read as <unk>: the model cannot "
                    "tell these tokens apart. Give more pairs, or take tokenizer.kind=byte-pair: it spells everything."
                )
    if found.padding > PADDING:
        less = "Raise batch.shapes, or set it to null for batches cut to measure."
        fewer = "Lower batch.tokens: smaller batches hold fewer different lengths."
        yield f"{found.padding:.0%} of what a batch holds is padding. {less if found.fixed else fewer}"
