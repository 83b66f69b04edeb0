"""Predictors for masked language models and denoisers, which fill gaps in texts."""

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
    check_source_length,
    json_value,
    pad_rows,
    predict_batches,
    predict_filled,
    predict_windows,
)
from seqloom.predict.results import returns_list
from seqloom.predict.translate import change_search
from seqloom.runs.trained import DenoisingModel, MaskFillingModel
from seqloom.text.base import Span, Tokenizer, split_sentences
from seqloom.text.model_inputs import Gaps, decode_gaps, frame_length, frame_texts, read_gaps

if TYPE_CHECKING:
    from seqloom.inspect.views.attention import HeadsView


# Masks that users may type because other models use them.
OTHER_MASKS = re.compile(r"<mask>|\[mask\]|<MASK>|\[Mask\]|<extra_id_\d+>|_{3,}")
TOKENS = 4096  # maximum tokens per batch, including padding; a longer text forms its own batch


@dataclass(frozen=True)
class TokenProbability:
    """A token and its probability at a mask."""

    token: str  # the token as displayed
    probability: float
    id: int


def read_masks(tokenizer: Tokenizer, text: str, advice: str = "") -> Gaps:
    """Return the tokens of a text. The text must contain [MASK] unless it is blank."""
    gaps = read_gaps(tokenizer, Specials.after(len(tokenizer)), text)
    if not gaps.masks and text.strip():
        other_mask = OTHER_MASKS.search(text)
        instead = f", not {other_mask[0]}" if other_mask else ""
        raise DataError(f"The text must contain a gap, written {MASK_TEXT}{instead}; got {format_value(text)}.{advice}")
    return gaps


# --- masked language models -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FilledText(Prediction):
    """A text with masks, and the most probable tokens at each mask, best first.

    Each mask is predicted independently of the other masks.
    """

    text: str  # the unchanged input
    filled: str  # the input with the best token at each mask
    masks: list[list[TokenProbability]]
    cut: int = 0  # number of tokens that were dropped because they are far from the masks
    json_names: ClassVar = ("text", "filled", "masks", "unknown", "cut")

    def to_line(self) -> str:
        """Return the filled text and, for each mask, a field with tokens and probabilities."""
        fields = [one_line(self.filled)]
        for candidates in self.masks:
            fields.append(" ".join(f"{mark_spaces(each.token)} {each.probability:.4f}" for each in candidates))
        return "\t".join(fields)

    def to_columns(self) -> dict[str, object]:
        return {"filled": self.filled, "masks": json_value(self.masks)}


def mark_spaces(token: str) -> str:
    """Strip a token and replace its inner spaces and line breaks by visible marks."""
    return one_line(token.replace("\n", "↵")).strip().replace(" ", "␣") or "␣"


