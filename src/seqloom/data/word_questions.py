"""What people say of words, to measure word vectors by: WordSim-353, SimLex-999, Google's analogies.

They lie in `word_vectors_eval` of the data folder (SEQLOOM_DATA). None of it is inside seqloom; where the folder or a
file is missing, that set is left out and `missing` says so.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from seqloom.core.errors import DataError
from seqloom.core.words import shown
from seqloom.data.files import DataSet, read_lines

FOLDER = "word_vectors_eval"
WORDSIM = DataSet("WordSim-353", "https://gabrilovich.com/resources/data/wordsim353/ (no licence is stated)")
SIMLEX = DataSet("SimLex-999", "https://fh295.github.io/simlex.html (no licence is stated; it asks to be cited)")
GOOGLE = DataSet("Google's analogies", "https://github.com/tmikolov/word2vec, questions-words.txt (Apache-2.0)")


@dataclass(frozen=True)
class WordSets:
    rated: Mapping[str, Sequence[tuple[str, str, float]]]  # pairs and what people said of them, by the set's name
    analogies: Sequence[tuple[str, tuple[str, str, str, str]]]  # the section, and a : b = c : d
    missing: Sequence[str]  # titles of the sets that are not there


def word_sets() -> WordSets:
    """All sets that are there."""
    rated: dict[str, list[tuple[str, str, float]]] = {}
    analogies: list[tuple[str, tuple[str, str, str, str]]] = []
    missing = []
    for source, name in ((WORDSIM, "wordsim353_combined.csv"), (SIMLEX, "SimLex-999.txt")):
        if (path := _there(source, name)) is None:
            missing.append(source.title)
        else:
            key, delimiter, column = ("wordsim353", ",", 2) if source is WORDSIM else ("simlex999", "\t", 3)
            rated[key] = list(_rated(path, delimiter, column))
    if (path := _there(GOOGLE, "questions-words.txt.gz")) is None:
        missing.append(GOOGLE.title)
    else:
        analogies = list(_analogies(path))
    return WordSets(rated, analogies, missing)


def _there(source: DataSet, name: str) -> Path | None:
    try:
        return source.file(f"{FOLDER}/{name}")
    except DataError:
        return None


def _rated(path: Path, delimiter: str, column: int) -> Iterator[tuple[str, str, float]]:
    """A head line, then two words and, in a later column, a number."""
    lines = read_lines(path)
    for number, line in enumerate(lines[1:], start=2):
        if not line:
            continue
        row = line.split(delimiter)
        try:
            score = float(row[column])
        except (ValueError, IndexError):
            score = math.nan
        if not math.isfinite(score) or not (row[0].strip() and row[1].strip()):
            raise DataError(
                f"Line {number:,} of {path} must have two words and, in column {column + 1}, a number; "
                f"it is {shown(lines[number - 1])}."
            )
        yield row[0].strip(), row[1].strip(), score


def _analogies(path: Path) -> Iterator[tuple[str, tuple[str, str, str, str]]]:
    """`: section`, then four words on each line."""
    section = ""
    for number, line in enumerate(read_lines(path), start=1):
        words = line.split()
        if line.startswith(":"):
            section = line[1:].strip()
        elif len(words) == 4 and section:
            a, b, c, d = words
            yield section, (a, b, c, d)
        elif words:
            raise DataError(
                f"Line {number:,} of {path} must be four words after a line with `: ` and a section's name; "
                f"it is {shown(line)}."
            )
