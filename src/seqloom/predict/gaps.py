"""Masked language models: they predict the tokens at [MASK]."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from itertools import chain, count
from random import Random
from typing import TYPE_CHECKING, Any

import torch

from seqloom.core.device import derive
from seqloom.core.errors import DataError, UsageError
from seqloom.core.tokens import MASK_TEXT, Specials
from seqloom.core.words import one_line, shown
from seqloom.data.noise import SpansConfig, add_noise, join_sentences, sentinels_of, spans_told
from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.decoding.rules import Hypothesis
from seqloom.nn.softmax import at_least_float32
from seqloom.predict.base import (
    Prediction,
    Predictor,
    Problems,
    as_lines,
    check_sizes,
    check_source,
    pad_rows,
    predict_batches,
    predict_windows,
)
from seqloom.predict.translate import change_search
from seqloom.text.base import END, Span, split_sentences
from seqloom.text.specials import Gaps, frame_length, framed, read_gaps, with_gaps

if TYPE_CHECKING:
    from seqloom.inspect.views.attention import HeadsView


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


class MaskedLMPredictor(Predictor[FilledText]):
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
        for masks in masked.sum(dim=1).tolist():
            yield [next(guesses) for _ in range(masks)]

    def _fill_in(self, text: str, gaps: Gaps, guesses: Sequence[Sequence[Guess]]) -> str:
        """The text as it came, words that the vocabulary lacks included, with the best guess at each mask."""
        found, end = "", 0
        for mask, own in zip(gaps.masks, guesses, strict=True):
            start, after = gaps.spans[mask]
            found, end = self.tokenizer.append_token(found + text[end:start], own[0].id), after
        return found + text[end:]

    def heads(self, text: str) -> "HeadsView":
        """Where every layer and head looks while it reads a text, which may have masks."""
        from seqloom.inspect.views.attention import bert_heads_view

        return bert_heads_view(self, text)


TOKENS = 4096  # of the texts decoded together, padding included; one that has more goes alone


@dataclass(frozen=True)
class RestoredText(Prediction):
    """A text and what a denoiser makes of it."""

    text: str  # as it came
    read: str  # what was read: the same, or damaged; [MASK] for each gap
    restored: str
    spans: list[str] | None  # what was said of each gap, by a model that says nothing else
    log_prob: float  # of what was said
    finished: bool = True  # whether the model ended it; if not, it was cut at the longest allowed

    def to_line(self) -> str:
        """The text restored, then what was predicted for each gap."""
        return "\t".join(map(one_line, [self.restored, *(self.spans or [])]))

    def to_json(self) -> dict[str, object]:
        names = ("text", "read", "restored", "spans", "log_prob", "finished")
        return {**{name: getattr(self, name) for name in names}, "unknown": list(self.unknown)}


@dataclass(frozen=True)
class _Read:
    raw: str
    text: str  # without white space at the ends
    ids: list[int]  # without END; empty for a blank text
    unknown: tuple[str, ...] = ()
    gaps: list[Span] | None = None  # where in the text its gaps stand; None where it was damaged here


class DenoiserPredictor(Predictor[RestoredText]):
    """A trained denoiser."""

    what = "a denoiser, which restores damaged texts"
    used_by = "`seqloom restore` uses it"

    @property
    def noise(self) -> Any:
        """The `noise` section of its recipe."""
        return self.recipe.noise

    @cached_property
    def sentinels(self) -> range:
        return sentinels_of(self.noise, len(self.tokenizer))

    @property
    def spans(self) -> bool:
        """Whether it says what gaps hide, and nothing else."""
        return isinstance(self.noise, SpansConfig)

    @property
    def longest_source(self) -> int | None:
        """The most tokens of a text it can read, END included; None for any number."""
        longest: int | None = self.recipe.model.longest_source
        return longest

    def predict(
        self, lines: str | Iterable[str], *, batch_size: int = 32, window: int = 1024
    ) -> Iterator[RestoredText]:
        return self.restore(lines, batch_size=batch_size, window=window)

    def problems(self) -> Problems[RestoredText]:
        return {"what was said of {lines} did not come to an end and was cut": lambda answer: not answer.finished}

    def restore(
        self,
        texts: str | Iterable[str],
        *,
        noise: bool = False,
        seed: int = 1,
        batch_size: int = 32,
        window: int = 1024,
        **options: Any,
    ) -> Iterator[RestoredText]:
        """Restore each text, one answer for each, in order; a blank one stays blank.

        A gap is written [MASK]. With `noise` texts come whole, and are damaged first as in training, by draws from
        `seed` and a text's number. `options` are those of `BeamConfig`, and override the recipe's.
        """
        search = self.decode_options(**options)
        numbers = count()

        def answer(lines: list[str]) -> Iterator[RestoredText]:
            return self._restore(lines, numbers, seed if noise else None, search, batch_size)

        return predict_windows(as_lines(texts), answer, batch_size=batch_size, window=window)

    def decode_options(self, **changes: Any) -> BeamConfig:
        """Return the `decode` section of its recipe with these changes; it gives one answer."""
        return change_search(self.recipe.decode, {**changes, "n_best": 1})

    def _restore(
        self, lines: list[str], numbers: Iterator[int], seed: int | None, search: BeamConfig, batch_size: int
    ) -> Iterator[RestoredText]:
        """Texts before one that cannot be read are still answered."""
        read: list[_Read] = []
        wrong: DataError | None = None
        try:
            for line, number in zip(lines, numbers, strict=False):
                read.append(self._read(line, number, seed))
        except DataError as error:
            wrong = error
        rows = [one.ids for one in read if one.ids]
        lengths = [len(row) + 1 for row in rows]
        found = iter(
            predict_batches(lengths, batch_size, lambda some: self._decode([rows[n] for n in some], search), TOKENS)
        )
        blank = Hypothesis([], True, 0.0, 0.0, [])
        yield from (self._restored_text(one, next(found) if one.ids else blank) for one in read)
        if wrong is not None:
            raise wrong

    def heads(self, text: str, **options: Any) -> "HeadsView":
        """Where every layer and head looks while it restores a text, in which a gap is written [MASK]."""
        from seqloom.inspect.views.attention import denoiser_heads_view

        return denoiser_heads_view(self, text, **options)

    def said(self, text: str, **options: Any) -> tuple[list[int], Hypothesis]:
        """What it reads of a text, END included, and what it says of it."""
        *ids, end = self.source(text)
        return [*ids, end], self._decode([ids], self.decode_options(**options))[0]

    def source(self, text: str) -> list[int]:
        """What it reads of a text in which a gap is written [MASK], END included."""
        return [*self._read(text, 0, None).ids, END]

    @property
    def banned(self) -> tuple[int, ...]:
        """Tokens that are never said."""
        unknown = () if self.tokenizer.unknown is None else (self.tokenizer.unknown,)
        return (*Specials.after(len(self.tokenizer)).names, *unknown)

    # --- reading ----------------------------------------------------------------------------------------------------

    def _read(self, line: str, number: int, seed: int | None) -> _Read:
        text = line.strip()
        one = self._gaps(line, text) if seed is None or not text else self._damaged(line, text, number, seed)
        check_source(number + 1, len(one.ids) + 1, self.longest_source, "model.positions.max_length")
        return one

    def _gaps(self, line: str, text: str) -> _Read:
        gaps = read_gaps(self.tokenizer, Specials.after(len(self.tokenizer)), text)
        ids, places = list(gaps.ids), [gaps.spans[mask] for mask in gaps.masks]
        if not self.spans or not text:
            return _Read(line, text, ids, gaps.unknown, places)
        if not gaps.masks:
            other = OTHERS.search(text)
            written = f", not {other[0]}" if other else ""
            raise DataError(
                f"What is to be told is written {MASK_TEXT}{written}; there is none in {shown(text)}. With --noise "
                "(in Python noise=True) some spans are hidden first."
            )
        if len(gaps.masks) >= len(self.sentinels):
            raise DataError(
                f"A text may have {len(self.sentinels) - 1} gaps, one less than noise.sentinels; this has "
                f"{len(gaps.masks)}. Ask for fewer at a time."
            )
        for sentinel, place in zip(self.sentinels, gaps.masks, strict=False):
            ids[place] = sentinel
        return _Read(line, text, ids, gaps.unknown, places)

    def _damaged(self, line: str, text: str, number: int, seed: int) -> _Read:
        encoded = [ids for ids in self.tokenizer.encode_batch(split_sentences(text)) if ids]
        piece, draws = join_sentences(encoded), Random(derive(seed, "restore", number))
        made = add_noise(piece.tokens, piece.sentences, self.noise, len(self.tokenizer), draws)
        return _Read(line, text, made.source, tuple(self.tokenizer.unknown_pieces(text)))

    # --- answering --------------------------------------------------------------------------------------------------

    def _decode(self, rows: Sequence[list[int]], search: BeamConfig) -> list[Hypothesis]:
        tokens, mask = pad_rows([[*row, END] for row in rows], self.device)
        source = {"tokens": tokens, "mask": mask}
        found = beam_search(self.model, source=source, options=search, end=END, banned=self.banned)
        return [best for best, *_ in found]

    def _restored_text(self, one: _Read, best: Hypothesis) -> RestoredText:
        read = with_gaps(self.tokenizer, one.ids) if one.gaps is None else one.text
        if not self.spans:
            text, spans = self.tokenizer.decode(best.tokens), None
        else:
            told = spans_told(best.tokens, self.sentinels)
            gaps = sum(token in self.sentinels for token in one.ids)
            said = [told.get(gap, []) for gap in range(gaps)]  # one that nothing was said of is left empty
            text, spans = self._filled(one, said), [self.tokenizer.decode(span).strip() for span in said]
        return RestoredText(one.raw, read, text.strip(), spans, best.log_prob, best.finished, unknown=one.unknown)

    def _filled(self, one: _Read, said: Sequence[list[int]]) -> str:
        """The text as it came, words that the vocabulary lacks included, with these spans in its gaps."""
        if one.gaps is None:
            first = self.sentinels[0]
            told = ([*said[token - first]] if token in self.sentinels else [token] for token in one.ids)
            return self.tokenizer.decode(chain.from_iterable(told))
        found, end = "", 0
        for (start, after), span in zip(one.gaps, said, strict=True):
            before = found + one.text[end:start]
            found, end = (before + self.tokenizer.decode(span) if span else before.removesuffix(" ")), after
        return found + one.text[end:]
