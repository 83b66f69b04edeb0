"""Functions that open trained models and convert them from and to Hugging Face directories."""

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from seqloom.core.errors import UsageError
from seqloom.predict.base import AnyPredictor, Predictor
from seqloom.runs.run import Run
from seqloom.tasks import names, task_info

if TYPE_CHECKING:
    from seqloom.exchange.conversion import ImportedModel

Kind = TypeVar("Kind", bound=AnyPredictor)


@overload
def load(path: str | Path, device: str = "auto") -> Any: ...
@overload
def load(path: str | Path, device: str, use: type[Kind]) -> Kind: ...
def load(path: str | Path, device: str = "auto", use: type[AnyPredictor] = Predictor) -> Any:
    """Open the trained model in a run directory and return the predictor for its task.

    Raise an error that describes the model if the predictor is not an instance of `use`.
    """
    if not isinstance(path, str | PathLike):
        raise TypeError(f"path must be the path of a run; got {type(path).__name__}")
    run = Run.open(path)
    task = str(run.recipe.get("task"))
    predictor: type[AnyPredictor] = task_info(task).predictor_class() if task in names() else Predictor
    model = predictor.class_for(run)(run, device)
    if isinstance(model, use):
        return model
    if use.reads_text:
        run.tokenizer  # noqa: B018 (raises an error for a run without text)
    raise UsageError(
        f"{path} is {model.description}: {model.describe_usage()}. This operation needs {use.description}."
    )


def import_hf(source: str | Path, out: str | Path, device: str = "auto", revision: str | None = None) -> Any:
    """Convert a Hugging Face directory or a model on the hub to a run and load the run, like `seqloom import-hf`."""
    return load(import_run(source, out, revision)[0].path, device)


def import_minilm(out: str | Path = "runs/minilm", device: str = "auto") -> Any:
    """Convert MiniLM to a run and load the run, like `seqloom import-minilm`.

    The package of MiniLM must be installed.
    """
    return load(import_minilm_run(out)[0].path, device)


def import_minilm_run(out: str | Path) -> "tuple[Run, ImportedModel]":
    from seqloom.exchange.conversion import MINILM_LICENCE, MINILM_NAME, minilm_directory

    return import_run(minilm_directory(), out, name=MINILM_NAME, licence=MINILM_LICENCE)


def import_run(
    source: str | Path, out: str | Path, revision: str | None = None, **overrides: str
) -> "tuple[Run, ImportedModel]":
    """Convert a model to a run with a card. The parameters are the same as in `import_model`."""
    from seqloom.exchange.conversion import import_model
    from seqloom.predict.card import write_card

    run, imported = import_model(source, out, revision, **overrides)
    write_card(run)
    return run, imported


def export_hf(run: str | Path, directory: str | Path) -> Path:
    """Convert a run to a Hugging Face directory and return its path, like `seqloom export-hf`."""
    from seqloom.exchange.conversion import export_run

    return export_run(run, directory).path
