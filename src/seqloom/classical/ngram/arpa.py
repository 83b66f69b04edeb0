"""ARPA files, the text format for exchanging n-gram models.

    \\data\\
    ngram 1=4
    ngram 2=5

    \\1-grams:
    -0.6	</s>	0            log10 p, the words, log10 of the backoff weight
    …
    \\end\\

Words must not contain separators, and three words are reserved. Whitespace, NUL, lone surrogates
and the escape character are therefore written as `␛` (U+241B) and four hexadecimal digits: a space
is `␛0020`, a line feed `␛000A`. An ordinary token spelled `<s>`, `</s>` or `<unk>` has its first
character escaped (`␛003Cs>`), and the empty token is written as a single `␛`. Other toolkits treat escaped
words as ordinary words; `read_arpa` decodes them. Words from other toolkits are read unchanged.
"""

import gzip
import math
import re
import zlib
from array import array
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import IO, NoReturn

import numpy as np
import torch
from torch import Tensor

from seqloom.classical.ngram import NGram, Table
from seqloom.core import END
from seqloom.core.errors import DataError, UsageError
from seqloom.core.files import replace_file
from seqloom.core.limits import max_line, refuse_device

BEGIN_NAME, END_NAME, UNKNOWN_NAME = "<s>", "</s>", "<unk>"
UNKNOWN = 1  # id of <unk>, if the vocabulary contains it
LOG10_ZERO = -99.0  # log10 probability of words that are never predicted, by convention
LN10 = math.log(10)

_RESERVED = {BEGIN_NAME, END_NAME, UNKNOWN_NAME, "<UNK>"}
_UNSAFE = re.compile("[\\s\0\u241b\ud800-\udfff]")
_ESCAPED = re.compile("\u241b([0-9A-F]{4})")
_LINES_PER_WRITE = 50_000


def escape(token: str) -> str:
    """Escape a token as an unambiguous ARPA word."""
    if token == "":
        return "\u241b"
    head, rest = ("", token) if token not in _RESERVED else (f"\u241b{ord(token[0]):04X}", token[1:])
    return head + _UNSAFE.sub(lambda match: f"\u241b{ord(match[0]):04X}", rest)


def unescape(word: str) -> str:
    """Decode an escaped ARPA word."""
    return "" if word == "\u241b" else _ESCAPED.sub(lambda match: chr(int(match[1], 16)), word)


# --- writing --------------------------------------------------------------------------------------------------------


def write_arpa(model: NGram, words: list[str], path: Path | str) -> None:
    """Write the model atomically, and compress the file if its name ends in .gz; `words` lists the tokens by id."""
    path = Path(path)
    if not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written: the folder {path.parent} does not exist. Create it first.")
    if len(words) != model.vocabulary:
        raise UsageError(f"The model has {model.vocabulary} tokens and needs a word for each; got {len(words)} words.")
    names = [escape(word) for word in words]
    names[END] = END_NAME
    if len(words) > UNKNOWN and words[UNKNOWN] == UNKNOWN_NAME:
        names[UNKNOWN] = UNKNOWN_NAME
    first: dict[str, int] = {}
    for number, name in enumerate(names):
        if first.setdefault(name, number) != number:
            raise UsageError(
                f"The words of an ARPA file must differ; tokens {first[name]} and {number} are both {words[number]!r}."
            )
    with (
        replace_file(path) as target,
        gzip.open(target, "wb") if path.suffix == ".gz" else nullcontext(target) as file,
    ):
        for text in _format_model(model, [*names, BEGIN_NAME]):
            file.write(text.encode())


