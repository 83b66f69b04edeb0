"""What would happen if a recipe were trained."""

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from seqloom.cli._options import DataDir, JsonObject, RecipeWords
from seqloom.cli._output import escaped, print_json
from seqloom.core.errors import UsageError

if TYPE_CHECKING:
    from seqloom.inspect.doctor import Diagnosis, ExampleFacts, PairFacts, Side, Split

CLASSES = 12  # that are listed


def doctor(
    arguments: RecipeWords = None,
    data_dir: DataDir = None,
    as_json: JsonObject = False,
) -> None:
    """Look a recipe over before training: data, sizes, time, memory. `seqloom doctor lm-char-lstm batch.rows=256`."""
    from seqloom.cli.train import split_arguments

    recipe, overrides = split_arguments(arguments or [])
    if recipe is None:
        raise UsageError("Name a recipe (`seqloom list recipes`) or a YAML file.")
    from seqloom.data.files import use_data_folder
    from seqloom.inspect.doctor import examine
    from seqloom.recipes import read_recipe

    name, checked = read_recipe(recipe, overrides)
    if sys.stderr.isatty():
        typer.echo("Reading the data, then rehearsing a few updates …", err=True)
    with use_data_folder(data_dir):
        found = examine(checked)
    if as_json:
        print_json({"recipe": name, **asdict(found), "seconds": found.seconds})
        return
    for line in report(name, found):
        print(line)


def report(name: str, found: "Diagnosis") -> list[str]:
    """The whole examination for a reader."""
    return [
        f"{name}: {found.task} on {found.device}",
        *_data(found),
        *_model(found),
        *_budget(found),
        *_memory(found),
        *_warnings(found.warnings),
    ]


def _data(found: "Diagnosis") -> list[str]:
    if found.pairs is not None:
        return ["", *_pairs(found.pairs), *_tokenizer(found)]
    if found.examples is not None:
        return ["", *_examples(found.examples), *_tokenizer(found)]
    if found.sizes:
        counted = (", ".join(f"{n:,} {unit}" for unit, n in sizes.items()) for sizes in found.sizes.values())
        return ["", "data", *(f"  {split:6}{sizes}" for split, sizes in zip(found.sizes, counted, strict=True))]
    if not found.splits:
        return ["", "data: no text to look at; the task makes its own"]
    lines = ["", f"{'data':8}{'documents':>10}{'tokens':>12}   length: min{'median':>9}{'95 %':>9}{'max':>9}"]
    for split in found.splits:
        length = split.lengths
        lines.append(
            f"  {split.name:6}{split.documents:>10,}{split.tokens:>12,}{length.shortest:>14,}{length.median:>9,}"
            f"{length.most:>9,}{length.longest:>9,}"
        )
    for split in found.splits:
        remarks = [f"{split.empty:,} empty", f"{split.duplicates:,} repeated"]
        if split.name != "train":
            remarks += [
                f"{split.in_train:,} documents and {split.lines_in_train:.1%} of the long lines in train too",
                *_unknown(split),
            ]
        lines.append(f"  {split.name + ':':7}{', '.join(remarks)}")
    return [*lines, *_tokenizer(found)]


def _pairs(found: "PairFacts") -> list[str]:
    lines = [f"{'data':8}{'pairs':>10}  side  {'tokens':>12}   length: min{'median':>9}{'95 %':>9}{'max':>9}"]
    for split in found.splits:
        for name, side in (("source", split.source), ("target", split.target)):
            head = f"  {split.name:6}{split.pairs:>10,}" if name == "source" else " " * 18
            length = side.lengths
            lines.append(
                f"{head}  {name}{side.tokens:>12,}{length.shortest:>14,}{length.median:>9,}{length.most:>9,}"
                f"{length.longest:>9,}"
            )
    for split in found.splits:
        remarks = [f"{split.empty:,} with an empty side", f"{split.duplicates:,} repeated"]
        if split.name != "train":
            remarks.append(f"{split.in_train:,} pairs and {split.sources_in_train:,} source sentences in train too")
            remarks += [
                f"{name}: {', '.join(_unknown(side))}"
                for name, side in (("source", split.source), ("target", split.target))
                if side.unknown_rate or side.new_characters
            ] or ["nothing unknown"]
        lines.append(f"  {split.name + ':':7}{'; '.join(remarks)}")
    shapes = "1 shape" if found.shapes == 1 else f"{found.shapes:,} shapes"
    left_out = f"; {found.left_out:,} pairs too long, left out" if found.left_out else ""
    batches = f"{found.pairs_per_batch:,.0f} pairs on average, up to {found.tokens:,} tokens a side"
    return [*lines, f"batches: {batches}, of {shapes}, {found.padding:.1%} padding{left_out}"]


