"""Models that fill gaps: masked language models predict the tokens at [MASK], denoisers restore damaged texts."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from seqloom.core import END
from seqloom.core.device import derive_seed
from seqloom.core.errors import DataError, UsageError
from seqloom.core.tokens import MASK_TEXT, Specials
from seqloom.core.words import format_value, one_line
from seqloom.data.noise import SpansConfig, add_noise, join_sentences, parse_spans, sentinels_of
from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.decoding.rules import Hypothesis
from seqloom.nn.softmax import at_least_float32
from seqloom.predict.base import (
    Prediction,
    Predictor,
    as_lines,
    check_source,
    pad_rows,
    predict_batches,
    predict_filled,
    predict_windows,
)
from seqloom.predict.translate import change_search
from seqloom.runs.trained import DenoisingModel, MaskFillingModel
from seqloom.text.base import Span, Tokenizer, split_sentences
from seqloom.text.model_inputs import Gaps, decode_gaps, frame_length, frame_texts, read_gaps

if TYPE_CHECKING:
    from seqloom.inspect.views.attention import HeadsView


# What other models write for a token that is hidden; a person may well type it here.
OTHERS = re.compile(r"<mask>|\[mask\]|<MASK>|\[Mask\]|<extra_id_\d+>|_{3,}")
TOKENS = 4096  # of the texts decoded together, padding included; one that has more goes alone


@dataclass(frozen=True)
class Guess:
    """A token that may stand at a mask, and how probable the model finds it."""

    token: str  # as it is shown to people
    probability: float
    id: int


def read_masks(tokenizer: Tokenizer, text: str, advice: str = "") -> Gaps:
    """Return the tokens of a text with [MASK] in it; one without any is refused, unless it is blank."""
    gaps = read_gaps(tokenizer, Specials.after(len(tokenizer)), text)
    if not gaps.masks and text.strip():
        other = OTHERS.search(text)
        written = f", not {other[0]}" if other else ""
        raise DataError(
            f"What is to be told is written {MASK_TEXT}{written}; there is none in {format_value(text)}.{advice}"
        )
    return gaps


# --- masked language models -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FilledText(Prediction):
    """A text with masks, and for each of them the most probable tokens, best first. Each mask is predicted by itself:
    its guesses do not depend on those for another."""

    text: str  # as it came
    filled: str  # the best guess at each mask
    masks: list[list[Guess]]
    cut: int = 0  # tokens far from the masks that could not be read
    json_names: ClassVar = ("text", "filled", "masks", "unknown", "cut")

    def to_line(self) -> str:
        """The text with its best guesses, then a field for each mask: tokens and their probabilities."""
        masks = (" ".join(f"{visible(one.token)} {one.probability:.4f}" for one in own) for own in self.masks)
        return "\t".join([one_line(self.filled), *masks])


def visible(token: str) -> str:
    """Return a token without the space it may begin with; one that is only white space stays visible."""
    shown = one_line(token.replace("\n", "↵")).strip()
    return shown.replace(" ", "␣") or "␣"


class MaskedLMPredictor(Predictor[FilledText], MaskFillingModel):
    """A trained masked language model."""

    what = "a masked language model"
    used_by = "`seqloom fill-mask` uses it"
    problems: ClassVar = {
        "of {lines} with more than {longest} tokens only what is near the masks was read": lambda answer: answer.cut > 0
    }

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

    def fill(
        self, texts: str | Iterable[str], *, top: int = 5, batch_size: int = 32, window: int = 1024
    ) -> Iterator[FilledText]:
        """Predict the tokens at each [MASK] of each text, one answer for each, in order; a blank text stays blank.

        A text that is too long is read around its masks. `window` and `batch_size` as in `predict`.
        """
        self._refuse_unlearned()
        read = map(self._read, as_lines(texts))
        return predict_windows(read, self._fill, batch_size=batch_size, window=window, top=top)

    def evaluate_documents(self, documents: Sequence[str]) -> dict[str, float]:
        self._refuse_unlearned()
        return super().evaluate_documents(documents)

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

    def _read(self, text: str) -> tuple[str, Gaps, list[int]]:
        """Return a text, its tokens, and as many of these as can be read, with the masks in the middle."""
        gaps = read_masks(self.tokenizer, text)
        ids, room = gaps.ids, None if self.longest is None else self.longest - frame_length(1)
        if room is None or len(ids) <= room:
            return text, gaps, ids
        across = gaps.masks[-1] + 1 - gaps.masks[0]
        if across > room:
            raise DataError(
                f"The masks of a text must lie within the {room} tokens that the model reads at once; here they span "
                f"{across}. Ask for them one by one."
            )
        start = min(max(0, gaps.masks[0] - (room - across) // 2), len(ids) - room)
        return text, gaps, ids[start : start + room]

    def _fill(self, read: Sequence[tuple[str, Gaps, list[int]]], top: int, batch_size: int) -> Iterator[FilledText]:
        rows = [row for *_, row in read]
        guesses = predict_batches(
            [len(row) for row in rows], batch_size, lambda some: self._guess([rows[n] for n in some], top)
        )
        for (text, gaps, row), best in zip(read, guesses, strict=True):
            filled, end = "", 0  # the text as it came, words that the vocabulary lacks included
            for mask, own in zip(gaps.masks, best, strict=True):
                start, after = gaps.spans[mask]
                filled, end = self.tokenizer.append_token(filled + text[end:start], own[0].id), after
            yield FilledText(text, filled + text[end:], best, len(gaps.ids) - len(row), unknown=gaps.unknown)

    @torch.no_grad()
    def _guess(self, rows: Sequence[list[int]], top: int) -> Iterator[list[list[Guess]]]:
        """Yield what may stand at each mask of each row."""
        tokens, mask = pad_rows([frame_texts(self.specials, "bert", row).tokens for row in rows], self.device)
        masked = tokens == self.specials.mask
        best = at_least_float32(self.model.logits_at(tokens, mask, masked)).softmax(dim=1)  # (M, V), row by row
        values, ids = best.topk(min(top, best.shape[1]), dim=1)
        guesses = (
            [Guess(self.tokenizer.token(token), p, token) for token, p in zip(own, probabilities, strict=True)]
            for own, probabilities in zip(ids.tolist(), values.tolist(), strict=True)
        )
        for masks in masked.sum(dim=1).tolist():
            yield [next(guesses) for _ in range(masks)]

    def heads(self, text: str) -> "HeadsView":
        """Where every layer and head looks while it reads a text, which may have masks."""
        from seqloom.inspect.views.attention import bert_heads_view

        return bert_heads_view(self, text)


# --- denoisers --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RestoredText(Prediction):
    """A text and what a denoiser makes of it."""

    text: str  # as it came
    read: str  # what was read: the same, or damaged; [MASK] for each gap
    restored: str
    spans: list[str] | None  # what was said of each gap, by a model that says nothing else
    log_prob: float  # of what was said
    finished: bool = True  # whether the model ended it; if not, it was cut at the longest allowed
    json_names: ClassVar = ("text", "read", "restored", "spans", "log_prob", "finished", "unknown")

    def to_line(self) -> str:
        """The text restored, then what was predicted for each gap."""
        return "\t".join(map(one_line, [self.restored, *(self.spans or [])]))


@dataclass(frozen=True)
class DamagedText:
    """A text as a denoiser reads it."""

    raw: str
    text: str  # without white space at the ends
    ids: list[int]  # without END; empty for a blank text
    unknown: tuple[str, ...] = ()
    gaps: list[Span] | None = None  # where in the text its gaps stand; None where it was damaged here


class DenoiserPredictor(Predictor[RestoredText], DenoisingModel):
    """A trained denoiser."""

    what = "a denoiser, which restores damaged texts"
    used_by = "`seqloom denoise` uses it"
    problems: ClassVar = {
        "what was said of {lines} did not come to an end and was cut": lambda answer: not answer.finished
    }

    @cached_property
    def sentinels(self) -> range:
        return sentinels_of(self.recipe.noise, len(self.tokenizer))

    @property
    def spans(self) -> bool:
        """Whether it says what gaps hide, and nothing else."""
        return isinstance(self.recipe.noise, SpansConfig)

    @property
    def banned(self) -> tuple[int, ...]:
        """Tokens that are never said."""
        unknown = () if self.tokenizer.unknown is None else (self.tokenizer.unknown,)
        return (*Specials.after(len(self.tokenizer)).names, *unknown)

    @property
    def longest_source(self) -> int | None:
        """The most tokens of a text it can read, END included; None for any number."""
        longest: int | None = self.recipe.model.longest_source
        return longest

    def predict(
        self, lines: str | Iterable[str], *, batch_size: int = 32, window: int = 1024
    ) -> Iterator[RestoredText]:
        return self.restore(lines, batch_size=batch_size, window=window)

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

        A gap is written [MASK]. With `noise` texts come whole, and are damaged first as in
        training, by draws from `seed` and a text's number. `options` are those of `BeamConfig`, and
        override the recipe's.
        """
        search = self.decode_options(**options)
        read = (self._read(text, number, seed if noise else None) for number, text in enumerate(as_lines(texts)))
        return predict_windows(read, self._restore, batch_size=batch_size, window=window, search=search)

    def decode_options(self, **changes: Any) -> BeamConfig:
        """Return the `decode` section of its recipe with these changes; it gives one answer."""
        return change_search(self.recipe.decode, {**changes, "n_best": 1})

    def heads(self, text: str, **options: Any) -> "HeadsView":
        """Where every layer and head looks while it restores a text, in which a gap is written [MASK]."""
        from seqloom.inspect.views.attention import denoiser_heads_view

        return denoiser_heads_view(self, text, **options)

    def search(self, text: str, **options: Any) -> tuple[list[int], Hypothesis]:
        """Return what it reads of a text, END included, and what it says of it."""
        *ids, end = self.source(text)
        return [*ids, end], self._decode([ids], self.decode_options(**options))[0]

    def source(self, text: str) -> list[int]:
        """Return what it reads of a text in which a gap is written [MASK], END included."""
        return [*self._read(text, 0, None).ids, END]

    def _read(self, line: str, number: int, seed: int | None) -> DamagedText:
        text = line.strip()
        if seed is None or not text:
            read = self._read_gaps(line, text)
        else:
            encoded = [ids for ids in self.tokenizer.encode_batch(split_sentences(text)) if ids]
            piece, draws = join_sentences(encoded), Random(derive_seed(seed, "restore", number))
            noisy = add_noise(piece.tokens, piece.sentences, self.recipe.noise, len(self.tokenizer), draws)
            read = DamagedText(line, text, noisy.source, tuple(self.tokenizer.unknown_pieces(text)))
        check_source(number + 1, len(read.ids) + 1, self.longest_source, "model.positions.max_length")
        return read

    def _read_gaps(self, line: str, text: str) -> DamagedText:
        if self.spans:
            advice = " With --noise (in Python noise=True) some spans are hidden first."
            gaps = read_masks(self.tokenizer, text, advice)
        else:
            gaps = read_gaps(self.tokenizer, Specials.after(len(self.tokenizer)), text)
        ids = list(gaps.ids)
        if self.spans and len(gaps.masks) >= len(self.sentinels):
            raise DataError(
                f"A text may have {len(self.sentinels) - 1} gaps, one less than noise.sentinels; this has "
                f"{len(gaps.masks)}. Ask for fewer at a time."
            )
        for sentinel, place in zip(self.sentinels, gaps.masks, strict=False) if self.spans else ():
            ids[place] = sentinel
        return DamagedText(line, text, ids, gaps.unknown, [gaps.spans[mask] for mask in gaps.masks])

    def _restore(self, read: Sequence[DamagedText], search: BeamConfig, batch_size: int) -> Iterator[RestoredText]:
        def decode(filled: list[DamagedText]) -> list[Hypothesis]:
            rows = [one.ids for one in filled]
            lengths = [len(row) + 1 for row in rows]
            return predict_batches(
                lengths, batch_size, lambda some: self._decode([rows[n] for n in some], search), TOKENS
            )

        blank = Hypothesis([], True, 0.0, 0.0, [])
        hypotheses = predict_filled(read, lambda one: one.ids, decode, lambda one: blank)
        for one, best in zip(read, hypotheses, strict=True):
            shown = decode_gaps(self.tokenizer, one.ids) if one.gaps is None else one.text
            if self.spans:
                told = parse_spans(best.tokens, self.sentinels)
                count = sum(token in self.sentinels for token in one.ids)
                said = [told.get(gap, []) for gap in range(count)]  # one that nothing was said of is left empty
                text, spans = self._filled(one, said), [self.tokenizer.decode(span).strip() for span in said]
            else:
                text, spans = self.tokenizer.decode(best.tokens), None
            yield RestoredText(one.raw, shown, text.strip(), spans, best.log_prob, best.finished, unknown=one.unknown)

    def _decode(self, rows: Sequence[list[int]], search: BeamConfig) -> list[Hypothesis]:
        tokens, mask = pad_rows([[*row, END] for row in rows], self.device)
        source = {"tokens": tokens, "mask": mask}
        found = beam_search(self.model, source=source, options=search, end=END, banned=self.banned)
        return [best for best, *_ in found]

    def _filled(self, one: DamagedText, said: Sequence[list[int]]) -> str:
        """Return the text as it came, words that the vocabulary lacks included, with these spans in its gaps."""
        if one.gaps is None:
            first = self.sentinels[0]
            told = ([*said[token - first]] if token in self.sentinels else [token] for token in one.ids)
            return self.tokenizer.decode(chain.from_iterable(told))
        filled, end = "", 0
        for (start, after), span in zip(one.gaps, said, strict=True):
            before = filled + one.text[end:start]
            filled, end = (before + self.tokenizer.decode(span) if span else before.removesuffix(" ")), after
        return filled + one.text[end:]
