"""Instructions and answers from your own JSON Lines files: {"instruction": …, "input": …, "output": …}."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from seqloom.config import config
from seqloom.core.errors import DataError
from seqloom.core.words import find_nearest, format_value
from seqloom.data.corpus import Corpus, FileConfig
from seqloom.data.examples import Instruction
from seqloom.data.files import expand_home
from seqloom.data.splits import Read, complete_examples, load_files
from seqloom.data.tables import json_text, read_records

SUMMARY = "your own instructions and answers: JSON Lines with instruction, input and output"
FORM = "instructions"


@config
class Config(FileConfig):
    corpus: Literal["instructions"] = "instructions"
    train: str  # a .jsonl file, optionally compressed (.gz or .zst)
    instruction: str = "instruction"  # key of the instruction
    input: str = "input"  # key of the input; an example may omit it
    output: str = "output"  # key of the expected answer

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        keys = list(self.keys.values())
        if len(set(keys)) < len(keys):
            yield f"instruction, input and output must be three different keys; got {keys}"

    @property
    def keys(self) -> dict[str, str]:
        return {"instruction": self.instruction, "input": self.input, "output": self.output}


def load(config: Config) -> Corpus[Instruction]:
    """Load the examples; all examples with the same instruction and input are in the same split."""
    return load_files(
        config,
        lambda split, file: read_instructions(config, file),
        description=f"{config.train}: {config.instruction} → {config.output}",
        groups=lambda examples, _: [question(example) for example in examples],
        repeats=("questions", question),
    )


def question(example: Instruction) -> str:
    return f"{example.instruction}\n{example.input}"


def read_instructions(config: Config, file: str) -> Read[Instruction]:
    """Return the examples that have an instruction and an answer, and notes on the skipped examples."""
    path, examples = expand_home(Path(file)), []
    for number, row in read_records(path):
        for name in ("instruction", "output"):
            key = config.keys[name]
            if key not in row:
                close = find_nearest(key, map(str, row))
                hint = f"did you mean data.{name}={close}?" if close else f"set data.{name} to one of them."
                keys = format_value(list(row), 200)
                raise DataError(f"Line {number:,} of {path} must have the key {key!r}, but has {keys}: {hint}")
        parts = [json_text(path, number, key, row.get(key)).strip() for key in config.keys.values()]
        examples.append((number, Instruction(*parts)))
    return complete_examples(
        file,
        examples,
        {"no instruction": lambda example: not example.instruction, "no answer": lambda example: not example.output},
        required="instructions with answers",
        blank="every line lacks an instruction or an answer",
    )
