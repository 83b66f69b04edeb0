"""Attention weights as plain arrays, by tokens and by words: translator alignments and all heads of Transformers.

    view = alignment_view(seqloom.load("runs/quickstart-en-fr"), "Sunday, November 15, 2026")
    view.words.weights      (target words, source words): each row sums to 1

    view = heads_view(seqloom.load("runs/translate-cldr-transformer"), "Sunday, November 15, 2026")
    view.encoder.words.weights[1][2]      layer 2, head 3: (words, words)

A model can have heads in three parts:

    encoder   self-attention over the source
    decoder   causal self-attention over the tokens read so far
    cross     attention from the decoder to the source

A GPT has only a decoder. BERT models, and classifiers and taggers with a Transformer encoder, have only an encoder, in
which [SEP] ends the text instead of END. A denoiser has all three parts and reads [MASK] for masked tokens.

Rows are queries and columns are keys. In the encoder and the decoder, both are labelled with the tokens that the part
reads. A decoder reads END and then the target. In cross-attention, the query of a row reads a token, and the row is
labelled with the next token, which the query predicts, as in alignments. `AttentionMap.axes` contains the titles of the
axes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

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
from seqloom.inspect.picture import Picture
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

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PartName = Literal["encoder", "decoder", "cross"]
PARTS: tuple[PartName, ...] = get_args(PartName)
NAMES = {"encoder": "encoder self-attention", "decoder": "decoder self-attention", "cross": "cross-attention"}
AxisLabels = tuple[Sequence[str], Sequence[Word]]  # the tokens of the rows or columns, and their words


class AxisTitles(NamedTuple):
    """The titles of the rows and columns of an attention map."""

    row: str
    column: str

    def __str__(self) -> str:
        return f"rows: {self.row}; columns: {self.column}"


SELF_ATTENTION = AxisTitles("query (attends)", "key (attended to)")
# Position t of a decoder reads target token t - 1 and predicts target token t. Alignments use the predicted token.
CROSS_ATTENTION = AxisTitles("produces (target)", "key (source)")


class AttentionMap(NamedTuple):
    """Labelled attention weights of one or more heads: rows are queries, columns are keys."""

    rows: list[str]
    columns: list[str]
    weights: Array  # (…, rows, columns)
    axes: AxisTitles = CROSS_ATTENTION

    def select(self, rows: slice, columns: slice) -> "AttentionMap":
        """Select rows and columns. If none would remain, keep all of them. Rows are not renormalized."""
        if not self.rows[rows] or not self.columns[columns]:
            return self
        return AttentionMap(self.rows[rows], self.columns[columns], self.weights[..., rows, columns], self.axes)


# --- one attention ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class AlignmentView(Picture):
    """A translation, and the attention over the source for each of its tokens."""

    source: str
    text: str  # the translation
    given: bool  # whether the translation was given and not predicted
    finished: bool  # whether the translation ends with END and not at the maximum length
    log_prob: float  # log-probability of the translation, including END
    tokens: AttentionMap  # map by tokens of the model; END is the last token on both sides
    words: AttentionMap
    notes: tuple[str, ...] = ()  # notes for the user

    def grid(self, *, tokens: bool = False, end: bool = True) -> AttentionMap:
        """Return the map. `end=False` removes END from both sides, unless the translation is empty."""
        grid = self.tokens if tokens else self.words
        return grid if end else grid.select(slice(len(grid.rows) - self.finished), slice(-1))

    def draw(self) -> "Figure":
        from seqloom.inspect.plots.heatmaps import draw_alignment

        return draw_alignment(self.grid(), [self.source, self.text])

    @property
    def links(self) -> str:
        """The most attended source word of each target word, in Pharaoh format: 0-0 1-2 (source, target)."""
        links = hard_links(self.words.weights[: len(self.words.rows) - self.finished])
        return to_pharaoh(link for link in links if link[0] < len(self.words.columns) - 1)  # without END


def alignment_view(translator: TrainedModel, source: str, target: str | None = None, **options: Any) -> AlignmentView:
    """Translate a line, or force the given translation, and return the attention weights.

    `options` are search options such as beam and max_length. Dropout is disabled.
    """
    model, weights = translator.model, None
    if isinstance(model, Seq2Seq | Ensemble):
        pair = translate_pair(translator, source, target, **options)
        batch = pair.batch(model)
        with eval_mode(model), torch.no_grad():
            weights, log_probs = model.attention(batch), model.target_log_probs(batch)
    if weights is None:
        raise UsageError(
            f"{translator.name} has no attention. Train a translator with attention, for example "
            "model.attention.order=luong."
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
    """Statistics of a head, averaged over its rows."""

    layer: int  # counted from 1
    head: int  # counted from 1
    entropy: float  # −Σ_j α_j log₂ α_j, in bits: n bits correspond to equal weights on 2^n positions
    distance: float  # Σ_j α_j · |j − i| in row i; in cross-attention, i is scaled to the source length
    end: float  # attention weight on END


@dataclass(frozen=True, eq=False)
class Part:
    """All heads of one part. Methods count layers and heads from 1; array indices start at 0."""

    name: PartName
    tokens: AttentionMap  # map by tokens of the model (layers, heads, rows, columns)
    words: AttentionMap
    default_layer: int  # the layer shown if no other layer is selected
    ends: tuple[bool, bool] = (True, True)  # whether the rows and the columns contain END
    starts: int = 0  # number of special tokens before the words, such as [CLS]

    @property
    def layers(self) -> int:
        return len(self.tokens.weights)

    @property
    def heads(self) -> int:
        return len(self.tokens.weights[0])

    def maps(self, *, tokens: bool = False, end: bool = True) -> AttentionMap:
        """Return the maps. `end=False` removes END, [CLS] and [SEP] from both sides, unless a side would be empty."""
        maps = self.tokens if tokens else self.words
        if end:
            return maps
        if self.name == "decoder":  # END is the first token
            return maps.select(slice(1, None), slice(1, None))
        rows, columns = (
            slice(self.starts, len(side) - has_end) for side, has_end in zip(maps[:2], self.ends, strict=True)
        )
        return maps.select(rows, columns)

    def grid(
        self, layer: int | None = None, head: int | None = None, *, tokens: bool = False, end: bool = True
    ) -> AttentionMap:
        """Return the map of one head, or the mean over the heads of a layer."""
        maps = self.maps(tokens=tokens, end=end)
        layer_weights = maps.weights[self.layer(layer) - 1]  # (heads, rows, columns)
        return maps._replace(weights=layer_weights.mean(axis=0) if head is None else layer_weights[self.head(head) - 1])

    def layer(self, number: int | None) -> int:
        return self.default_layer if number is None else _check_number(number, self.layers, "layer", NAMES[self.name])

    def head(self, number: int) -> int:
        return _check_number(number, self.heads, "head", f"each layer of {NAMES[self.name]}")

    def title(self, layer: int | None = None, head: int | None = None) -> str:
        """Return a title such as `encoder self-attention, layer 2 of 4, head 3 of 8`."""
        heads = f"mean over its {self.heads} heads" if head is None else f"head {head} of {self.heads}"
        return f"{NAMES[self.name]}, layer {self.layer(layer)} of {self.layers}, {heads}"

    def statistics(self) -> list[HeadStatistics]:
        """Compute the token-level statistics of each head over the rows that attend to at least one position."""
        weights, end = self.tokens.weights, 0 if self.name == "decoder" else -1
        rows, columns = weights.shape[2:]
        positions = np.arange(rows)
        own_positions = (positions + 0.5) * columns / rows - 0.5 if self.name == "cross" else positions
        distances = np.abs(np.arange(columns) - own_positions[:, None])
        entropy_terms = -weights * np.log2(weights, out=np.zeros_like(weights), where=weights > 0)
        statistics = []
        for layer, head in np.ndindex(weights.shape[:2]):
            alpha = weights[layer, head]
            by_row = entropy_terms[layer, head].sum(axis=1), (alpha * distances).sum(axis=1), alpha[:, end]
            attends = alpha.sum(axis=1) > 0
            means = (float(values[attends].mean()) if attends.any() else 0.0 for values in by_row)
            statistics.append(HeadStatistics(layer + 1, head + 1, *means))
        return statistics


def _check_number(number: int, count: int, what: str, where: str) -> int:
    if not 1 <= number <= count:
        raise UsageError(f"The {what} must be from 1 to {count} in {where}; got {number}.")
    return number


@dataclass(frozen=True, eq=False)
class HeadsView(Picture):
    """The input and output of a model, and the attention weights of all heads."""

    name: str  # name of the model
    source: str | None  # None if the model reads a single text
    text: str  # the output (translation, label or tagged line), or the text itself if the model has no output
    given: bool  # whether the output was given and not predicted
    finished: bool  # whether the output ends with END and not at the maximum length
    log_prob: float | None  # log-probability of the output, with END for a translation; None if the model has no output
    parts: dict[str, Part]  # the parts with attention weights
    notes: tuple[str, ...] = ()  # notes for the user
    output_kind: Literal["translation", "denoised", "label", "tags", "text"] = "translation"

    def draw(self) -> "Figure":
        from seqloom.inspect.plots.heatmaps import draw_heads

        return draw_heads(next(iter(self.parts.values())).maps(), [self.text])

    def part(self, name: str) -> Part:
        if name not in PARTS:
            raise UsageError(f"A Transformer has no part {name!r}: {did_you_mean(name, PARTS)}.")
        if name not in self.parts:
            others = " or ".join(self.parts)
            raise UsageError(f"The {name} of {self.name} has no attention weights. Choose {others}.")
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
        """Convert the view to lists, numbers and strings."""
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
    """Translate a line with a Transformer, or force the given translation, and return the attention weights of all
    heads.

    `options` are search options such as beam and max_length. Dropout is disabled.
    """
    _check_transformer(translator)
    return _view_pair(translator, translate_pair(translator, source, target, **options), "translation")


def denoiser_heads_view(denoiser: TrainedModel, text: str, **options: Any) -> HeadsView:
    """Denoise a text, and return the attention weights of all heads. `options` are search options."""
    _check_transformer(denoiser)
    return _view_pair(denoiser, denoise_pair(denoiser, text, **options), "denoised")


def _check_transformer(trained: TrainedModel) -> None:
    if not isinstance(trained.model, Transformer):
        raise UsageError(
            f"{trained.name} is not a Transformer: it has no layers and heads. `seqloom inspect attention` without "
            "--part, --layer and --head shows the alignment of a model with attention."
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
    """Build the parts from the weights of each layer (B, N, rows, columns), for the first sentence."""
    source = pair.source_tokens, pair.source_words
    read = [END_TEXT, *pair.target_tokens[:-1]], read_words(pair)
    sides: dict[PartName, tuple[AxisLabels, AxisLabels]] = {
        "encoder": (source, source),
        "decoder": (read, read),
        "cross": ((pair.target_tokens, pair.target_words), source),
    }
    parts: dict[str, Part] = {}
    for name, (rows, columns) in sides.items():
        if layers := attentions.get(name):  # convolutional and recurrent layers have no weights
            default_layer = aligned if name == "cross" else None
            ends = name == "encoder" or pair.finished, True
            parts[name] = part_of(name, layers, rows, columns, default_layer, ends)
    return parts


def part_of(
    name: PartName,
    layers: Sequence[Tensor],
    rows: AxisLabels,
    columns: AxisLabels,
    default_layer: int | None = None,
    ends: tuple[bool, bool] = (True, True),
) -> Part:
    """Build a part from the weights of each layer (B, N, rows, columns) for the first sentence, by tokens and by words.

    The weights by words are A W B: multiplication by B sums over the columns of a word, and multiplication by A takes
    the mean over its rows. `evaluate.alignment.merge` computes the same for one head.
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
    """Return the words that the decoder reads: END, then the target words, shifted right by one position."""
    return words_before(pair.target_words[: len(pair.target_words) - pair.finished], len(pair.target_ids))


