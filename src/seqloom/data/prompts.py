"""Prompts: a few solved examples, the shots, and a text whose label is asked for, all written alike.

great fun = positive          shots, as the template says: {text} = {label}
a bore = negative
a warm film =                 and what is asked, which ends where its label belongs
"""

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from seqloom.core.errors import DataError, UsageError
from seqloom.core.words import shown
from seqloom.data.examples import Instruction
from seqloom.data.files import expand_home
from seqloom.data.tables import column_names, format_of, json_objects, json_text, read_table

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
    """How an example is written: `before` has {text}, and its label stands between `before` and `after`."""

    before: str
    after: str = ""

    @classmethod
    def parse(cls, form: str) -> "Template":
        """From "{text} = {label}"; a brace that is only a brace is written twice."""
        fields = template_fields(form, ("text", "label"))
        if fields != ["text", "label"]:
            raise UsageError(
                f"A template must have {{text}} and then {{label}}, once each, like {TEMPLATE!r}; got {form!r}."
            )
        before, _, after = form.partition("{label}")
        return cls(before, after)

    def question(self, text: str) -> str:
        return self.before.format(text=text)

    def example(self, shot: Shot) -> str:
        return self.question(shot.text) + shot.label + self.after.format()


def template_fields(form: str, names: Sequence[str]) -> list[str]:
    """The fields of a template, in its order; a form that is none is refused, and so is a field with another name."""
    try:
        found = [name for _, name, spec, change in string.Formatter().parse(form) if name is not None]
        plain = all(not spec and not change for _, _, spec, change in string.Formatter().parse(form))
    except ValueError as error:
        raise UsageError(f"{form!r} is no template ({error}). Write a brace that is only a brace twice.") from None
    listed = ", ".join(f"{{{name}}}" for name in names)
    if not plain or any(name not in names for name in found):
        raise UsageError(f"A template may have {listed} and no other braces; got {form!r}.")
    return found


@dataclass(frozen=True)
class Prompt:
    """Shots and how they are written."""

    shots: tuple[Shot, ...] = ()
    template: Template = Template("{text} = ")
    separator: str = SEPARATOR

    def text(self, text: str, skip: int = 0) -> str:
        """All that stands before the label of a text; without the first `skip` shots."""
        parts = [self.template.example(shot) for shot in self.shots[skip:]]
        return self.separator.join([*parts, self.template.question(text)])


def read_shots(path: Path) -> list[Shot]:
    """The examples of a table: its first two columns, or those its first line calls text and label."""
    path = expand_home(path)
    form = format_of(path) or "tsv"
    if form == "jsonl":
        rows = [(number, _json_shot(path, number, row)) for number, row in json_objects(path)]
    else:
        if len(names := column_names(path, form)) < 2:
            sign = "tab" if form == "tsv" else "comma"
            raise DataError(
                f"{path} must have two columns, a text and its label with a {sign} between; its first line has one: "
                f"{shown(names[0])}."
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
        raise DataError(f"{path} must hold texts with their labels; there is nothing below the names of its columns.")
    return [shot for _, shot in shots]


def _json_shot(path: Path, number: int, row: Mapping[Any, Any]) -> dict[str, str]:
    if not {"text", "label"} <= row.keys():
        raise DataError(f"Line {number:,} of {path} must have the keys 'text' and 'label'; it has {shown(list(row))}.")
    return {key: json_text(path, number, key, row[key]) for key in ("text", "label")}


def check_choices(choices: Sequence[str], shots: Sequence[Shot] = ()) -> tuple[str, ...]:
    """At least two, each once, and the labels of the shots among them; without choices, those labels."""
    found = tuple(choices) or tuple(dict.fromkeys(shot.label for shot in shots))
    if len(found) < 2:
        whose = "there is one alone" if choices else "the shots have one label alone"
        have = f"{whose}, {shown(found[0])}" if found else "there are none"
        raise UsageError(f"There must be at least two choices, but {have}. Name them: --choices positive,negative.")
    if len(set(found)) < len(found):
        raise UsageError(f"The choices must differ from each other; got {', '.join(found)}.")
    if strange := [shot for shot in shots if shot.label not in found]:
        raise DataError(
            f"The label of every shot must be one of the choices, {', '.join(found)}; that of {shown(strange[0].text)} "
            f"is {shown(strange[0].label)}."
        )
    return found


# --- instructions -----------------------------------------------------------------------------------------------------


def instruction_template_problem(form: str) -> str | None:
    """What is wrong with a template for instructions."""
    found = template_fields(form, INSTRUCTION_FIELDS)
    if found not in (["instruction", "output"], ["instruction", "input", "output"], ["input", "instruction", "output"]):
        return f"template must have {{instruction}}, perhaps {{input}}, and last {{output}}, once each; got {form!r}"
    before = form.partition("{output}")[0]
    if any("{input}" in line and "{" in line.replace("{input}", "") for line in before.split("\n")):
        return f"template must have {{input}} in a line of its own, which is left out where there is none; got {form!r}"
    return None


def format_instruction(form: str, example: Instruction) -> str:
    """Return all that precedes the output."""
    prefix = instruction_prefix(form, has_input=bool(example.input))
    return prefix.format(instruction=example.instruction, input=example.input)


def instruction_prefix(form: str, has_input: bool = False) -> str:
    """Return the template up to the output; without an input, the line that has it is left out."""
    lines = form.partition("{output}")[0].split("\n")
    return "\n".join(line for line in lines if has_input or "{input}" not in line)


def instruction_suffix(form: str) -> str:
    """Return what follows the output."""
    return form.partition("{output}")[2].format()


def instruction_as_prompt(form: str) -> str:
    """Return the template of a prompt, {text} and {label}, that asks as such a model was taught: without an input."""
    return instruction_prefix(form).replace("{instruction}", "{text}") + "{label}" + form.partition("{output}")[2]
