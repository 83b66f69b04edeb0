"""What goes into a model: words as numbers, four ways, and what the model is told of positions.

    one-hot   x_t = e_w            a row for each word of the text, a single 1 in the column of that word     (T, V)
    counts    c = Σ_t e_w          one row for the whole text                                                 (V,)
    tf–idf    c_w · idf_w          idf_w = ln((1 + N) / (1 + df_w)) + 1                                       (V,)
    dense     x_t = e_w E          a row of a table E (V, D) that is learned                                  (T, D)

V words are in the vocabulary; df_w of the N documents have the word w. A sum does not know in which
order it was made: texts with the same words have the same counts and the same tf–idf, and no model
that reads only these can tell them apart (C01). A recurrent network reads the rows one after the
other and can.

    view = sinusoids_view(width=128, length=100)
    view.table          (length, width): row p is what position p is told
    view.products       (length, length): PE(p) · PE(q)
    view.by_distance    (length,): the mean of PE(p) · PE(p + k) over p, as a share of that at k = 0

Of sinusoids PE(p) · PE(p + k) = Σ_i cos(k / base^(2i/d)), whatever p is: they tell how far apart
two positions are. Rotary positions leave the same sum in q·k, for q = k with all pairs equally
long.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from seqloom.core.errors import DataError, UsageError
from seqloom.evaluate.alignment import word_spans
from seqloom.inspect.values import Array, to_plain

if TYPE_CHECKING:  # torch is imported where it is needed: words are counted without it
    from seqloom.inspect.capture import TrainedModel
    from seqloom.nn.positions import Layout
    from seqloom.text import Tokenizer

UNKNOWN = "<unk>"
SEED = 0
LARGE_VOCABULARIES = (10_000, 100_000)  # vocabularies as models have them
ALIKE = 1e-9  # distance up to which vectors are the same but for the order in which they were added up
Split = Callable[[str], list[str]]


# --- vocabularies -----------------------------------------------------------------------------------------------------


class VocabularyWord(NamedTuple):
    """A word of a text."""

    text: str  # as it stands in the text
    column: int  # where its one-hot vector has its 1


@dataclass(frozen=True)
class Vocabulary:
    """Words, by column, and how many documents have them."""

    words: Sequence[str]
    read: Callable[[str], list[VocabularyWord]]
    source: str  # where the words come from
    documents: int  # N
    frequency: Sequence[int]  # df of each word
    unknown: int | None = None  # the column of all words that are not here

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def idf(self) -> Array:
        return np.log((1 + self.documents) / (1 + np.asarray(self.frequency))) + 1


def splitter(keep_case: bool = False) -> Split:
    """Words and punctuation marks apart, in scripts without spaces every character; <unk> is a word of its own."""

    def split(text: str) -> list[str]:
        parts = (text if keep_case else text.lower()).split(UNKNOWN)
        words = [[part[start:end] for start, end in word_spans(part)] for part in parts]
        return [*words[0], *(word for own in words[1:] for word in [UNKNOWN, *own])]

    return split


def vocabulary_of(documents: Iterable[str], source: str, split: Split, *, unknown: bool = True) -> Vocabulary:
    """The words of these documents, the most frequent first; `unknown` adds a column for all others."""
    counts, frequency, total = Counter[str](), Counter[str](), 0
    for document in documents:
        words = split(document)
        counts.update(words)
        frequency.update(set(words))
        total += 1
    if unknown:
        counts.pop(UNKNOWN, None)  # has its column already
    words = [UNKNOWN] * unknown + sorted(counts, key=lambda word: (-counts[word], word))
    found = [frequency[word] for word in words]
    return Vocabulary(words, _reader(words, split), source, total, found, 0 if unknown else None)


def vocabulary_from_list(words: Iterable[str], source: str, texts: Sequence[str], split: Split) -> Vocabulary:
    """These words in their order, after a column for all others; documents are the texts."""
    known = list(dict.fromkeys([UNKNOWN, *words]))
    return _vocabulary(known, _reader(known, split), source, texts, 0)


def vocabulary_of_tokenizer(tokenizer: "Tokenizer", source: str, texts: Sequence[str]) -> Vocabulary:
    """The tokens of a tokenizer under their own numbers; documents are the texts."""
    words = [tokenizer.token(number) for number in range(len(tokenizer))]

    def read(text: str) -> list[VocabularyWord]:
        return [VocabularyWord(words[number], number) for number in tokenizer.encode(text)]

    return _vocabulary(words, read, source, texts, tokenizer.unknown)


def _reader(words: Sequence[str], split: Split) -> Callable[[str], list[VocabularyWord]]:
    columns = {word: column for column, word in enumerate(words)}
    return lambda text: [VocabularyWord(word, columns.get(word, 0)) for word in split(text)]


def _vocabulary(
    words: Sequence[str],
    read: Callable[[str], list[VocabularyWord]],
    source: str,
    texts: Sequence[str],
    unknown: int | None,
) -> Vocabulary:
    frequency = Counter(column for text in texts for column in {word.column for word in read(text)})
    return Vocabulary(words, read, source, len(texts), [frequency[column] for column in range(len(words))], unknown)


# --- the four encodings -----------------------------------------------------------------------------------------------


class Size(NamedTuple):
    """How large a text becomes."""

    encoding: str  # one-hot, counts, tf-idf, dense
    shape: tuple[int, ...]
    nonzero: int
    parameters: int  # numbers that are learned, once for all texts

    @property
    def numbers(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class Encoded:
    """A text, four ways; what would be mostly zeros is kept by what is not."""

    text: str
    words: list[VocabularyWord]
    vocabulary: Vocabulary

    @cached_property
    def columns(self) -> list[int]:
        """The one-hot matrix: row t has its 1 in column `columns[t]`."""
        return [word.column for word in self.words]

    @cached_property
    def counts(self) -> dict[int, int]:
        """The bag of words, by column."""
        return dict(sorted(Counter(self.columns).items()))

    @cached_property
    def tf_idf(self) -> dict[int, float]:
        return {column: count * float(self.vocabulary.idf[column]) for column, count in self.counts.items()}

    def one_hot(self, columns: Sequence[int]) -> Array:
        """Some columns of the one-hot matrix (T, columns)."""
        return (np.array(self.columns)[:, None] == np.array(columns)[None, :]).astype(float)

    def unknown(self) -> list[str]:
        """The words that the vocabulary lacks, each once."""
        return list(dict.fromkeys(word.text for word in self.words if word.column == self.vocabulary.unknown))

    def sizes(self, widths: Sequence[int], vocabulary: int | None = None) -> list[Size]:
        """With the vocabulary as it is, or as large as that."""
        length, v = len(self.words), len(self.vocabulary) if vocabulary is None else vocabulary
        return [
            Size("one-hot", (length, v), length, 0),
            Size("counts", (v,), len(self.counts), 0),
            Size("tf-idf", (v,), len(self.counts), 0),
            *(Size("dense", (length, width), length * width, v * width) for width in widths),
        ]


def encode(texts: Sequence[str], vocabulary: Vocabulary) -> list[Encoded]:
    """Read each text with a vocabulary; refuse one without words."""
    encoded = [Encoded(text, vocabulary.read(text), vocabulary) for text in texts]
    for number, one in enumerate(encoded, start=1):
        if not one.words:
            raise DataError(f"A text needs at least one word; text {number} has none: {one.text!r}.")
    return encoded


def dense_table(vocabulary: Vocabulary, width: int, seed: int = SEED) -> Array:
    """E (V, D) as a model begins with it: drawn from N(0, 1). Only training gives the numbers a meaning."""
    return np.random.default_rng(seed).normal(size=(len(vocabulary), width))


def nonzero_columns(texts: Iterable[Encoded], most: int | None = None) -> list[int]:
    """The columns that are not zero everywhere, in order: of the first words of each text, if there are too many."""
    return sorted({column for text in texts for column in text.columns[:most]})[:most]


@dataclass(frozen=True)
class Comparison:
    """Two texts, and whether each encoding tells them apart."""

    first: int
    second: int
    first_difference: int | None  # where their one-hot matrices differ first; None where they do not
    counts: float  # cosine of the two vectors, 1 for the same direction
    tf_idf: float
    mean: float  # distance of the means of their dense vectors
    state: float  # distance of the last states of a recurrent network that read them
    same_counts: bool

    @property
    def same_mean(self) -> bool:
        return self.mean < ALIKE

    @property
    def same_state(self) -> bool:
        return self.state < ALIKE


def compare(texts: Sequence[Encoded], first: int, second: int, width: int, seed: int = SEED) -> Comparison:
    """Texts number `first` and `second`, counted from 0; dense vectors and the network have `width` numbers."""
    one, other = texts[first], texts[second]
    table = dense_table(one.vocabulary, width, seed)
    states = last_states([one, other], table, seed)
    pairs = zip_longest(one.columns, other.columns)
    return Comparison(
        first=first,
        second=second,
        first_difference=next((position for position, (a, b) in enumerate(pairs) if a != b), None),
        counts=cosine(one.counts, other.counts),
        tf_idf=cosine(one.tf_idf, other.tf_idf),
        mean=float(np.linalg.norm(table[one.columns].mean(axis=0) - table[other.columns].mean(axis=0))),
        state=float(np.linalg.norm(states[0] - states[1])),
        same_counts=one.counts == other.counts,
    )


def cosine(one: Mapping[int, float], other: Mapping[int, float]) -> float:
    """Of two vectors, by column."""
    product = sum(value * other[column] for column, value in one.items() if column in other)
    lengths = [math.sqrt(sum(value * value for value in own.values())) for own in (one, other)]
    return product / math.prod(lengths)


def last_states(texts: Sequence[Encoded], table: Array, seed: int = SEED) -> list[Array]:
    """h_T of an untrained Elman network, as wide as its inputs, that read each text in order."""
    import torch

    from seqloom.nn.cells import Elman
    from seqloom.nn.recurrent import Recurrent

    width = table.shape[1]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        network = Recurrent(Elman(width, width)).double()
        rows = [torch.from_numpy(table[text.columns])[None] for text in texts]  # (1, T, D)
        return [network(own)[1]["h"][0].numpy() for own in rows]


# --- positions --------------------------------------------------------------------------------------------------------

Side = Literal["source", "target"]
WIDTH, LENGTH = 128, 100
LONGEST = 2000  # positions: products are made of any two
CURVES = 4


@dataclass(frozen=True, eq=False)
class PositionsView:
    """What a model is told of each position: the sinusoids, or a run's own table."""

    kind: Literal["sinusoidal", "learned", "rotary"]
    table: Array  # (length, width); of rotary the sine and cosine of the angles, which are as wide as a head
    layout: "Layout | None" = None  # None of what is learned
    base: float | None = None
    name: str = ""  # of the run

    @property
    def length(self) -> int:
        return len(self.table)

    @property
    def width(self) -> int:
        return self.table.shape[1]

    @cached_property
    def products(self) -> Array:
        return self.table @ self.table.T

    def _shares(self, reduce: Callable[[Array], Array]) -> Array:
        """PE(p) · PE(p + k) over all p, reduced for each k, as a share of the mean of PE(p) · PE(p)."""
        diagonals = [np.diagonal(self.products, distance) for distance in range(self.length)]
        return np.array(list(map(reduce, diagonals))) / (float(diagonals[0].mean()) or 1.0)

    @cached_property
    def by_distance(self) -> Array:
        return self._shares(np.mean)

    @cached_property
    def spread(self) -> tuple[Array, Array]:
        """The smallest and the largest product at each distance, as shares too."""
        return self._shares(np.min), self._shares(np.max)

    @property
    def wavelengths(self) -> list[float]:
        """After how many positions each pair of sine and cosine begins again; [] of what is learned."""
        if self.base is None:
            return []
        return [2 * math.pi * self.base ** (2 * pair / self.width) for pair in range(self.width // 2)]

    def sines(self, pair: int) -> int:
        """The dimension of a pair's sine."""
        return 2 * pair if self.layout == "interleaved" else pair

    def informative_dimensions(self, count: int = CURVES) -> list[int]:
        """A few dimensions worth a curve: sines from the fastest to one that still moves within the length; of what is
        learned, those that vary most."""
        if not self.wavelengths:
            return sorted(np.argsort(-self.table.std(axis=0), kind="stable")[:count].tolist())
        moving = sum(wave <= 4 * self.length for wave in self.wavelengths)
        pairs = np.linspace(0, max(moving - 1, 0), min(count, max(moving, 1))).round().astype(int)
        return [self.sines(int(pair)) for pair in dict.fromkeys(pairs.tolist())]

    def to_json(self) -> dict[str, object]:
        names = ("kind", "layout", "base", "length", "width", "wavelengths", "by_distance", "table")
        return to_plain({name: getattr(self, name) for name in names})


def sinusoids_view(
    width: int = WIDTH,
    length: int = LENGTH,
    layout: "Layout" = "interleaved",
    base: float | None = None,
    kind: Literal["sinusoidal", "rotary"] = "sinusoidal",
    name: str = "",
) -> PositionsView:
    """Sinusoids of any size. Rotary positions turn by the same angles; their `width` is that of a head."""
    from seqloom.nn.positions import BASE, sinusoid_table

    base = BASE if base is None else base
    if width < 2 or width % 2:
        raise UsageError(f"A sine and its cosine make a pair, so the width must be even, 2 at least; got {width}.")
    if base <= 1:
        raise UsageError(f"The base must be above 1; got {base:g}.")
    _check_length(length)
    return PositionsView(kind, sinusoid_table(length, width, layout, base).double().numpy(), layout, base, name)


def run_positions(trained: "TrainedModel", length: int | None = None, side: Side | None = None) -> PositionsView:
    """A run's own: what it adds to the tokens of its source (or its target: `side`) or of its text, a learned table or
    sinusoids; or the angles by which it turns queries and keys."""
    import torch

    from seqloom.models.bert import BERT
    from seqloom.models.electra import Electra
    from seqloom.models.gpt import GPT
    from seqloom.models.transformer import Transformer
    from seqloom.nn.positions import BASE

    model = trained.model
    if not isinstance(model, Transformer | GPT | BERT | Electra):
        kind = trained.run.recipe["model"]["kind"]
        raise UsageError(f"{trained.name} has no positions to look at: it is of kind {kind}, not a transformer.")
    config, positions = model.config, model.config.positions
    if positions.kind == "none":
        raise UsageError(f"{trained.name} knows no positions: its recipe says model.positions.kind=none.")
    known, layout, base = positions.longest, positions.layout or "interleaved", positions.base or BASE
    length = min(LENGTH, known or LENGTH) if length is None else length
    if positions.kind == "rotary":
        return sinusoids_view(config.d_model // config.heads, length, layout, base, "rotary", trained.name)
    _check_length(length, known)
    which = ""
    if isinstance(model, Transformer):
        embedded, which = model.target_embed if side == "target" else model.source_embed, f", {side or 'source'}"
    elif side is None:
        embedded = model.backbone.embedded
    else:
        raise UsageError(f"{trained.name} reads a text alone, and has one table: leave --side out.")
    assert embedded.positions is not None
    with torch.no_grad():
        table = embedded.positions(torch.arange(length)).double().cpu().numpy()
    if positions.kind == "learned":
        return PositionsView("learned", table, name=f"{trained.name}{which}")
    return PositionsView("sinusoidal", table, layout, base, trained.name)


def _check_length(length: int, known: int | None = None) -> None:
    longest = LONGEST if known is None else min(known, LONGEST)
    if not 1 <= length <= longest:
        can = f"{longest:,} positions can be shown at once"
        what = can if longest == LONGEST else f"The run knows {longest:,} positions"
        raise UsageError(f"{what}, and at least 1 must be; got --length {length}.")


@dataclass(frozen=True)
class MixView:
    """How much each layer has of h = γ Σ_j s_j h_j, the lowest first, where a task mixes the layers below it."""

    layers: list[str]
    weights: list[float]  # s, which sum to 1
    scale: float  # γ


def mix_view(trained: "TrainedModel") -> MixView:
    """The mix of a run that was fine-tuned from a bidirectional language model."""
    from torch import nn

    from seqloom.models.bilm import BiLMBackbone

    trained.run.tokenizer  # noqa: B018 (a run that is not about text says so here)
    modules = trained.model.modules() if isinstance(trained.model, nn.Module) else ()
    backbone = next((module for module in modules if isinstance(module, BiLMBackbone)), None)
    if backbone is None:
        raise UsageError(
            f"Only a model that was fine-tuned from a bidirectional language model (init.from) mixes its layers; "
            f"{trained.name} is {trained.description}."
        )
    weights = backbone.mix.layer_weights.tolist()
    names = ["token vectors", *(f"layer {depth}" for depth in range(1, len(weights)))]
    return MixView(names, weights, backbone.mix.scale.item())
