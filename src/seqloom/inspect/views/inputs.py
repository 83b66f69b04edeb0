"""Model inputs: four encodings of words, and positional encodings.

    one-hot   x_t = e_w            a row per word of the text, with a 1 in the column of the word             (T, V)
    counts    c = Σ_t e_w          one row for the whole text                                                 (V,)
    tf–idf    c_w · idf_w          idf_w = ln((1 + N) / (1 + df_w)) + 1                                       (V,)
    dense     x_t = e_w E          a row of a learned table E (V, D)                                          (T, D)

The vocabulary has V words; df_w of the N documents contain the word w. A sum does not depend on word order: texts with
the same words have the same counts and tf–idf, and a model that reads only these values cannot distinguish the texts.
A recurrent network can distinguish them, because it reads the rows in order.

    view = sinusoids_view(width=128, length=100)
    view.table          (length, width): row p is the encoding of position p
    view.products       (length, length): PE(p) · PE(q)
    view.by_distance    (length,): the mean of PE(p) · PE(p + k) over p, divided by the mean for k = 0

For sinusoids, PE(p) · PE(p + k) = Σ_i cos(k / base^(2i/d)) for every p, so sinusoids encode distances. Rotary positions
produce the same sum in q·k if q = k and all pairs have equal length.
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

if TYPE_CHECKING:  # counting words does not require torch
    from seqloom.inspect.capture import TrainedModel
    from seqloom.nn.positions import Layout
    from seqloom.text import Tokenizer

UNKNOWN = "<unk>"
SEED = 0
LARGE_VOCABULARIES = (10_000, 100_000)  # typical vocabulary sizes of models
TOLERANCE = 1e-9  # maximum distance of vectors that are equal except for rounding
Split = Callable[[str], list[str]]


# --- vocabularies -----------------------------------------------------------------------------------------------------


class VocabularyWord(NamedTuple):
    """A word of a text."""

    text: str
    column: int  # index of the 1 in its one-hot vector


@dataclass(frozen=True)
class Vocabulary:
    """Words by column, with their document frequencies."""

    words: Sequence[str]
    read: Callable[[str], list[VocabularyWord]]
    source: str  # origin of the words
    documents: int  # N
    frequency: Sequence[int]  # df of each word
    unknown: int | None = None  # column of unknown words

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def idf(self) -> Array:
        return np.log((1 + self.documents) / (1 + np.asarray(self.frequency))) + 1


def splitter(keep_case: bool = False) -> Split:
    """Return a function that splits texts into words and punctuation.

    Scripts without spaces are split into characters. <unk> is a word.
    """

    def split(text: str) -> list[str]:
        parts = (text if keep_case else text.lower()).split(UNKNOWN)
        words = [[part[start:end] for start, end in word_spans(part)] for part in parts]
        return [*words[0], *(word for part_words in words[1:] for word in [UNKNOWN, *part_words])]

    return split


def vocabulary_of(documents: Iterable[str], source: str, split: Split, *, unknown: bool = True) -> Vocabulary:
    """Build a vocabulary from documents, most frequent words first. `unknown` adds a column for all other words."""
    counts, frequency, total = Counter[str](), Counter[str](), 0
    for document in documents:
        words = split(document)
        counts.update(words)
        frequency.update(set(words))
        total += 1
    if unknown:
        counts.pop(UNKNOWN, None)  # <unk> already has a column
    words = [UNKNOWN] * unknown + sorted(counts, key=lambda word: (-counts[word], word))
    frequencies = [frequency[word] for word in words]
    return Vocabulary(words, _reader(words, split), source, total, frequencies, 0 if unknown else None)


def vocabulary_from_list(words: Iterable[str], source: str, texts: Sequence[str], split: Split) -> Vocabulary:
    """Build a vocabulary with a column for unlisted words, then the listed words.

    The texts are the documents of the vocabulary.
    """
    listed = list(dict.fromkeys([UNKNOWN, *words]))
    return _vocabulary(listed, _reader(listed, split), source, texts, 0)


def vocabulary_of_tokenizer(tokenizer: "Tokenizer", source: str, texts: Sequence[str]) -> Vocabulary:
    """Build the vocabulary of a tokenizer, in the order of token ids. The texts are the documents of the vocabulary."""
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
    """The size of an encoded text."""

    encoding: str  # one-hot, counts, tf-idf, dense
    shape: tuple[int, ...]
    nonzero: int
    parameters: int  # learned parameters, stored once for all texts

    @property
    def numbers(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class Encoded:
    """A text in four encodings, stored sparsely."""

    text: str
    words: list[VocabularyWord]
    vocabulary: Vocabulary

    @cached_property
    def columns(self) -> list[int]:
        """The one-hot matrix: row t has a 1 in column `columns[t]`."""
        return [word.column for word in self.words]

    @cached_property
    def counts(self) -> dict[int, int]:
        """The bag of words, by column."""
        return dict(sorted(Counter(self.columns).items()))

    @cached_property
    def tf_idf(self) -> dict[int, float]:
        return {column: count * float(self.vocabulary.idf[column]) for column, count in self.counts.items()}

    def one_hot(self, columns: Sequence[int]) -> Array:
        """Return some columns of the one-hot matrix (T, columns)."""
        return (np.array(self.columns)[:, None] == np.array(columns)[None, :]).astype(float)

    def unknown(self) -> list[str]:
        """Return the distinct words that are not in the vocabulary."""
        return list(dict.fromkeys(word.text for word in self.words if word.column == self.vocabulary.unknown))

    def sizes(self, widths: Sequence[int], vocabulary: int | None = None) -> list[Size]:
        """Return the sizes of all encodings, for this vocabulary or for another vocabulary size."""
        length, v = len(self.words), len(self.vocabulary) if vocabulary is None else vocabulary
        return [
            Size("one-hot", (length, v), length, 0),
            Size("counts", (v,), len(self.counts), 0),
            Size("tf-idf", (v,), len(self.counts), 0),
            *(Size("dense", (length, width), length * width, v * width) for width in widths),
        ]


def encode(texts: Sequence[str], vocabulary: Vocabulary) -> list[Encoded]:
    """Encode texts with a vocabulary. Raise an error for a text without words."""
    encoded = [Encoded(text, vocabulary.read(text), vocabulary) for text in texts]
    for number, text in enumerate(encoded, start=1):
        if not text.words:
            raise DataError(f"A text must have at least one word, but text {number} has none: {text.text!r}.")
    return encoded


def dense_table(vocabulary: Vocabulary, width: int, seed: int = SEED) -> Array:
    """Return an initial table E (V, D), sampled from N(0, 1)."""
    return np.random.default_rng(seed).normal(size=(len(vocabulary), width))


def nonzero_columns(texts: Iterable[Encoded], max_columns: int | None = None) -> list[int]:
    """Return at most `max_columns` nonzero columns in order, starting with the first words of each text."""
    return sorted({column for text in texts for column in text.columns[:max_columns]})[:max_columns]


@dataclass(frozen=True)
class Comparison:
    """The differences between two texts in each encoding."""

    first: int
    second: int
    first_difference: int | None  # first row in which the one-hot matrices differ; None if the matrices are equal
    counts: float  # cosine of the two count vectors
    tf_idf: float
    mean: float  # distance of the means of the dense vectors
    state: float  # distance of the last states of a recurrent network
    same_counts: bool

    @property
    def same_mean(self) -> bool:
        return self.mean < TOLERANCE

    @property
    def same_state(self) -> bool:
        return self.state < TOLERANCE


def compare(texts: Sequence[Encoded], first: int, second: int, width: int, seed: int = SEED) -> Comparison:
    """Compare two texts by index. The dense vectors and the network have the size `width`."""
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
    """Return the cosine of two sparse vectors."""
    product = sum(value * other[column] for column, value in one.items() if column in other)
    lengths = [math.sqrt(sum(value * value for value in vector.values())) for vector in (one, other)]
    return product / math.prod(lengths)


def last_states(texts: Sequence[Encoded], table: Array, seed: int = SEED) -> list[Array]:
    """Return h_T of an untrained Elman network for each text. The hidden size of the network equals its input size."""
    import torch

    from seqloom.nn.cells import Elman
    from seqloom.nn.recurrent import Recurrent

    width = table.shape[1]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        network = Recurrent(Elman(width, width)).double()
        rows = [torch.from_numpy(table[text.columns])[None] for text in texts]  # (1, T, D)
        return [network(row)[1]["h"][0].numpy() for row in rows]


# --- positions --------------------------------------------------------------------------------------------------------

Side = Literal["source", "target"]
DEFAULT_WIDTH, DEFAULT_LENGTH = 128, 100
MAX_LENGTH = 2000  # limit, because all pairwise products are computed
DEFAULT_CURVES = 4


@dataclass(frozen=True, eq=False)
class PositionsView:
    """Positional encodings: sinusoids of any size, or the encodings of a run."""

    kind: Literal["sinusoidal", "learned", "rotary"]
    # (length, width); for rotary positions, the sine and cosine of the angles, with the head size as width
    table: Array
    layout: "Layout | None" = None  # None for learned positions
    base: float | None = None
    name: str = ""  # name of the run

    @property
    def length(self) -> int:
        return len(self.table)

    @property
    def width(self) -> int:
        return self.table.shape[1]

    @cached_property
    def products(self) -> Array:
        return self.table @ self.table.T

    def _relative_products(self, reduce: Callable[[Array], Array]) -> Array:
        """Return PE(p) · PE(p + k), reduced over p for each k and divided by the mean of PE(p) · PE(p)."""
        diagonals = [np.diagonal(self.products, distance) for distance in range(self.length)]
        return np.array(list(map(reduce, diagonals))) / (float(diagonals[0].mean()) or 1.0)

    @cached_property
    def by_distance(self) -> Array:
        return self._relative_products(np.mean)

    @cached_property
    def spread(self) -> tuple[Array, Array]:
        """The smallest and the largest product at each distance, relative to the mean at distance 0."""
        return self._relative_products(np.min), self._relative_products(np.max)

    @property
    def wavelengths(self) -> list[float]:
        """The wavelength in positions of each pair of sine and cosine; empty for learned positions."""
        if self.base is None:
            return []
        return [2 * math.pi * self.base ** (2 * pair / self.width) for pair in range(self.width // 2)]

    def sines(self, pair: int) -> int:
        """Return the dimension of the sine of a pair."""
        return 2 * pair if self.layout == "interleaved" else pair

    def informative_dimensions(self, count: int = DEFAULT_CURVES) -> list[int]:
        """Select dimensions to plot.

        For sinusoids, these are sines, from the shortest wavelength to the longest wavelength that varies within the
        length. For learned encodings, these are the dimensions that vary most.
        """
        if not self.wavelengths:
            return sorted(np.argsort(-self.table.std(axis=0), kind="stable")[:count].tolist())
        moving = sum(wave <= 4 * self.length for wave in self.wavelengths)
        pairs = np.linspace(0, max(moving - 1, 0), min(count, max(moving, 1))).round().astype(int)
        return [self.sines(int(pair)) for pair in dict.fromkeys(pairs.tolist())]

    def to_json(self) -> dict[str, object]:
        names = ("kind", "layout", "base", "length", "width", "wavelengths", "by_distance", "table")
        return to_plain({name: getattr(self, name) for name in names})


def sinusoids_view(
    width: int = DEFAULT_WIDTH,
    length: int = DEFAULT_LENGTH,
    layout: "Layout" = "interleaved",
    base: float | None = None,
    kind: Literal["sinusoidal", "rotary"] = "sinusoidal",
    name: str = "",
) -> PositionsView:
    """Compute sinusoids of any size. Rotary positions use the same angles, and `width` is the head size."""
    from seqloom.nn.positions import BASE, sinusoid_table

    base = BASE if base is None else base
    if width < 2 or width % 2:
        raise UsageError(f"The width must be even and at least 2, for pairs of sine and cosine; got {width}.")
    if base <= 1:
        raise UsageError(f"The base must be above 1; got {base:g}.")
    _check_length(length)
    return PositionsView(kind, sinusoid_table(length, width, layout, base).double().numpy(), layout, base, name)


def run_positions(trained: "TrainedModel", length: int | None = None, side: Side | None = None) -> PositionsView:
    """Return the positional encodings of a run.

    These are the learned table or the sinusoids that are added to the tokens of the text or of one `side`. For rotary
    positions, they are the rotation angles of queries and keys.
    """
    import torch

    from seqloom.models.bert import BERT
    from seqloom.models.electra import Electra
    from seqloom.models.gpt import GPT
    from seqloom.models.transformer import Transformer
    from seqloom.nn.positions import BASE

    model = trained.model
    if not isinstance(model, Transformer | GPT | BERT | Electra):
        kind = trained.run.recipe["model"]["kind"]
        raise UsageError(f"{trained.name} has no position encodings: it is of kind {kind}, not a Transformer.")
    config, positions = model.config, model.config.positions
    if positions.kind == "none":
        raise UsageError(f"{trained.name} has no position encodings: its recipe has model.positions.kind=none.")
    max_length, layout, base = positions.longest, positions.layout or "interleaved", positions.base or BASE
    length = min(DEFAULT_LENGTH, max_length or DEFAULT_LENGTH) if length is None else length
    if positions.kind == "rotary":
        return sinusoids_view(config.d_model // config.heads, length, layout, base, "rotary", trained.name)
    _check_length(length, max_length)
    suffix = ""
    if isinstance(model, Transformer):
        embedded, suffix = model.target_embed if side == "target" else model.source_embed, f", {side or 'source'}"
    elif side is None:
        embedded = model.backbone.embedded
    else:
        raise UsageError(f"{trained.name} reads a single text and has one table; omit --side.")
    assert embedded.positions is not None
    with torch.no_grad():
        table = embedded.positions(torch.arange(length)).double().cpu().numpy()
    if positions.kind == "learned":
        return PositionsView("learned", table, name=f"{trained.name}{suffix}")
    return PositionsView("sinusoidal", table, layout, base, trained.name)


def _check_length(length: int, max_length: int | None = None) -> None:
    limit = MAX_LENGTH if max_length is None else min(max_length, MAX_LENGTH)
    if not 1 <= length <= limit:
        whose = "" if limit == MAX_LENGTH else ", the positions of the run"
        raise UsageError(f"--length must be from 1 to {limit:,}{whose}; got {length}.")


@dataclass(frozen=True)
class MixView:
    """The weights s_j of the layers in h = γ Σ_j s_j h_j, lowest layer first, for a model with a layer mix."""

    layers: list[str]
    weights: list[float]  # s, with sum 1
    scale: float  # γ


def mix_view(trained: "TrainedModel") -> MixView:
    """Return the layer mix of a run that was fine-tuned from a bidirectional language model."""
    from torch import nn

    from seqloom.models.bilm import BiLMBackbone

    trained.run.tokenizer  # noqa: B018 (raises an error for a run without text)
    modules = trained.model.modules() if isinstance(trained.model, nn.Module) else ()
    backbone = next((module for module in modules if isinstance(module, BiLMBackbone)), None)
    if backbone is None:
        raise UsageError(
            f"Only a model fine-tuned from a bidirectional language model (init.from) has a layer mix; {trained.name} "
            f"is {trained.description}."
        )
    weights = backbone.mix.layer_weights.tolist()
    names = ["token vectors", *(f"layer {depth}" for depth in range(1, len(weights)))]
    return MixView(names, weights, backbone.mix.scale.item())