class MaskedLMPredictor(Predictor[FilledText], MaskFillingModel):
    """A trained masked language model."""

    description = "a masked language model"
    usage = "use `seqloom fill-mask`"
    notes: ClassVar = {
        "{lines} longer than {max_length} tokens: only the text near the masks was read": lambda answer: answer.cut > 0
    }

    def describe_usage(self) -> str:
        return self.usage if self.has_trained_output else self._other_usage

    @cached_property
    def specials(self) -> Specials:
        return Specials.after(len(self.tokenizer))

    @property
    def max_length(self) -> int | None:
        """The maximum number of tokens, including [CLS] and [SEP], or None if unlimited."""
        max_length: int | None = self.recipe.model.longest
        return max_length

    @returns_list
    def predict(self, lines: str | Iterable[str], *, batch_size: int = 32, window: int = 1024) -> Iterator[FilledText]:
        return self.fill_mask(lines, batch_size=batch_size, window=window, stream=True)

    @returns_list
    def fill_mask(
        self, texts: str | Iterable[str], *, top: int = 5, batch_size: int = 32, window: int = 1024
    ) -> Iterator[FilledText]:
        """Predict the `top` tokens at each [MASK], and return one result per text.

        If a text is too long, the model reads only the part around its masks. `window` and `batch_size` work as in
        `predict`.
        """
        self._check_output()
        read = map(self._read, as_lines(texts))
        return predict_windows(read, self._fill, batch_size=batch_size, window=window, top=top)

    def evaluate_documents(self, documents: Sequence[str]) -> dict[str, float]:
        self._check_output()
        return super().evaluate_documents(documents)

    def _check_output(self) -> None:
        if not self.has_trained_output:
            raise UsageError(
                f"{self.name} cannot predict masked tokens: it was imported without an output layer. "
                f"Instead, {self._other_usage}."
            )

    @property
    def has_trained_output(self) -> bool:
        """Whether the model can predict tokens.

        A model that was imported without an output layer cannot predict tokens.
        """
        return "dense.weight" not in self.run.data.get("imported", {}).get("initialized", ())

    @property
    def _other_usage(self) -> str:
        return f"use `seqloom embed` and `seqloom similar`, or fine-tune it (init.from={self.name})"

    def _read(self, text: str) -> tuple[str, Gaps, list[int]]:
        """Return the text, its tokens, and the tokens that the model reads, with the masks in the middle."""
        gaps = read_masks(self.tokenizer, text)
        ids, room = gaps.ids, None if self.max_length is None else self.max_length - frame_length(1)
        if room is None or len(ids) <= room:
            return text, gaps, ids
        across = gaps.masks[-1] + 1 - gaps.masks[0]
        if across > room:
            raise DataError(
                f"The masks of a text must lie within {room} tokens, the maximum length of the model; got {across}. "
                "Use one mask at a time."
            )
        start = min(max(0, gaps.masks[0] - (room - across) // 2), len(ids) - room)
        return text, gaps, ids[start : start + room]

    def _fill(self, read: Sequence[tuple[str, Gaps, list[int]]], top: int, batch_size: int) -> Iterator[FilledText]:
        rows = [row for *_, row in read]
        lengths = [len(row) for row in rows]
        predictions = predict_batches(
            lengths, batch_size, lambda batch: self._predict_masks([rows[n] for n in batch], top)
        )
        for (text, gaps, row), best in zip(read, predictions, strict=True):
            filled, end = "", 0  # the text around the gaps keeps the spelling of unknown words
            for mask, candidates in zip(gaps.masks, best, strict=True):
                start, after = gaps.spans[mask]
                filled, end = self.tokenizer.append_token(filled + text[end:start], candidates[0].id), after
            yield FilledText(text, filled + text[end:], best, len(gaps.ids) - len(row), unknown=gaps.unknown)

    @torch.no_grad()
    def _predict_masks(self, rows: Sequence[list[int]], top: int) -> Iterator[list[list[TokenProbability]]]:
        """Yield the most probable tokens at each mask of each row."""
        tokens, mask = pad_rows([frame_texts(self.specials, "bert", row).tokens for row in rows], self.device)
        masked = tokens == self.specials.mask
        best = at_least_float32(self.model.logits_at(tokens, mask, masked)).softmax(dim=1)  # (M, V)
        values, ids = best.topk(min(top, best.shape[1]), dim=1)
        candidates = (
            [TokenProbability(self.tokenizer.token(token), p, token) for token, p in zip(tokens, ps, strict=True)]
            for tokens, ps in zip(ids.tolist(), values.tolist(), strict=True)
        )
        for masks in masked.sum(dim=1).tolist():
            yield [next(candidates) for _ in range(masks)]

    def heads(self, text: str) -> "HeadsView":
        """Return the attention weights of all layers and heads for a text that may contain masks."""
        from seqloom.inspect.views.attention import bert_heads_view

        return bert_heads_view(self, text)


# --- denoisers --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DenoisedText(Prediction):
    """A text and its reconstruction by a denoiser."""

    text: str  # the unchanged input
    corrupted: str  # the model's input, with [MASK] for each gap
    denoised: str
    spans: list[str] | None  # the predicted spans, if the model predicts only spans
    log_prob: float  # log-probability of the prediction
    finished: bool = True  # whether END was predicted before the maximum length
    json_names: ClassVar = ("text", "corrupted", "denoised", "spans", "log_prob", "finished", "unknown")

    def to_line(self) -> str:
        """Return the denoised text and the predicted span of each gap."""
        return "\t".join(map(one_line, [self.denoised, *(self.spans or [])]))

    def to_columns(self) -> dict[str, object]:
        spans = {} if self.spans is None else {"spans": self.spans}
        return {"corrupted": self.corrupted, "denoised": self.denoised, **spans, "log_prob": self.log_prob}


@dataclass(frozen=True)
class CorruptedText:
    """The input of a denoiser."""

    raw: str
    text: str  # the text without surrounding white space
    ids: list[int]  # tokens without END; empty for a blank text
    unknown: tuple[str, ...] = ()
    gaps: list[Span] | None = None  # character spans of the gaps; None if noise was added


class DenoiserPredictor(Predictor[DenoisedText], DenoisingModel):
    """A trained denoiser."""

    description = "a denoiser"
    usage = "use `seqloom denoise`"
    notes: ClassVar = {
        "{lines}: the prediction was truncated at the maximum length": lambda answer: not answer.finished
    }

    @cached_property
    def sentinels(self) -> range:
        return sentinels_of(self.recipe.noise, len(self.tokenizer))

    @property
    def predicts_spans(self) -> bool:
        """Whether the target contains only the hidden spans instead of the whole text."""
        return isinstance(self.recipe.noise, SpansConfig)

    @property
    def banned(self) -> tuple[int, ...]:
        """Tokens that are never generated."""
        unknown = () if self.tokenizer.unknown is None else (self.tokenizer.unknown,)
        return (*Specials.after(len(self.tokenizer)).names, *unknown)

    @property
    def longest_source(self) -> int | None:
        """The maximum number of source tokens, including END, or None if unlimited."""
        max_length: int | None = self.recipe.model.longest_source
        return max_length

    @returns_list
    def predict(
        self, lines: str | Iterable[str], *, batch_size: int = 32, window: int = 1024
    ) -> Iterator[DenoisedText]:
        return self.denoise(lines, batch_size=batch_size, window=window, stream=True)

    @returns_list
    def denoise(
        self,
        texts: str | Iterable[str],
        *,
        noise: bool = False,
        seed: int = 1,
        batch_size: int = 32,
        window: int = 1024,
        **options: Any,
    ) -> Iterator[DenoisedText]:
        """Denoise texts, and return one result per text. A gap is written as [MASK].

        With `noise`, texts are first corrupted as in training. The noise depends on `seed` and on the index of the
        text. `options` are fields of `BeamConfig` and override the recipe.
        """
        search = self.decode_options(**options)
        read = (self._read(text, number, seed if noise else None) for number, text in enumerate(as_lines(texts)))
        return predict_windows(read, self._denoise, batch_size=batch_size, window=window, search=search)

    def decode_options(self, **changes: Any) -> BeamConfig:
        """Return the section `decode` of the recipe with the changes applied and with n_best set to 1."""
        return change_search(self.recipe.decode, {**changes, "n_best": 1})

    def heads(self, text: str, **options: Any) -> "HeadsView":
        """Return the attention weights of all layers and heads for a text, in which a gap is written as [MASK]."""
        from seqloom.inspect.views.attention import denoiser_heads_view

        return denoiser_heads_view(self, text, **options)

    def search(self, text: str, **options: Any) -> tuple[list[int], Hypothesis]:
        """Return the source tokens of a text, including END, and the best target."""
        *ids, end = self.encode_source(text)
        return [*ids, end], self._decode([ids], self.decode_options(**options))[0]

    def encode_source(self, text: str) -> list[int]:
        """Return the source tokens of a text, including END. A gap is written as [MASK]."""
        return [*self._read(text, 0, None).ids, END]

    def _read(self, line: str, number: int, seed: int | None) -> CorruptedText:
        text = line.strip()
        if seed is None or not text:
            read = self._read_gaps(line, text)
        else:
            encoded = [ids for ids in self.tokenizer.encode_batch(split_sentences(text)) if ids]
            piece, draws = join_sentences(encoded), Random(derive_seed(seed, "restore", number))
            noisy = add_noise(piece.tokens, piece.sentences, self.recipe.noise, len(self.tokenizer), draws)
            read = CorruptedText(line, text, noisy.source, tuple(self.tokenizer.unknown_pieces(text)))
        check_source_length(number + 1, len(read.ids) + 1, self.longest_source, "model.positions.max_length")
        return read

    def _read_gaps(self, line: str, text: str) -> CorruptedText:
        if self.predicts_spans:
            advice = " --noise (in Python noise=True) hides random spans."
            gaps = read_masks(self.tokenizer, text, advice)
        else:
            gaps = read_gaps(self.tokenizer, Specials.after(len(self.tokenizer)), text)
        ids = list(gaps.ids)
        if self.predicts_spans and len(gaps.masks) >= len(self.sentinels):
            raise DataError(
                f"A text must have at most {len(self.sentinels) - 1} gaps (noise.sentinels − 1); got {len(gaps.masks)}."
            )
        for sentinel, mask in zip(self.sentinels, gaps.masks, strict=False) if self.predicts_spans else ():
            ids[mask] = sentinel
        return CorruptedText(line, text, ids, gaps.unknown, [gaps.spans[mask] for mask in gaps.masks])

    def _denoise(self, read: Sequence[CorruptedText], search: BeamConfig, batch_size: int) -> Iterator[DenoisedText]:
        def decode(filled: list[CorruptedText]) -> list[Hypothesis]:
            rows = [text.ids for text in filled]
            lengths = [len(row) + 1 for row in rows]
            return predict_batches(
                lengths, batch_size, lambda batch: self._decode([rows[n] for n in batch], search), TOKENS
            )

        blank = Hypothesis([], True, 0.0, 0.0, [])
        hypotheses = predict_filled(read, lambda source: source.ids, decode, lambda source: blank)
        for source, best in zip(read, hypotheses, strict=True):
            corrupted = decode_gaps(self.tokenizer, source.ids) if source.gaps is None else source.text
            if self.predicts_spans:
                by_gap = parse_spans(best.tokens, self.sentinels)
                count = sum(token in self.sentinels for token in source.ids)
                predicted = [by_gap.get(gap, []) for gap in range(count)]  # a gap without a predicted span is empty
                text, spans = self._fill(source, predicted), [self.tokenizer.decode(span).strip() for span in predicted]
            else:
                text, spans = self.tokenizer.decode(best.tokens), None
            result = (source.raw, corrupted, text.strip(), spans, best.log_prob, best.finished)
            yield DenoisedText(*result, unknown=source.unknown)

    def _decode(self, rows: Sequence[list[int]], search: BeamConfig) -> list[Hypothesis]:
        tokens, mask = pad_rows([[*row, END] for row in rows], self.device)
        source = {"tokens": tokens, "mask": mask}
        hypotheses = beam_search(self.model, source=source, options=search, end=END, banned=self.banned)
        return [best for best, *_ in hypotheses]

    def _fill(self, source: CorruptedText, spans: Sequence[list[int]]) -> str:
        """Insert spans into the gaps of a text. The other words do not change, even if they are unknown."""
        if source.gaps is None:
            first = self.sentinels[0]
            parts = (spans[token - first] if token in self.sentinels else [token] for token in source.ids)
            return self.tokenizer.decode(chain.from_iterable(parts))
        filled, end = "", 0
        for (start, after), span in zip(source.gaps, spans, strict=True):
            before = filled + source.text[end:start]
            filled, end = (before + self.tokenizer.decode(span) if span else before.removesuffix(" ")), after
        return filled + source.text[end:]
