"""What a masked language model thinks may stand at each [MASK] of a text; and the text once something stands there.

found = gap_guesses(seqloom.load("runs/bert-pydocs"), "the [MASK] statement", top=5)
found.masks[0][0].token, found.masks[0][0].probability
"""

from dataclasses import dataclass
from typing import Any

from seqloom.core.errors import UsageError
from seqloom.inspect.views.alignment import unknown_note
from seqloom.text.gaps import read_gaps, told_after


@dataclass(frozen=True)
class GapGuesses:
    text: str
    around: list[str]  # the text before the first mask, between masks, after the last
    masks: list[list[Any]]  # of each mask what may stand there, best first: `Guess` of the API
    filled: str  # with the best guess at each
    notes: tuple[str, ...]


def gap_guesses(trained: Any, text: str, top: int = 200) -> GapGuesses:
    """`trained` is what `seqloom.load` gives for a masked language model. A text without a mask has no guesses."""
    gaps = read_gaps(trained.tokenizer, trained.specials, text)
    notes = (unknown_note(gaps.unknown, "text"),) if gaps.unknown else ()
    if not gaps.masks:
        return GapGuesses(text, [text], [], text, notes)
    (found,) = trained.fill(text, top=top)
    around, end = [], 0
    for mask in gaps.masks:
        start, after = gaps.spans[mask]
        around.append(text[end:start])
        end = after
    return GapGuesses(text, [*around, text[end:]], found.masks, found.filled, notes)


def with_token(trained: Any, text: str, mask: int, token: int) -> str:
    """The text with a token in the place of one of its masks, counted from 0."""
    gaps = read_gaps(trained.tokenizer, trained.specials, text)
    if not 0 <= mask < len(gaps.masks):
        raise UsageError(f"The text has {len(gaps.masks)} masks, counted from 0; got {mask}.")
    if not 0 <= token < len(trained.tokenizer):
        raise UsageError(f"Token ids go from 0 to {len(trained.tokenizer) - 1}; got {token}.")
    start, end = gaps.spans[gaps.masks[mask]]
    return told_after(trained.tokenizer, text[:start], token) + text[end:]
