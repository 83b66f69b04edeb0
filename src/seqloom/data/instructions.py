"""Instructions with the answers they are to have, in splits; and how they are written for a language model.

Instruction: Name the colour.        a line of the template that has {input} is left out where there is no input
Input: grass
Answer: green
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from seqloom.data.corpus import Example
from seqloom.data.prompts import template_fields

FIELDS = ("instruction", "input", "output")
TEMPLATE = "Instruction: {instruction}\nInput: {input}\nAnswer: {output}"


@dataclass(frozen=True)
class Instruction(Example):
    form: ClassVar = "instructions"

    instruction: str
    input: str  # what it is to be done with; often nothing
    output: str

    def texts(self) -> Sequence[str]:
        return [text for text in self.parts() if text]

    def parts(self) -> Sequence[str]:
        return self.instruction, self.input, self.output


def template_problem(form: str) -> str | None:
    """What is wrong with a template for instructions."""
    found = template_fields(form, FIELDS)
    if found not in (["instruction", "output"], ["instruction", "input", "output"], ["input", "instruction", "output"]):
        return f"template must have {{instruction}}, perhaps {{input}}, and last {{output}}, once each; got {form!r}"
    before = form.partition("{output}")[0]
    if any("{input}" in line and "{" in line.replace("{input}", "") for line in before.split("\n")):
        return f"template must have {{input}} in a line of its own, which is left out where there is none; got {form!r}"
    return None


def asked(form: str, one: Instruction) -> str:
    """All that stands before the answer."""
    return without_input(form, bool(one.input)).format(instruction=one.instruction, input=one.input)


def without_input(form: str, there: bool = False) -> str:
    """The template up to the answer; unless there is an input, without the line that has it."""
    lines = form.partition("{output}")[0].split("\n")
    return "\n".join(line for line in lines if there or "{input}" not in line)


def as_prompt(form: str) -> str:
    """The template of a prompt, {text} and {label}, that asks as such a model was taught: without an input."""
    return without_input(form).replace("{instruction}", "{text}") + "{label}" + form.partition("{output}")[2]


def rest(form: str) -> str:
    """What stands after the answer."""
    return form.partition("{output}")[2].format()
