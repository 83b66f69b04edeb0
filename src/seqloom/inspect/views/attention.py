"""Attention weights as plain arrays, by tokens and by words: alignments of translators, every head of a Transformer.

    view = alignment_view(seqloom.load("runs/quickstart-en-fr"), "Sunday, November 15, 2026")
    view.words.weights      (target words, source words): each row sums to 1

    view = heads_view(seqloom.load("runs/translate-cldr-transformer"), "Sunday, November 15, 2026")
    view.encoder.words.weights[1][2]      layer 2, head 3: (words, words)

Three parts have heads:

    encoder   self-attention: a word of the source attends to the source
    decoder   self-attention: a word that was read attends to itself and to the words before it
    cross     to produce a word, the decoder attends to the source

A GPT has a decoder alone; a BERT, and a classifier or tagger with a Transformer encoder, an encoder
alone, in which [SEP], at the end of the text, takes the place of END. A denoiser has all three, and
reads [MASK] where something is hidden.

A row is a query and a column a key. In encoder and decoder both have the same labels: the tokens
that are read. A decoder reads END, which stands before every sentence, and then the target. In
cross a row is labelled by the token that its query produces, as in alignments; the token that it
reads is the one before it. `AttentionMap.axes` says which.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from seqloom.core import END
from seqloom.core.errors import UsageError
from seqloom.core.tokens import Specials
from seqloom.core.words import did_you_mean
from seqloom.decoding.mixture import Ensemble
from seqloom.evaluate.alignment import Word, group_words, hard_links, merge, to_pharaoh
from seqloom.inspect.capture import TrainedModel, eval_mode
from seqloom.inspect.values import Array, to_plain
from seqloom.inspect.views.texts import (
    LinePrediction,
    SequencePair,
    denoise_pair,
    one_line,
    shift_words,
    show_tokens,
    translate_pair,
    unknown_notes,
)
from seqloom.models.gpt import GPT
from seqloom.models.seq2seq import Seq2Seq
from seqloom.models.transformer import Transformer
from seqloom.text.base import END_TEXT
from seqloom.text.model_inputs import frame_texts, read_gaps

PartName = Literal["encoder", "decoder", "cross"]
PARTS: tuple[PartName, ...] = get_args(PartName)
NAMES = {"encoder": "encoder self-attention", "decoder": "decoder self-attention", "cross": "cross-attention"}
Sides = tuple[Sequence[str], Sequence[Word]]  # of rows or columns: their tokens, and the words these make


class AxisTitles(NamedTuple):
    """What the rows and the columns of an attention map are."""

    row: str
    column: str

    def __str__(self) -> str:
        return f"rows: {self.row}; columns: {self.column}"


SELF_ATTENTION = AxisTitles("query (attends)", "key (attended to)")
# Position t of a decoder reads target token t - 1 and produces target token t. Alignments name it by what it produces.
CROSS_ATTENTION = AxisTitles("produces (target)", "key (source)")


class AttentionMap(NamedTuple):
    """Labelled attention weights, of one head or of many: queries down the side, keys across."""

    rows: list[str]
    columns: list[str]
    weights: Array  # (…, rows, columns)
    axes: AxisTitles = CROSS_ATTENTION

    def select(self, rows: slice, columns: slice) -> "AttentionMap":
        """Some rows and columns, or all if none would be left. Rows keep their weights, whose sum may be below 1."""
        if not self.rows[rows] or not self.columns[columns]:
            return self
        return AttentionMap(self.rows[rows], self.columns[columns], self.weights[..., rows, columns], self.axes)


# --- one attention ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class AlignmentView:
    """A translation, and where the model attended in the source when it produced each token of it."""

    source: str
    text: str  # the translation
    given: bool  # whether it was given, or else found
    finished: bool  # whether it came to its end; if not, END is not among its tokens
    log_prob: float  # of the translation, its end included
    tokens: AttentionMap  # as the model reads and writes them; END last on both sides
    words: AttentionMap  # the same by words
    notes: tuple[str, ...] = ()  # what a person should know

    def grid(self, *, tokens: bool = False, end: bool = True) -> AttentionMap:
        """Without `end`, END is left out on both sides, unless the translation is nothing else."""
        grid = self.tokens if tokens else self.words
        return grid if end else grid.select(slice(len(grid.rows) - self.finished), slice(-1))

    @property
    def links(self) -> str:
        """Each word of the translation and the one it attends to most, as 0-0 1-2: source position, target position."""
        links = hard_links(self.words.weights[: len(self.words.rows) - self.finished])
        return to_pharaoh(link for link in links if link[0] < len(self.words.columns) - 1)  # not to END


def alignment_view(translator: TrainedModel, source: str, target: str | None = None, **options: Any) -> AlignmentView:
    """Let a translator translate a line, or say the given translation of it, and keep its attention weights.

    `options` are those of its search (beam, max_length …). Dropout is off.
    """
    model, weights = translator.model, None
    if isinstance(model, Seq2Seq | Ensemble):
        pair = translate_pair(translator, source, target, **options)
        batch = pair.batch(model)
        with eval_mode(model), torch.no_grad():
            weights, log_probs = model.attention(batch), model.target_log_probs(batch)
    if weights is None:
        raise UsageError(
            f"{translator.name} has no attention to look at. Train a translator that has: "
            "model.attention.order=luong, say."
        )
    array = weights[0].double().cpu().numpy()
    rows, columns = pair.target_words, pair.source_words
    by_words = [word.text for word in rows], [word.text for word in columns], merge(array, rows, columns)
    return AlignmentView(
        pair.source,
        pair.text,
        pair.given,
        pair.finished,
        log_probs.double().sum().item(),
        AttentionMap(pair.target_tokens, pair.source_tokens, array, CROSS_ATTENTION),
        AttentionMap(*by_words, CROSS_ATTENTION),
        pair.notes,
    )


# --- all heads --------------------------------------------------------------------------------------------------------


class HeadStatistics(NamedTuple):
    """What a head does, in three numbers, each the mean over its rows."""

    layer: int  # from 1
    head: int  # from 1
    entropy: float  # −Σ_j α_j log₂ α_j, in bits: n bits are as if 2^n positions had equal shares
    distance: float  # Σ_j α_j · positions from its own to j; of cross, from the one as far through the source
    end: float  # the share that lies on END


@dataclass(frozen=True, eq=False)
class Part:
    """All heads of one part. Layers and heads are counted from 1 by the methods, from 0 in the arrays."""

    name: PartName
    tokens: AttentionMap  # as the model reads and writes them (layers, heads, rows, columns)
    words: AttentionMap  # the same by words
    default_layer: int  # the layer that is shown where none is named
    ends: tuple[bool, bool] = (True, True)  # whether END is among the rows, and among the columns

    @property
    def layers(self) -> int:
        return len(self.tokens.weights)

    @property
    def heads(self) -> int:
        return len(self.tokens.weights[0])

    def maps(self, *, tokens: bool = False, end: bool = True) -> AttentionMap:
        """Without `end`, END is left out on both sides, unless a side is nothing else."""
        maps = self.tokens if tokens else self.words
        if end:
            return maps
        if self.name == "decoder":  # END comes first
            return maps.select(slice(1, None), slice(1, None))
        return maps.select(slice(len(maps.rows) - self.ends[0]), slice(len(maps.columns) - self.ends[1]))

    def grid(
        self, layer: int | None = None, head: int | None = None, *, tokens: bool = False, end: bool = True
    ) -> AttentionMap:
        """One heat map: of a head, or the mean over the layer's heads; of the usual layer where none is named."""
        maps = self.maps(tokens=tokens, end=end)
        of_layer = maps.weights[self.layer(layer) - 1]  # (heads, rows, columns)
        return maps._replace(weights=of_layer.mean(axis=0) if head is None else of_layer[self.head(head) - 1])

    def layer(self, number: int | None) -> int:
        return self.default_layer if number is None else _check_number(number, self.layers, "layer", NAMES[self.name])

    def head(self, number: int) -> int:
        return _check_number(number, self.heads, "head", f"each layer of {NAMES[self.name]}")

    def title(self, layer: int | None = None, head: int | None = None) -> str:
        """`encoder self-attention, layer 2 of 4, head 3 of 8`"""
        which = f"mean over its {self.heads} heads" if head is None else f"head {head} of {self.heads}"
        return f"{NAMES[self.name]}, layer {self.layer(layer)} of {self.layers}, {which}"

    def statistics(self) -> list[HeadStatistics]:
        """What each head does, measured on tokens, over the rows that attend to anything."""
        weights, end = self.tokens.weights, 0 if self.name == "decoder" else -1
        rows, columns = weights.shape[2:]
        positions = np.arange(rows)
        here = (positions + 0.5) * columns / rows - 0.5 if self.name == "cross" else positions
        distances = np.abs(np.arange(columns) - here[:, None])
        surprise = -weights * np.log2(weights, out=np.zeros_like(weights), where=weights > 0)
        statistics = []
        for layer, head in np.ndindex(weights.shape[:2]):
            alpha = weights[layer, head]
            by_row = surprise[layer, head].sum(axis=1), (alpha * distances).sum(axis=1), alpha[:, end]
            attends = alpha.sum(axis=1) > 0
            means = (float(values[attends].mean()) if attends.any() else 0.0 for values in by_row)
            statistics.append(HeadStatistics(layer + 1, head + 1, *means))
        return statistics


