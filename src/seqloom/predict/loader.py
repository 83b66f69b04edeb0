"""Open trained models from run directories, and exchange them with Hugging Face directories."""

from pathlib import Path
from typing import Any, TypeVar, overload

from seqloom.core.errors import UsageError
from seqloom.predict.base import AnyPredictor, Predictor
from seqloom.runs.run import Run
from seqloom.tasks import names, task_info

Kind = TypeVar("Kind", bound=AnyPredictor)


@overload
def load(path: str | Path, device: str = "auto") -> Any: ...
@overload
def load(path: str | Path, device: str, use: type[Kind]) -> Kind: ...
def load(path: str | Path, device: str = "auto", use: type[AnyPredictor] = Predictor) -> Any:
    """Open a trained model from its run directory, as the predictor of its task.

    If the model is not of the class `use`, the error describes the model.
    """
    run = Run.open(path)
    task = str(run.recipe.get("task"))
    predictor: type[AnyPredictor] = task_info(task).predictor_class() if task in names() else Predictor
    model = predictor(run, device)
    if isinstance(model, use):
        return model
    if use.reads_text:
        run.tokenizer  # noqa: B018 (raises an error for a run without text)
    raise UsageError(f"{path} is {model.description}: {model.describe_usage()}. This needs {use.description}.")


def import_hf(directory: str | Path, out: str | Path, device: str = "auto") -> Any:
    """Convert a Hugging Face directory to a run and load it, like `seqloom import-hf`."""
    from seqloom.exchange.conversion import import_directory

    run, _ = import_directory(directory, out)
    return load(run.path, device)


def import_minilm(out: str | Path = "runs/minilm", device: str = "auto") -> Any:
    """Convert MiniLM, whose package must be installed, to a run and load it, like `seqloom import-minilm`."""
    from seqloom.exchange.conversion import MINILM_LICENCE, MINILM_NAME, import_directory, minilm_directory

    run, _ = import_directory(minilm_directory(), out, MINILM_NAME, MINILM_LICENCE)
    return load(run.path, device)


def export_hf(run: str | Path, directory: str | Path) -> Path:
    """Convert a run to a Hugging Face directory and return its path, like `seqloom export-hf`."""
    from seqloom.exchange.conversion import export_run

    return export_run(run, directory).path
