"""Documents packed into rows of one length, for a model that reads each by itself.

A document is cut into pieces that fit a row; each piece stands as [CLS] piece [SEP]. Short pieces share a row, longest
first, each where least room is left over; `documents` numbers them, so that none is seen from another.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from seqloom.core.specials import Specials
from seqloom.text.specials import frame_length, framed

Array = np.ndarray[Any, Any]


class Packed(NamedTuple):
    tokens: Array  # (N, S), 0 where nothing stands
    documents: Array  # (N, S), from 1 in each row; 0 where nothing stands


def pack(texts: Sequence[Sequence[int]], specials: Specials, length: int) -> Packed:
    """Documents, each its tokens, in rows (N, S) of `length`; those without tokens are left out."""
    room = length - frame_length("bert", 1)
    pieces = [text[start : start + room] for text in texts for start in range(0, len(text), room)]
    shared = share_rows([len(piece) + length - room for piece in pieces], length)
    tokens, documents = np.zeros((len(shared), length), np.int32), np.zeros((len(shared), length), np.int16)
    for row, members in enumerate(shared):
        end = 0
        for number, member in enumerate(members, start=1):
            placed = framed(specials, "bert", pieces[member]).tokens
            start, end = end, end + len(placed)
            tokens[row, start:end], documents[row, start:end] = placed, number
    return Packed(tokens, documents)


def share_rows(sizes: Sequence[int], length: int) -> list[list[int]]:
    """Which pieces go into one row: the longest first, each into the row where least room is left."""
    rows: list[list[int]] = []
    by_room: list[list[int]] = [[] for _ in range(length + 1)]  # rows by how much room they have
    for piece in sorted(range(len(sizes)), key=lambda piece: -sizes[piece]):
        size = sizes[piece]
        room = next((room for room in range(size, length + 1) if by_room[room]), None)
        if room is None:
            room = length
            by_room[room].append(len(rows))
            rows.append([])
        row = by_room[room].pop()
        rows[row].append(piece)
        by_room[room - size].append(row)
    return rows