def _check_number(number: int, count: int, what: str, where: str) -> int:
    if not 1 <= number <= count:
        which = f"is 1 {what}" if count == 1 else f"are {count} {what}s, 1 to {count}"
        raise UsageError(f"There {which}, in {where}; got {what} {number}.")
    return number


@dataclass(frozen=True, eq=False)
class HeadsView:
    """What a model read and said, and the attention weights of all its heads."""

    name: str  # of the model
    source: str | None  # None for a text alone
    text: str  # what the model says: the translation, the label, the line with its tags; or the text alone
    given: bool  # whether it was given, or else found
    finished: bool  # whether it came to its end
    log_prob: float | None  # of what it says, of a translation its end included; None where a model has none
    parts: dict[str, Part]  # those that have attention weights
    notes: tuple[str, ...] = ()  # what a person should know
    output_kind: Literal["translation", "denoised", "label", "tags", "text"] = "translation"

    def part(self, name: str) -> Part:
        if name not in PARTS:
            raise UsageError(f"A Transformer has no part {name!r}: {did_you_mean(name, PARTS)}.")
        if name not in self.parts:
            others = " and ".join(self.parts)
            raise UsageError(f"The {name} of {self.name} has no attention weights to look at; only {others} has them.")
        return self.parts[name]

    @property
    def encoder(self) -> Part:
        return self.part("encoder")

    @property
    def decoder(self) -> Part:
        return self.part("decoder")

    @property
    def cross(self) -> Part:
        return self.part("cross")

    def to_json(self) -> dict[str, object]:
        """All of it in lists, numbers and words."""
        plain = {name: value for name, value in vars(self).items() if name != "parts"}
        for name, part in self.parts.items():
            plain[name] = {
                "layers": part.layers,
                "heads": part.heads,
                "row_axis": part.tokens.axes.row,
                "column_axis": part.tokens.axes.column,
                "row_tokens": part.tokens.rows,
                "column_tokens": part.tokens.columns,
                "weights": part.tokens.weights,
                "row_words": part.words.rows,
                "column_words": part.words.columns,
                "word_weights": part.words.weights,
                "statistics": part.statistics(),
            }
        return to_plain(plain)