def _format_model(model: NGram, names: list[str]) -> Iterator[str]:
    """Yield the text of a file in parts; `names` lists the ARPA words by id, with `<s>` last."""
    yield "\\data\\\n"
    for k, table in enumerate(model.tables, start=1):
        yield f"ngram {k}={len(table.keys)}\n"
    texts = [""]
    for k, table in enumerate(model.tables, start=1):
        yield f"\n\\{k}-grams:\n"
        keys = table.keys.cpu().numpy()
        prefix, last = (keys // model.width).tolist(), (keys % model.width).tolist()
        texts = [f"{texts[p]} {names[w]}" for p, w in zip(prefix, last, strict=True)] if k > 1 else names
        log_prob = (table.log_prob.double().cpu().numpy() / LN10).clip(min=LOG10_ZERO, max=0.0).tolist()
        backoff = (table.backoff.double().cpu().numpy() / LN10).tolist()
        for begin in range(0, len(texts), _LINES_PER_WRITE):
            part = slice(begin, begin + _LINES_PER_WRITE)
            if backoff:
                rows = zip(log_prob[part], texts[part], backoff[part], strict=True)
                yield "".join([f"{p:.12g}\t{text}\t{b:.12g}\n" for p, text, b in rows])
            else:
                yield "".join([f"{p:.12g}\t{text}\n" for p, text in zip(log_prob[part], texts[part], strict=True)])
    yield "\n\\end\\\n"


# --- reading --------------------------------------------------------------------------------------------------------


class ARPALines:
    """The non-blank lines of a file, with line numbers for error messages."""

    def __init__(self, path: Path, file: IO[str]) -> None:
        self.path, self.number, self._file = path, 0, file

    def next(self, expected: str) -> str:
        """Return the next line; if the file has ended, the error message names `expected`."""
        while line := self._file.readline(max_line()):
            self.number += 1
            if len(line) == max_line():
                self.fail(f"a line must have at most {max_line():,} characters")
            if line.strip():
                return line.strip("\r\n")
        self.number += 1
        self.fail(f"the file ends where {expected} is expected; it is truncated or not an ARPA file")

    def fail(self, problem: str, number: int | None = None) -> NoReturn:
        """Raise `DataError` with the number of a line."""
        raise DataError(f"{self.path}, line {number or self.number}: {problem}.")


@dataclass(frozen=True)
class ARPASection:
    """The n-grams of one order in file order."""

    log_prob: Tensor  # (n,)
    backoff: Tensor  # (n,)
    words: Tensor  # (n, k)
    lines: "array[int]"  # (n,) line numbers


def read_arpa(path: Path | str) -> tuple[NGram, list[str]]:
    """Read a model and its words by id from an ARPA file, plain or .gz.

    `</s>` has id 0. `<unk>` has id 1, if the file contains it.
    """
    path = Path(path)
    try:
        with (
            gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as raw,
            TextIOWrapper(raw, encoding="utf-8", newline="\n") as file,
        ):
            refuse_device(path, file.fileno())
            return _read(ARPALines(path, file))
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} must be UTF-8 text ({error.reason} at byte {error.start}). Convert it first."
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}.") from error


def _read(lines: ARPALines) -> tuple[NGram, list[str]]:
    counts = _read_header(lines)
    order = len(counts)
    names, section = _read_words(lines, counts[0], order)
    ids = {name: number for number, name in enumerate(names)}
    model = NGram(order, len(names) - 1)
    by_id = section.words[:, 0].argsort()
    log_prob = section.log_prob[by_id]
    log_prob[model.vocabulary] = -math.inf
    backoff = section.backoff[by_id] if order > 1 else section.backoff[:0]
    model.tables[0] = Table(model.tables[0].keys, log_prob, backoff)
    for k in range(2, order + 1):
        section = _read_section(lines, k, counts[k - 1], order, ids)
        model.tables[k - 1] = _link(lines, model, k, section)
    return model, [unescape(name) for name in names[:-1]]


def _read_header(lines: ARPALines) -> list[int]:
    """Read the number of n-grams of each order; comments may precede `\\data\\`."""
    while lines.next("\\data\\").strip() != "\\data\\":
        pass
    counts: list[int] = []
    while True:
        line = lines.next("\\1-grams:").strip()
        match = re.fullmatch(r"ngram\s+(\d+)\s*=\s*(\d+)", line)
        if match is None:
            break
        if int(match[1]) != len(counts) + 1:
            lines.fail(f"expected the count of the {len(counts) + 1}-grams; got {line!r}")
        counts.append(int(match[2]))
    if not counts:
        lines.fail(f"\\data\\ must be followed by lines like 'ngram 1=1000'; got {line[:60]!r}")
    if line != "\\1-grams:":
        lines.fail(f"\\1-grams: must follow the counts; got {line[:60]!r}")
    return counts