def words_before(target_words: Sequence[Word], tokens: int) -> list[Word]:
    """Shift target words right by one position, after END. `tokens` is the target length, including END if present."""
    later = shift_words(target_words, 1)
    inside = [Word(word.text, tuple(token for token in word.tokens if token < tokens)) for word in later]
    return [
        Word(END_TEXT, (0,)),
        *(word for word in inside if word.tokens),
    ]  # the last token of an unfinished target is not read


# --- single texts -----------------------------------------------------------------------------------------------------


def gpt_heads_view(trained: TrainedModel, text: str) -> HeadsView:
    """Run a GPT on END and a text, and return the attention weights of all heads. Dropout is disabled."""
    model, tokenizer = trained.model, trained.tokenizer
    if not isinstance(model, GPT):
        raise UsageError(f"{trained.name} is {trained.description} and has no attention heads.")
    text = one_line(text, "text")
    ids = [*tokenizer.encode(text), END]
    if len(ids) > (window := model.config.window):
        raise UsageError(
            f"{trained.name} reads at most {window} tokens, but the text has {len(ids):,}, including END. Shorten "
            "the text."
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
    """Run a BERT on a text between [CLS] and [SEP]. The text may contain [MASK]. Dropout is disabled."""
    tokenizer, max_tokens = trained.tokenizer, trained.model.config.longest
    specials = Specials.after(len(tokenizer))
    text = one_line(text, "text")
    gaps = read_gaps(tokenizer, specials, text)
    row = frame_texts(specials, "bert", gaps.ids).tokens
    if max_tokens is not None and len(row) > max_tokens:
        raise UsageError(
            f"{trained.name} reads at most {max_tokens:,} tokens, but the text has {len(row):,}, [CLS] and [SEP] "
            "included. Shorten the text."
        )
    with eval_mode(trained.model), torch.no_grad():
        layers = trained.model.attentions(torch.tensor([row], device=trained.device))
    tokens = show_tokens(tokenizer, row, specials.names)
    parts = {"encoder": _encoder_part(layers, tokens, group_words(text, gaps.spans), before=1)}
    return HeadsView(trained.name, None, text, True, True, None, parts, unknown_notes(gaps.unknown, "text"), "text")


def reader_heads_view(reader: TrainedModel, read: LinePrediction) -> HeadsView:
    """Run a classifier or tagger on a line, and return the attention weights of its encoder. Dropout is disabled."""
    with eval_mode(reader.model):
        layers = reader.model.attentions(read.batch)
    if not layers:
        raise UsageError(f"{reader.name} has no attention heads: its encoder is not a Transformer.")
    tokens = read.tokens(reader.tokenizer)
    room = len(tokens) - read.before - 1  # the last token is END or [SEP]
    notes = read.notes(reader.run)
    if room < len(read.spans):
        notes += (f"only the first {room:,} of {len(read.spans):,} tokens are shown, the maximum that the model reads",)
    parts = {"encoder": _encoder_part(layers, tokens, group_words(read.text, read.spans[:room]), read.before)}
    return HeadsView(reader.name, read.line, read.answer, False, True, read.log_prob, parts, notes, read.output_kind)


def _encoder_part(layers: Sequence[Tensor], tokens: Sequence[str], words: Sequence[Word], before: int) -> Part:
    """Build the encoder part. `before` special tokens precede the words, and one token follows them."""
    last = len(tokens) - 1
    first = [Word(tokens[position], (position,)) for position in range(before)]
    side = tokens, [*first, *shift_words(words, before), Word(tokens[last], (last,))]
    return replace(part_of("encoder", layers, side, side), starts=before)
