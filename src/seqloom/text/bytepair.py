"""Byte-pair encoding, learned from data by the `tokenizers` library.

Words are cut into bytes; the pair of neighbours that is most frequent within words becomes a token,
again and again. Since every byte is a token, a character never seen in training falls back to its
bytes, and every text can be spelled.
"""

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

import numpy as np
from tokenizers import Regex
from tokenizers import Tokenizer as Library
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.pre_tokenizers import Sequence as PreTokenizers
from tokenizers.trainers import BpeTrainer

from seqloom.config import config
from seqloom.config.constraints import Ge, Le, Probability
from seqloom.core import END
from seqloom.core.device import derive
from seqloom.core.errors import DataError
from seqloom.core.limits import MAX_VOCABULARY
from seqloom.core.progress import track
from seqloom.text.base import (
    END_TEXT,
    ByteStream,
    StreamDecoder,
    Tokenizer,
    batches,
    check_ids,
    cut_at_spaces,
    require_text,
)

# Merges stay within one of these: a word with the space or apostrophe before it, a number, a run of other marks, or
# white space. \p{M} keeps combining marks with their letters.
WORD = r"[ '’]?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"
SHIFT = 1  # the library's ids begin after END, which is not in its vocabulary: no text can produce it
MIN_PAIRS = 2  # a pair seen once is not worth a token


@config
class BytePairConfig:
    kind: Literal["byte-pair"] = "byte-pair"
    size: Annotated[int, Ge(257), Le(MAX_VOCABULARY)] = 8000  # tokens at most, the 256 bytes and </s> included
    dropout: Probability = 0.0  # share of the merges skipped at random in training; see DropoutTexts


# The printable letter that stands for each byte in the library's vocabulary: bytes that Latin-1 prints stand for
# themselves; the others, in order, for the letters from U+0100 on.
_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_SUBSTITUTES = map(chr, range(0x100, 0x200))
_BYTE_OF = {chr(byte) if byte in _PRINTABLE else next(_SUBSTITUTES): byte for byte in range(256)}


def _spelled(token: str) -> bytes:
    return bytes(_BYTE_OF[letter] for letter in token)


def _shown(spelling: bytes) -> str:
    try:
        return spelling.decode()
    except UnicodeDecodeError:
        return "".join(f"<0x{byte:02X}>" for byte in spelling)


def byte_text(token: str) -> str:
    """A token of letters that stand for bytes, as text; one of other letters as it is."""
    return _shown(_spelled(token)) if _BYTE_OF.keys() >= set(token) else token


class BytePair(Tokenizer):
    """END, the 256 bytes, then the merges in the order they were learned.

    Of pairs equally frequent the one with the smaller ids comes first, so the text alone decides.
    Any Unicode text comes back exactly: nothing is normalised.
    """

    kind = "byte-pair"
    begins_words_with_space = True

    def __init__(self, library: Library) -> None:
        self._library = library
        self._vocabulary: dict[str, int] = library.get_vocab(with_added_tokens=False)
        self._bytes = [b"", *map(_spelled, sorted(self._vocabulary, key=self._vocabulary.__getitem__))]

    @classmethod
    def train(cls, config: BytePairConfig, texts: Iterable[str]) -> Self:
        library = Library(BPE())
        words, as_letters = Split(Regex(WORD), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)
        library.pre_tokenizer = PreTokenizers([words, as_letters])
        trainer = BpeTrainer(
            vocab_size=config.size - SHIFT,
            min_frequency=MIN_PAIRS,
            show_progress=False,
            initial_alphabet=ByteLevel.alphabet(),
        )
        lengths = [0]  # of all texts together; the library itself accepts none

        def pieces() -> Iterator[str]:
            for text in texts:
                lengths[0] += len(text)
                yield from cut_at_spaces(text)

        library.train_from_iterator(track(pieces(), "learning the tokenizer", texts), trainer)
        require_text(lengths[0])
        return cls(library)

    def __len__(self) -> int:
        return len(self._bytes)

    def encode(self, text: str) -> list[int]:
        return next(iter(self.encode_batch([text])))

    def cut(self, text: str) -> Iterator[str]:
        return cut_at_spaces(text)

    def _encode_all(self, pieces: Iterable[str]) -> Iterator[list[int]]:
        for batch in batches(pieces):
            try:
                encodings = self._library.encode_batch_fast(batch, add_special_tokens=False)
            except TypeError:
                raise not_unicode(batch) from None
            for encoding in encodings:
                yield [id + SHIFT for id in encoding.ids]

    def stream(self) -> StreamDecoder:
        return ByteStream(self.spelled)

    def spelled(self, token: int) -> bytes:
        """The bytes that a token adds to a text."""
        check_ids([token], len(self))
        return self._bytes[token]

    def token(self, token: int) -> str:
        """The token's text; bytes that are no whole character are shown as <0xE2>."""
        return END_TEXT if token == END else _shown(self.spelled(token))

    def merges(self) -> list[tuple[bytes, bytes]]:
        """What was joined, in the order it was learned."""
        merges = self.content()["library"]["model"]["merges"]
        return [(_spelled(left), _spelled(right)) for left, right in merges]

    def words(self, text: str) -> list[tuple[int, ...]]:
        """The parts of a text that merges stay within, each as the ids of its bytes."""
        vocabulary = self._vocabulary
        found = self._library.pre_tokenizer.pre_tokenize_str(text)
        return [tuple(vocabulary[letter] + SHIFT for letter in word) for word, _ in found]

    def joins(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Two ids that may be joined → when that was learned, the first being 0, and the id of both together."""
        vocabulary, merges = self._vocabulary, self.content()["library"]["model"]["merges"]
        return {
            (vocabulary[left] + SHIFT, vocabulary[right] + SHIFT): (rank, vocabulary[left + right] + SHIFT)
            for rank, (left, right) in enumerate(merges)
        }

    def content(self) -> dict[str, Any]:
        return {"library": json.loads(self._library.to_str())}

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> Self:
        try:
            library = Library.from_str(json.dumps(content["library"]))
        except KeyError:
            raise
        except Exception as error:  # the library raises no narrower class
            raise ValueError(f"the tokenizers library cannot read it ({error})") from error
        vocabulary = library.get_vocab(with_added_tokens=False)
        whole = sorted(vocabulary.values()) == list(range(len(vocabulary))) and vocabulary.keys() >= set(_BYTE_OF)
        if not whole or library.get_added_tokens_decoder():
            raise ValueError("its vocabulary must hold all 256 bytes, numbered without gaps, and nothing added")
        return cls(library)


def not_unicode(texts: list[str]) -> Exception:
    """A string may hold half a surrogate pair (from a command line that is not UTF-8, say); no encoding spells it."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            return DataError(
                f"Text must be valid Unicode, but character {error.start + 1} is the lone surrogate "
                f"U+{ord(text[error.start]):04X}. Pass the text as UTF-8."
            )
    return TypeError(f"encode takes strings, got {[type(text).__name__ for text in texts]}")


