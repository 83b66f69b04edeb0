"""Where every head of a Transformer looked, as plain arrays. A GPT has a decoder alone.

    view = heads_view(seqloom.load("runs/translate-cldr-transformer"), "Sunday, November 15, 2026")
    view.encoder.words.weights[1][2]      layer 2, head 3: (words, words), each row sums to 1

Three parts have heads:

    encoder   self-attention: a word of the source attends to the source
    decoder   self-attention: a word that was read attends to itself and to the words before it
    cross     to produce a word, the decoder attends to the source

A classifier or a tagger with a Transformer encoder has the first of them: `heads_of_reader`.

A row is a query and a column a key. In encoder and decoder both have the same labels: the tokens that are read. A
decoder reads END, which stands before every sentence, and then the target. In cross a row is labelled by the token that
its query produces, as in alignments; the token that it reads is the one before it. `Maps.axes` says which it is.

Where every head of a BERT looks while it reads a text: an encoder alone; see `seqloom.inspect.views.heads`.

The text stands between [CLS] and [SEP], which are looked at, too: [SEP], at its end, takes the place of END. The text
may have masks.

Where every head of a denoiser looks while it restores a text; see `seqloom.inspect.views.heads`.

What it reads has [MASK] where something is hidden. A model that says what gaps hide, and nothing else, says first which
gap it means: such a sentinel is shown as <1>, <2> … on both sides.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from seqloom.core.errors import UsageError
from seqloom.core.specials import Specials
from seqloom.core.tree import Tree
from seqloom.core.words import did_you_mean
from seqloom.data.readers import Frame
from seqloom.evaluate.alignment import Word, words_of
from seqloom.inspect.capture import evaluating
from seqloom.inspect.views.alignment import (
    CROSS_ATTENTION,
    SELF_ATTENTION,
    Array,
    AxisTitles,
    Grid,
    Said,
    one_line,
    say,
    unknown_note,
)
from seqloom.text.base import END, END_TEXT, Span
from seqloom.text.specials import framed, read_gaps

PartName = Literal["encoder", "decoder", "cross"]
PARTS: tuple[PartName, ...] = get_args(PartName)
NAMES = {"encoder": "encoder self-attention", "decoder": "decoder self-attention", "cross": "cross-attention"}


class Maps(NamedTuple):
    """The heat maps of all heads of a part: queries down the side, keys across."""

    rows: list[str]
    columns: list[str]
    weights: Array  # (layers, heads, rows, columns)
    axes: AxisTitles = SELF_ATTENTION


class Habit(NamedTuple):
    """What a head does, in three numbers, each the mean over its rows."""

    layer: int  # from 1
    head: int  # from 1
    entropy: float  # −Σ_j α_j log₂ α_j, in bits: n bits are as if 2^n places had equal shares
    distance: float  # Σ_j α_j · places from where it stands to j; of cross, from the place as far through the source
    end: float  # the share that lies on END


@dataclass(frozen=True, eq=False)
class Part:
    """All heads of one part. Layers and heads are counted from 1 by the methods, from 0 in the arrays."""

    name: PartName
    tokens: Maps  # as the model reads and writes them
    words: Maps  # the same by words
    usual: int  # the layer that is shown where none is named
    ends: tuple[bool, bool] = (True, True)  # whether END is among the rows, and among the columns

    @property
    def layers(self) -> int:
        return len(self.tokens.weights)

    @property
    def heads(self) -> int:
        return len(self.tokens.weights[0])

    def maps(self, *, tokens: bool = False, end: bool = True) -> Maps:
        """Without `end`, END is left out on both sides, unless a side is nothing else. Rows stay as they are: what they
        lack of 1, END was given."""
        found = self.tokens if tokens else self.words
        rows, columns, weights, axes = found
        if self.name == "decoder":  # END comes first
            down = across = slice(1, None)
        else:
            down, across = slice(0, len(rows) - self.ends[0]), slice(0, len(columns) - self.ends[1])
        if end or not rows[down] or not columns[across]:
            return found
        return Maps(rows[down], columns[across], weights[:, :, down, across], axes)

    def grid(
        self, layer: int | None = None, head: int | None = None, *, tokens: bool = False, end: bool = True
    ) -> Grid:
        """One heat map: of a head, or the mean over the layer's heads; of the usual layer where none is named."""
        rows, columns, weights, axes = self.maps(tokens=tokens, end=end)
        of_layer = weights[self.layer(layer) - 1]  # (heads, rows, columns)
        return Grid(rows, columns, of_layer.mean(axis=0) if head is None else of_layer[self.head(head) - 1], axes)

    def layer(self, number: int | None) -> int:
        return self.usual if number is None else _counted(number, self.layers, "layer", NAMES[self.name])

    def head(self, number: int) -> int:
        return _counted(number, self.heads, "head", f"each layer of {NAMES[self.name]}")

    def title(self, layer: int | None = None, head: int | None = None) -> str:
        """`encoder self-attention, layer 2 of 4, head 3 of 8`"""
        which = f"mean over its {self.heads} heads" if head is None else f"head {head} of {self.heads}"
        return f"{NAMES[self.name]}, layer {self.layer(layer)} of {self.layers}, {which}"

    def habits(self) -> list[Habit]:
        """What each head does, measured on tokens."""
        places, end = self._distances(), 0 if self.name == "decoder" else -1
        return [
            Habit(
                layer,
                head,
                entropy=_mean(_surprise(weights).sum(axis=1), weights),
                distance=_mean((weights * places).sum(axis=1), weights),
                end=_mean(weights[:, end], weights),
            )
            for layer, of_layer in enumerate(self.tokens.weights, start=1)
            for head, weights in enumerate(of_layer, start=1)
        ]

    def _distances(self) -> Array:
        """How many places each column is from where each row stands."""
        rows, columns = self.tokens.weights.shape[2:]
        stands = np.arange(rows)
        here = (stands + 0.5) * columns / rows - 0.5 if self.name == "cross" else stands
        return np.abs(np.arange(columns) - here[:, None])

    def to_json(self) -> dict[str, Any]:
        return {
            "layers": self.layers,
            "heads": self.heads,
            "row_axis": self.tokens.axes.row,
            "column_axis": self.tokens.axes.column,
            "row_tokens": self.tokens.rows,
            "column_tokens": self.tokens.columns,
            "weights": self.tokens.weights.tolist(),
            "row_words": self.words.rows,
            "column_words": self.words.columns,
            "word_weights": self.words.weights.tolist(),
            "habits": [habit._asdict() for habit in self.habits()],
        }


