"""Words as numbers, four ways: one-hot, bag of words, tf–idf, dense.

    one-hot   x_t = e_w            a row for each word of the text, a single 1 in the column of that word     (T, V)
    counts    c = Σ_t e_w          one row for the whole text                                                 (V,)
    tf–idf    c_w · idf_w          idf_w = ln((1 + N) / (1 + df_w)) + 1                                       (V,)
    dense     x_t = e_w E          a row of a table E (V, D) that is learned                                  (T, D)

V words are in the vocabulary; df_w of the N documents have the word w. A sum does not know in which order it was made:
texts with the same words have the same counts and the same tf–idf, and no model that reads only these can tell them
apart (C01). A recurrent network reads the rows one after the other and can.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqloom.core.errors import DataError
from seqloom.evaluate.alignment import word_spans

if TYPE_CHECKING:
    from seqloom.text import Tokenizer

UNKNOWN = "<unk>"
SEED = 0
LARGE = (10_000, 100_000)  # vocabularies as models have them
ALIKE = 1e-9  # distance up to which vectors are the same but for the order in which they were added up
Array = NDArray[np.floating[Any]]
Split = Callable[[str], list[str]]


# --- vocabularies ---------------------------------------------------------------------------------------------------


class Word(NamedTuple):
    text: str  # as it stands in the text
    column: int  # where its one-hot vector has its 1


@dataclass(frozen=True)
class Vocabulary:
    words: Sequence[str]  # by column
    read: Callable[[str], list[Word]]
    source: str  # where the words come from
    documents: int  # N
    frequency: Sequence[int]  # df of each word
    unknown: int | None = None  # the column of all words that are not here

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def idf(self) -> Array:
        found: Array = np.log((1 + self.documents) / (1 + np.asarray(self.frequency))) + 1
        return found


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
    return Vocabulary(
        words, _reader(words, split), source, total, [frequency[word] for word in words], 0 if unknown else None
    )


def vocabulary_from_list(words: Iterable[str], source: str, texts: Sequence[str], split: Split) -> Vocabulary:
    """These words in their order, after a column for all others; documents are the texts."""
    known = list(dict.fromkeys([UNKNOWN, *words]))
    return _of_texts(known, _reader(known, split), source, texts, 0)


def vocabulary_of_tokenizer(tokenizer: "Tokenizer", source: str, texts: Sequence[str]) -> Vocabulary:
    """The tokens of a tokenizer under their own numbers; documents are the texts."""
    words = [tokenizer.token(number) for number in range(len(tokenizer))]

    def read(text: str) -> list[Word]:
        return [Word(words[number], number) for number in tokenizer.encode(text)]

    return _of_texts(words, read, source, texts, tokenizer.unknown)


def _reader(words: Sequence[str], split: Split) -> Callable[[str], list[Word]]:
    columns = {word: column for column, word in enumerate(words)}
    return lambda text: [Word(word, columns.get(word, 0)) for word in split(text)]


def _of_texts(
    words: Sequence[str], read: Callable[[str], list[Word]], source: str, texts: Sequence[str], unknown: int | None
) -> Vocabulary:
    frequency = Counter(column for text in texts for column in {word.column for word in read(text)})
    return Vocabulary(words, read, source, len(texts), [frequency[column] for column in range(len(words))], unknown)


# --- the four encodings ---------------------------------------------------------------------------------------------


class Size(NamedTuple):
    """How large a text becomes."""

    encoding: str  # one-hot, counts, tf-idf, dense
    shape: tuple[int, ...]
    not_zero: int
    table: int  # numbers that are learned, once for all texts

    @property
    def numbers(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class Encoded:
    """A text, four ways; what would be mostly zeros is kept by what is not."""

    text: str
    words: list[Word]
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
    found = [Encoded(text, vocabulary.read(text), vocabulary) for text in texts]
    for number, one in enumerate(found, start=1):
        if not one.words:
            raise DataError(f"A text needs at least one word; text {number} has none: {one.text!r}.")
    return found


def dense_table(vocabulary: Vocabulary, width: int, seed: int = SEED) -> Array:
    """E (V, D) as a model begins with it: drawn from N(0, 1). Only training gives the numbers a meaning."""
    return np.random.default_rng(seed).normal(size=(len(vocabulary), width))


def occurring(texts: Iterable[Encoded], most: int | None = None) -> list[int]:
    """The columns that are not zero everywhere, in order: of the first words of each text, if there are too many."""
    return sorted({column for text in texts for column in text.columns[:most]})[:most]


# --- what can be told apart -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """Two texts, and whether each encoding tells them apart."""

    first: int
    second: int
    place: int | None  # where their one-hot matrices differ first; None where they do not
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
    return Comparison(
        first=first,
        second=second,
        place=_first_difference(one.columns, other.columns),
        counts=cosine(one.counts, other.counts),
        tf_idf=cosine(one.tf_idf, other.tf_idf),
        mean=float(np.linalg.norm(table[one.columns].mean(axis=0) - table[other.columns].mean(axis=0))),
        state=float(np.linalg.norm(states[0] - states[1])),
        same_counts=one.counts == other.counts,
    )


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    if list(one) == list(other):
        return None
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


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