# --- byte-pair dropout ------------------------------------------------------------------------------------------------


VARIANTS = 32  # segmentations of a word among which a step chooses

Joins = Mapping[tuple[int, int], tuple[int, int]]
Word = tuple[int, ...]


def segment(word: Sequence[int], joins: Joins, rate: float, draw: Callable[[], float]) -> Word:
    """The bytes of a word, joined as far as chance allows; `draw` gives numbers from 0 up to 1."""
    pieces = list(word)
    while True:
        possible = [
            (*joins[pair], place)
            for place, pair in enumerate(pairwise(pieces))
            if pair in joins and (not rate or draw() >= rate)
        ]
        if not possible:
            return tuple(pieces)
        _, joined, place = min(possible, key=lambda one: (one[0], one[2]))  # of equals the leftmost
        pieces[place : place + 2] = [joined]


class DropoutTexts:
    """Texts that are segmented anew at each reading (Provilkov et al., 2020).

    A word begins as its bytes. At each turn every pair of neighbours that may be joined is passed
    over with chance p; of those left, the one learned first is joined; when none is left, the word
    is done. With p = 0 that is the plain segmentation, with p = 1 the bytes. Only training reads
    text so: what is evaluated or translated is segmented plainly.

    The `tokenizers` library can do this too, but draws from a generator nobody can seed. Here the
    texts of a step are a function of seed and step: a word has `VARIANTS` segmentations, each drawn
    from the seed, the word and its number when it is first needed, and the step's own draws say
    which is read. So a word is rarely worked out anew.
    """

    def __init__(self, tokenizer: BytePair, texts: Iterable[str], rate: float):
        self.rate, self._joins = rate, tokenizer.joins()
        numbers: dict[Word, int] = {}
        found = [
            np.array([numbers.setdefault(word, len(numbers)) for word in tokenizer.words(text)], dtype=np.int32)
            for text in texts
        ]
        self._texts, self._words = found, list(numbers)
        self._seed: int | None = None
        self._variants: list[list[Word | None]] = []

    def draw(self, chosen: Iterable[int], seed: int, *path: int | str) -> list[list[int]]:
        """The chosen texts as ids, a pure function of the arguments: `path` says which reading it is."""
        if seed != self._seed:
            self._seed, self._variants = seed, [[None] * VARIANTS for _ in self._words]
        drawn = np.random.default_rng(derive(seed, "byte-pair dropout", *path))
        texts: list[list[int]] = []
        for index in chosen:
            words = self._texts[index]
            numbers = drawn.integers(VARIANTS, size=len(words)).tolist()
            pairs = zip(words.tolist(), numbers, strict=True)
            texts.append([id for word, number in pairs for id in self._variant(word, number)])
        return texts

    def _variant(self, word: int, number: int) -> Word:
        """One of the segmentations of a word, drawn when it is first needed."""
        variant = self._variants[word][number]
        if variant is None:
            draw = random.Random(f"{self._seed}/{number}/{self._words[word]}").random
            variant = self._variants[word][number] = segment(self._words[word], self._joins, self.rate, draw)
        return variant