def _examples(found: "ExampleFacts") -> list[str]:
    lines = [f"{'data':8}{found.unit:>10}{'tokens':>12}   length: min{'median':>9}{'95 %':>9}{'max':>9}"]
    for split in found.splits:
        length = split.lengths
        lines.append(
            f"  {split.name:6}{split.examples:>10,}{split.tokens:>12,}{length.shortest:>14,}{length.median:>9,}"
            f"{length.most:>9,}{length.longest:>9,}"
        )
    for split in found.splits:
        remarks = [f"{split.duplicates:,} repeated"]
        if split.name != "train":
            remarks += [f"{split.in_train:,} in train too", f"{split.new_words:.1%} of the words never seen"]
            remarks += [f"{sum(split.unseen.values()):,} with a class never seen"] if split.unseen else []
        lines.append(f"  {split.name + ':':7}{', '.join([*remarks, f'{split.unknown_rate:.2%} unknown'])}")
    cut = f"; {found.cut:,} {found.unit} longer than {found.max_length} tokens" if found.cut else ""
    shapes = "1 shape" if found.shapes == 1 else f"{found.shapes:,} shapes"
    batches = f"{found.per_batch:,.0f} {found.unit} on average, up to {found.tokens:,} tokens"
    return [*lines, *_classes(found), f"batches: {batches}, of {shapes}, {found.padding:.1%} padding{cut}"]


def _classes(found: "ExampleFacts") -> list[str]:
    """How many there are of each, in train; of many classes the largest and the smallest."""
    if not found.classes:
        return []
    counts, total = list(found.classes.items()), sum(found.classes.values())
    shown = [f"{escaped(name)}: {count:,} ({count / total:.1%})" for name, count in counts]
    if len(shown) > CLASSES:
        shown = [*shown[: CLASSES - 3], "…", *shown[-2:]]
    return [f"classes: {len(counts)}, in {total:,} {found.of_classes} of train: {', '.join(shown)}"]


def _unknown(part: "Split | Side") -> list[str]:
    """What of a text its model could not have learned."""
    new = part.new_characters
    shown = " ".join(map(_visible, new[:12])) + (" …" if len(new) > 12 else "")
    return [
        f"{part.unknown_rate:.2%} unknown",
        f"{len(new)} character{'' if len(new) == 1 else 's'} never seen{f': {shown}' if new else ''}",
    ]


def _tokenizer(found: "Diagnosis") -> list[str]:
    size = found.tokenizer
    if size is None:
        return []
    coverage = f"{size.coverage:.2%} of the training tokens known, {size.characters_per_token:.2f} characters a token"
    return [f"tokenizer: {size.kind}, {size.size:,} tokens, {coverage}"]


def _visible(character: str) -> str:
    return character if character.isprintable() and not character.isspace() else f"U+{ord(character):04X}"


def _model(found: "Diagnosis") -> list[str]:
    if found.model is None:
        counted = ", ".join(f"{count:,} {name}" for name, count in found.rehearsal.sizes.items())
        return [
            "",
            f"model: counted, not trained by gradient; {counted or 'the rehearsal was broken off before its end'}",
        ]
    parts = ", ".join(f"{part} {count:,}" for part, count in found.model.parts.items())
    lines = ["", f"model: {found.model.kind}, {found.model.parameters:,} parameters: {parts}"]
    return lines + [f"  {note}" for note in found.model.notes]


def _budget(found: "Diagnosis") -> list[str]:
    from seqloom.cli.progress import clock

    budget, rehearsal, lines = found.budget, found.rehearsal, []
    if budget is not None:
        unit = "predictions" if found.tokenizer is None else "tokens" if found.pairs is None else "target tokens"
        tokens = f" of {budget.tokens_per_step:,} {unit}" if budget.tokens_per_step else ""
        lines.append(
            f"training: {budget.steps:,} steps{tokens}, {budget.steps_per_epoch:,} an epoch, so {budget.epochs:.3g} "
            f"epochs; {budget.evaluations:,} evaluations"
        )
    if found.seconds is not None:
        at_least = "" if rehearsal.complete else "at least "
        detail = (
            f" ({1000 * rehearsal.seconds_per_update:,.1f} ms a step, {rehearsal.evaluation_seconds:,.1f} s an "
            f"evaluation, measured over {rehearsal.updates} steps)"
            if budget is not None and rehearsal.seconds_per_update and rehearsal.evaluation_seconds is not None
            else ""
        )
        lines.append(f"time: {at_least}{clock(found.seconds)}{detail}")
    return lines


def _memory(found: "Diagnosis") -> list[str]:
    from seqloom.core.limits import format_bytes

    rehearsal = found.rehearsal
    if rehearsal.peak is None or rehearsal.memory is None:
        return []
    free = f"; {format_bytes(found.memory_at_hand)} free" if found.memory_at_hand is not None else ""
    if rehearsal.gpu_reserved is None or rehearsal.gpu_allocated is None:
        return [f"memory: {format_bytes(rehearsal.memory)} at the peak{free}"]
    tensors = f"{format_bytes(rehearsal.gpu_allocated)} of it in use at the peak"
    gpu, host = format_bytes(rehearsal.gpu_reserved), format_bytes(rehearsal.memory)
    return [f"memory: {gpu} of the GPU, {tensors}{free}; {host} of the host"]


def _warnings(warnings: list[str]) -> list[str]:
    if not warnings:
        return ["", "nothing to mend"]
    return ["", *(f"warning: {warning}" for warning in warnings)]