def heads_view(translator: TrainedModel, source: str, target: str | None = None, **options: Any) -> HeadsView:
    """Let a Transformer translate a line, or say the given translation of it, and keep the weights of each head.

    `options` are those of its search (beam, max_length …). Dropout is off.
    """
    _check_transformer(translator)
    return _view_pair(translator, translate_pair(translator, source, target, **options), "translation")


def denoiser_heads_view(denoiser: TrainedModel, text: str, **options: Any) -> HeadsView:
    """Let a denoiser restore a text; `options` are those of its search."""
    _check_transformer(denoiser)
    return _view_pair(denoiser, denoise_pair(denoiser, text, **options), "denoised")


def _check_transformer(trained: TrainedModel) -> None:
    if not isinstance(trained.model, Transformer):
        raise UsageError(
            f"{trained.name} is no Transformer: it has no layers and heads to look at. `seqloom inspect attention` "
            "without --part, --layer and --head shows its alignment, if it has one."
        )


def _view_pair(trained: TrainedModel, pair: SequencePair, output_kind: Literal["translation", "denoised"]) -> HeadsView:
    model: Transformer = trained.model
    batch = pair.batch(model)
    with eval_mode(model), torch.no_grad():
        attentions, log_probs = model.attentions(batch), model.target_log_probs(batch)
    parts = parts_of(attentions, pair, model.aligned + 1)
    log_prob = log_probs.double().sum().item()
    texts = (pair.source, pair.text, pair.given, pair.finished)
    return HeadsView(trained.name, *texts, log_prob, parts, pair.notes, output_kind)


