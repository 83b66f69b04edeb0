"""Tasks of seqloom on random tokens, with batches of equal shape."""

from typing import Any

import numpy as np
import torch

from seqloom.data.batching import Ragged
from seqloom.recipes import read_recipe
from seqloom.tasks import language_model, translate

BATCHES = 8  # number of different batches, which are repeated


class Vocabulary:
    """A minimal tokenizer for training."""

    end, unknown = 0, None

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


def recipe_of(name: str, overrides: list[str], device: str) -> Any:
    """Return a shipped recipe with many steps, so that its steps are compiled."""
    never = [f"train.{key}=1000000" for key in ("steps", "evaluate_every", "save_every")]
    return read_recipe(name, [*overrides, *never, "train.log_every=100", f"train.device={device}"])[1]


class Pairs(translate.Task):
    """Translation of random sentences. All batches have the same shape."""

    loss_unit = "nats"
    sentences: dict[str, Ragged]  # by side

    def largest_step(self, seed: int) -> None:
        """Return None, because all batches have the same shape."""

    def encoded(self, split: str, side: str) -> Ragged:
        return self.sentences[side]


def pairs(recipe: Any, rows: int, length: int, vocabulary: int) -> translate.Task:
    """Return a translation task on sentences of `length` tokens, including END, with batches of (rows, length)."""
    task = Pairs(recipe, None, Vocabulary(vocabulary))  # type: ignore[arg-type]
    draws, task.sentences = np.random.default_rng(0), {}
    for side in translate.SIDES:
        ids = draws.integers(1, vocabulary, (BATCHES * rows, length), dtype=np.int32)
        ids[:, -1] = 0
        task.sentences[side] = Ragged(ids.ravel(), np.arange(0, ids.size + 1, length))
    return task


class Stream(language_model.Task):
    """Language modelling on random tokens."""

    loss_unit = "nats"
    tokens: torch.Tensor

    def stream(self, split: str) -> torch.Tensor:
        return self.tokens


def stream(recipe: Any, vocabulary: int) -> language_model.Task:
    """Return a language modelling task on random tokens with the batches of the recipe."""
    task = Stream(recipe, None, Vocabulary(vocabulary))  # type: ignore[arg-type]
    length = BATCHES * recipe.batch.size * recipe.batch.length + 1
    task.tokens = torch.randint(vocabulary, (length,), generator=torch.Generator().manual_seed(0))
    return task
