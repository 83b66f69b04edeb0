"""Byte-pair encoding, learned from data by the `tokenizers` library.

Words are cut into bytes; the pair of neighbours that is most frequent within words becomes a token, again and again.
Since every byte is a token, a character never seen in training falls back to its bytes, and every text can be spelled.
"""

import codecs
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

import numpy as np
from tokenizers import Regex
from tokenizers import Tokenizer as Library
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Split
from tokenizers.pre_tokenizers import Sequence as PreTokenizers
from tokenizers.trainers import BpeTrainer

from seqloom.config import config
from seqloom.config.constraints import Ge, Le, Probability
from seqloom.core.device import derive
from seqloom.core.errors import DataError
from seqloom.core.limits import MAX_VOCABULARY
from seqloom.core.progress import track
from seqloom.text.base import END, END_TEXT, StreamDecoder, Tokenizer, check_ids, require_text
from seqloom.text.pieces import batches, cut_at_spaces

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


def _byte_letters() -> list[str]:
    """The printable letter that stands for each byte in the library's vocabulary.

    Bytes that Latin-1 prints stand for themselves; the others, in order, for the letters from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    substitutes = map(chr, range(0x100, 0x200))
    return [chr(byte) if byte in printable else next(substitutes) for byte in range(256)]


_BYTE_OF = {letter: byte for byte, letter in enumerate(_byte_letters())}


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

    Of pairs equally frequent the one with the smaller ids comes first, so the text alone decides. Any Unicode text
    comes back exactly: nothing is normalised.
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
        library.pre_tokenizer = _pre_tokenizer()
        trainer = BpeTrainer(
            vocab_size=config.size - SHIFT,
            min_frequency=MIN_PAIRS,
            show_progress=False,
            initial_alphabet=ByteLevel.alphabet(),
        )
        seen = _Seen(texts)
        library.train_from_iterator(track(seen, "learning the tokenizer", texts), trainer)
        require_text(seen.any)
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
        return _ByteStream(self._bytes)

    def token(self, token: int) -> str:
        """The token's text; bytes that are no whole character are shown as <0xE2>."""
        check_ids([token], len(self))
        if token == END:
            return END_TEXT
        return _shown(self._bytes[token])

    def unknown_pieces(self, text: str) -> list[str]:
        return []

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


class _Seen:
    """Passes texts on, a piece at a time, and remembers whether there were any; the library itself accepts none."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts, self.any = texts, False

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            self.any = self.any or bool(text)
            yield from cut_at_spaces(text)


class _ByteStream(StreamDecoder):
    """Holds bytes back until they make a character; bytes that never will become U+FFFD."""

    def __init__(self, spellings: list[bytes]) -> None:
        self._bytes = spellings
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        check_ids([token], len(self._bytes))
        return self._decoder.decode(self._bytes[token], final=token == END)

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


def _pre_tokenizer() -> PreTokenizer:
    return PreTokenizers([Split(Regex(WORD), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)])


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

    A word begins as its bytes. At each turn every pair of neighbours that may be joined is passed over with chance p;
    of those left, the one learned first is joined; when none is left, the word is done. With p = 0 that is the plain
    segmentation, with p = 1 the bytes. Only training reads text so: what is evaluated or translated is segmented
    plainly.

    The `tokenizers` library can do this too, but draws from a generator nobody can seed. Here the texts of a step are a
    function of seed and step: a word has `VARIANTS` segmentations, each drawn from the seed, the word and its number
    when it is first needed, and the step's own draws say which is read. So a word is rarely worked out anew.
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
        return [self._read(self._texts[index], drawn) for index in chosen]

    def _read(self, words: np.ndarray, drawn: np.random.Generator) -> list[int]:
        ids: list[int] = []
        for word, number in zip(words.tolist(), drawn.integers(VARIANTS, size=len(words)).tolist(), strict=True):
            ids += self._variants[word][number] or self._variant(word, number)
        return ids

    def _variant(self, word: int, number: int) -> Word:
        draw = random.Random(f"{self._seed}/{number}/{self._words[word]}").random
        made = self._variants[word][number] = segment(self._words[word], self._joins, self.rate, draw)
        return made