def parts_of(
    attentions: Mapping[str, Sequence[Tensor] | None], pair: SequencePair, aligned: int | None = None
) -> dict[str, Part]:
    """The parts that have weights: of each layer (B, N, rows, columns), whose first sentence is taken."""
    source = pair.source_tokens, pair.source_words
    read = [END_TEXT, *pair.target_tokens[:-1]], read_words(pair)
    sides: dict[PartName, tuple[Sides, Sides]] = {
        "encoder": (source, source),
        "decoder": (read, read),
        "cross": ((pair.target_tokens, pair.target_words), source),
    }
    parts: dict[str, Part] = {}
    for name, (rows, columns) in sides.items():
        if layers := attentions.get(name):  # convolutions and recurrence have no weights
            default_layer = aligned if name == "cross" else None
            ends = name == "encoder" or pair.finished, True
            parts[name] = part_of(name, layers, rows, columns, default_layer, ends)
    return parts


def part_of(
    name: PartName,
    layers: Sequence[Tensor],
    rows: Sides,
    columns: Sides,
    default_layer: int | None = None,
    ends: tuple[bool, bool] = (True, True),
) -> Part:
    """A part of the weights (B, N, rows, columns) of each layer, of the first sentence, by tokens and by words.

    A word's weights are A W B, where B sums over the columns of a word and A takes the mean over
    its rows, as `evaluate.alignment.merge` does for one head.
    """
    weights = np.stack([layer[0].double().cpu().numpy() for layer in layers])  # (layers, heads, rows, columns)
    members = []
    for (_, words), count in zip((rows, columns), weights.shape[2:], strict=True):
        member = np.zeros((len(words), count))
        for number, word in enumerate(words):
            member[number, list(word.tokens)] = 1
        members.append(member)
    mean, total = members[0] / members[0].sum(axis=1, keepdims=True), members[1].T
    axes = CROSS_ATTENTION if name == "cross" else SELF_ATTENTION
    row_words, column_words = ([word.text for word in words] for _, words in (rows, columns))
    by_words = AttentionMap(row_words, column_words, mean @ (weights @ total), axes)
    by_tokens = AttentionMap(list(rows[0]), list(columns[0]), weights, axes)
    return Part(name, by_tokens, by_words, default_layer or len(weights), ends)


def read_words(pair: SequencePair) -> list[Word]:
    """The words the decoder has read before it says each: END, then its own, a position later than it says them."""
    return words_before(pair.target_words[: len(pair.target_words) - pair.finished], len(pair.target_ids))


def words_before(said: Sequence[Word], tokens: int) -> list[Word]:
    """The same for words that are said in so many tokens, the one that ends them included where there is one."""
    later = shift_words(said, 1)
    inside = [Word(word.text, tuple(token for token in word.tokens if token < tokens)) for word in later]
    return [Word(END_TEXT, (0,)), *(word for word in inside if word.tokens)]  # of a cut one, the last is never read