@dataclass(frozen=True, eq=False)
class HeadsView:
    name: str  # of the model
    source: str | None  # None for a text alone
    text: str  # what the model says: the translation, the label, the line with its tags; or the text alone
    given: bool  # whether it was given, or else found
    finished: bool  # whether it came to its end
    log_prob: float | None  # of what it says, of a translation its end included; None where a model has none
    parts: dict[str, Part]  # those that have attention weights
    notes: tuple[str, ...] = ()  # what a person should know
    says: Literal["translation", "restored", "label", "tags", "text"] = "translation"

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

    def to_json(self) -> dict[str, Any]:
        """All of it in lists, numbers and words."""
        plain = {name: value for name, value in vars(self).items() if name not in ("parts", "notes")}
        return {**plain, "notes": list(self.notes), **{name: part.to_json() for name, part in self.parts.items()}}


def heads_view(translator: Any, source: str, target: str | None = None, **options: Any) -> HeadsView:
    """Let a Transformer translate a line, or say the given translation of it, and keep where each head looked.

    `translator` is what `seqloom.load` gives for a translation run; `options` are those of its search (beam,
    max_length …). Dropout is off.
    """
    check_heads(translator)
    model = translator.model
    said = say(translator, source, target, **options)
    batch = said.batch(model)
    with evaluating(model), torch.no_grad():
        attentions, log_probs = model.attentions(batch), model.target_log_probs(batch)
    usual = getattr(model.config, "align_layer", None)
    return HeadsView(
        translator.name,
        said.source,
        said.text,
        said.given,
        said.finished,
        log_probs.double().sum().item(),
        dict(parts_of(attentions, said, usual)),
        said.notes,
    )


