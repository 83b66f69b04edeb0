"""What would happen if a recipe were trained: its data, its model, its length, its memory, and what to mend first.

`examine` gives plain values. It raises what training would raise where the recipe or its data cannot be used at all.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from seqloom import accel
from seqloom.core.limits import available_memory, format_bytes
from seqloom.data.examples import side_counts
from seqloom.inspect.doctor_data import ExampleFacts, PairFacts, about_examples, about_pairs, example_facts, pair_facts
from seqloom.inspect.doctor_data import Lengths as Lengths
from seqloom.inspect.doctor_data import lengths as lengths
from seqloom.inspect.rehearsal import Rehearsal, rehearse
from seqloom.nn.cells import CELLS
from seqloom.nn.recurrent import Recurrent, run_cell
from seqloom.tasks import task_info
from seqloom.tasks.reading_base import ReadingTask
from seqloom.tasks.text_base import TextTask
from seqloom.tasks.translate import SIDES
from seqloom.tasks.translate import Task as TranslateTask
from seqloom.train.config import FitConfig
from seqloom.train.state import device_for

DUPLICATES = 0.10  # of the training documents: more is worth a word
OVERLAP = 0.05  # of a split's documents, or long lines, that stand in train too
UNKNOWN = 0.05  # of a split's tokens read as <unk>
LONG_LINE = 40  # characters; shorter lines are alike by chance
FULL = 0.9  # of the memory at hand
STEPS = 64  # of a sequence that layers are asked about
TOO_BIG = "the parameters, their gradients and the optimizer alone take"
PARTS = {
    "embed": "embedding",
    "source_embed": "source embedding",
    "target_embed": "target embedding",
    "stack": "layers",
    "attend": "attention",
    "lexicon": "embedding",
    "chain": "CRF",
}
SAVED_PER_WEIGHT = {"sgd": 0, "adam": 2, "adamw": 2}  # numbers the optimizer keeps beside each weight and its gradient


@dataclass(frozen=True)
class Split:
    name: str
    documents: int
    empty: int
    tokens: int  # END after each document included
    lengths: Lengths
    duplicates: int  # documents that are not empty and stand earlier in the same split too
    in_train: int  # documents that are not empty and stand in train too; 0 for train itself
    lines_in_train: float  # the share of long lines that stand in train too
    unknown_rate: float
    new_characters: list[str]  # that never occur in train


@dataclass(frozen=True)
class TokenizerFacts:
    kind: str
    size: int
    coverage: float  # the share of the training tokens it can spell
    characters_per_token: float


@dataclass(frozen=True)
class ModelFacts:
    kind: str
    parts: dict[str, int]  # parameters by part; what is tied is counted once
    parameters: int
    notes: list[str]  # what the kernels cover, what the parts do beyond their equations


@dataclass(frozen=True)
class Budget:
    steps_per_epoch: int
    steps: int
    epochs: float
    tokens_per_step: int | None  # predictions an update is made from; None where a batch does not say
    evaluations: int


@dataclass(frozen=True)
class Diagnosis:
    task: str
    device: str
    splits: list[Split]
    tokenizer: TokenizerFacts | None
    model: ModelFacts | None  # None for what is counted
    budget: Budget | None
    rehearsal: Rehearsal
    memory_at_hand: int | None  # bytes, of the device
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
    gradient = isinstance(recipe.train, FitConfig)
    device = device_for(recipe.train) if gradient else torch.device("cpu")
    task = task_info(recipe.task).task.prepare(recipe)
    budget = budget_of(task, recipe) if gradient else None
    splits = [split_facts(task, name) for name in task.corpus.splits] if isinstance(task, TextTask) else []
    pairs = pair_facts(task) if isinstance(task, TranslateTask) else None
    examples = example_facts(task) if isinstance(task, ReadingTask) else None
    tokenizer = tokenizer_facts(task) if isinstance(task, TextTask | TranslateTask | ReadingTask) else None
    model = model_facts(task, device) if gradient else None
    at_hand = memory_at_hand(device)
    too_big = model is not None and _too_big(model, recipe, at_hand)
    rehearsal = Rehearsal(failure=too_big) if too_big else rehearse(recipe)
    warnings = [*_about_data(splits), *(about_pairs(pairs) if pairs is not None else ())]
    warnings += about_examples(examples) if examples is not None else []
    warnings += _about_unknown(splits, tokenizer.kind) if tokenizer is not None else []
    warnings += task.warnings()
    warnings += _about_training(recipe, budget) if budget is not None else []
    warnings += _about_rehearsal(rehearsal, at_hand, recipe)
    kind, sizes = str(device), {} if splits or pairs or examples else _sizes(task)
    facts = (splits, tokenizer, model, budget, rehearsal, at_hand, warnings, pairs, examples, sizes)
    return Diagnosis(recipe.task, kind, *facts)


def _sizes(task: Any) -> dict[str, dict[str, int]]:
    corpus: Any = getattr(task, "corpus", None)
    return {split: corpus.sizes(split) for split in corpus.splits} if hasattr(corpus, "sizes") else {}


# --- data -----------------------------------------------------------------------------------------------------------


def split_facts(task: TextTask, name: str) -> Split:
    documents, train = task.corpus.split(name), task.corpus.split("train")
    real = [document for document in documents if document.strip()]
    other = name != "train"
    seen = set(train) if other else set()
    return Split(
        name=name,
        documents=len(documents),
        empty=len(documents) - len(real),
        tokens=len(task.stream(name)),
        lengths=lengths(task.stream(name).numpy(), task.tokenizer.end),
        duplicates=len(real) - len(set(real)),
        in_train=sum(document in seen for document in real),
        lines_in_train=_shared_lines(documents, train) if other else 0.0,
        unknown_rate=task.unknown_rate(name),
        new_characters=sorted(set().union(*documents) - set().union(*train)) if other else [],
    )


def _shared_lines(documents: Sequence[str], train: Sequence[str]) -> float:
    """The share of long lines that stand in train too: where a document is a whole file, only lines can be alike."""
    own = list(_long_lines(documents))
    seen = set(_long_lines(train)) if own else set()
    return sum(line in seen for line in own) / len(own) if own else 0.0


def _long_lines(documents: Sequence[str]) -> Iterator[str]:
    for document in documents:
        yield from (line.strip() for line in document.split("\n") if len(line.strip()) >= LONG_LINE)


def tokenizer_facts(task: TextTask | TranslateTask | ReadingTask) -> TokenizerFacts:
    """Over both sides, where there are two."""
    if isinstance(task, ReadingTask):
        total, unknown = len(task.batches.texts.ids), len(task.batches.texts.ids) * task.unknown_rate("train")
        characters = sum(len(text) + 1 for text in task.plain_texts("train"))  # each end counts as one, as for others
    elif isinstance(task, TranslateTask):
        tokens = {side: len(task.side("train", side).ids) for side in SIDES}
        characters = sum(counts.characters for counts in side_counts(task.corpus.split("train")).values())
        unknown = sum(count * task.unknown_rate("train", side) for side, count in tokens.items())
        total = sum(tokens.values())
    else:
        total, characters = len(task.stream("train")), task.corpus.counts("train").characters
        unknown = total * task.unknown_rate("train")
    return TokenizerFacts(task.tokenizer.kind, len(task.tokenizer), 1 - unknown / total, characters / total)


# --- model ----------------------------------------------------------------------------------------------------------


def empty_model(task: Any) -> nn.Module:
    """The model as it would be built, without memory for its weights where it can be built so."""
    try:
        with torch.device("meta"):
            model: nn.Module = task.model()
    except (NotImplementedError, RuntimeError):  # something looks at its own weights while it is built
        model = task.model()
    return model


def parameters_of(task: Any) -> int:
    return sum(parameter.numel() for parameter in empty_model(task).parameters())


def model_facts(task: Any, device: torch.device) -> ModelFacts:
    model = empty_model(task)
    parts: dict[str, int] = {}
    for name, parameter in model.named_parameters():  # what is tied comes once
        part = PARTS.get(name.partition(".")[0], name.partition(".")[0])
        parts[part] = parts.get(part, 0) + parameter.numel()
    kind = task.recipe.model.kind
    return ModelFacts(kind, parts, sum(parts.values()), [*kernel_notes(model, device), *_own_notes(model)])


def kernel_notes(model: nn.Module, device: torch.device) -> list[str]:
    """Whether recurrent layers read whole sequences at once, or which of them must be looped over step by step."""
    layers = [module for module in model.modules() if isinstance(module, Recurrent)]
    if not layers:
        return []
    accel.install()
    names = {cell: name for name, cell in CELLS.items()}
    looped = {names.get(type(layer.cell), type(layer.cell).__name__) for layer in layers if _loops(layer, device)}
    if not looped:
        return ["every layer reads whole sequences at once"]
    slower = "2×" if device.type == "cpu" else "10×"
    return [f"{', '.join(sorted(looped))} is looped over step by step here: about {slower} slower"]


def _loops(layer: Recurrent, device: torch.device) -> bool:
    x = torch.empty(1, STEPS, layer.cell.inputs, device=device)
    return run_cell.select(layer.cell, x, layer.initial_state(1)) is run_cell.definition


def _own_notes(model: nn.Module) -> list[str]:
    parts: list[Any] = (
        [model] if hasattr(model, "notes") else [part for part in model.children() if hasattr(part, "notes")]
    )
    return list(dict.fromkeys(note for part in parts for note in part.notes()))


# --- training -------------------------------------------------------------------------------------------------------


def budget_of(task: Any, recipe: Any) -> Budget:
    train, per_epoch = recipe.train, task.steps_per_epoch()
    steps = train.total_steps(per_epoch)
    updates = max(1, per_epoch // train.accumulate)
    return Budget(
        steps_per_epoch=updates,
        steps=steps,
        epochs=steps * train.accumulate / per_epoch,
        tokens_per_step=_tokens_per_step(task, recipe),
        evaluations=math.ceil(steps / (train.evaluate_every or updates)),
    )


def _tokens_per_step(task: Any, recipe: Any) -> int | None:
    if (average := task.tokens_per_step()) is not None:
        return round(average * recipe.train.accumulate)
    batch = task.batch(recipe.seed, 0)
    targets = batch.get("targets") if isinstance(batch, dict) else None
    return None if targets is None else targets.numel() * recipe.train.accumulate


def memory_at_hand(device: torch.device) -> int | None:
    """Bytes that are free on the device, or on the machine; None where there is no telling."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return available_memory()


