"""One's own instructions with their answers, as JSON Lines: {"instruction": …, "input": …, "output": …}."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from seqloom.config import config
from seqloom.core.errors import DataError
from seqloom.core.words import nearest, shown
from seqloom.data import own_files
from seqloom.data.corpus import Corpus, version_of
from seqloom.data.holdout import held_out
from seqloom.data.instructions import FIELDS, Instruction
from seqloom.data.readers import placed
from seqloom.data.tables import json_objects, json_text

SUMMARY = "one's own instructions and the answers they are to have: JSON Lines with instruction, input, output"
FORM = "instructions"


@config
class Config:
    corpus: Literal["instructions"] = "instructions"
    train: str  # a .jsonl file, which may be .gz
    dev: str | None = None  # the same; without it, dev_fraction is held out from train
    test: str | None = None  # likewise
    dev_fraction: float = 0.1  # of the examples; 0 for no such split
    test_fraction: float = 0.1
    instruction: str = "instruction"  # the key of what is to be done
    input: str = "input"  # the key of what it is to be done with; an example need not have one
    output: str = "output"  # the key of the answer

    def problems(self) -> Iterator[str]:
        yield from own_files.fraction_problems(self)
        keys = [getattr(self, name) for name in FIELDS]
        if len(set(keys)) < len(keys):
            yield f"instruction, input and output must be three different keys, got {keys}"

    def located(self, recipe_folder: Path) -> "Config":
        """The same with whole paths. What is not in the current folder may lie beside the recipe that names it."""
        whole = own_files.whole_paths(self, recipe_folder)
        return replace(self, train=whole["train"], dev=whole.get("dev"), test=whole.get("test"))


def load(config: Config) -> Corpus[Instruction]:
    """The splits as given; what is missing of dev and test is held out from train."""
    files = own_files.given(config)
    own_files.check_files(files)
    splits: dict[str, list[Instruction]] = {}
    notes: list[str] = []
    for name, file in files.items():
        splits[name], more = read_instructions(config, file)
        notes += more
    notes += own_files.repeats({name: list(map(_question, examples)) for name, examples in splits.items()}, "questions")
    splits = _complete(config, splits)
    return Corpus(
        name="instructions",
        version=version_of(splits),
        licence="the user's own",
        description=f"{config.train}: {config.instruction} → {config.output}",
        splits=splits,
        absent=own_files.absent(splits),
        notes=tuple(notes),
    )


def read_instructions(config: Config, file: str) -> tuple[list[Instruction], list[str]]:
    """The examples of a file that have an instruction and an answer, and notes on the others."""
    path = placed(Path(file))
    found = [(number, _read(config, path, number, row)) for number, row in json_objects(path)]
    examples = [one for _, one in found if one.instruction and one.output]
    if not examples:
        raise DataError(f"{file} must hold instructions with answers, but of every line one of them is blank.")
    notes = own_files.left_out([line for line, one in found if not one.instruction], "no instruction", file)
    notes += own_files.left_out([line for line, one in found if one.instruction and not one.output], "no answer", file)
    return examples, notes


def _read(config: Config, path: Path, number: int, row: Mapping[Any, Any]) -> Instruction:
    for name in ("instruction", "output"):
        key = getattr(config, name)
        if key not in row:
            close = nearest(key, map(str, row))
            hint = f"did you mean data.{name}={close}?" if close else f"set data.{name} to one of them."
            have = shown(list(row), 200)
            raise DataError(f"Line {number:,} of {path} must have the key {key!r}; it has {have}: {hint}")
    keys = {name: getattr(config, name) for name in FIELDS}
    return Instruction(**{name: json_text(path, number, key, row.get(key)).strip() for name, key in keys.items()})


def _question(one: Instruction) -> str:
    return f"{one.instruction}\n{one.input}"


def _complete(config: Config, splits: Mapping[str, Sequence[Instruction]]) -> dict[str, list[Instruction]]:
    """Hold out what is missing; examples that ask the same stay together."""
    questions = list(map(_question, splits["train"]))
    shares = own_files.missing_shares(config, splits)
    sizes = {name: max(1, round(share * len(questions))) for name, share in shares.items()}
    return own_files.share_out(config, splits, held_out(questions, sizes), len(set(questions)))
