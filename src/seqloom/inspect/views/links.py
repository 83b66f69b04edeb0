"""The attention heads with the strongest link between two words.

find_links(view.encoder, "it", "animal")[0]      the head in which "it" attends most to "animal"
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from seqloom.core.errors import UsageError
from seqloom.core.words import did_you_mean
from seqloom.inspect.views.attention import NAMES, Part


class HeadLink(NamedTuple):
    """The weight of a link in one head. Layers, heads and ranks are counted from 1, and positions from 0."""

    layer: int
    head: int
    weight: float
    rank: int  # rank of the link among all links of its query
    query: int  # position of the query among the words of the rows
    key: int  # position of the key among the words of the columns


def find_links(part: Part, query: str, key: str, layer: int | None = None) -> list[HeadLink]:
    """Return the link from a word of the rows to a word of the columns in every head, strongest first.

    If a word occurs several times, the strongest link between any of its positions counts. `layer` restricts the
    search to one layer.
    """
    maps = part.words
    rows, columns = find_word(maps.rows, query, "--from", part), find_word(maps.columns, key, "--to", part)
    layers = range(1, part.layers + 1) if layer is None else [part.layer(layer)]
    links = []
    for number in layers:
        for head in range(1, part.heads + 1):
            weights = maps.weights[number - 1, head - 1]
            row, column = max(((row, column) for row in rows for column in columns), key=lambda at: weights[at])
            rank = 1 + int(np.count_nonzero(weights[row] > weights[row, column]))
            links.append(HeadLink(number, head, float(weights[row, column]), rank, row, column))
    return sorted(links, key=lambda link: -link.weight)


def find_word(words: Sequence[str], word: str, option: str, part: Part) -> list[int]:
    """Return the positions of a word; the case of letters is ignored if no word has the given case."""
    word = word.strip()
    positions = [position for position, other in enumerate(words) if other == word]
    positions = positions or [position for position, other in enumerate(words) if other.casefold() == word.casefold()]
    if not positions:
        side = "queries" if option == "--from" else "keys"
        raise UsageError(
            f"{option} {word!r} is not among the {side} of {NAMES[part.name]}: {did_you_mean(word, words)}."
        )
    return positions
