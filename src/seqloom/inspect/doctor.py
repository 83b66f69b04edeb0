"""Check a recipe before training: data, model size, duration, memory, and warnings.

`examine` returns plain values. If the recipe or its data cannot be used, it raises the same error as training.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from seqloom.config import to_mapping
from seqloom.core.limits import format_bytes
from seqloom.core.words import format_value
from seqloom.data.corpus import Corpus
from seqloom.data.examples import MultiLabelExample, TokenClassificationExample, has_spans, side_counts, tag_counts
from seqloom.inspect.rehearsal import Budget, ModelFacts, Rehearsal, budget_of, free_memory, model_facts, rehearse
from seqloom.inspect.values import Array
from seqloom.tasks import task_info
from seqloom.tasks.base import Task, TaskRecipe
from seqloom.tasks.reading_base import ReadingTask
from seqloom.tasks.text_base import TextTask
from seqloom.tasks.translate import SIDES
from seqloom.tasks.translate import Task as TranslateTask
from seqloom.train.config import FitConfig
from seqloom.train.state import device_for

MAX_DUPLICATE_FRACTION = 0.10  # of the training examples
MAX_OVERLAP_FRACTION = 0.05  # of the texts or long lines of a split that also occur in train
MAX_UNKNOWN_RATE = 0.05  # of the tokens of a split, if the model does not read characters
LONG_LINE = 40  # characters; shorter lines may be equal by chance
MAX_PADDING_FRACTION = 0.25  # of all positions in the batches of an epoch
MAX_CLASS_RATIO = 10.0  # examples of the largest class per example of the smallest
MIN_CLASS_EXAMPLES = 10  # in the training split
MAX_LISTED = 5  # maximum number of names in a warning
MAX_MEMORY_FRACTION = 0.9  # of the free memory
OPTIMIZER_STATE_PER_WEIGHT = {"sgd": 0, "adam": 2, "adamw": 2}  # values stored per weight, in addition to its gradient


@dataclass(frozen=True)
class Lengths:
    """Document lengths in tokens, without END."""

    min: int
    median: int
    p95: int  # the 95th percentile
    max: int

    @classmethod
    def of(cls, lengths: Array) -> "Lengths":
        if not len(lengths):
            return cls(0, 0, 0, 0)
        return cls(*(int(np.quantile(lengths, quantile, method="lower")) for quantile in (0, 0.5, 0.95, 1)))

    @classmethod
    def of_stream(cls, stream: Array, end: int) -> "Lengths":
        """Compute the lengths from a token stream in which END follows every document."""
        return cls.of(np.diff(np.flatnonzero(stream == end), prepend=-1) - 1)


@dataclass(frozen=True)
class Split:
    """A split of plain texts."""

    name: str
    documents: int
    empty: int
    tokens: int  # with END after each document
    lengths: Lengths
    duplicates: int  # non-empty documents that also occur earlier in the split
    in_train: int  # non-empty documents that also occur in train; 0 for train itself
    overlap: float  # fraction of the characters that are in such documents
    line_overlap: float  # fraction of the long lines that also occur in train
    unknown_rate: float
    new_characters: list[str]  # characters that do not occur in train
    tokenizer: str


@dataclass(frozen=True)
class ExampleSplit:
    """A split of labelled texts or tagged sentences."""

    name: str
    examples: int
    tokens: int  # with END after each text or part of a text, or with the special tokens of the model
    lengths: Lengths
    duplicates: int  # texts that also occur earlier in the split
    in_train: int  # texts that also occur in train; 0 for train itself
    unknown_rate: float
    new_word_rate: float  # fraction of the words that do not occur in the training split
    unseen_labels: dict[str, int]  # counts of the labels or tags that do not occur in the training split


@dataclass(frozen=True)
class ExampleFacts:
    """The training data of a classifier, a tagger or another model that reads texts."""

    splits: list[ExampleSplit]
    unit: str  # the plural noun for examples: texts or sentences
    classes: dict[str, int]  # the classes of train with their counts, largest first: labels, tags or span types
    class_unit: str  # the unit counted in `classes`: texts, words or spans
    unmeasured: list[str]  # classes of train that occur in no other split
    is_balanced: bool  # whether all classes have the same weight in the loss
    has_several_labels: bool  # whether a text can have any number of labels
    reads_characters: bool  # whether the model also reads the characters of words
    truncated: int  # training examples longer than batch.max_length
    max_length: int | None
    tokens: int  # value of batch.tokens, the maximum number per batch
    examples_per_batch: float
    shapes: int  # number of batch shapes
    has_max_shapes: bool  # whether batch.max_shapes limits the number of shapes
    padding_fraction: float  # of all positions in the batches of an epoch


@dataclass(frozen=True)
class Side:
    """One language of a split of sentence pairs."""

    tokens: int  # including END after each sentence
    lengths: Lengths
    unknown_rate: float
    new_characters: list[str]  # characters that do not occur on this side of train


@dataclass(frozen=True)
class PairSplit:
    """A split of sentence pairs."""

    name: str
    pairs: int
    empty: int  # pairs with an empty side
    duplicates: int  # pairs that also occur earlier in the split
    in_train: int  # pairs that also occur in train; 0 for train itself
    sources_in_train: int  # pairs whose source also occurs in train, with any translation
    source: Side
    target: Side


@dataclass(frozen=True)
class PairFacts:
    """The training data of a translator."""

    splits: list[PairSplit]
    skipped: int  # training pairs with a side longer than batch.max_length
    tokens: int  # value of batch.tokens, the maximum number per batch, counted on the longer side
    pairs_per_batch: float
    shapes: int  # number of batch shapes
    has_max_shapes: bool  # whether batch.max_shapes limits the number of shapes
    padding_fraction: float  # of all positions in the batches of an epoch


@dataclass(frozen=True)
class TokenizerFacts:
    """Statistics of the tokenizer on the training split."""

    kind: str
    size: int
    coverage: float  # fraction of the training tokens that are not <unk>
    characters_per_token: float


@dataclass(frozen=True)
class Diagnosis:
    """The result of checking a recipe."""

    task: str
    device: str
    splits: list[Split]
    tokenizer: TokenizerFacts | None
    model: ModelFacts | None  # None if the model is estimated from counts
    budget: Budget | None
    rehearsal: Rehearsal
    free_memory: int | None  # bytes on the device
    warnings: list[str]
    pairs: PairFacts | None = None  # for a translator, instead of `splits`
    examples: ExampleFacts | None = None  # for a classifier or a tagger, instead of `splits`
    sizes: dict[str, dict[str, int]] = field(default_factory=dict)  # for other corpora: counts by split

    @property
    def seconds(self) -> float | None:
        """The duration of training with evaluations, or a lower bound if the rehearsal was interrupted."""
        rehearsal = self.rehearsal
        if self.budget is None or rehearsal.seconds_per_update is None:
            return rehearsal.seconds_per_update
        evaluation_seconds = self.budget.evaluations * (rehearsal.evaluation_seconds or 0)
        return self.budget.steps * rehearsal.seconds_per_update + evaluation_seconds


def examine(recipe: TaskRecipe) -> Diagnosis:
    """Check a recipe and perform a few of its training steps."""
    by_gradient = isinstance(recipe.train, FitConfig)
    device = device_for(recipe.train) if by_gradient else torch.device("cpu")
    task = task_info(recipe.task).task.prepare(recipe)
    budget = budget_of(task) if by_gradient else None
    splits, pairs, examples = data_facts(task)
    warnings = check_facts(splits, pairs, examples)
    tokenizer = tokenizer_facts(task) if isinstance(task, TextTask | TranslateTask | ReadingTask) else None
    sizes = {}
    if tokenizer is None and isinstance(task.corpus, Corpus):
        sizes = {split: task.corpus.sizes(split) for split in task.corpus.splits}
    model = model_facts(task, device) if by_gradient else None
    free_bytes = free_memory(device)
    rehearsal = None
    # Bytes of weights, gradients and optimizer state, four for each value
    if model is not None and free_bytes is not None:
        min_bytes = 4 * model.parameters * (2 + OPTIMIZER_STATE_PER_WEIGHT.get(recipe.train.optimizer, 0))
        if min_bytes > free_bytes:
            needed = f"parameters, gradients and optimizer state alone need {format_bytes(min_bytes)}"
            rehearsal = Rehearsal(failure=f"out of memory: {needed}", out_of_memory_for="model")
    rehearsal = rehearsal or rehearse(recipe)
    warnings += task.warnings()
    warnings += _warn_training(task, budget) if budget is not None else []
    warnings += _warn_rehearsal(rehearsal, free_bytes, to_mapping(recipe).get("batch") or {})
    facts = (splits, tokenizer, model, budget, rehearsal, free_bytes, warnings, pairs, examples, sizes)
    return Diagnosis(recipe.task, str(device), *facts)


def check_data(task: Task) -> list[str]:
    """Return the warnings about the data of a task, without a rehearsal."""
    return check_facts(*data_facts(task))


# --- data -------------------------------------------------------------------------------------------------------------


def data_facts(task: Task) -> tuple[list[Split], PairFacts | None, ExampleFacts | None]:
    """Examine the data of a task: splits of plain texts, sentence pairs or examples."""
    if isinstance(task, TextTask):
        return [split_facts(task, name) for name in task.corpus.splits], None, None
    if isinstance(task, TranslateTask):
        return [], pair_facts(task), None
    return [], None, example_facts(task) if isinstance(task, ReadingTask) else None


def split_facts(task: TextTask, name: str) -> Split:
    documents, train = task.corpus.split(name), task.corpus.split("train")
    non_empty = [document for document in documents if document.strip()]
    train_examples = set() if documents is train else set(train)  # with data.reuse_train, dev and test are train
    return Split(
        name=name,
        documents=len(documents),
        empty=len(documents) - len(non_empty),
        tokens=len(task.stream(name)),
        lengths=Lengths.of_stream(task.stream(name).numpy(), task.tokenizer.end),
        duplicates=len(non_empty) - len(set(non_empty)),
        in_train=sum(document in train_examples for document in non_empty),
        overlap=sum(len(document) for document in non_empty if document in train_examples)
        / max(1, sum(map(len, non_empty))),
        line_overlap=0.0 if documents is train else line_overlap(documents, train),
        unknown_rate=task.unknown_rate(name),
        new_characters=sorted(set().union(*documents) - set().union(*train)),
        tokenizer=task.tokenizer.kind,
    )


def line_overlap(documents: Sequence[str], train: Sequence[str]) -> float:
    """Return the fraction of long lines that also occur in train, even in documents that differ as a whole."""
    lines, train_lines = (
        [line.strip() for document in texts for line in document.split("\n") if len(line.strip()) >= LONG_LINE]
        for texts in (documents, train)
    )
    in_train = set(train_lines)
    return sum(line in in_train for line in lines) / len(lines) if lines else 0.0


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
    classes = {name: class_counts(task, name) for name in corpus.splits}
    measured = set[str]().union(*(counts for name, counts in classes.items() if name != "train"))
    return ExampleFacts(
        splits=splits,
        unit=task_info(task.recipe.task).examples,
        classes=classes["train"],
        class_unit="texts" if not is_tagged else "spans" if has_spans(corpus) else "words",
        unmeasured=[name for name in classes["train"] if name not in measured] if len(classes) > 1 else [],
        is_balanced=getattr(task.recipe.loss, "class_weights", "none") == "balanced",
        has_several_labels=issubclass(corpus.example_type, MultiLabelExample),
        reads_characters=task.spellings is not None,
        truncated=task.truncated_count(),
        max_length=task.recipe.batch.max_length,
        tokens=batches.tokens,
        examples_per_batch=len(batches) / batches.steps_per_epoch,
        shapes=len(batches.shapes()),
        has_max_shapes=task.recipe.batch.max_shapes is not None,
        padding_fraction=batches.padding(),
    )


def class_counts(task: ReadingTask, split: str) -> dict[str, int]:
    """Return the number of examples of each label, or of words or spans of each tag; without labels, return {}."""
    if issubclass(task.corpus.example_type, TokenClassificationExample):
        return tag_counts(task.corpus, split)
    return task.corpus.label_counts(split) if task.names else {}


def pair_facts(task: TranslateTask) -> PairFacts:
    batches, splits = task.batches, []
    train = set(zip(*(task.texts("train", side) for side in SIDES), strict=True))
    for name in task.corpus.splits:
        train_examples = train if name != "train" else set()
        sources = {source for source, _ in train_examples}
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
                in_train=sum(pair in train_examples for pair in texts),
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
    """Compute statistics of the tokenizer on train, for sentence pairs on both sides together."""
    if isinstance(task, ReadingTask):
        tokens = len(task.batches.texts.ids)
        unknown = tokens * task.unknown_rate("train")
        characters = sum(len(text) + 1 for text in task.plain_texts("train"))  # END counts as one character
    elif isinstance(task, TranslateTask):
        counts = {side: len(task.side_tokens("train", side).ids) for side in SIDES}
        tokens, unknown = sum(counts.values()), sum(n * task.unknown_rate("train", side) for side, n in counts.items())
        characters = sum(counts.characters for counts in side_counts(task.corpus.split("train")).values())
    else:
        tokens, characters = len(task.stream("train")), task.corpus.counts("train").characters
        unknown = tokens * task.unknown_rate("train")
    return TokenizerFacts(task.tokenizer.kind, len(task.tokenizer), 1 - unknown / tokens, characters / tokens)


# --- warnings ---------------------------------------------------------------------------------------------------------


def check_facts(splits: Sequence[Split], pairs: PairFacts | None, examples: ExampleFacts | None) -> list[str]:
    """Return the warnings about the data that `data_facts` has examined."""
    warnings = list(_warn_splits(splits))
    warnings += warn_pairs(pairs) if pairs is not None else ()
    warnings += warn_examples(examples) if examples is not None else ()
    return warnings


def _warn_duplicates(fraction: float, unit: str) -> Iterator[str]:
    if fraction > MAX_DUPLICATE_FRACTION:
        yield (f"{fraction:.0%} of the training {unit} are duplicates. Remove them, unless they should count more.")


def _warn_overlap(fraction: float, unit: str, split: str, data: str) -> Iterator[str]:
    if fraction > MAX_OVERLAP_FRACTION:
        yield (
            f"{fraction:.0%} of the {unit} of {split} also occur in train, so its metrics are too optimistic. Split "
            f"{data} so that the splits do not overlap."
        )


def _warn_padding(facts: ExampleFacts | PairFacts) -> Iterator[str]:
    if facts.padding_fraction > MAX_PADDING_FRACTION:
        fix = "Lower batch.tokens: smaller batches mix fewer lengths."
        if facts.has_max_shapes:
            fix = "Raise batch.max_shapes, or set it to null, which allows any batch shape."
        yield f"{facts.padding_fraction:.0%} of the batches is padding. {fix}"


def _warn_splits(splits: Sequence[Split]) -> Iterator[str]:
    for split in splits:
        if split.name == "train":
            yield from _warn_duplicates(split.duplicates / max(1, split.documents), "documents")
        documents = split.in_train / max(1, split.documents - split.empty)
        # Only short documents, such as headings, which may be equal by chance
        documents *= split.overlap > MAX_OVERLAP_FRACTION
        lines = f"lines of {LONG_LINE} or more characters"
        unit = "documents" if documents > split.line_overlap else lines
        yield from _warn_overlap(max(documents, split.line_overlap), unit, split.name, "the text")
    rates = [f"{split.unknown_rate:.1%} of {split.name}" for split in splits if split.unknown_rate > MAX_UNKNOWN_RATE]
    if rates:
        more = "lower tokenizer.min_count, raise tokenizer.max_size, " if splits[0].tokenizer == "words" else ""
        yield (
            f"{' and '.join(rates)} {'is' if len(rates) == 1 else 'are'} read as <unk>: the model cannot distinguish "
            f"these tokens. Add training text, {more}or use tokenizer.kind=byte-pair, which has no unknown tokens."
        )


def warn_examples(facts: ExampleFacts) -> Iterator[str]:
    """Yield warnings about examples, except for long texts and unseen labels, which the task reports."""
    for split in facts.splits:
        if split.name == "train":
            yield from _warn_duplicates(split.duplicates / max(1, split.examples), facts.unit)
        yield from _warn_overlap(split.in_train / max(1, split.examples), facts.unit, split.name, "them")
    unknown = [split for split in facts.splits if split.name != "train" and split.unknown_rate > MAX_UNKNOWN_RATE]
    if unknown and not facts.reads_characters:
        rates = " and ".join(f"{split.unknown_rate:.1%} of {split.name}" for split in unknown)
        yield (
            f"{rates} {'is' if len(unknown) == 1 else 'are'} read as <unk>: the model cannot distinguish these tokens. "
            "Add a character encoder (model.characters.kind=cnn), or use tokenizer.kind=byte-pair."
        )
    counts = list(facts.classes.values())
    if rare := [name for name, count in facts.classes.items() if count < MIN_CLASS_EXAMPLES]:
        few = (
            f"{len(rare)} of {len(counts)} classes have" if len(rare) > 1 else f"The class {format_value(rare[0])} has"
        )
        yield f"{few} fewer than {MIN_CLASS_EXAMPLES} training {facts.class_unit}, which may be too few to learn from."
    if lost := facts.unmeasured:
        names = ", ".join(map(format_value, lost[:MAX_LISTED])) + (" …" if len(lost) > MAX_LISTED else "")
        subject, them = (
            (f"{len(lost)} classes ({names}) occur", "them") if lost[1:] else (f"The class {names} occurs", "it")
        )
        yield f"{subject} only in train, so no metric measures {them}. Add examples, or merge rare classes."
    if counts and facts.class_unit == "texts" and max(counts) > MAX_CLASS_RATIO * min(counts):
        weights = "" if facts.is_balanced else "; loss.class_weights=balanced gives all classes the same weight"
        advice = f"Watch macro F1 in addition to accuracy{weights}."
        yield (
            f"The largest class has {max(counts) / min(counts):.0f} times as many texts as the smallest. "
            f"{'Watch macro F1 in addition to micro F1.' if facts.has_several_labels else advice}"
        )
    total = facts.splits[0].examples
    if facts.has_several_labels and (constant := [name for name, count in facts.classes.items() if count == total]):
        label = format_value(constant[0])
        yield f"Every training text has the label {label}, so the model cannot learn it. Remove this label."
    yield from _warn_padding(facts)


def warn_pairs(facts: PairFacts) -> Iterator[str]:
    """Yield warnings about pairs, except for long pairs and unknown words of train, which the task reports."""
    for split in facts.splits:
        if split.name == "train":
            yield from _warn_duplicates(split.duplicates / max(1, split.pairs), "pairs")
            continue
        pairs, sources = split.in_train / split.pairs, split.sources_in_train / split.pairs
        fraction, unit = (pairs, "pairs") if pairs > MAX_OVERLAP_FRACTION else (sources, "source sentences")
        yield from _warn_overlap(fraction, unit, split.name, "the pairs")
        for name, side in (("source", split.source), ("target", split.target)):
            if side.unknown_rate > MAX_UNKNOWN_RATE:
                yield (
                    f"{side.unknown_rate:.1%} of the {name} side of {split.name} is read as <unk>: the model cannot "
                    "distinguish these tokens. Add pairs, or use tokenizer.kind=byte-pair, which has no unknown tokens."
                )
    yield from _warn_padding(facts)


def _warn_training(task: Task, budget: Budget) -> Iterator[str]:
    train = task.recipe.train
    yield from train.warnings(budget.steps)
    if train.optimizer in ("adam", "adamw") and train.lr > 0.03:
        yield f"train.lr={train.lr:g} is far above the usual range of {train.optimizer}, 1e-4 to 1e-2."
    if train.clip_norm is None and to_mapping(task.recipe)["model"].get("cell"):
        yield "train.clip_norm is null: exploding gradients can destroy the weights in one step. Try 1.0."


def _warn_rehearsal(rehearsal: Rehearsal, free_bytes: int | None, batch: Mapping[str, object]) -> Iterator[str]:
    sizes = [f"batch.{name}" for name in ("tokens", "size", "length") if name in batch]
    smaller = f"a smaller {', '.join(sizes)}{' or ' if sizes else ''}model"
    room = f" Only {format_bytes(free_bytes)} is free." if free_bytes is not None else ""
    failure = rehearsal.failure
    if failure is not None and rehearsal.out_of_memory_for is not None:
        smaller = "a smaller model" if rehearsal.out_of_memory_for == "model" else smaller
        yield f"{failure[0].upper()}{failure[1:]}.{room} Use {smaller}."
    elif failure is not None:
        yield f"The trial run failed, so training will also fail: {failure}"
    elif free_bytes is not None and rehearsal.peak is not None and rehearsal.peak > MAX_MEMORY_FRACTION * free_bytes:
        yield f"Training needs {format_bytes(rehearsal.peak)} of memory.{room} Use {smaller}."
    if rehearsal.microbatches > 1:
        yield (
            f"A batch does not fit in memory and is split into {rehearsal.microbatches} microbatches: the updates are "
            f"the same, but slower.{room} To save memory, set train.gradient_checkpointing=true or use {smaller}."
        )
    if rehearsal.skipped:
        skipped = f"{rehearsal.skipped} of the first {rehearsal.updates} updates were not finite."
        yield f"{skipped} Lower train.lr or train.clip_norm."