def _read_words(lines: ARPALines, count: int, order: int) -> tuple[list[str], ARPASection]:
    """Read the vocabulary, ordered by id with `<s>` last, and the section of 1-grams."""
    lines_of: dict[str, int] = {}
    section = _read_section(lines, 1, count, order, lines_of, grow=True)
    for name in (BEGIN_NAME, END_NAME):
        if name not in lines_of:
            lines.fail(f"the 1-grams above must include {name}")
    if len(lines_of) < count:
        _refuse(lines, section, section.words[:, 0] != torch.arange(count), "this word is listed twice")
    special = [END_NAME, *([UNKNOWN_NAME] if UNKNOWN_NAME in lines_of else [])]
    names = [*special, *(name for name in lines_of if name not in (*special, BEGIN_NAME)), BEGIN_NAME]
    ids = {name: number for number, name in enumerate(names)}
    by_first_seen = torch.tensor([ids[name] for name in lines_of])
    return names, ARPASection(section.log_prob, section.backoff, by_first_seen[section.words], section.lines)


def _read_section(
    lines: ARPALines, k: int, count: int, order: int, ids: dict[str, int], grow: bool = False
) -> ARPASection:
    """Read `count` lines of k words; with `grow`, new words get ids in order of appearance."""
    log_prob, backoff, words, numbers = array("d"), array("d"), array("q"), array("q")
    for _ in range(count):
        line = lines.next(f"one of the {count} {k}-grams declared in the header")
        fields = [field for field in line.replace("\t", " ").split(" ") if field]
        if not k + 1 <= len(fields) <= k + 1 + (k < order):
            if line.startswith("\\"):
                lines.fail(f"the header declares {count} {k}-grams, but the list ends here")
            form = ("a word" if k == 1 else f"{k} words") + (" and optionally a backoff" if k < order else "")
            lines.fail(f"a {k}-gram must be a log10 probability, {form}; got {line[:60]!r}")
        try:
            log_prob.append(float(fields[0]) * LN10)
            backoff.append(float(fields[k + 1]) * LN10 if len(fields) > k + 1 else 0.0)
        except ValueError:
            lines.fail(f"the first and last fields of a {k}-gram must be numbers; got {line[:60]!r}")
        for word in fields[1 : k + 1]:
            number = ids.setdefault(word, len(ids)) if grow else ids.get(word, -1)
            if number < 0:
                lines.fail(f"every word must be listed as a 1-gram; got {word!r}")
            words.append(number)
        numbers.append(lines.number)
    expected = f"\\{k + 1}-grams:" if k < order else "\\end\\"
    line = lines.next(expected).strip()
    if line != expected:
        lines.fail(f"{expected} must follow the {count} {k}-grams declared in the header; got {line[:60]!r}")
    probs, weights, ids_read = (torch.from_numpy(np.array(values)) for values in (log_prob, backoff, words))
    section = ARPASection(probs, weights, ids_read.view(count, k), numbers)
    _refuse(lines, section, probs.isnan() | (probs > 0), f"the log10 probability of a {k}-gram must be 0 or less")
    _refuse(lines, section, weights.isnan() | (weights == math.inf), f"the backoff of a {k}-gram must be finite")
    return section


def _link(lines: ARPALines, model: NGram, k: int, section: ARPASection) -> Table:
    """Look up the first k−1 words of each n-gram in the order below, and sort by key."""
    words = section.words
    prefix = words[:, 0]
    for j in range(1, k - 1):
        prefix = model.tables[j].find(prefix, words[:, j], model.width)
    _refuse(lines, section, prefix < 0, f"the first {k - 1} words of a {k}-gram must be listed as a {k - 1}-gram")
    _refuse(lines, section, (words[:, 1:] == model.vocabulary).any(1), f"only the first word may be {BEGIN_NAME}")
    keys, by_key = (prefix * model.width + words[:, -1]).sort(stable=True)
    is_duplicate = torch.zeros(len(keys), dtype=torch.bool)
    is_duplicate[by_key[1:]] = keys[1:] == keys[:-1]
    _refuse(lines, section, is_duplicate, f"this {k}-gram is listed twice")
    backoff = section.backoff[by_key] if k < model.order else section.backoff[:0]
    return Table(keys, section.log_prob[by_key], backoff)


def _refuse(lines: ARPALines, section: ARPASection, bad: Tensor, problem: str) -> None:
    if bad.any():
        lines.fail(problem, section.lines[int(bad.nonzero()[0])])