@dataclass(frozen=True, eq=False)
class Read:
    """A line as a classifier or a tagger reads it, and what it says of it."""

    line: str
    text: str  # what its tokens are taken from
    spans: Sequence[Span]  # where they stand in that, those that were not read too
    batch: Tree  # it alone
    says: Literal["label", "tags"]
    answer: str
    log_prob: float
    unknown: Sequence[str]  # pieces the vocabulary does not have
    frame: Frame | None = None  # of special tokens, in the place of END


def heads_of_reader(reader: Any, read: Read) -> HeadsView:
    """Where each head of a classifier's or a tagger's encoder looked while it read a line. Dropout is off."""
    with evaluating(reader.model):
        layers = reader.model.attentions(read.batch)
    if not layers:
        raise UsageError(f"{reader.name} has no heads to look at: what reads in it is no Transformer.")
    names = {} if read.frame is None else read.frame.specials.names
    before = 0 if read.frame is None else read.frame.before
    tokens = [names.get(token) or reader.tokenizer.token(token) for token in read.batch["tokens"][0].tolist()]
    room = len(tokens) - before - 1  # END, or the frame's end, is the last
    words = framed_words(words_of(read.text, read.spans[:room]), tokens, before)
    notes = [unknown_note(read.unknown, "text")] if read.unknown and not reader.spells else []
    if room < len(read.spans):
        notes.append(f"only the first {room:,} of {len(read.spans):,} tokens are shown: so many are read at once")
    part = part_of("encoder", layers, (tokens, tokens), (words, words))
    return HeadsView(
        reader.name, read.line, read.answer, False, True, read.log_prob, {"encoder": part}, tuple(notes), read.says
    )


def framed_words(words: Sequence[Word], tokens: Sequence[str], before: int) -> list[Word]:
    """The words of a text, with what stands before them and after them in the row of tokens that is read."""
    moved = [Word(word.text, tuple(token + before for token in word.tokens)) for word in words]
    last = len(tokens) - 1
    return [*(Word(tokens[place], (place,)) for place in range(before)), *moved, Word(tokens[last], (last,))]


def text_heads_view(writer: Any, text: str) -> HeadsView:
    """Let a GPT read a text, END before it, and keep where each head looked: rows and columns are the tokens it reads.
    `writer` is what `seqloom.load` gives for its run."""
    model, tokenizer = writer.model, writer.tokenizer
    if not hasattr(model, "attentions"):
        raise UsageError(f"{writer.name} is {writer.what} and has no heads to look at: it is no GPT.")
    text = one_line(text, "text")
    ids = [*tokenizer.encode(text), END]
    if len(ids) > (window := model.config.window):
        raise UsageError(
            f"{writer.name} sees {window} tokens at once, and the text has {len(ids):,}, its end included: shorten it."
        )
    inputs, targets = (torch.tensor([row], device=writer.device) for row in ([END, *ids[:-1]], ids))
    with evaluating(model), torch.no_grad():
        layers = model.attentions(inputs)
        log_probs, _ = model.score(inputs, targets, model.start(rows=1))
    words = words_of(text, tokenizer.spans(text), END_TEXT)
    tokens = [tokenizer.token(token) for token in [END, *ids[:-1]]]
    read = words_before(words[:-1], len(ids))
    part = part_of("decoder", layers, (tokens, tokens), (read, read))
    unknown = tokenizer.unknown_pieces(text)
    notes = (unknown_note(unknown, "text"),) if unknown else ()
    log_prob = log_probs.double().sum().item()
    return HeadsView(writer.name, None, text, True, True, log_prob, {"decoder": part}, notes, "text")


