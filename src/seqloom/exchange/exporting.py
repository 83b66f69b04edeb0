"""From a run to a Hugging Face directory that `transformers` reads."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqloom.config import build
from seqloom.core.errors import UsageError
from seqloom.exchange.directory import GENERATION, Json, refuse_existing, write_directory
from seqloom.exchange.families import FAMILIES
from seqloom.exchange.family import Family, Ids, family_for
from seqloom.exchange.weights import uncovered, write_tensors
from seqloom.runs.models import MODELS
from seqloom.runs.run import Run


@dataclass(frozen=True)
class Written:
    family: Family
    architecture: str  # the class of transformers that reads it
    path: Path
    parameters: int


def export_run(source: str | Path, out: str | Path) -> Written:
    """Write the best weights of a run as a directory; refused with what stands in the way if no family has it."""
    out = Path(out)
    refuse_existing(out)
    run = Run.open(source)
    run.tokenizer  # noqa: B018 (a run that is not about text says so here)
    run.model("cpu")  # refuses what does not fit together
    if extra := run.sizes.get("extra"):
        raise UsageError(
            f"{run.path} cannot be exported: its model has {extra} tokens that its tokenizer has not, [MASK] and what "
            "else texts are damaged with. A translator that begins with it (init.from) has none, and can be."
        )
    model: Any = build(MODELS.find(run.recipe["model"]["kind"]), run.recipe["model"])
    family = family_for(FAMILIES, model, str(run.path))
    tokenizer = run.tokenizer
    ids = Ids.of(tokenizer, family.extra)
    weights = run.weights()
    table = family.names(model, ids)
    if forgotten := uncovered(table, weights):
        raise AssertionError(f"{family.name} has no names for {', '.join(forgotten)}")
    drawn = set(run.data.get("imported", {}).get("drawn", ()))  # which came with no directory, and say nothing
    tensors = write_tensors([one for one in table if not one.ours or not drawn.issuperset(one.ours)], weights)
    architecture = family.architecture_without(drawn)
    config = {
        "model_type": family.model_types[0],
        "architectures": [architecture],
        "dtype": "float32",
        **family.write_config(model, ids),
    }
    files = {**family.tokenizer_files(tokenizer, model), **_searched(family.documents(model, ids), run)}
    write_directory(out, config, tensors, files)
    return Written(family, architecture, out, sum(tensor.numel() for tensor in tensors.values()))


def _searched(documents: Json, run: Run) -> Json:
    """With how the run's recipe searches, where it does; what transformers does anyway, a beam of 1, is left out, for
    it warns of a penalty beside it."""
    decode = run.recipe.get("decode") or {}
    beam, penalty = decode.get("beam", 1), decode.get("length_penalty", 1.0)
    if GENERATION in documents:
        documents[GENERATION] |= {"num_beams": beam} if beam > 1 else {}
        documents[GENERATION] |= {"length_penalty": penalty} if beam > 1 or penalty != 1.0 else {}
    return documents
