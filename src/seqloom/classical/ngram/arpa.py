"""ARPA files: the text format n-gram toolkits exchange models in.

    \\data\\
    ngram 1=4
    ngram 2=5

    \\1-grams:
    -0.6	</s>	0            log10 p, the words, log10 of the backoff weight
    …
    \\end\\

A word may not hold what separates words, and three names have a meaning of their own. So a
white-space character, NUL, a lone surrogate and the escape character itself are written as `␛`
(U+241B) and four hexadecimal digits: a space is `␛0020`, a line feed `␛000A`. A token that would
read as `<s>`, `</s>` or `<unk>` without being it has its first character written so (`␛003Cs>`),
and the empty token is a bare `␛`. Other toolkits take these for words like any other, and
`read_arpa` turns them back. Words of other toolkits' files pass unchanged.
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
UNKNOWN = 1  # its id, where a vocabulary has it
NEVER = -99.0  # the log10 probability ARPA files give to what is never predicted
LN10 = math.log(10)

_RESERVED = {BEGIN_NAME, END_NAME, UNKNOWN_NAME, "<UNK>"}
_UNSAFE = re.compile("[\\s\0\u241b\ud800-\udfff]")
_ESCAPED = re.compile("\u241b([0-9A-F]{4})")
_LINES_AT_ONCE = 50_000


def escape(token: str) -> str:
    """A token as one ARPA word that means nothing else."""
    if token == "":
        return "\u241b"
    head, rest = ("", token) if token not in _RESERVED else (f"\u241b{ord(token[0]):04X}", token[1:])
    return head + _UNSAFE.sub(lambda match: f"\u241b{ord(match[0]):04X}", rest)


def unescape(word: str) -> str:
    return "" if word == "\u241b" else _ESCAPED.sub(lambda match: chr(int(match[1], 16)), word)


# --- writing --------------------------------------------------------------------------------------------------------


def write_arpa(model: NGram, words: list[str], path: Path | str) -> None:
    """Write the model, whole or not at all; a name that ends in .gz is compressed. `words` are the tokens by id."""
    path = Path(path)
    if not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written: the folder {path.parent} does not exist. Make it first.")
    if len(words) != model.vocabulary:
        raise UsageError(f"The model has {model.vocabulary} tokens, so as many words are needed, not {len(words)}.")
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
        for piece in _pieces(model, [*names, BEGIN_NAME]):
            file.write(piece.encode())


def _pieces(model: NGram, names: list[str]) -> Iterator[str]:
    """The text of a file, piece by piece; `names` are the ARPA words by id, `<s>` last."""
    yield "\\data\\\n"
    for k, table in enumerate(model.tables, start=1):
        yield f"ngram {k}={len(table.keys)}\n"
    texts = [""]
    for k, table in enumerate(model.tables, start=1):
        yield f"\n\\{k}-grams:\n"
        keys = table.keys.cpu().numpy()
        prefix, last = (keys // model.width).tolist(), (keys % model.width).tolist()
        texts = [f"{texts[p]} {names[w]}" for p, w in zip(prefix, last, strict=True)] if k > 1 else names
        log_prob = (table.log_prob.double().cpu().numpy() / LN10).clip(min=NEVER, max=0.0).tolist()
        backoff = (table.backoff.double().cpu().numpy() / LN10).tolist()
        for begin in range(0, len(texts), _LINES_AT_ONCE):
            part = slice(begin, begin + _LINES_AT_ONCE)
            if backoff:
                rows = zip(log_prob[part], texts[part], backoff[part], strict=True)
                yield "".join([f"{p:.12g}\t{text}\t{b:.12g}\n" for p, text, b in rows])
            else:
                yield "".join([f"{p:.12g}\t{text}\n" for p, text in zip(log_prob[part], texts[part], strict=True)])
    yield "\n\\end\\\n"


# --- reading --------------------------------------------------------------------------------------------------------


class ARPALines:
    """The lines of a file that are not blank, with their numbers, for errors that say where."""

    def __init__(self, path: Path, file: IO[str]) -> None:
        self.path, self.number, self._file = path, 0, file

    def next(self, wanted: str) -> str:
        while line := self._file.readline(max_line()):
            self.number += 1
            if len(line) == max_line():
                self.fail(f"it has more than {max_line():,} characters, which no n-gram has")
            if line.strip():
                return line.strip("\r\n")
        self.number += 1
        self.fail(f"the file ends where {wanted} should stand; it is cut short, or no ARPA file")

    def fail(self, problem: str, number: int | None = None) -> NoReturn:
        raise DataError(f"{self.path}, line {number or self.number}: {problem}.")


@dataclass(frozen=True)
class ARPASection:
    """The n-grams of one order as the file lists them."""

    log_prob: Tensor  # (n,)
    backoff: Tensor  # (n,)
    words: Tensor  # (n, k)
    lines: "array[int]"  # (n,) where each stands


def read_arpa(path: Path | str) -> tuple[NGram, list[str]]:
    """The model of an ARPA file, plain or .gz, and its words by id: `</s>` is 0, `<unk>` 1 if there is one."""
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
    place = section.words[:, 0].argsort()  # the file's order may be another than that of the ids
    log_prob = section.log_prob[place]
    log_prob[model.vocabulary] = -math.inf
    backoff = section.backoff[place] if order > 1 else section.backoff[:0]
    model.tables[0] = Table(model.tables[0].keys, log_prob, backoff)
    for k in range(2, order + 1):
        section = _read_section(lines, k, counts[k - 1], order, ids)
        model.tables[k - 1] = _link(lines, model, k, section)
    return model, [unescape(name) for name in names[:-1]]


def _read_header(lines: ARPALines) -> list[int]:
    """The number of n-grams of each order. Toolkits may write remarks above `\\data\\`."""
    while lines.next("\\data\\").strip() != "\\data\\":
        pass
    counts: list[int] = []
    while True:
        line = lines.next("\\1-grams:").strip()
        match = re.fullmatch(r"ngram\s+(\d+)\s*=\s*(\d+)", line)
        if match is None:
            break
        if int(match[1]) != len(counts) + 1:
            lines.fail(f"the count of the {len(counts) + 1}-grams must come here, but this is {line!r}")
        counts.append(int(match[2]))
    if not counts:
        lines.fail(f"\\data\\ must be followed by lines like 'ngram 1=1000', but this is {line[:60]!r}")
    if line != "\\1-grams:":
        lines.fail(f"\\1-grams: must follow the counts, but this is {line[:60]!r}")
    return counts


def _read_words(lines: ARPALines, count: int, order: int) -> tuple[list[str], ARPASection]:
    """The vocabulary in the order of its ids, `<s>` last, and the section with those ids in it."""
    seen: dict[str, int] = {}
    section = _read_section(lines, 1, count, order, seen, grow=True)
    for name in (BEGIN_NAME, END_NAME):
        if name not in seen:
            lines.fail(f"the words must include {name}, and the 1-grams that end above do not")
    if len(seen) < count:
        _refuse(lines, section, section.words[:, 0] != torch.arange(count), "this word is listed twice")
    special = [END_NAME, *([UNKNOWN_NAME] if UNKNOWN_NAME in seen else [])]
    names = [*special, *(name for name in seen if name not in (*special, BEGIN_NAME)), BEGIN_NAME]
    ids = {name: number for number, name in enumerate(names)}
    by_first_seen = torch.tensor([ids[name] for name in seen])
    return names, ARPASection(section.log_prob, section.backoff, by_first_seen[section.words], section.lines)


def _read_section(
    lines: ARPALines, k: int, count: int, order: int, ids: dict[str, int], grow: bool = False
) -> ARPASection:
    """`count` lines of k words. With `grow` new words are numbered as they come."""
    log_prob, backoff, words, numbers = array("d"), array("d"), array("q"), array("q")
    for _ in range(count):
        line = lines.next(f"one of the {count} {k}-grams announced at the top")
        fields = [field for field in line.replace("\t", " ").split(" ") if field]
        if not k + 1 <= len(fields) <= k + 1 + (k < order):
            if line.startswith("\\"):
                lines.fail(f"{count} {k}-grams are announced at the top, but their list ends here with fewer")
            form = ("a word" if k == 1 else f"{k} words") + (" and perhaps a backoff" if k < order else "")
            lines.fail(f"a {k}-gram must be a log10 probability, {form}, but the line is {line[:60]!r}")
        try:
            log_prob.append(float(fields[0]) * LN10)
            backoff.append(float(fields[k + 1]) * LN10 if len(fields) > k + 1 else 0.0)
        except ValueError:
            lines.fail(f"a {k}-gram's first and last fields must be numbers, but the line is {line[:60]!r}")
        for word in fields[1 : k + 1]:
            number = ids.setdefault(word, len(ids)) if grow else ids.get(word, -1)
            if number < 0:
                lines.fail(f"every word must stand among the 1-grams, and {word!r} does not")
            words.append(number)
        numbers.append(lines.number)
    wanted = f"\\{k + 1}-grams:" if k < order else "\\end\\"
    line = lines.next(wanted).strip()
    if line != wanted:
        lines.fail(f"{wanted} must follow the {count} {k}-grams announced at the top, but this is {line[:60]!r}")
    probs, weights, ids_read = (torch.from_numpy(np.array(values)) for values in (log_prob, backoff, words))
    section = ARPASection(probs, weights, ids_read.view(count, k), numbers)
    _refuse(lines, section, probs.isnan() | (probs > 0), f"the log10 probability of a {k}-gram must be 0 or less")
    _refuse(lines, section, weights.isnan() | (weights == math.inf), f"the backoff of a {k}-gram must be finite")
    return section


def _link(lines: ARPALines, model: NGram, k: int, section: ARPASection) -> Table:
    """Find each n-gram's first k−1 words in the order below, and sort."""
    words = section.words
    place = words[:, 0]
    for j in range(1, k - 1):
        place = model.tables[j].find(place, words[:, j], model.width)
    _refuse(lines, section, place < 0, f"the first {k - 1} words of a {k}-gram must be listed as a {k - 1}-gram")
    _refuse(lines, section, (words[:, 1:] == model.vocabulary).any(1), f"{BEGIN_NAME} may only begin an n-gram")
    keys, by_key = (place * model.width + words[:, -1]).sort(stable=True)
    twice = torch.zeros(len(keys), dtype=torch.bool)
    twice[by_key[1:]] = keys[1:] == keys[:-1]
    _refuse(lines, section, twice, f"this {k}-gram is listed twice")
    backoff = section.backoff[by_key] if k < model.order else section.backoff[:0]
    return Table(keys, section.log_prob[by_key], backoff)


def _refuse(lines: ARPALines, section: ARPASection, bad: Tensor, problem: str) -> None:
    if bad.any():
        lines.fail(problem, section.lines[int(bad.nonzero()[0])])
