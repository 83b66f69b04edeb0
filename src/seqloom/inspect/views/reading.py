"""Which model to look into, and which tokens to let it read."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.core.errors import DataError, UsageError
from seqloom.models.recurrent_lm import RecurrentLM
from seqloom.text import END, Tokenizer

Text = str | Sequence[int]  # ids need no tokenizer


def model_of(source: Any) -> Any:
    """The model of a `Trained`, or the one given."""
    return source if isinstance(source, nn.Module) else getattr(source, "model", source)


def recurrent_lm(source: Any) -> RecurrentLM:
    """The recurrent language model of a `Trained`, or the one given."""
    model = model_of(source)
    if isinstance(model, RecurrentLM):
        return model
    run = getattr(source, "run", None)
    who, what = (run.path, run.recipe["model"]["kind"]) if run is not None else ("this", type(model).__name__)
    raise UsageError(f"Only a recurrent language model has gates and states to look at; {who} is of kind {what}.")


def encode(source: Any, text: Text, allow_unknown: bool = False) -> tuple[list[int], list[str]]:
    """The ids of a text, nothing added, and the token of each as it is shown to people."""
    tokenizer: Tokenizer | None = getattr(source, "tokenizer", None)
    if isinstance(text, str):
        if tokenizer is None:
            raise UsageError(
                "A model alone cannot read text: give the ids of its tokens, or what `seqloom.load` gives."
            )
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise DataError(f"The text must be UTF-8, but this is not: {text!r}.")
        if not allow_unknown:
            _refuse_unknown(source, tokenizer, text)
        ids = tokenizer.encode(text)
    else:
        ids = list(text)
        _refuse_strange(ids, recurrent_lm(source).embed.num_embeddings)  # others read text alone
    if not ids:
        raise UsageError("The text is empty: give at least one word.")
    return ids, [str(token) if tokenizer is None else tokenizer.token(token) for token in [END, *ids]]


def _refuse_unknown(source: Any, tokenizer: Tokenizer, text: str) -> None:
    unknown = tokenizer.unknown_pieces(text)
    if unknown:
        listed = ", ".join(map(repr, unknown[:8])) + (f" and {len(unknown) - 8} more" if len(unknown) > 8 else "")
        raise DataError(
            f"The vocabulary of {source.run.path} cannot spell {listed} in the text. "
            "Leave them out, or have each read as <unk>: --allow-unknown, in Python allow_unknown=True."
        )


def _refuse_strange(ids: Sequence[int], vocabulary: int) -> None:
    strange = [token for token in ids if not 0 <= token < vocabulary]
    if strange:
        raise UsageError(f"Token ids go from 0 to {vocabulary - 1}; got {strange[0]}.")


def with_end(ids: Sequence[int], device: torch.device | None = None) -> Tensor:
    """END before the text, as in training: what a model reads (1, T)."""
    return torch.tensor([[END, *ids]], device=device)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout, whatever mode the model is in."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