# --- a text alone -----------------------------------------------------------------------------------------------------


def gpt_heads_view(trained: TrainedModel, text: str) -> HeadsView:
    """Let a GPT read a text, END before it: rows and columns are the tokens it reads. Dropout is off."""
    model, tokenizer = trained.model, trained.tokenizer
    if not isinstance(model, GPT):
        raise UsageError(f"{trained.name} is {trained.description} and has no heads to look at: it is no GPT.")
    text = one_line(text, "text")
    ids = [*tokenizer.encode(text), END]
    if len(ids) > (window := model.config.window):
        raise UsageError(
            f"{trained.name} sees {window} tokens at once, and the text has {len(ids):,}, its end included: shorten it."
        )
    inputs, targets = (torch.tensor([row], device=trained.device) for row in ([END, *ids[:-1]], ids))
    with eval_mode(model), torch.no_grad():
        layers = model.attentions(inputs)
        log_probs, _ = model.score(inputs, targets, model.start(rows=1))
    side = show_tokens(tokenizer, inputs[0].tolist()), words_before(group_words(text, tokenizer.spans(text)), len(ids))
    parts = {"decoder": part_of("decoder", layers, side, side)}
    notes = unknown_notes(tokenizer.unknown_pieces(text), "text")
    return HeadsView(trained.name, None, text, True, True, log_probs.double().sum().item(), parts, notes, "text")


def bert_heads_view(trained: TrainedModel, text: str) -> HeadsView:
    """Let a BERT read a text, which may have masks, between [CLS] and [SEP]. Dropout is off."""
    tokenizer, longest = trained.tokenizer, trained.model.config.longest
    specials = Specials.after(len(tokenizer))
    text = one_line(text, "text")
    gaps = read_gaps(tokenizer, specials, text)
    row = frame_texts(specials, "bert", gaps.ids).tokens
    if longest is not None and len(row) > longest:
        raise UsageError(
            f"{trained.name} reads {longest:,} tokens at once, [CLS] and [SEP] included; the text has {len(row):,}. "
            "Shorten it."
        )
    with eval_mode(trained.model), torch.no_grad():
        layers = trained.model.attentions(torch.tensor([row], device=trained.device))
    tokens = show_tokens(tokenizer, row, specials.names)
    parts = {"encoder": _encoder_part(layers, tokens, group_words(text, gaps.spans), before=1)}
    return HeadsView(trained.name, None, text, True, True, None, parts, unknown_notes(gaps.unknown, "text"), "text")


def reader_heads_view(reader: TrainedModel, read: LinePrediction) -> HeadsView:
    """Let a classifier or a tagger read a line, and keep the weights of its encoder. Dropout is off."""
    with eval_mode(reader.model):
        layers = reader.model.attentions(read.batch)
    if not layers:
        raise UsageError(f"{reader.name} has no heads to look at: what reads in it is no Transformer.")
    tokens = read.tokens(reader.tokenizer)
    room = len(tokens) - read.before - 1  # END, or the frame's end, is the last
    notes = read.notes(reader.run)
    if room < len(read.spans):
        notes += (f"only the first {room:,} of {len(read.spans):,} tokens are shown: so many are read at once",)
    parts = {"encoder": _encoder_part(layers, tokens, group_words(read.text, read.spans[:room]), read.before)}
    return HeadsView(reader.name, read.line, read.answer, False, True, read.log_prob, parts, notes, read.output_kind)


def _encoder_part(layers: Sequence[Tensor], tokens: Sequence[str], words: Sequence[Word], before: int) -> Part:
    """Rows and columns are what is read: special tokens, the words of the text, and one token that ends them."""
    last = len(tokens) - 1
    first = [Word(tokens[position], (position,)) for position in range(before)]
    side = tokens, [*first, *shift_words(words, before), Word(tokens[last], (last,))]
    return part_of("encoder", layers, side, side)
