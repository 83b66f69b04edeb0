"""seqloom's own tasks on tokens drawn at random, where the same shapes are wanted of every batch."""

from typing import Any

import numpy as np
import torch

from seqloom.data.batching import Ragged
from seqloom.recipes import read_recipe
from seqloom.tasks import language_model, translate

BATCHES = 8  # different ones, which come again and again


class Vocabulary:
    """As much of a tokenizer as training asks for."""

    end, unknown = 0, None

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


def recipe_of(name: str, overrides: list[str], device: str) -> Any:
    """A shipped recipe, to be trained for long: what is worth compiling in a long training is compiled here."""
    never = [f"train.{key}=1000000" for key in ("steps", "evaluate_every", "save_every")]
    return read_recipe(name, [*overrides, *never, "train.log_every=100", f"train.device={device}"])[1]


class Pairs(translate.Task):
    """Drawn sentences. All batches have one shape, so none is the largest."""

    drawn: dict[str, Ragged]  # by side

    @property
    def largest_step(self) -> Any:  # type: ignore[override]
        raise AttributeError

    def encoded(self, split: str, side: str) -> Ragged:
        return self.drawn[side]


def pairs(recipe: Any, rows: int, length: int, vocabulary: int) -> translate.Task:
    """Translation of sentences that are all `length` tokens long, END included: batches of (rows, length)."""
    task = Pairs(recipe, None, Vocabulary(vocabulary))  # type: ignore[arg-type]
    draws, task.drawn = np.random.default_rng(0), {}
    for side in translate.SIDES:
        ids = draws.integers(1, vocabulary, (BATCHES * rows, length), dtype=np.int32)
        ids[:, -1] = 0
        task.drawn[side] = Ragged(ids.ravel(), np.arange(0, ids.size + 1, length))
    return task


class Stream(language_model.Task):
    """A language model's text of drawn tokens."""

    drawn: torch.Tensor

    def stream(self, split: str) -> torch.Tensor:
        return self.drawn


def stream(recipe: Any, vocabulary: int) -> language_model.Task:
    """A language model's text, cut into the recipe's rows and chunks."""
    task = Stream(recipe, None, Vocabulary(vocabulary))  # type: ignore[arg-type]
    length = BATCHES * recipe.batch.size * recipe.batch.length + 1
    task.drawn = torch.randint(vocabulary, (length,), generator=torch.Generator().manual_seed(0))
    return task
