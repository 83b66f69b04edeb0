"""English words, written with letters that people drew for Omniglot."""

import io
import re
import zipfile
import zlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from seqloom.config import config
from seqloom.config.constraints import PositiveInt, Probability
from seqloom.core.errors import DataError
from seqloom.data.corpus import Corpus, GeneratedConfig, version_of
from seqloom.data.files import DataSet, read_bytes

if TYPE_CHECKING:
    from seqloom.data.handwriting import Letter
    from seqloom.data.strokes import Points
    from seqloom.data.transcriptions import TranscribedExample

SUMMARY = "pen strokes of words in letters of Omniglot; dev and test have unseen writers (needs SEQLOOM_DATA)"
FORM = "transcription"
SOURCE = DataSet("Omniglot", "https://github.com/brendenlake/omniglot (python/); MIT")
ARCHIVE = "omniglot/strokes_background_small1.zip"
MEMBER = re.compile(r"strokes_background_small1/Latin/character(\d\d)/\d{4}_(\d\d)\.txt")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WRITERS = {"train": range(1, 15), "dev": range(15, 17), "test": range(17, 21)}
ASCENDERS = {**dict.fromkeys("bdfhkl", 1.7), "t": 1.45}  # heights above the baseline, in units of the x-height
DESCENDERS = dict.fromkeys("gjpqy", 0.7)  # depths below the baseline
DOTTED_HEIGHT = 1.5  # height above the baseline of i and j with a dot
MAX_BYTES = 1 << 20  # maximum size of a drawing
BEARING = 0.12  # white space on either side of a letter, in units of the x-height


@config
class Config(GeneratedConfig):
    corpus: Literal["handwriting-words"] = "handwriting-words"
    train: PositiveInt = 8000
    dev: PositiveInt = 400
    test: PositiveInt = 1000
    # fraction of the training words that are invented, so that a model cannot only learn a list of words
    invented: Probability = 0.5
    alphabets: bool = True  # in train, also write words with the alphabets of the corpus pen-letters


def load(config: Config) -> "Corpus[TranscribedExample]":
    """Write the words. The writers of dev and test do not occur in train, and neither do their words."""
    from seqloom.data.handwriting import embedded_alphabets, write_examples

    drawn = read_omniglot(SOURCE.file(ARCHIVE))
    more = embedded_alphabets() if config.alphabets else {}

    def take(split: str, count: int) -> "list[TranscribedExample]":
        writers = {str(number): drawn[number] for number in WRITERS[split]}
        return write_examples(
            split, count, {**writers, **(more if split == "train" else {})}, config.invented, config.seed
        )

    splits = config.draw(take)
    return Corpus(
        name="handwriting-words",
        version=f"{version_of(splits)} seed {config.seed}",
        description="pen strokes of English words, written with the Latin letters that twenty people drew for Omniglot",
        licence="MIT (Omniglot)",
        splits=splits,
    )


@cache
def read_omniglot(path: Path) -> "dict[int, dict[str, list[Letter]]]":
    """Return the letters of each of the twenty people who drew the Latin alphabet."""
    writers: dict[int, dict[str, list[Letter]]] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(read_bytes(path, binary=True))) as archive:
            for info in archive.infolist():
                if (match := MEMBER.fullmatch(info.filename)) is not None and info.file_size <= MAX_BYTES:
                    letter, writer = LETTERS[int(match[1]) - 1], int(match[2])
                    strokes = parse_drawing(archive.read(info).decode("ascii"), f"{path}, {info.filename}")
                    writers.setdefault(writer, {})[letter] = [place_letter(letter, strokes)]
    except (zipfile.BadZipFile, zlib.error, UnicodeDecodeError, IndexError, NotImplementedError, RuntimeError) as error:
        raise DataError(f"{path} must be the archive of strokes of Omniglot ({error}). Download it again.") from None
    lacking = [writer for split in WRITERS.values() for writer in split if len(writers.get(writer, {})) < len(LETTERS)]
    if lacking:
        raise DataError(f"{path} must contain 26 Latin letters by 20 people; person {lacking[0]} lacks some of them.")
    return writers


def parse_drawing(text: str, name: str) -> "list[Points]":
    """Return the strokes of a drawing: lines x,y,t between START and BREAK, with y increasing upwards from the top."""
    import numpy as np

    strokes: list[list[tuple[float, float]]] = [[]]
    try:
        for line in text.split():
            if line == "BREAK":
                strokes.append([])
            elif line != "START":
                x, y, _ = map(float, line.split(","))
                strokes[-1].append((x, -y))
    except ValueError:
        raise DataError(f"{name} must consist of START, lines x,y,t, and BREAK.") from None
    drawn = [np.array(stroke) for stroke in strokes if stroke]
    if not drawn or not all(np.isfinite(stroke).all() for stroke in drawn):
        raise DataError(f"{name} must contain strokes with finite coordinates.")
    return drawn


def place_letter(letter: str, strokes: "list[Points]") -> "Letter":
    """Return a letter on its baseline, because people drew letters of all kinds in the middle of a square.

    The height of a letter depends on its ascender and its descender. Its proportions are kept.
    """
    import numpy as np

    from seqloom.data.handwriting import make_letter

    bottom, top = DESCENDERS.get(letter, 0.0), ASCENDERS.get(letter, 1.0)
    if letter in "ij" and len(strokes) > 1:
        top = DOTTED_HEIGHT
    points = np.concatenate(strokes)
    low, high = points.min(axis=0), points.max(axis=0)
    scale = (bottom + top) / max(high[1] - low[1], 0.5 * (high[0] - low[0]), 1.0)
    corner = np.array([low[0] - BEARING / scale, high[1] - bottom / scale])
    placed = [(stroke - corner) * scale for stroke in strokes]
    return make_letter(placed, float((high[0] - low[0]) * scale + 2 * BEARING))
