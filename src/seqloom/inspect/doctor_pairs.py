"""What the doctor says of sentence pairs: both sides, what stands in two splits, and how they fall into batches."""

from collections.abc import Iterator
from dataclasses import dataclass

from seqloom.inspect.lengths import Lengths, lengths
from seqloom.tasks.translate import SIDES, Task

REPEATED = 0.10  # of the training pairs: more is worth a word
OVERLAP = 0.05  # of a split's pairs, or of its source sentences, that stand in train too
UNKNOWN = 0.05  # of the tokens of a side of dev or test read as <unk>
PADDING = 0.25  # of the cells of an epoch


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
        splits=[_split(task, name) for name in task.corpus.splits],
        left_out=batches.left_out,
        tokens=batches.tokens,
        pairs_per_batch=len(batches.pairs) / batches.steps_per_epoch,
        shapes=len(batches.shapes()),
        fixed=task.recipe.batch.shapes is not None,
        padding=batches.padding(),
    )


def _split(task: Task, name: str) -> PairSplit:
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
