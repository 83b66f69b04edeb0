"""Denoisers: they restore a damaged text, or what stood where it has [MASK]."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count
from random import Random
from typing import TYPE_CHECKING, Any

from seqloom.core.errors import DataError
from seqloom.core.seeding import derive
from seqloom.core.specials import MASK_TEXT, Specials
from seqloom.core.words import one_line, shown
from seqloom.data.denoising import join_sentences
from seqloom.data.noise import SpansConfig, add_noise, sentinels_of, spans_told
from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.decoding.hypotheses import Hypothesis
from seqloom.predict.base import Prediction, Predictor, Problems
from seqloom.predict.batching import as_lines, check_source, pad_rows, predict_batches, predict_windows
from seqloom.predict.masked_lm import OTHERS
from seqloom.predict.translator import change_search
from seqloom.text.base import END, Span
from seqloom.text.pieces import split_sentences
from seqloom.text.specials import read_gaps, with_gaps

if TYPE_CHECKING:
    from seqloom.inspect.views.heads import HeadsView

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


class Denoiser(Predictor[RestoredText]):
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
        from seqloom.inspect.views.heads import restorer_heads_view

        return restorer_heads_view(self, text, **options)

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
