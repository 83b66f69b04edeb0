"""What would happen if a recipe were trained."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from seqloom.cli._options import DataDir, JsonObject, RecipeWords
from seqloom.cli._output import print_json
from seqloom.core.errors import UsageError
from seqloom.core.words import escape_controls, format_count, format_sizes

if TYPE_CHECKING:
    from seqloom.inspect.doctor import Diagnosis, ExampleFacts, Lengths, PairFacts, Side, Split

CLASSES = 12  # that are listed


def doctor(
    arguments: RecipeWords = None,
    data_dir: DataDir = None,
    as_json: JsonObject = False,
) -> None:
    """Check data, size, time and memory of a recipe. `seqloom doctor lm-char-lstm batch.size=256`."""
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
    """Return the whole examination for a reader."""
    lines = [f"{name}: {found.task} on {found.device}", ""]
    if found.pairs is not None:
        lines += describe_pairs(found.pairs)
    elif found.examples is not None:
        lines += describe_examples(found.examples)
    elif found.sizes:
        lines += ["data", *(f"  {split:6}{format_sizes(sizes)}" for split, sizes in found.sizes.items())]
    elif not found.splits:
        lines.append("data: no text to look at; the task makes its own")
    else:
        lines += describe_documents(found.splits)
    if (size := found.tokenizer) is not None and (found.pairs or found.examples or found.splits):
        coverage = f"{size.coverage:.2%} of the training tokens known"
        per_token = f"{size.characters_per_token:.2f} characters a token"
        lines.append(f"tokenizer: {size.kind}, {size.size:,} tokens, {coverage}, {per_token}")
    if found.model is None:
        sizes = format_sizes(found.rehearsal.sizes) or "the rehearsal was broken off before its end"
        lines += ["", f"model: counted, not trained by gradient; {sizes}"]
    else:
        parts = ", ".join(f"{part} {count:,}" for part, count in found.model.parts.items())
        lines += ["", f"model: {found.model.kind}, {found.model.parameters:,} parameters: {parts}"]
        lines += [f"  {note}" for note in found.model.notes]
    lines += describe_budget(found)
    warnings = [f"warning: {warning}" for warning in found.warnings]
    return [*lines, "", *(warnings or ["nothing to mend"])]


def length_row(head: str, tokens: int, lengths: "Lengths") -> str:
    """Return a row of the table of lengths."""
    shown = f"{lengths.min:>14,}{lengths.median:>9,}{lengths.p95:>9,}{lengths.max:>9,}"
    return f"{head}{tokens:>12,}{shown}"


def length_head(head: str) -> str:
    """Return the head of the table of lengths."""
    return f"{head}{'tokens':>12}   length: min{'median':>9}{'95 %':>9}{'max':>9}"


def describe_documents(splits: "Sequence[Split]") -> list[str]:
    """Return the lengths of documents, and what of each split is in train too."""
    lines = [length_head(f"{'data':8}{'documents':>10}")]
    lines += [length_row(f"  {one.name:6}{one.documents:>10,}", one.tokens, one.lengths) for one in splits]
    for split in splits:
        remarks = [f"{split.empty:,} empty", f"{split.duplicates:,} repeated"]
        if split.name != "train":
            shared = f"{split.in_train:,} documents and {split.line_overlap:.1%} of the long lines in train too"
            remarks += [shared, describe_unknown(split)]
        lines.append(f"  {split.name + ':':7}{', '.join(remarks)}")
    return lines


def describe_pairs(found: "PairFacts") -> list[str]:
    """Return the lengths of both sides, what of each split is in train too, and how pairs are batched."""
    lines = [length_head(f"{'data':8}{'pairs':>10}  side  ")]
    for split in found.splits:
        heads = {f"  {split.name:6}{split.pairs:>10,}  source": split.source, f"{'':18}  target": split.target}
        lines += [length_row(head, side.tokens, side.lengths) for head, side in heads.items()]
    for split in found.splits:
        remarks = [f"{split.empty:,} with an empty side", f"{split.duplicates:,} repeated"]
        if split.name != "train":
            remarks.append(f"{split.in_train:,} pairs and {split.sources_in_train:,} source sentences in train too")
            sides = {"source": split.source, "target": split.target}
            new = {name: side for name, side in sides.items() if side.unknown_rate or side.new_characters}
            remarks += [f"{name}: {describe_unknown(side)}" for name, side in new.items()] or ["nothing unknown"]
        lines.append(f"  {split.name + ':':7}{'; '.join(remarks)}")
    left_out = f"; {found.skipped:,} pairs too long, left out" if found.skipped else ""
    batches = f"{found.pairs_per_batch:,.0f} pairs on average, up to {found.tokens:,} tokens a side"
    shapes = format_count(found.shapes, "shape")
    return [*lines, f"batches: {batches}, of {shapes}, {found.padding_fraction:.1%} padding{left_out}"]


def describe_examples(found: "ExampleFacts") -> list[str]:
    """Return the lengths of examples, what of each split is in train too, the classes, and how they are batched."""
    lines = [length_head(f"{'data':8}{found.unit:>10}")]
    lines += [length_row(f"  {one.name:6}{one.examples:>10,}", one.tokens, one.lengths) for one in found.splits]
    for split in found.splits:
        remarks = [f"{split.duplicates:,} repeated"]
        if split.name != "train":
            remarks += [f"{split.in_train:,} in train too", f"{split.new_word_rate:.1%} of the words never seen"]
            remarks += [f"{sum(split.unseen_labels.values()):,} with a class never seen"] if split.unseen_labels else []
        lines.append(f"  {split.name + ':':7}{', '.join([*remarks, f'{split.unknown_rate:.2%} unknown'])}")
    if found.classes:
        total = sum(found.classes.values())
        shown = [f"{escape_controls(name)}: {count:,} ({count / total:.1%})" for name, count in found.classes.items()]
        if len(shown) > CLASSES:  # the largest and the smallest
            shown = [*shown[: CLASSES - 3], "…", *shown[-2:]]
        counts = f"{len(found.classes)}, in {total:,} {found.class_unit} of train"
        lines.append(f"classes: {counts}: {', '.join(shown)}")
    cut = f"; {found.truncated:,} {found.unit} longer than {found.max_length} tokens" if found.truncated else ""
    batches = f"{found.examples_per_batch:,.0f} {found.unit} on average, up to {found.tokens:,} tokens"
    return [
        *lines,
        f"batches: {batches}, of {format_count(found.shapes, 'shape')}, {found.padding_fraction:.1%} padding{cut}",
    ]


def describe_unknown(part: "Split | Side") -> str:
    """Return what of a text its model could not have learned."""
    new = part.new_characters
    visible = [one if one.isprintable() and not one.isspace() else f"U+{ord(one):04X}" for one in new[:12]]
    shown = ": " + " ".join(visible) + (" …" if len(new) > 12 else "") if new else ""
    return f"{part.unknown_rate:.2%} unknown, {len(new)} character{'' if len(new) == 1 else 's'} never seen{shown}"


def describe_budget(found: "Diagnosis") -> list[str]:
    """Return steps, time and memory of the training."""
    from seqloom.cli.progress import clock
    from seqloom.core.limits import format_bytes

    budget, rehearsal, lines = found.budget, found.rehearsal, []
    if budget is not None:
        unit = "predictions" if found.tokenizer is None else "tokens" if found.pairs is None else "target tokens"
        tokens = f" of {budget.tokens_per_step:,} {unit}" if budget.tokens_per_step else ""
        lines.append(
            f"training: {budget.steps:,} steps{tokens}, {budget.steps_per_epoch:,} an epoch, so {budget.epochs:.3g} "
            f"epochs; {budget.evaluations:,} evaluations"
        )
    if found.seconds is not None:
        at_least, detail = "" if rehearsal.complete else "at least ", ""
        if budget is not None and rehearsal.seconds_per_update and rehearsal.evaluation_seconds is not None:
            detail = (
                f" ({1000 * rehearsal.seconds_per_update:,.1f} ms a step, {rehearsal.evaluation_seconds:,.1f} s an "
                f"evaluation, measured over {rehearsal.updates} steps)"
            )
        lines.append(f"time: {at_least}{clock(found.seconds)}{detail}")
    if rehearsal.peak is None or rehearsal.memory is None:
        return lines
    free = f"; {format_bytes(found.free_memory)} free" if found.free_memory is not None else ""
    host = format_bytes(rehearsal.memory)
    if rehearsal.gpu_reserved is None or rehearsal.gpu_allocated is None:
        return [*lines, f"memory: {host} at the peak{free}"]
    gpu, used = format_bytes(rehearsal.gpu_reserved), format_bytes(rehearsal.gpu_allocated)
    return [*lines, f"memory: {gpu} of the GPU, {used} of it in use at the peak{free}; {host} of the host"]
