"""Tagged sentences from your own files with one word per line and a blank line between sentences.

    CoNLL      columns separated by tabs or spaces: the word in one column, its tag in another
    CoNLL-U    ten tab-separated columns: number, form, lemma, upos, xpos, feats, head, deprel, deps, misc;
               `# text =` gives the original text of a sentence, and the number 3-4 marks two words that are written as
               one

Span tags in the files may be IOB1, IOB2, BIOES or BILOU; they are converted to IOB2.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Literal

from seqloom.config import config
from seqloom.core.errors import DataError
from seqloom.core.iob import OUTSIDE, Scheme, detect_scheme, parse_tag, read_tags, write_tags
from seqloom.core.words import format_count, format_value
from seqloom.data.corpus import Corpus, FileConfig
from seqloom.data.examples import Span, TokenClassificationExample
from seqloom.data.files import expand_home, read_nonblank, split_lines, without_compression
from seqloom.data.splits import Read, check_files, load_files

SUMMARY = "your own tagged sentences: CoNLL columns, one word per line, or CoNLL-U"
FORM = "token-classification"
Field = Literal["upos", "xpos", "feats", "deprel"]
Column = Field | Literal["head"]  # a field that is read but is not a tag
TagScheme = Literal["auto", "plain", "IOB1", "IOB2", "BIOES"]
_FIELDS: Mapping[str, int] = {"upos": 3, "xpos": 4, "feats": 5, "head": 6, "deprel": 7}
_COLUMNS = 10
_BILOU = {"L": "E", "U": "S"}


@config
class Config(FileConfig):
    corpus: Literal["conll"] = "conll"
    # file with a word and its tag on each line and a blank line between sentences, optionally compressed (.gz or .zst)
    train: str
    # conll or conllu; null: conllu for names that end in .conllu, else conll
    format: Literal["conll", "conllu"] | None = None
    columns: tuple[int, int] = (1, -1)  # CoNLL: columns of the word and the tag, counted from 1, or backwards from -1
    field: Field = "upos"  # CoNLL-U: field to use as the tag
    scheme: TagScheme = "auto"  # how tags encode spans; plain: each word has an independent tag
    invalid: Literal["repair", "refuse"] = "repair"  # handling of tags that violate the scheme

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if 0 in self.columns:
            yield f"column numbers start at 1, or at -1 from the end; got {list(self.columns)}"
        if self.columns[0] == self.columns[1]:
            yield f"columns must be different; got {self.columns[0]} twice"


@dataclass
class Sentence:
    """A sentence of a file, before its tags are parsed."""

    lines: list[int] = field(default_factory=list)  # the line number of each word
    words: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    text: str = ""  # the original text, if the file contains it
    surface: list[tuple[str, int, bool]] = field(default_factory=list)  # form, number of words, whether a space follows

    def add(self, line: int, word: str, tag: str) -> None:
        self.lines.append(line)
        self.words.append(word)
        self.tags.append(tag)


def load(config: Config) -> Corpus[TokenClassificationExample]:
    """Load the sentences. Train determines the tag scheme, and equal sentences are in the same split."""
    check_files(config)
    sentences = {split: read_sentences(config, file) for split, (file,) in config.files().items()}
    scheme = find_scheme(config.scheme, sentences["train"])
    return load_files(
        config,
        lambda split, file: parse_tags(sentences[split], scheme, config.invalid, file),
        description=f"{config.train}" + (f", spans in {scheme}" if scheme else ", a tag for each word"),
        groups=lambda examples, _: [" ".join(example.words) for example in examples],
        repeats=("sentences", lambda example: " ".join(example.words)),
    )


def read_sentences(config: Config, file: str) -> list[Sentence]:
    path = expand_home(Path(file))
    by_name = "conllu" if without_compression(path).endswith(".conllu") else "conll"
    if (config.format or by_name) == "conllu":
        return read_conllu(path, config.field)
    return read_conll(path, config.columns)


# --- reading --------------------------------------------------------------------------------------------------------


def read_conll(path: Path, columns: tuple[int, int] = (1, -1)) -> list[Sentence]:
    """Read CoNLL sentences; `columns` are the columns of word and tag, counted from 1, or backwards from -1."""
    sentences = [Sentence()]
    width, first = 0, 0  # the number of columns, and the line that determines this number
    has_tabs = False
    for number, line in enumerate(split_lines(read_nonblank(path)), start=1):
        if not line.strip():
            sentences.append(Sentence())
            continue
        has_tabs = has_tabs if width else "\t" in line
        cells = line.split("\t") if has_tabs else line.split()
        if cells[0] == "-DOCSTART-" or (line.startswith("# ") and not sentences[-1].words and len(cells) != width):
            continue  # a comment or the start of a document
        width, first = (width, first) if width else (len(cells), number)
        indices = [column - 1 if column > 0 else width + column for column in columns]
        if len(cells) != width or not all(0 <= index < width for index in indices):
            expected = f"{width} columns, like line {first:,}"
            if number == first:
                expected = f"the columns {columns[0]} and {columns[1]} of data.columns"
            actual, hint = format_count(len(cells), "column"), ""
            if has_tabs != ("\t" in line):
                separators = ("tabs", "spaces") if has_tabs else ("spaces", "tabs")
                hint = f" Use one separator: line {first:,} uses {separators[0]}, and this line uses {separators[1]}."
            received = f"{actual}: {format_value(line)}.{hint}"
            raise DataError(f"Line {number:,} of {path} must have {expected}, but has {received}")
        word, tag = (cells[index].strip() for index in indices)
        if not word or not tag:
            raise DataError(
                f"Line {number:,} of {path} must have a word and a tag; one is blank: {format_value(line)}."
            )
        sentences[-1].add(number, word, tag)
    return _require_words(path, sentences)


def read_conllu(path: Path, tag: Column = "upos") -> list[Sentence]:
    """Read CoNLL-U sentences with one of the fields as tags."""
    sentences = [Sentence()]
    covered = 0  # the last word of a multiword token: 4 after 3-4
    for number, line in enumerate(split_lines(read_nonblank(path)), start=1):
        if not line.strip():
            sentences.append(Sentence())
            covered = 0
        elif line.startswith("#"):
            if line.startswith("# text = "):
                sentences[-1].text = line.removeprefix("# text = ")
        else:
            cells = line.split("\t")
            if len(cells) != _COLUMNS:
                raise DataError(
                    f"Line {number:,} of {path} must have the {_COLUMNS} tab-separated columns of CoNLL-U, but has "
                    f"{len(cells)}: {format_value(line)}."
                )
            covered = _read_word(path, number, cells, tag, sentences[-1], covered)
    return _require_words(path, sentences)


def _read_word(path: Path, number: int, cells: Sequence[str], tag: Column, sentence: Sentence, covered: int) -> int:
    name, form = cells[0], cells[1].strip()
    has_space = "SpaceAfter=No" not in cells[9].split("|")
    if "." in name:  # an empty node, which has no text
        return covered
    try:
        first, _, last = name.partition("-")
        start, end = int(first), int(last or first)
    except ValueError:
        raise DataError(f"Line {number:,} of {path} must start with a word number; got {format_value(name)}.") from None
    if not form or not cells[_FIELDS[tag]].strip():
        raise DataError(
            f"Line {number:,} of {path} must have a form and its {tag}; one is blank: {format_value(form)}."
        )
    if last:
        sentence.surface.append((form, end - start + 1, has_space))
        return end
    sentence.add(number, form, cells[_FIELDS[tag]].strip())
    if start > covered:
        sentence.surface.append((form, 1, has_space))
    return covered


def _require_words(path: Path, sentences: Iterable[Sentence]) -> list[Sentence]:
    filled = [sentence for sentence in sentences if sentence.words]
    if not filled:
        raise DataError(f"{path} must contain sentences with a word and its tag on each line, but has none.")
    return filled


# --- tags -------------------------------------------------------------------------------------------------------------


def find_scheme(scheme: TagScheme, sentences: Sequence[Sentence]) -> Scheme | None:
    """Return the scheme by which the tags encode spans, or None if the tags belong to single words."""
    if scheme in ("IOB1", "IOB2", "BIOES"):
        return scheme
    tags = {tag for sentence in sentences for tag in sentence.tags}
    if scheme == "plain" or OUTSIDE not in tags or not any(tag[:2] in ("B-", "I-") for tag in tags):
        return None
    converted = ([_as_bioes(tag) for tag in sentence.tags] for sentence in sentences)
    return detect_scheme(tags for tags in converted if all(map(_is_span_tag, tags)))  # `parse_tags` reports other tags


def parse_tags(
    sentences: Sequence[Sentence], scheme: Scheme | None, invalid: Literal["repair", "refuse"], file: str
) -> Read[TokenClassificationExample]:
    """Convert span tags to IOB2. Tags that violate the scheme are repaired and noted, or raise an error."""
    examples: list[TokenClassificationExample] = []
    repairs: list[tuple[int, str, str]] = []  # the line, its tag, and the new tag
    for sentence in sentences:
        tags = sentence.tags
        if scheme is not None:
            converted = list(map(_as_bioes, tags))
            for line, tag in zip(sentence.lines, converted, strict=True):
                if not _is_span_tag(tag):
                    raise DataError(
                        f"Line {line:,} of {file} must have a span tag such as B-PER, or O, but has {tag!r}. "
                        "To keep tags unchanged, set data.scheme=plain."
                    )
            spans, mistakes = read_tags(converted, scheme)
            if mistakes and invalid == "refuse":
                index = mistakes[0]
                before = tags[index - 1] if index else "the start of a sentence"
                after = f"before {tags[index + 1]}" if index + 1 < len(tags) else "at the end of a sentence"
                raise DataError(
                    f"Line {sentence.lines[index]:,} of {file} has {tags[index]} after {before} {after}, which is not "
                    f"valid {scheme}. Correct it, or set data.invalid=repair."
                )
            tags = write_tags(spans, len(converted))
            repairs += [(sentence.lines[index], sentence.tags[index], tags[index]) for index in mistakes]
        examples.append(_align_words(sentence, tags))
    if not repairs:
        return examples, []
    tags_were = "1 tag was" if len(repairs) == 1 else f"{len(repairs):,} tags were"
    first = "at" if len(repairs) == 1 else "the first at"
    line, old, new = repairs[0]
    change = f"{old} became {new}" if old != new else old  # the change may affect a neighbouring tag instead
    return examples, [f"{tags_were} not valid {scheme} and repaired, {first} line {line:,} of {file}: {change}"]


def _as_bioes(tag: str) -> str:
    """Convert a BILOU tag to BIOES: L (last) becomes E (end), and U (unit) becomes S (single)."""
    prefix, dash, kind = tag.partition("-")
    return f"{_BILOU[prefix]}-{kind}" if prefix in _BILOU and dash else tag


def _is_span_tag(tag: str) -> bool:
    try:
        parse_tag(tag)
    except DataError:
        return False
    return True


# --- spans of words ---------------------------------------------------------------------------------------------------


def _align_words(sentence: Sentence, tags: Sequence[str]) -> TokenClassificationExample:
    """Find the words in the text of the sentence; if they do not match the text, build the text from the words."""
    surface = "".join(form + " " * has_space for form, _, has_space in sentence.surface).rstrip()
    for text in (sentence.text, surface):
        spans: list[Span] = []
        end = 0
        for form, count, _ in sentence.surface if text else ():
            start = next((index for index in range(end, len(text)) if not text[index].isspace()), len(text))
            if not text.startswith(form, start):
                break
            end = start + len(form)
            words = sentence.words[len(spans) : len(spans) + count]
            if "".join(words) == form:  # the parts of a word: do|n't
                spans += pairwise(accumulate(map(len, words), initial=start))
            else:  # a contraction, such as du for de le: all words have the span of the contraction
                spans += [(start, end)] * len(words)
        if spans and len(spans) == len(sentence.words):
            return TokenClassificationExample(tuple(sentence.words), tuple(tags), text, tuple(spans))
    return TokenClassificationExample.of(sentence.words, tags)
