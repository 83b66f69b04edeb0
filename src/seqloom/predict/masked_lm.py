"""Masked language models: they predict the tokens at [MASK]."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch

from seqloom.core.errors import DataError, UsageError
from seqloom.core.specials import MASK_TEXT, Specials
from seqloom.core.words import one_line, shown
from seqloom.nn.softmax import at_least_float32
from seqloom.predict.base import Prediction, Predictor, Problems
from seqloom.predict.batching import as_lines, check_sizes, pad_rows, predict_batches, predict_windows
from seqloom.text.specials import Gaps, frame_length, framed, read_gaps

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
class FilledText(Prediction):
    """A text with masks, and for each of them the most probable tokens, best first. Each mask is predicted by itself:
    its guesses do not depend on those for another."""

    text: str  # as it came
    filled: str  # the best guess at each mask
    masks: list[list[Guess]]
    cut: int = 0  # tokens far from the masks that could not be read

    def to_line(self) -> str:
        """The text with its best guesses, then a field for each mask: tokens and their probabilities."""
        masks = (" ".join(f"{visible(one.token)} {one.probability:.4f}" for one in own) for own in self.masks)
        return "\t".join([one_line(self.filled), *masks])

    def to_json(self) -> dict[str, object]:
        masks = [[asdict(guess) for guess in own] for own in self.masks]
        texts = {"text": self.text, "filled": self.filled}
        return {**texts, "masks": masks, "unknown": list(self.unknown), "cut": self.cut}


def visible(token: str) -> str:
    """Return a token without the space it may begin with; one that is only white space stays visible."""
    shown = one_line(token.replace("\n", "↵")).strip()
    return shown.replace(" ", "␣") or "␣"


class MaskedLM(Predictor[FilledText]):
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

    def predict(self, lines: str | Iterable[str], *, batch_size: int = 32, window: int = 1024) -> Iterator[FilledText]:
        return self.fill(lines, batch_size=batch_size, window=window)

    def problems(self) -> Problems[FilledText]:
        note = f"of {{lines}} with more than {self.longest} tokens only what is near the masks was read"
        return {note: lambda answer: answer.cut > 0}

    def fill(
        self, texts: str | Iterable[str], *, top: int = 5, batch_size: int = 32, window: int = 1024
    ) -> Iterator[FilledText]:
        """Predict the tokens at each [MASK] of each text, one answer for each, in order; a blank text stays blank.

        A text that is too long is read around its masks. `window` and `batch_size` as in `predict`.
        """
        self._refuse_unlearned()
        check_sizes(top=top)
        answer = partial(self._fill, top=top, batch_size=batch_size)
        return predict_windows(as_lines(texts), answer, batch_size=batch_size, window=window)

    def evaluate_documents(self, documents: Sequence[str]) -> dict[str, float]:
        self._refuse_unlearned()
        return super().evaluate_documents(documents)

    def _fill(self, lines: Sequence[str], top: int, batch_size: int) -> Iterator[FilledText]:
        """Texts before one that cannot be read are still answered."""
        read: list[tuple[Gaps, list[int]]] = []  # texts, and what of them is read
        wrong: DataError | None = None
        try:
            for line in lines:
                gaps = self._gaps(line)
                read.append((gaps, self._window(gaps)))
        except DataError as error:
            wrong = error
        lengths = [len(row) for _, row in read]
        found = predict_batches(lengths, batch_size, lambda some: self._guess([read[n][1] for n in some], top))
        for line, (gaps, row), guesses in zip(lines, read, found, strict=False):
            filled, cut = self._fill_in(line, gaps, guesses), len(gaps.ids) - len(row)
            yield FilledText(line, filled, guesses, cut, unknown=gaps.unknown)
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
        tokens, mask = pad_rows([framed(self.specials, "bert", row).tokens for row in rows], self.device)
        masked = tokens == self.specials.mask
        best = at_least_float32(self.model.gap_logits(tokens, mask, masked)).softmax(dim=1)  # (M, V), row by row
        values, ids = best.topk(min(top, best.shape[1]), dim=1)
        guesses = (
            [Guess(self.tokenizer.token(token), p, token) for token, p in zip(own, probabilities, strict=True)]
            for own, probabilities in zip(ids.tolist(), values.tolist(), strict=True)
        )
        for count in masked.sum(dim=1).tolist():
            yield [next(guesses) for _ in range(count)]

    def _fill_in(self, text: str, gaps: Gaps, guesses: Sequence[Sequence[Guess]]) -> str:
        """The text as it came, words that the vocabulary lacks included, with the best guess at each mask."""
        found, end = "", 0
        for mask, own in zip(gaps.masks, guesses, strict=True):
            start, after = gaps.spans[mask]
            found, end = self.tokenizer.append_token(found + text[end:start], own[0].id), after
        return found + text[end:]

    def heads(self, text: str) -> "HeadsView":
        """Where every layer and head looks while it reads a text, which may have masks."""
        from seqloom.inspect.views.heads import reader_heads_view

        return reader_heads_view(self, text)