def _too_big(model: ModelFacts, recipe: Any, at_hand: int | None) -> str | None:
    """Weights, gradients and the optimizer's numbers alone, at four bytes each."""
    least = 4 * model.parameters * (2 + SAVED_PER_WEIGHT.get(recipe.train.optimizer, 0))
    if at_hand is None or least <= at_hand:
        return None
    return f"out of memory: {TOO_BIG} {format_bytes(least)}"


# --- what to mend ---------------------------------------------------------------------------------------------------


def _about_data(splits: Sequence[Split]) -> Iterator[str]:
    for split in splits:
        if split.duplicates > DUPLICATES * split.documents and split.name == "train":
            yield (
                f"{split.duplicates / split.documents:.0%} of the training documents are repetitions of others. Leave "
                "them out, unless they are meant to weigh more."
            )
        shared = max(split.in_train / max(1, split.documents - split.empty), split.lines_in_train)
        if shared > OVERLAP:
            what = "documents" if shared > split.lines_in_train else f"lines of {LONG_LINE} characters and more"
            yield (
                f"{shared:.0%} of the {what} of {split.name} stand in train too: its figures will flatter the model. "
                "Split the text so that nothing is in both."
            )


def _about_unknown(splits: Sequence[Split], kind: str) -> Iterator[str]:
    blind = [f"{split.unknown_rate:.1%} of {split.name}" for split in splits if split.unknown_rate > UNKNOWN]
    if blind:
        more = "lower tokenizer.min_count, raise tokenizer.max_size, " if kind == "words" else ""
        yield (
            f"{' and '.join(blind)} {'is' if len(blind) == 1 else 'are'} read as <unk>: the model cannot tell these "
            f"tokens apart. Give more training text, {more}or take tokenizer.kind=byte-pair, which spells everything."
        )


