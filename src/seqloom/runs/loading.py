"""The model of a run: built as its recipe describes, with the weights that the run keeps."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from seqloom.config import build, to_mapping
from seqloom.core.allocations import build_within_memory
from seqloom.core.errors import CheckpointError, UsageError
from seqloom.core.expected import check_tree
from seqloom.runs.models import find_config


def model_config(recipe: Mapping[str, Any], file: Path) -> Any:
    """The config of the model that a recipe describes; `file` is where it stands."""
    section: Any = recipe.get("model")
    kind = section.get("kind") if isinstance(section, dict) else None
    config = find_config(recipe.get("task"), kind)
    if config is None:
        raise CheckpointError(f"{file} describes a model of kind {kind!r}, which this seqloom does not know.")
    try:
        return build(config, section, source=f"{file}, model,")
    except UsageError as error:
        raise CheckpointError(str(error)) from error


def build_model(config: Any, sizes: Mapping[str, int], name: str) -> Any:
    """A new model of these sizes; `name` is that of the weights it is built for."""
    with _refuse_unfitting(name), build_within_memory({"model": to_mapping(config), **sizes}):
        return config.build(**sizes)


def load_weights(model: Any, weights: Mapping[str, Tensor], frozen: Mapping[str, Tensor], name: str) -> None:
    """Load tensors into a model; `CheckpointError`, and nothing is changed, unless they are finite and those it has.

    `frozen` are tensors that are no part of its `state_dict()`. Classical models check their tensors themselves.
    """
    with _refuse_unfitting(name):
        if isinstance(model, nn.Module):
            check_tree(dict(weights), dict(model.state_dict()))
        model.load_state_dict({**frozen, **weights})


@contextmanager
def _refuse_unfitting(name: str) -> Iterator[None]:
    """Turn what a model says of weights or sizes that are not its own into one line."""
    try:
        yield
    except (RuntimeError, KeyError, TypeError, ValueError, CheckpointError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{name} does not fit the model its recipe describes ({reason}).") from error