def check_heads(translator: Any) -> None:
    """Refuse a model without layers and heads."""
    if not hasattr(translator.model, "attentions"):
        raise UsageError(
            f"{translator.name} is no Transformer: it has no layers and heads to look at. `seqloom inspect attention` "
            "without --part, --layer and --head shows its alignment, if it has one."
        )


def parts_of(attentions: dict[str, Any], said: Said, align_layer: int | None = None) -> Iterator[tuple[PartName, Part]]:
    """The first sentence's weights (B, N, rows, columns) of each layer, by part, by tokens and by words."""
    source, target = said.source_words, said.target_words
    read, read_tokens = read_words(said), [END_TEXT, *said.target_tokens[:-1]]
    sides: dict[PartName, Any] = {
        "encoder": ((said.source_tokens, said.source_tokens), (source, source)),
        "decoder": ((read_tokens, read_tokens), (read, read)),
        "cross": ((said.target_tokens, said.source_tokens), (target, source)),
    }
    for name, (tokens, words) in sides.items():
        if layers := attentions.get(name):  # convolutions and recurrence have no weights
            usual = align_layer if name == "cross" else None
            yield name, part_of(name, layers, tokens, words, usual, finished=name == "encoder" or said.finished)


def part_of(
    name: PartName,
    layers: Sequence[Tensor],
    tokens: tuple[list[str], list[str]],
    words: tuple[Sequence[Word], Sequence[Word]],
    usual: int | None = None,
    *,
    finished: bool = True,
) -> Part:
    """The first sentence's weights; `tokens` and `words` are those of the rows, and of the columns."""
    weights = np.stack([layer[0].double().cpu().numpy() for layer in layers])  # (layers, heads, rows, columns)
    rows, columns = ([word.text for word in side] for side in words)
    axes = CROSS_ATTENTION if name == "cross" else SELF_ATTENTION
    by_words = Maps(rows, columns, merged(weights, *words), axes)
    return Part(name, Maps(*tokens, weights, axes), by_words, usual or len(weights), (finished, True))


def read_words(said: Said) -> list[Word]:
    """The words the decoder has read before it says each: END, then its own, a place later than it says them."""
    return words_before(said.target_words[: len(said.target_words) - said.finished], len(said.said))


def words_before(said: Sequence[Word], tokens: int) -> list[Word]:
    """The same for words that are said in so many tokens, the one that ends them included where there is one."""
    later = [(word.text, tuple(token + 1 for token in word.tokens)) for word in said]
    inside = [Word(text, tuple(token for token in read if token < tokens)) for text, read in later]
    return [Word(END_TEXT, (0,)), *(word for word in inside if word.tokens)]  # of a cut one, the last is never read


def merged(weights: Array, rows: Sequence[Word], columns: Sequence[Word]) -> Array:
    """All heads by words, as `evaluate.alignment.merge` does it for one: A W B, where B sums over the columns of a word
    and A takes the mean over its rows."""
    T, S = weights.shape[2:]
    mean, total = _membership(rows, T), _membership(columns, S).T
    return (mean / mean.sum(axis=1, keepdims=True)) @ (weights @ total)


def _membership(words: Sequence[Word], tokens: int) -> Array:
    """(words, tokens): 1 where a token is one of a word's."""
    found = np.zeros((len(words), tokens))
    for number, word in enumerate(words):
        found[number, list(word.tokens)] = 1
    return found


def _surprise(weights: Array) -> Array:
    """−α log₂ α of each weight, with 0 log 0 = 0."""
    return -weights * np.log2(weights, out=np.zeros_like(weights), where=weights > 0)


def _mean(values: Array, weights: Array) -> float:
    """The mean of a value per row, over the rows that look anywhere."""
    looking = weights.sum(axis=1) > 0
    return float(values[looking].mean()) if looking.any() else 0.0


def _counted(number: int, count: int, what: str, where: str) -> int:
    if not 1 <= number <= count:
        which = f"is 1 {what}" if count == 1 else f"are {count} {what}s, 1 to {count}"
        raise UsageError(f"There {which}, in {where}; got {what} {number}.")
    return number


