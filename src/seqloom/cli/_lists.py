"""Options that take several values with commas between them."""

from seqloom.core.errors import UsageError
from seqloom.core.words import WHOLE_NUMBERS, shown


def words(option: str, text: str, example: str) -> tuple[str, ...]:
    found = tuple(word.strip() for word in text.split(","))
    if not all(found):
        raise UsageError(f"{option} takes one or more, with commas between, like {example}; got {text!r}.")
    return found


def numbers(option: str, text: str, example: str) -> tuple[int, ...]:
    try:
        found = tuple(int(word) for word in words(option, text, example))
    except ValueError:
        raise UsageError(
            f"{option} takes whole numbers with commas between, like {example}; got {shown(text)}."
        ) from None
    if any(number not in WHOLE_NUMBERS for number in found):
        raise UsageError(f"{option} takes whole numbers of at most 64 bits, like {example}; got {shown(text)}.")
    return found
