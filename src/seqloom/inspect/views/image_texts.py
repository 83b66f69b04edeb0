"""The attention of a model to the locations of an image, for each word of a text that the model writes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from seqloom.core.device import device_of
from seqloom.evaluate.alignment import Word, merge
from seqloom.inspect.values import Array
from seqloom.models.image_encoder import ImageEncoder


@dataclass(frozen=True, eq=False)
class AttendedWord:
    """A word of a text, and the attention weights of the model when it wrote the word.

    All weights of a word sum to 1. For a word of several tokens, they are the mean over the tokens.
    """

    text: str
    weights: Array  # (rows, columns), on the grid of the image encoder
    source_weights: Array  # (W,), for each word of the source text and its END; empty without a source text


def image_encoder_of(model: nn.Module) -> ImageEncoder:
    """Return the image encoder of a model."""
    return next(module for module in model.modules() if isinstance(module, ImageEncoder))


def attended_words(
    model: nn.Module, weights: Array, words: Sequence[Word], source: Sequence[Word] = ()
) -> tuple[AttendedWord, ...]:
    """Divide the attention weights (T, N + S) into the weights of each word on the image and on the source text.

    N is the number of vectors of the image. `source` contains the words of the source text, with positions among its S
    tokens.
    """
    if not words:
        return ()
    encoder = image_encoder_of(model)
    N = encoder.length
    locations = [Word("", (n,)) for n in range(N)]
    source = [Word(text, tuple(N + token for token in tokens)) for text, tokens in source]
    merged = merge(weights, words, [*locations, *source])
    maps = encoder.on_grid(torch.from_numpy(merged[:, :N]).to(device_of(model))).cpu().numpy()
    texts = [word.text for word in words]
    return tuple(AttendedWord(*parts) for parts in zip(texts, maps, merged[:, N:], strict=True))
