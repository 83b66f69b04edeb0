"""Byte-pair encoding, trained by the `tokenizers` library.

Words are divided into bytes, and the most frequent pair of adjacent tokens is merged repeatedly. Every byte is a token,
so unseen characters are encoded as bytes, and every text can be encoded. `DropoutTexts` segments training texts again
for each batch by BPE dropout.
"""

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Literal, Self

import numpy as np
from tokenizers import Regex
from tokenizers import Tokenizer as Library
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.pre_tokenizers import Sequence as PreTokenizers
from tokenizers.trainers import BpeTrainer

from seqloom.config import config
from seqloom.config.constraints import Ge, Le, Probability
from seqloom.core import END, Json
from seqloom.core.device import derive_seed
from seqloom.core.errors import DataError
from seqloom.core.limits import MAX_VOCABULARY
from seqloom.core.progress import track
from seqloom.text.base import (
    END_TEXT,
    ByteStream,
    StreamDecoder,
    Tokenizer,
    batch_texts,
    check_ids,
    cut_at_spaces,
    require_text,
)

# Merges stay within these pre-tokens: a word with the space or apostrophe before it, a number, a sequence of other
# symbols, or white space. \p{M} keeps combining marks together with their letters.
WORD = r"[ '’]?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"
ID_OFFSET = 1  # the library's ids start after END, which is not in the library's vocabulary
MIN_PAIR_COUNT = 2  # pairs with a smaller count are not merged


@config
class BytePairConfig:
    kind: Literal["byte-pair"] = "byte-pair"
    size: Annotated[int, Ge(257), Le(MAX_VOCABULARY)] = 8000  # maximum vocabulary size, with the 256 bytes and </s>
    dropout: Probability = 0.0  # probability of skipping a merge in training (BPE dropout)


# The byte of each letter in the vocabulary of the library. A printable Latin-1 letter represents its own byte, and the
# letters from U+0100 represent the other bytes in ascending order.
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {chr(0x100 + i): byte for i, byte in enumerate(_OTHERS)}


def _to_bytes(token: str) -> bytes:
    return bytes(_BYTE_OF[letter] for letter in token)


def token_text(content: bytes) -> str:
    """Return the text of a token's bytes; the bytes of an incomplete character are shown as <0xE2>."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "".join(f"<0x{byte:02X}>" for byte in content)


def byte_text(token: str) -> str:
    """Decode a token whose letters represent bytes. Return other tokens unchanged."""
    return token_text(_to_bytes(token)) if _BYTE_OF.keys() >= set(token) else token


def token_bytes(token: str) -> bytes:
    """Return the bytes of a token, whether or not its letters represent bytes."""
    return _to_bytes(token) if _BYTE_OF.keys() >= set(token) else token.encode()


class BytePair(Tokenizer):
    """A tokenizer with END, the 256 bytes, and the merges in the order in which training learned them.

    If pairs have equal counts, the pair with the smaller ids is merged first, so training is deterministic. Text is not
    normalized: decode(encode(x)) = x for any Unicode text.
    """

    kind = "byte-pair"
    begins_words_with_space = True

    def __init__(self, library: Library) -> None:
        self._library = library
        self._vocabulary: dict[str, int] = library.get_vocab(with_added_tokens=False)
        self._bytes = [b"", *map(_to_bytes, sorted(self._vocabulary, key=self._vocabulary.__getitem__))]

    @classmethod
    def train(cls, config: BytePairConfig, texts: Iterable[str]) -> Self:
        library = Library(BPE())
        words, as_letters = Split(Regex(WORD), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)
        library.pre_tokenizer = PreTokenizers([words, as_letters])
        trainer = BpeTrainer(
            vocab_size=config.size - ID_OFFSET,
            min_frequency=MIN_PAIR_COUNT,
            show_progress=False,
            initial_alphabet=ByteLevel.alphabet(),
        )
        length = 0  # total length of the texts, because the library accepts empty texts

        def pieces() -> Iterator[str]:
            nonlocal length
            for text in texts:
                length += len(text)
                yield from cut_at_spaces(text)

        library.train_from_iterator(track(pieces(), "training the tokenizer", texts), trainer)
        require_text(length)
        return cls(library)

    def __len__(self) -> int:
        return len(self._bytes)

    def encode(self, text: str) -> list[int]:
        return next(iter(self.encode_batch([text])))

    def cut(self, text: str) -> Iterator[str]:
        return cut_at_spaces(text)

    def _encode_all(self, pieces: Iterable[str]) -> Iterator[list[int]]:
        for batch in batch_texts(pieces):
            try:
                encodings = self._library.encode_batch_fast(batch, add_special_tokens=False)
            except TypeError:
                raise not_unicode(batch) from None
            for encoding in encodings:
                yield [library_id + ID_OFFSET for library_id in encoding.ids]

    def stream(self) -> StreamDecoder:
        return ByteStream(self.spell)

    def spell(self, token_id: int) -> bytes:
        check_ids([token_id], len(self))
        return self._bytes[token_id]

    def token(self, token_id: int) -> str:
        """Return the text of a token. Incomplete characters are shown as bytes such as <0xE2>."""
        return END_TEXT if token_id == END else token_text(self.spell(token_id))

    def merges(self) -> list[tuple[bytes, bytes]]:
        """Return the merged pairs in the order in which training learned them."""
        merges = self.content()["library"]["model"]["merges"]
        return [(_to_bytes(left), _to_bytes(right)) for left, right in merges]

    def pretoken_bytes(self, text: str) -> list[tuple[int, ...]]:
        """Return the pre-tokens of a text, each as the ids of its bytes."""
        vocabulary = self._vocabulary
        pretokens = self._library.pre_tokenizer.pre_tokenize_str(text)
        return [tuple(vocabulary[letter] + ID_OFFSET for letter in pretoken) for pretoken, _ in pretokens]

    def merge_ranks(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Return the rank (counted from 0) and the merged id of each pair of ids."""
        vocabulary, merges = self._vocabulary, self.content()["library"]["model"]["merges"]
        return {
            (vocabulary[left] + ID_OFFSET, vocabulary[right] + ID_OFFSET): (rank, vocabulary[left + right] + ID_OFFSET)
            for rank, (left, right) in enumerate(merges)
        }

    def content(self) -> dict[str, Json]:
        return {"library": json.loads(self._library.to_str())}

    @classmethod
    def from_content(cls, content: Mapping[str, Json]) -> Self:
        try:
            library = Library.from_str(json.dumps(content["library"]))
        except KeyError:  # if `library` is missing, the caller reports a damaged tokenizer and not a library error
            raise
        except Exception as error:  # the library does not raise a narrower class
            raise ValueError(f"the tokenizers library cannot read it ({error})") from error
        vocabulary = library.get_vocab(with_added_tokens=False)
        is_complete = sorted(vocabulary.values()) == list(range(len(vocabulary))) and vocabulary.keys() >= set(_BYTE_OF)
        if not is_complete or library.get_added_tokens_decoder():
            raise ValueError("its vocabulary must contain all 256 bytes, have no gaps, and no added tokens")
        return cls(library)


