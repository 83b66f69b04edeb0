"""From where a model goes on writing: what it reads as a source, and the tokens that are already there.

A translator is given a line and says it in another language, a denoiser a damaged text and says what it was; a language
model is given a prompt and continues it. Beyond that they are asked the same things, so everything that looks at how
they choose tokens begins here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from seqloom.core.errors import DataError, UsageError
from seqloom.core.protocols import DecodeState
from seqloom.core.specials import Specials
from seqloom.inspect.views.alignment import one_line, unknown_note
from seqloom.text import END
from seqloom.text.base import StreamDecoder
from seqloom.text.gaps import read_gaps


@dataclass(frozen=True)
class Beginning:
    """What stands before the first token that is still to be chosen."""

    trained: Any  # what `seqloom.load` gave
    text: str  # the line that is translated or restored, or the prompt
    source: list[int] | None  # its tokens, END included, where it is translated or restored
    prompt: list[int]  # tokens of the prompt, those that were forced after it not among them
    forced: list[int]  # said because somebody wants them said; the last may be END
    banned: tuple[int, ...]  # never chosen
    notes: tuple[str, ...]
    names: Mapping[int, str] = field(default_factory=dict)  # of tokens that the model has beside its tokenizer's

    @property
    def has_source(self) -> bool:
        return self.source is not None

    def name(self, token: int) -> str:
        """A token as it is shown to people."""
        return self.names.get(token) or str(self.trained.tokenizer.token(token))

    @property
    def prefix(self) -> list[int]:
        """All tokens that must come first, END not among them."""
        return [*self.prompt, *(token for token in self.forced if token != END)]

    @property
    def ended(self) -> bool:
        return END in self.forced

    def tree(self) -> Any:
        """The source as the model's `start` takes it."""
        if self.source is None:
            return None
        tokens = torch.tensor([self.source], device=self.trained.device)
        return {"tokens": tokens, "mask": torch.ones_like(tokens, dtype=torch.bool)}

    def start(self) -> DecodeState:
        source = self.tree()
        state: DecodeState = self.trained.model.start(rows=1) if source is None else self.trained.model.start(source)
        return state

    def room(self, wanted: int) -> int:
        """How many of the tokens that are wanted after the prefix the model can say."""
        longest = getattr(self.trained.model, "longest_target", None)
        if longest is None:
            return wanted
        if len(self.prefix) >= longest:
            raise UsageError(f"This model can say {longest} tokens, and there are {len(self.prefix)} already.")
        return min(wanted, longest - len(self.prefix))

    def decoder(self) -> StreamDecoder:
        """Turns what is said after the prompt into text."""
        found = _Named(self.trained.tokenizer.stream(), self.names)
        found.read([END, *self.prompt])
        return found

    def written(self, tokens: Sequence[int]) -> str:
        """The text of tokens that come after the prompt."""
        decoder = self.decoder()
        return decoder.read(tokens) + decoder.flush()


class _Named(StreamDecoder):
    """A decoder that also knows the names of tokens which are not its tokenizer's, and sets them off by spaces."""

    def __init__(self, decoder: StreamDecoder, names: Mapping[int, str]) -> None:
        self._decoder, self._names = decoder, names

    def push(self, token: int) -> str:
        name = self._names.get(token)
        return self._decoder.push(token) if name is None else f"{self._decoder.flush()} {name} "

    def flush(self) -> str:
        return self._decoder.flush()


def beginning(trained: Any, text: str, forced: Sequence[int] = ()) -> Beginning:
    """`text` is the line to translate or restore, or the prompt to continue, which may be empty. `forced` are tokens
    that come next, whatever the model thinks of them."""
    begin = next((begin for use, begin in BEGINNINGS.items() if hasattr(trained, use)), None)
    if begin is None:
        raise UsageError(f"{trained.name} is {trained.what}: it does not write text, token after token.")
    begun = begin(trained, text, list(forced))
    _check_forced(forced, len(trained.tokenizer), begun.names)
    return begun


def _translation(trained: Any, text: str, forced: list[int]) -> Beginning:
    text, tokenizer = one_line(text, "text"), trained.tokenizer
    source = [*tokenizer.encode(text), END]
    longest = trained.longest_source
    if longest is not None and len(source) > longest:
        raise DataError(f"The text has {len(source):,} tokens, its end included, and this model can read {longest:,}.")
    return Beginning(trained, text, source, [], forced, tuple(tokenizer.banned), _notes(tokenizer, text, "text"))


def _continuation(trained: Any, text: str, forced: list[int]) -> Beginning:
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise DataError(f"The prompt must be UTF-8, but this is not: {text!r}.")
    read, tokenizer = trained.as_taught(text, whole=False), trained.tokenizer
    banned = () if tokenizer.unknown is None else (tokenizer.unknown,)
    return Beginning(trained, text, None, tokenizer.encode(read), forced, banned, _notes(tokenizer, read, "prompt"))


def _restoration(trained: Any, text: str, forced: list[int]) -> Beginning:
    text, tokenizer = one_line(text, "text"), trained.tokenizer
    sentinels = {sentinel: f"<{number}>" for number, sentinel in enumerate(trained.sentinels, start=1)}
    names = {**Specials.after(len(tokenizer)).names, **sentinels}
    gaps = read_gaps(tokenizer, Specials.after(len(tokenizer)), text)
    notes = (unknown_note(gaps.unknown, "text"),) if gaps.unknown else ()
    return Beginning(trained, text, trained.source(text), [], forced, trained.banned, notes, names)


# By what a trained model can do.
BEGINNINGS = {"translate": _translation, "restore": _restoration, "generate": _continuation}


def _notes(tokenizer: Any, text: str, what: str) -> tuple[str, ...]:
    unknown = tokenizer.unknown_pieces(text)
    return (unknown_note(unknown, what),) if unknown else ()


def _check_forced(forced: Sequence[int], vocabulary: int, names: Mapping[int, str]) -> None:
    for token in forced:
        if not (0 <= token < vocabulary or token in names):
            raise UsageError(f"Token ids go from 0 to {max(vocabulary - 1, *names, 0)}; got {token}.")
    if END in forced[:-1]:
        raise UsageError("Nothing comes after END: of the tokens that are forced only the last may be it.")
