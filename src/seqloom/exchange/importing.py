"""From a Hugging Face directory to a run like any other."""

import json
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqloom.config import build, to_mapping
from seqloom.core import VERSION
from seqloom.core.device import seed_step
from seqloom.core.errors import CheckpointError, UsageError
from seqloom.core.words import counted
from seqloom.exchange.directory import Directory, Json
from seqloom.exchange.families import FAMILIES
from seqloom.exchange.family import Config, Family, Ids, find_family
from seqloom.exchange.weights import named, read_tensors, uncovered
from seqloom.runs.models import MODELS
from seqloom.runs.run import Run
from seqloom.tasks import task_info
from seqloom.text import Tokenizer

TRAIN = {"epochs": 1, "lr": 5e-5, "schedule": "cosine", "warmup": 100, "clip": 1.0}  # to go on with, gently
UNKNOWN_LICENCE = "see where the model came from"
CORPORA = {"translate": "imported-pairs"}  # by task; `imported` for all others


@dataclass(frozen=True)
class Imported:
    """A model that was read from a directory."""

    family: Family
    directory: Directory
    tokenizer: Any  # with `order`, `ours` and `theirs`
    model: Any  # our config
    weights: dict[str, Tensor]
    drawn: list[str]  # names of those weights that were not there and are drawn anew
    left: list[str]  # their names of weights that were there and are not read: of a head for another task
    name: str  # of the model: its directory's, unless it is known
    licence: str

    @property
    def languages(self) -> dict[str, str]:
        """The `source` and `target` of a translator, where its tokenizer knows them."""
        return getattr(self.tokenizer, "languages", {})

    @property
    def parameters(self) -> int:
        """How many there were in the directory, tied ones once."""
        read = {id(tensor): tensor for name, tensor in self.weights.items() if name not in self.drawn}
        return sum(tensor.numel() for tensor in read.values())


def import_directory(
    source: str | Path, out: str | Path, name: str | None = None, licence: str = UNKNOWN_LICENCE
) -> tuple[Run, Imported]:
    """Make a run of the model in a directory; whatever of it seqloom has not is refused by name. The model's `name` and
    `licence` are said where they are known."""
    out = Path(out)
    if out.exists():
        raise UsageError(f"{out} exists. Name a run directory that is not there yet.")
    found = read_directory(source)
    found = replace(found, name=name or found.name, licence=licence)
    return create_run(found, out), found


def read_directory(source: str | Path) -> Imported:
    """The model in a directory, whole, its weights under our names."""
    directory = Directory.open(source)
    where = str(directory.path / "config.json")
    family = find_family(FAMILIES, directory.config.get("model_type"), where)
    config = Config(directory.config, where)
    tokenizer = _tokenizer(family, directory, config)
    ids = Ids.of(tokenizer)
    section = family.read_config(config, ids)
    config.check()
    try:
        model = build(MODELS.find(family.kind), section, source=where)
    except UsageError as error:
        raise CheckpointError(str(error)) from error
    theirs = named(directory.tensors(), family.prefix, family.ignored)
    left = [name for name in theirs if any(re.fullmatch(pattern, name) for pattern in family.left)]
    own = {name: tensor for name, tensor in theirs.items() if name not in left}
    weights, drawn = _weights(family, own, model, tokenizer, ids, str(directory.path))
    name = directory.path.resolve().name
    return Imported(family, directory, tokenizer, model, weights, drawn, left, name, UNKNOWN_LICENCE)


def _tokenizer(family: Family, directory: Directory, config: Config) -> Tokenizer:
    try:
        return family.tokenizer(directory, config)
    except CheckpointError:
        config.refuse()  # the reason, perhaps
        raise


def _weights(
    family: Family, theirs: Mapping[str, Tensor], model: Any, tokenizer: Tokenizer, ids: Ids, where: str
) -> tuple[dict[str, Tensor], list[str]]:
    table = family.names(model, ids)
    with torch.device("meta"):
        shapes = model.build(len(tokenizer)).state_dict()
    if forgotten := uncovered(table, shapes):
        raise AssertionError(f"{family.name} has no names for {', '.join(forgotten)}")
    found, drawn = read_tensors(table, theirs, shapes, where)
    if drawn:
        with torch.random.fork_rng(devices=[]):
            seed_step(1, 0)
            fresh = model.build(len(tokenizer)).state_dict()
        found |= {name: fresh[name].clone() for name in drawn}
    return found, drawn


# --- the run ----------------------------------------------------------------------------------------------------------


def create_run(found: Imported, out: Path) -> Run:
    """Complete or not at all."""
    files = found.directory.sha256()
    documents = {"tokenizer.json": found.tokenizer.to_json(), "data.json": _data(found, files)}
    return Run.create(
        out,
        recipe_of(found),
        documents,
        weights=found.weights,
        records={
            "log.jsonl": _log(found, files).encode(),
            "card.md": card(out.name, found, files).encode(),
        },
    )


def recipe_of(found: Imported) -> Json:
    """The whole recipe of the run, checked."""
    task = found.family.task
    mapping = {
        "task": task,
        "data": {"corpus": CORPORA.get(task, "imported"), "directory": found.name, **found.languages},
        "tokenizer": {"kind": found.tokenizer.kind},
        "model": to_mapping(found.model),
        "train": TRAIN,
        **found.family.recipe(found.model),
        **found.family.decoding(found.directory),
    }
    recipe: Json = to_mapping(build(task_info(task).recipe, mapping, source="the imported model"))
    return recipe


def _data(found: Imported, files: Mapping[str, str]) -> Json:
    """What a run remembers of its data: none, and where the model came from."""
    source = {"directory": found.name, "family": found.family.name, "sha256": dict(files)}
    source |= {"drawn": found.drawn, "left": found.left}
    corpus = CORPORA.get(found.family.task, "imported")
    about = {"corpus": corpus, "version": found.name, "licence": found.licence, **found.languages}
    return {**about, "sha256": {}, "counts": {}, "imported": source}


def _log(found: Imported, files: Mapping[str, str]) -> str:
    entry = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "event": "imported",
        "step": 0,
        "family": found.family.name,
        "sha256": dict(files),
        "parameters": found.parameters,
    }
    return json.dumps(entry) + "\n"


def card(name: str, found: Imported, files: Mapping[str, str]) -> str:
    """The run for a reader: what it is and where it came from."""
    listed = "\n".join(f"| {file} | {digest} |" for file, digest in files.items())
    drawn = f"\nNot there, and drawn anew: {', '.join(found.drawn)}.\n" if found.drawn else ""
    drawn += f"\nThere, and not read: {', '.join(found.left)}.\n" if found.left else ""
    return f"""# {name}

A `{found.model.kind}` model for the task `{found.family.task}`, imported by seqloom {VERSION} from the directory
`{found.name}` of Hugging Face's form ({found.family.name}). It was not trained here; for its training data see where it
came from. Licence: {found.licence}. `recipe.yaml` describes the model.

## Weights

{found.parameters:,} parameters were read; {counted(len(found.tokenizer), "token")} in its vocabulary.
{drawn}
| file | sha256 |
|---|---|
{listed}

Python {platform.python_version()}, PyTorch {torch.__version__}, {platform.system()} {platform.machine()}.
"""