def _about_training(recipe: Any, budget: Budget) -> Iterator[str]:
    train = recipe.train
    yield from train.warnings(budget.steps)
    if train.optimizer in ("adam", "adamw") and train.lr > 0.03:
        yield f"train.lr={train.lr:g} is far above what {train.optimizer} usually bears (1e-4 to 1e-2)."
    if train.clip is None and getattr(recipe.model, "cell", None):
        yield "train.clip is null: gradients through time can explode, and one such step spoils the weights. Try 1.0."


def _about_rehearsal(found: Rehearsal, at_hand: int | None, recipe: Any) -> Iterator[str]:
    sizes = [name for name in ("tokens", "rows", "chunk") if hasattr(getattr(recipe, "batch", None), name)]
    smaller = f"a smaller {', '.join(f'batch.{name}' for name in sizes)}{' or ' if sizes else ''}model"
    room = f" {format_bytes(at_hand)} are free." if at_hand is not None else ""
    if found.failure is not None and found.failure.startswith("out of memory"):
        smaller = "a smaller model" if TOO_BIG in found.failure else smaller  # no batch would be small enough
        yield f"{found.failure[0].upper()}{found.failure[1:]}.{room} Take {smaller}."
    elif found.failure is not None:
        yield f"The rehearsal failed, and so will training: {found.failure}"
    elif at_hand is not None and found.peak is not None and found.peak > FULL * at_hand:
        yield f"Training needs {format_bytes(found.peak)} of memory.{room} Take {smaller}."
    if found.parts > 1:
        yield (
            f"A batch does not fit in memory and is taken in {found.parts} parts: the same updates, in more time."
            f"{room} train.recompute=true takes less memory, and so does {smaller}."
        )
    if found.skipped:
        yield f"{found.skipped} of the first {found.updates} updates were not finite. Lower train.lr, or clip lower."
