"""Masked language models in use: they tell what stands where a text has [MASK]."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from seqloom.core.errors import DataError, UsageError
from seqloom.core.specials import MASK_TEXT, Specials
from seqloom.core.words import shown
from seqloom.nn.softmax import at_least_float32
from seqloom.predict.base import Predictor
from seqloom.predict.batching import alike, answered, check_sizes
from seqloom.text.base import END
from seqloom.text.gaps import Gaps, read_gaps, told_after
from seqloom.text.specials import frame_length, framed

if TYPE_CHECKING:
    from seqloom.inspect.views.heads import HeadsView

# What other models write for a token that is hidden; a person may well type it here.
OTHERS = re.compile(r"<mask>|\[mask\]|<MASK>|\[Mask\]|<extra_id_\d+>|_{3,}")


@dataclass(frozen=True)
class Guess:
    """A token that may stand at a mask, and how probable the model finds it."""

    token: str  # as it is shown to people
    probability: float
    id: int


@dataclass(frozen=True)
class Filled:
    """A text with masks, and for each of them what may stand there, best first. Masks are told one by one: what is
    said of one does not hang on what was said of another."""

    text: str  # as it came
    filled: str  # the best guess at each mask
    masks: list[list[Guess]]
    unknown: tuple[str, ...] = ()  # pieces of the text the vocabulary does not have
    cut: int = 0  # tokens far from the masks that could not be read


class MaskedLM(Predictor):
    """A trained masked language model."""

    what = "a masked language model"
    used_by = "`seqloom fill` uses it"

    def uses(self) -> str:
        return self.used_by if self._learned else f"it {self._other_uses}"

    @cached_property
    def specials(self) -> Specials:
        return Specials.after(len(self.tokenizer))

    @property
    def longest(self) -> int | None:
        """How many tokens are read at once, [CLS] and [SEP] included; None for any number."""
        longest: int | None = self.model.config.longest
        return longest

    def fill(
        self, texts: str | Iterable[str], *, top: int = 5, batch_size: int = 32, window: int = 1024
    ) -> Iterator[Filled]:
        """Say what may stand at each [MASK] of each text, one answer for each, in their order; a blank one stays blank.

        A text that is too long is read around its masks. `window` texts are read at a time, and those of like length
        `batch_size` at a time.
        """
        self._refuse_unlearned()
        check_sizes(top=top)
        return answered(texts, lambda lines: self._answer(lines, top, batch_size), batch_size=batch_size, window=window)

    def evaluate_documents(self, documents: Sequence[str]) -> dict[str, float]:
        self._refuse_unlearned()
        return super().evaluate_documents(documents)

    def _answer(self, lines: Sequence[str], top: int, batch_size: int) -> Iterator[Filled]:
        """What comes before a text that cannot be told is still answered."""
        read: list[tuple[Gaps, list[int]]] = []  # texts, and what of them is read
        wrong: DataError | None = None
        try:
            for line in lines:
                gaps = self._gaps(line)
                read.append((gaps, self._window(gaps)))
        except DataError as error:
            wrong = error
        answers: list[list[list[Guess]]] = [[] for _ in read]
        for chosen in alike([len(row) for _, row in read], batch_size):
            for number, guesses in zip(chosen, self._guess([read[n][1] for n in chosen], top), strict=True):
                answers[number] = guesses
        for line, (gaps, row), guesses in zip(lines, read, answers, strict=False):
            yield Filled(line, self._filled(line, gaps, guesses), guesses, gaps.unknown, len(gaps.ids) - len(row))
        if wrong is not None:
            raise wrong

    def _refuse_unlearned(self) -> None:
        """An imported model may have come without the layers that tell masked tokens: then it knows nothing of them."""
        if not self._learned:
            raise UsageError(
                f"{self.name} cannot tell masked tokens: it was imported without the layers for that. It "
                f"{self._other_uses}."
            )

    @property
    def _learned(self) -> bool:
        return "dense.weight" not in self.run.data.get("imported", {}).get("drawn", ())

    @property
    def _other_uses(self) -> str:
        return f"makes vectors (seqloom embed, similar) and can be fine-tuned (init.from={self.name})"

    def _gaps(self, text: str) -> Gaps:
        """The tokens of a text with [MASK] in it; one without any is refused, unless it is blank."""
        gaps = read_gaps(self.tokenizer, self.specials, text)
        if not gaps.masks and text.strip():
            other = OTHERS.search(text)
            written = f", not {other[0]}" if other else ""
            raise DataError(f"What is to be told is written {MASK_TEXT}{written}; there is none in {shown(text)}.")
        return gaps

    def _window(self, gaps: Gaps) -> list[int]:
        """As much of a long text as can be read, with its masks in the middle."""
        ids, room = gaps.ids, None if self.longest is None else self.longest - frame_length("bert", 1)
        if room is None or len(ids) <= room:
            return ids
        across = gaps.masks[-1] + 1 - gaps.masks[0]
        if across > room:
            raise DataError(
                f"The masks of a text must lie within the {room} tokens that the model reads at once; here they span "
                f"{across}. Ask for them one by one."
            )
        start = min(max(0, gaps.masks[0] - (room - across) // 2), len(ids) - room)
        return ids[start : start + room]

    @torch.no_grad()
    def _guess(self, rows: Sequence[list[int]], top: int) -> Iterator[list[list[Guess]]]:
        """What may stand at each mask of each row."""
        tokens, mask = self._framed(rows)
        masked = tokens == self.specials.mask
        best = at_least_float32(self.model.gap_logits(tokens, mask, masked)).softmax(dim=1)  # (M, V), row by row
        values, ids = best.topk(min(top, best.shape[1]), dim=1)
        guesses = (
            [Guess(self.tokenizer.token(token), p, token) for token, p in zip(own, probabilities, strict=True)]
            for own, probabilities in zip(ids.tolist(), values.tolist(), strict=True)
        )
        for count in masked.sum(dim=1).tolist():
            yield [next(guesses) for _ in range(count)]

    def _framed(self, rows: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
        """[CLS] row [SEP] of each, and where they are real, (B, S)."""
        placed = [framed(self.specials, "bert", row).tokens for row in rows]
        widest = max(map(len, placed))
        tokens = torch.tensor([row + [END] * (widest - len(row)) for row in placed], device=self.device)
        lengths = torch.tensor([[len(row)] for row in placed], device=self.device)
        return tokens, torch.arange(widest, device=self.device) < lengths

    def _filled(self, text: str, gaps: Gaps, guesses: Sequence[Sequence[Guess]]) -> str:
        """The text as it came, words that the vocabulary lacks included, with the best guess at each mask."""
        found, end = "", 0
        for mask, own in zip(gaps.masks, guesses, strict=True):
            start, after = gaps.spans[mask]
            found, end = told_after(self.tokenizer, found + text[end:start], own[0].id), after
        return found + text[end:]

    def heads(self, text: str) -> "HeadsView":
        """Where every layer and head looks while it reads a text, which may have masks."""
        from seqloom.inspect.views.reader_heads import reader_heads_view

        return reader_heads_view(self, text)