# ---------------------------------------------------------------------------------------------------------------------


def reader_heads_view(reader: Any, text: str) -> HeadsView:
    """`reader` is what `seqloom.load` gives for the run of a masked language model. Dropout is off."""
    model, tokenizer, specials = reader.model, reader.tokenizer, reader.specials
    text = one_line(text, "text")
    gaps = read_gaps(tokenizer, specials, text)
    row = framed(specials, "bert", gaps.ids).tokens
    if reader.longest is not None and len(row) > reader.longest:
        raise UsageError(
            f"{reader.name} reads {reader.longest:,} tokens at once, [CLS] and [SEP] included; the text has "
            f"{len(row):,}. Shorten it."
        )
    with evaluating(model), torch.no_grad():
        layers = model.attentions(torch.tensor([row], device=reader.device))
    shown = [specials.names.get(token) or tokenizer.token(token) for token in row]
    words = framed_words(words_of(text, gaps.spans), shown, before=1)
    part = part_of("encoder", layers, (shown, shown), (words, words))
    notes = (unknown_note(gaps.unknown, "text"),) if gaps.unknown else ()
    return HeadsView(reader.name, None, text, True, True, None, {"encoder": part}, notes, "text")


# ---------------------------------------------------------------------------------------------------------------------


def restorer_heads_view(restorer: Any, text: str, **options: Any) -> HeadsView:
    """`restorer` is what `seqloom.load` gives for the run of a denoiser; `options` are those of its search."""
    check_heads(restorer)
    said = _said(restorer, one_line(text, "text"), options)
    batch = said.batch(restorer.model)
    with evaluating(restorer.model), torch.no_grad():
        attentions, log_probs = restorer.model.attentions(batch), restorer.model.target_log_probs(batch)
    parts: dict[str, Part] = dict(parts_of(attentions, said, getattr(restorer.model.config, "align_layer", None)))
    log_prob = log_probs.double().sum().item()
    return HeadsView(
        restorer.name, said.source, said.text, False, said.finished, log_prob, parts, said.notes, "restored"
    )


def _said(restorer: Any, text: str, options: dict[str, Any]) -> Said:
    tokenizer = restorer.tokenizer
    read, best = restorer.said(text, **options)
    gaps = read_gaps(tokenizer, Specials.after(len(tokenizer)), text)
    said = [*best.tokens, *[END] * best.finished]
    names = {
        **Specials.after(len(tokenizer)).names,
        **{sentinel: f"<{number}>" for number, sentinel in enumerate(restorer.sentinels, start=1)},
    }
    shown = [[names.get(token) or tokenizer.token(token) for token in row] for row in (read, said)]
    words = _words(tokenizer, best.tokens, names)
    spoken = " ".join(word.text for word in words)
    notes = [unknown_note(gaps.unknown, "text")] if gaps.unknown else []
    notes += [] if best.finished else ["what it says was cut at the longest allowed: the model did not end it"]
    return Said(
        text,
        spoken if restorer.spans else tokenizer.decode(best.tokens),
        False,
        best.finished,
        read,
        said,
        shown[0],
        shown[1],
        words_of(text, gaps.spans, END_TEXT),
        [*words, *[Word(END_TEXT, (len(best.tokens),))] * best.finished],
        tuple(notes),
    )


def _words(tokenizer: Any, ids: Sequence[int], names: dict[int, str]) -> list[Word]:
    """What is said, by words; what is not the tokenizer's is a word of its own."""
    found: list[Word] = []
    for special, run in groupby(enumerate(ids), key=lambda one: one[1] in names):
        places, tokens = zip(*run, strict=True)
        if special:
            found += [Word(names[token], (place,)) for place, token in zip(places, tokens, strict=True)]
        else:
            own = words_of(tokenizer.decode(tokens), tokenizer.decoded_spans(tokens))
            found += [Word(word.text, tuple(place + places[0] for place in word.tokens)) for word in own]
    return found
