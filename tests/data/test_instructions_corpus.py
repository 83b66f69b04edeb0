"""Instruction files and templates."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.prompt_recipes import instructions, write_instructions

from seqloom.config import build
from seqloom.core.errors import DataError, UsageError
from seqloom.data.corpora.instructions import Config, load
from seqloom.data.examples import Instruction
from seqloom.data.prompts import (
    INSTRUCTION_TEMPLATE,
    Template,
    format_instruction,
    instruction_as_prompt,
    instruction_suffix,
    instruction_template_problem,
)

WITH_INPUT = Instruction("Name the colour.", "grass", "green")
WITHOUT_INPUT = Instruction("Say hello.", "", "hello")


def test_input_line_is_omitted_without_input() -> None:
    assert (
        format_instruction(INSTRUCTION_TEMPLATE, WITH_INPUT) == "Instruction: Name the colour.\nInput: grass\nAnswer: "
    )
    assert format_instruction(INSTRUCTION_TEMPLATE, WITHOUT_INPUT) == "Instruction: Say hello.\nAnswer: "
    assert instruction_suffix("{instruction} {output} {{done}}") == " {done}"
    template = Template.parse(instruction_as_prompt(INSTRUCTION_TEMPLATE))
    assert template.question("Say hello.") == format_instruction(INSTRUCTION_TEMPLATE, WITHOUT_INPUT)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("{instruction}\n{input}", "and last {output}"),
        ("{output} {instruction}", "and last {output}"),
        ("{instruction} {instruction} {output}", "and last {output}, once each; got '{instruction} {instruction}"),
        ("{instruction} {input}\n{output}", "{input} on a separate line"),
        ("{instruction} {output} {output}", "once each"),
        ("{instruction}\n{output}", None),
        ("on {input}\n{instruction}\n{output}.", None),
    ],
)
def test_invalid_templates_are_rejected(form: str, message: str | None) -> None:
    problem = instruction_template_problem(form)
    assert problem is None if message is None else message in str(problem)


def test_splits_have_different_instructions(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"instruction": f"Say {n // 2}.", "output": str(n)} for n in range(100)]
    corpus = load(Config(train=str(write_instructions(tmp_path / "a.jsonl", rows))))
    instructions_of = {
        name: {example.instruction for example in corpus.split(name)} for name in ("train", "dev", "test")
    }
    assert sum(len(corpus.split(name)) for name in instructions_of) == 100
    assert (
        not instructions_of["train"] & instructions_of["dev"] and not instructions_of["dev"] & instructions_of["test"]
    )
    assert corpus.sizes("train")["examples"] > 70
    assert load(Config(train=str(tmp_path / "a.jsonl"))).fingerprint() == corpus.fingerprint()


def test_keys_can_be_configured_and_blank_fields_are_noted(tmp_path: Path) -> None:
    rows = [
        {"q": example["instruction"], "about": example.get("input"), "a": example["output"]}
        for example in instructions()
    ]
    rows += [{"q": "", "a": "x"}, {"q": "What?", "a": None}]
    file = write_instructions(tmp_path / "a.jsonl", rows)
    corpus = load(Config(train=str(file), instruction="q", input="about", output="a"))
    assert len(corpus.notes) == 2
    assert "1 example has no instruction and was left out, at line 81" in corpus.notes[0]
    assert "1 example has no answer" in corpus.notes[1]
    assert any(example.input for example in corpus.split("train"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"instruct": "x", "output": "y"}', "did you mean data.instruction=instruct?"),
        ('{"instruction": "x"}', "must have the key 'output'"),
        ('{"instruction": "x", "output": ["y"]}', "must be a string or a number"),
        ("no JSON", "must be a JSON object"),
        ('{"instruction": " ", "output": "y"}', "every line lacks an instruction or an answer"),
        ('{"instruction": "x", "output": "y"}', "too short"),
    ],
)
def test_unusable_files_are_rejected(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(DataError) as caught:
        load(Config(train=str(tmp_path / "a.jsonl")))
    assert message in str(caught.value)


def test_equal_keys_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="three different keys"):
        build(Config, {"train": "a.jsonl", "input": "output"})
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join(json.dumps(example) for example in instructions()))
    with pytest.raises(DataError, match="must not overlap"):
        load(Config(train=str(file), dev=str(file)))
