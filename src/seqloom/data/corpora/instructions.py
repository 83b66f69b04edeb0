"""The user's own instructions with their answers, as JSON Lines: {"instruction": …, "input": …, "output": …}."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from seqloom.config import config
from seqloom.core.errors import DataError
from seqloom.core.words import nearest, shown
from seqloom.data.corpus import Corpus
from seqloom.data.corpus_config import FileConfig
from seqloom.data.examples import Instruction
from seqloom.data.file_corpus import Read, load_files, note_left_out
from seqloom.data.files import expand_home
from seqloom.data.tables import json_objects, json_text

SUMMARY = "one's own instructions and the answers they are to have: JSON Lines with instruction, input, output"
FORM = "instructions"


@config
class Config(FileConfig):
    corpus: Literal["instructions"] = "instructions"
    train: str  # a .jsonl file, which may be .gz
    instruction: str = "instruction"  # the key of what is to be done
    input: str = "input"  # the key of what it is to be done with; an example need not have one
    output: str = "output"  # the key of the answer

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        keys = list(self.keys.values())
        if len(set(keys)) < len(keys):
            yield f"instruction, input and output must be three different keys, got {keys}"

    @property
    def keys(self) -> dict[str, str]:
        return {"instruction": self.instruction, "input": self.input, "output": self.output}


def load(config: Config) -> Corpus[Instruction]:
    """Examples with the same instruction and input stay in one split."""
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
    """Return the examples of a file that have an instruction and an answer, and notes on the others."""
    path = expand_home(Path(file))
    found = [(line, _read_row(config, path, line, row)) for line, row in json_objects(path)]
    examples = [example for _, example in found if example.instruction and example.output]
    if not examples:
        raise DataError(f"{file} must hold instructions with answers, but of every line one of them is blank.")
    unanswered = [line for line, example in found if example.instruction and not example.output]
    return examples, [
        *note_left_out([line for line, example in found if not example.instruction], "no instruction", file),
        *note_left_out(unanswered, "no answer", file),
    ]


def _read_row(config: Config, path: Path, number: int, row: Mapping[str, object]) -> Instruction:
    for name in ("instruction", "output"):
        key = config.keys[name]
        if key not in row:
            close = nearest(key, map(str, row))
            hint = f"did you mean data.{name}={close}?" if close else f"set data.{name} to one of them."
            have = shown(list(row), 200)
            raise DataError(f"Line {number:,} of {path} must have the key {key!r}; it has {have}: {hint}")
    return Instruction(*(json_text(path, number, key, row.get(key)).strip() for key in config.keys.values()))
