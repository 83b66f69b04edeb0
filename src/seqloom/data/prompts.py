"""Prompts: a few solved examples (shots) and a text without a label, formatted with the same template.

great fun = positive          shots in the template {text} = {label}
a bore = negative
a warm film =                 the text to label
"""

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from seqloom.core.errors import DataError, UsageError
from seqloom.core.words import format_value
from seqloom.data.examples import Instruction
from seqloom.data.files import expand_home
from seqloom.data.tables import column_names, format_of, json_text, read_records, read_table

TEMPLATE = "{text} = {label}"
SEPARATOR = "\n"
INSTRUCTION_FIELDS = ("instruction", "input", "output")
INSTRUCTION_TEMPLATE = "Instruction: {instruction}\nInput: {input}\nAnswer: {output}"


class Shot(NamedTuple):
    """A solved example."""

    text: str
    label: str


@dataclass(frozen=True)
class Template:
    """The format of an example: the label is between `before`, which contains {text}, and `after`."""

    before: str
    after: str = ""

    @classmethod
    def parse(cls, form: str) -> "Template":
        """Parse a template such as "{text} = {label}"; literal braces are doubled."""
        fields = template_fields(form, ("text", "label"))
        if fields != ["text", "label"]:
            raise UsageError(
                f"A template must contain {{text}} and then {{label}}, once each, like {TEMPLATE!r}; got {form!r}."
            )
        before, _, after = form.partition("{label}")
        return cls(before, after)

    def question(self, text: str) -> str:
        return self.before.format(text=text)

    def example(self, shot: Shot) -> str:
        return self.question(shot.text) + shot.label + self.after.format()


def template_fields(form: str, names: Sequence[str]) -> list[str]:
    """Return the fields of a template in order; raise UsageError if the template is invalid or has other fields."""
    try:
        fields = [name for _, name, _, _ in string.Formatter().parse(form) if name is not None]
        is_plain = all(not spec and not conversion for _, _, spec, conversion in string.Formatter().parse(form))
    except ValueError as error:
        raise UsageError(f"{form!r} is not a valid template ({error}). Double literal braces.") from None
    if not is_plain or any(name not in names for name in fields):
        allowed = ", ".join(f"{{{name}}}" for name in names)
        raise UsageError(f"A template may contain {allowed} and no other braces; got {form!r}.")
    return fields


@dataclass(frozen=True)
class Prompt:
    """Shots and their format."""

    shots: tuple[Shot, ...] = ()
    template: Template = Template("{text} = ")
    separator: str = SEPARATOR

    def text(self, text: str, skip: int = 0) -> str:
        """Return the prompt up to the label of a text, without the first `skip` shots."""
        parts = [self.template.example(shot) for shot in self.shots[skip:]]
        return self.separator.join([*parts, self.template.question(text)])


def read_shots(path: Path) -> list[Shot]:
    """Read examples from the first two columns of a table, or from JSON Lines with text and label."""
    path = expand_home(path)
    form = format_of(path) or "tsv"
    if form == "jsonl":
        rows = [(number, _json_shot(path, number, row)) for number, row in read_records(path)]
    else:
        if len(names := column_names(path, form)) < 2:
            delimiter = "tab" if form == "tsv" else "comma"
            raise DataError(
                f"{path} must have two columns, text and label, separated by a {delimiter}; its first line has one: "
                f"{format_value(names[0])}."
            )
        rows = read_table(path, {"text": 1, "label": 2}, form=form)
        if [cell.strip().lower() for cell in rows[0][1].values()] == ["text", "label"]:
            rows = rows[1:]
    shots = [(number, Shot(cells["text"].strip(), cells["label"].strip())) for number, cells in rows]
    for number, shot in shots:
        if not shot.text or not shot.label:
            lacking = "text" if not shot.text else "label"
            raise DataError(f"Line {number:,} of {path} must have a text and its label, but the {lacking} is blank.")
    if not shots:
        raise DataError(f"{path} must contain texts with labels, but it has no rows below the header.")
    return [shot for _, shot in shots]


def _json_shot(path: Path, number: int, row: Mapping[Any, Any]) -> dict[str, str]:
    if not {"text", "label"} <= row.keys():
        raise DataError(
            f"Line {number:,} of {path} must have the keys 'text' and 'label', but has {format_value(list(row))}."
        )
    return {key: json_text(path, number, key, row[key]) for key in ("text", "label")}


def check_choices(choices: Sequence[str], shots: Sequence[Shot] = ()) -> tuple[str, ...]:
    """Return the choices (default: the labels of the shots); raise an error if they are invalid."""
    labels = tuple(choices) or tuple(dict.fromkeys(shot.label for shot in shots))
    if len(labels) < 2:
        subject = "there is only one" if choices else "the shots have only one label"
        problem = f"{subject}, {format_value(labels[0])}" if labels else "there are none"
        raise UsageError(f"There must be at least two choices, but {problem}. Set --choices positive,negative.")
    if len(set(labels)) < len(labels):
        raise UsageError(f"The choices must be different; got {', '.join(labels)}.")
    if unknown := [shot for shot in shots if shot.label not in labels]:
        raise DataError(
            f"The label of every shot must be one of the choices, {', '.join(labels)}; the label of "
            f"{format_value(unknown[0].text)} is {format_value(unknown[0].label)}."
        )
    return labels


# --- instructions -----------------------------------------------------------------------------------------------------


def instruction_template_problem(form: str) -> str | None:
    """Return the problem of a template for instructions, or None."""
    order = template_fields(form, INSTRUCTION_FIELDS)
    if order not in (["instruction", "output"], ["instruction", "input", "output"], ["input", "instruction", "output"]):
        return (
            f"template must contain {{instruction}}, optionally {{input}}, and last {{output}}, once each; got {form!r}"
        )
    before = form.partition("{output}")[0]
    if any("{input}" in line and "{" in line.replace("{input}", "") for line in before.split("\n")):
        return f"template must have {{input}} on a separate line, which is omitted without an input; got {form!r}"
    return None


def format_instruction(form: str, example: Instruction) -> str:
    """Return the formatted instruction up to the output."""
    prefix = instruction_prefix(form, has_input=bool(example.input))
    return prefix.format(instruction=example.instruction, input=example.input)


def instruction_prefix(form: str, has_input: bool = False) -> str:
    """Return the template up to the output, without the input line if the example has no input."""
    lines = form.partition("{output}")[0].split("\n")
    return "\n".join(line for line in lines if has_input or "{input}" not in line)


def instruction_suffix(form: str) -> str:
    """Return the text after the output."""
    return form.partition("{output}")[2].format()


def instruction_as_prompt(form: str) -> str:
    """Convert a template for instructions without input to a template for prompts, with {text} and {label}."""
    return instruction_prefix(form).replace("{instruction}", "{text}") + "{label}" + form.partition("{output}")[2]
