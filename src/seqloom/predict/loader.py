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

    With `use`, a model of another kind is refused with a message that says what it is.
    """
    run = Run.open(path)
    task = str(run.recipe.get("task"))
    predictor: type[AnyPredictor] = task_info(task).predictor_class() if task in names() else Predictor
    model = predictor(run, device)
    if isinstance(model, use):
        return model
    if use.reads_text:
        run.tokenizer  # noqa: B018 (a run that is not about text says so here)
    raise UsageError(f"{path} is {model.what}: {model.uses()}. What was asked for needs {use.what}.")


def import_hf(directory: str | Path, out: str | Path, device: str = "auto") -> Any:
    """Make a run of the model in a Hugging Face directory, and load it: what `seqloom import-hf` does."""
    from seqloom.exchange.conversion import import_directory

    run, _ = import_directory(directory, out)
    return load(run.path, device)


def import_minilm(out: str | Path = "runs/minilm", device: str = "auto") -> Any:
    """Make a run of MiniLM, whose package must be installed, and load it: what `seqloom import-minilm` does."""
    from seqloom.exchange.conversion import MINILM_LICENCE, MINILM_NAME, import_directory, minilm_directory

    run, _ = import_directory(minilm_directory(), out, MINILM_NAME, MINILM_LICENCE)
    return load(run.path, device)


def export_hf(run: str | Path, directory: str | Path) -> Path:
    """Write a run as a Hugging Face directory, and return its path: what `seqloom export-hf` does."""
    from seqloom.exchange.conversion import export_run

    return export_run(run, directory).path