def not_unicode(texts: list[str]) -> Exception:
    """Return the error for texts with lone surrogates, for example from a command line that is not UTF-8."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            return DataError(
                f"Text must be valid Unicode, but character {error.start + 1} is the lone surrogate "
                f"U+{ord(text[error.start]):04X}. Pass the text as UTF-8."
            )
    return TypeError(f"encode expects strings; got {[type(text).__name__ for text in texts]}")


# --- byte-pair dropout ------------------------------------------------------------------------------------------------


VARIANTS = 32  # number of segmentations per word

MergeRanks = Mapping[tuple[int, int], tuple[int, int]]
Word = tuple[int, ...]


def segment(word: Sequence[int], merges: MergeRanks, rate: float, draw: Callable[[], float]) -> Word:
    """Merge the bytes of a word, and skip each merge with probability `rate`. `draw` returns numbers in [0, 1)."""
    pieces = list(word)
    while True:
        possible = [
            (*merges[pair], index)
            for index, pair in enumerate(pairwise(pieces))
            if pair in merges and (not rate or draw() >= rate)
        ]
        if not possible:
            return tuple(pieces)
        # The leftmost merge among those of equal rank
        _, merged, index = min(possible, key=lambda merge: (merge[0], merge[2]))
        pieces[index : index + 2] = [merged]


class DropoutTexts:
    """Training texts that BPE dropout segments again for each batch (Provilkov et al., 2020).

    Initially, a word consists of its bytes. In each iteration, every possible merge is skipped with probability p. Of
    the remaining merges, the one that training learned first is applied. The iterations end when no merge remains. p =
    0 gives the standard segmentation and p = 1 gives the bytes. Dropout applies only to training.

    The random generator of the `tokenizers` library cannot be seeded. With this class, the texts of a step depend only
    on the seed and the step. Each word has `VARIANTS` numbered segmentations, and each step selects one. A segmentation
    depends on the seed, the word and the number, and is computed on first use.
    """

    def __init__(self, tokenizer: BytePair, texts: Iterable[str], rate: float):
        self.rate, self._merges = rate, tokenizer.merge_ranks()
        numbers: dict[Word, int] = {}  # numbers of the distinct words, in the order of their first occurrence
        self._texts = [
            np.array(
                [numbers.setdefault(word, len(numbers)) for word in tokenizer.pretoken_bytes(text)], dtype=np.int32
            )
            for text in texts
        ]
        self._words = list(numbers)
        self._seed: int | None = None
        self._variants: list[list[Word | None]] = []

    def draw(self, chosen: Iterable[int], seed: int, *path: int | str) -> list[list[int]]:
        """Return the ids of the chosen texts, which depend only on the arguments. `path` identifies the batch."""
        if seed != self._seed:
            self._seed, self._variants = seed, [[None] * VARIANTS for _ in self._words]
        draws = np.random.default_rng(derive_seed(seed, "byte-pair dropout", *path))
        texts: list[list[int]] = []
        for index in chosen:
            words = self._texts[index]
            variants = draws.integers(VARIANTS, size=len(words)).tolist()
            pairs = zip(words.tolist(), variants, strict=True)
            texts.append([token_id for word, variant in pairs for token_id in self._segment_word(word, variant)])
        return texts

    def _segment_word(self, word: int, variant: int) -> Word:
        """Return the segmentation with number `variant` of the word with number `word`, computed on first use."""
        segmentation = self._variants[word][variant]
        if segmentation is None:
            draw = random.Random(f"{self._seed}/{variant}/{self._words[word]}").random
            segmentation = segment(self._words[word], self._merges, self.rate, draw)
            self._variants[word][variant] = segmentation
        return segmentation
