"""The user's own tagged sentences, a word a line, a blank line between sentences.

    CoNLL      columns with tabs between, or spaces: the word in one, its tag in another
    CoNLL-U    ten columns with tabs between: number, form, lemma, upos, xpos, feats, head, deprel, deps, misc;
               `# text =` above a sentence is how it was written, and 3-4 stands for two words written as one

Tags of spans may be IOB1, IOB2, BIOES or BILOU in the files; what is read is IOB2.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Literal

from seqloom.config import config
from seqloom.core.errors import DataError
from seqloom.core.iob import OUTSIDE, Scheme, parse_tag, read_tags, scheme_of, tags_of
from seqloom.core.words import counted, shown
from seqloom.data.corpus import Corpus, FileConfig
from seqloom.data.examples import Span, TokenClassificationExample
from seqloom.data.files import expand_home, lines, read_filled
from seqloom.data.splits import Read, check_files, load_files

SUMMARY = "one's own tagged sentences: CoNLL columns, a word a line, or CoNLL-U"
FORM = "token-classification"
Field = Literal["upos", "xpos", "feats", "deprel"]
TagScheme = Literal["auto", "plain", "IOB1", "IOB2", "BIOES"]
_FIELDS: Mapping[str, int] = {"upos": 3, "xpos": 4, "feats": 5, "deprel": 7}
_COLUMNS = 10
_BILOU = {"L": "E", "U": "S"}


@config
class Config(FileConfig):
    corpus: Literal["conll"] = "conll"
    train: str  # a word and its tag on each line, a blank line between sentences; may be .gz
    format: Literal["conll", "conllu"] | None = None  # if left out, conllu where the name ends so
    columns: tuple[int, int] = (1, -1)  # CoNLL: of the word and of its tag, from 1, or from the end: -1 is the last
    field: Field = "upos"  # CoNLL-U: what to tag with
    scheme: TagScheme = "auto"  # how spans are written; plain: each word has a tag of its own
    invalid: Literal["repair", "refuse"] = "repair"  # what to do with tags that break the scheme

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if 0 in self.columns:
            yield f"columns are counted from 1, or from -1 backwards, got {list(self.columns)}"
        if self.columns[0] == self.columns[1]:
            yield f"columns must be two different ones, got {self.columns[0]} twice"


@dataclass
class Sentence:
    """A sentence as it was read, before its tags were parsed."""

    lines: list[int] = field(default_factory=list)  # where each word stands
    words: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    text: str = ""  # as it was written, if the file says so
    surface: list[tuple[str, int, bool]] = field(default_factory=list)  # what stands there, of how many words, a space

    def add(self, line: int, word: str, tag: str) -> None:
        self.lines.append(line)
        self.words.append(word)
        self.tags.append(tag)


def load(config: Config) -> Corpus[TokenClassificationExample]:
    """The training sentences decide the scheme of the tags; the same sentence is never in two splits."""
    check_files(config)
    sentences = {split: read_sentences(config, file) for split, (file,) in config.files().items()}
    scheme = find_scheme(config.scheme, sentences["train"])
    return load_files(
        config,
        lambda split, file: parse_tags(sentences[split], scheme, config.invalid, file),
        description=f"{config.train}" + (f", spans in {scheme}" if scheme else ", a tag for each word"),
        groups=lambda examples, _: [join(example) for example in examples],
        repeats=("sentences", join),
    )


def join(sentence: TokenClassificationExample) -> str:
    return " ".join(sentence.words)


def read_sentences(config: Config, file: str) -> list[Sentence]:
    path = expand_home(Path(file))
    by_name = "conllu" if path.name.removesuffix(".gz").endswith(".conllu") else "conll"
    if (config.format or by_name) == "conllu":
        return read_conllu(path, config.field)
    return read_conll(path, config.columns)


# --- reading --------------------------------------------------------------------------------------------------------


def read_conll(path: Path, columns: tuple[int, int] = (1, -1)) -> list[Sentence]:
    """Read sentences; `columns` of the word and of its tag: from 1, or from the end, -1 being the last."""
    sentences = [Sentence()]
    width, model = 0, 0  # how many columns there must be, and the line that said so
    tabs = False
    for number, line in enumerate(lines(read_filled(path)), start=1):
        if not line.strip():
            sentences.append(Sentence())
            continue
        tabs = tabs if width else "\t" in line
        cells = line.split("\t") if tabs else line.split()
        if cells[0] == "-DOCSTART-" or (line.startswith("# ") and not sentences[-1].words and len(cells) != width):
            continue  # a comment, or where a document begins
        width, model = (width, model) if width else (len(cells), number)
        places = [column - 1 if column > 0 else width + column for column in columns]
        if len(cells) != width or not all(0 <= place < width for place in places):
            must = f"{width} columns, as line {model:,} has"
            if number == model:
                must = f"the columns {columns[0]} and {columns[1]} that data.columns asks for"
            has = counted(len(cells), "column")
            raise DataError(f"Line {number:,} of {path} must have {must}; it has {has}: {shown(line)}.")
        word, tag = (cells[place].strip() for place in places)
        if not word or not tag:
            raise DataError(f"Line {number:,} of {path} must have a word and a tag; one is blank: {shown(line)}.")
        sentences[-1].add(number, word, tag)
    return _require_words(path, sentences)


def read_conllu(path: Path, tag: Field = "upos") -> list[Sentence]:
    """Read sentences with one of the fields as tags."""
    sentences = [Sentence()]
    spoken = 0  # the last word of those written as one, as 3-4 says
    for number, line in enumerate(lines(read_filled(path)), start=1):
        if not line.strip():
            sentences.append(Sentence())
            spoken = 0
        elif line.startswith("#"):
            if line.startswith("# text = "):
                sentences[-1].text = line.removeprefix("# text = ")
        else:
            cells = line.split("\t")
            if len(cells) != _COLUMNS:
                raise DataError(
                    f"Line {number:,} of {path} must have the {_COLUMNS} columns of CoNLL-U with tabs between; it has "
                    f"{len(cells)}: {shown(line)}."
                )
            spoken = _read_word(path, number, cells, tag, sentences[-1], spoken)
    return _require_words(path, sentences)


def _read_word(path: Path, number: int, cells: Sequence[str], tag: Field, sentence: Sentence, spoken: int) -> int:
    name, form = cells[0], cells[1].strip()
    spaced = "SpaceAfter=No" not in cells[9].split("|")
    if "." in name:  # a word that is not written
        return spoken
    try:
        first, _, last = name.partition("-")
        place, until = int(first), int(last or first)
    except ValueError:
        raise DataError(f"Line {number:,} of {path} must begin with the word's number, got {shown(name)}.") from None
    if not form or not cells[_FIELDS[tag]].strip():
        raise DataError(f"Line {number:,} of {path} must have a form and its {tag}; one is blank: {shown(form)}.")
    if last:
        sentence.surface.append((form, until - place + 1, spaced))
        return until
    sentence.add(number, form, cells[_FIELDS[tag]].strip())
    if place > spoken:
        sentence.surface.append((form, 1, spaced))
    return spoken


def _require_words(path: Path, sentences: Iterable[Sentence]) -> list[Sentence]:
    filled = [sentence for sentence in sentences if sentence.words]
    if not filled:
        raise DataError(f"{path} must hold sentences, a word and its tag on each line; it has none.")
    return filled


# --- tags -------------------------------------------------------------------------------------------------------------


def find_scheme(asked: TagScheme, sentences: Sequence[Sentence]) -> Scheme | None:
    """How spans are written in these sentences; None if each word has a tag of its own."""
    if asked in ("IOB1", "IOB2", "BIOES"):
        return asked
    known = {tag for sentence in sentences for tag in sentence.tags}
    if asked == "plain" or OUTSIDE not in known or not any(tag[:2] in ("B-", "I-") for tag in known):
        return None
    spelled = ([_as_bioes(tag) for tag in sentence.tags] for sentence in sentences)
    return scheme_of(tags for tags in spelled if all(map(_is_span_tag, tags)))  # `parse_tags` names the others


def parse_tags(
    sentences: Sequence[Sentence], scheme: Scheme | None, invalid: Literal["repair", "refuse"], file: str
) -> Read[TokenClassificationExample]:
    """Return the sentences with tags of spans in IOB2, what breaks the scheme repaired and noted, or refused."""
    examples: list[TokenClassificationExample] = []
    wrong: list[tuple[int, str, str]] = []  # the line, its tag, and what that became
    for sentence in sentences:
        tags = sentence.tags
        if scheme is not None:
            written = list(map(_as_bioes, tags))
            for line, tag in zip(sentence.lines, written, strict=True):
                if not _is_span_tag(tag):
                    raise DataError(
                        f"Line {line:,} of {file} must have a tag of a span, such as B-PER, or O; it has {tag!r}. "
                        "To take tags as they are, set data.scheme=plain."
                    )
            spans, mistakes = read_tags(written, scheme)
            if mistakes and invalid == "refuse":
                place = mistakes[0]
                before = tags[place - 1] if place else "the beginning of a sentence"
                after = f"before {tags[place + 1]}" if place + 1 < len(tags) else "at the end of a sentence"
                raise DataError(
                    f"Line {sentence.lines[place]:,} of {file} has {tags[place]} after {before} {after}, which is not "
                    f"valid {scheme}. Mend it, or set data.invalid=repair."
                )
            tags = tags_of(spans, len(written))
            wrong += [(sentence.lines[place], sentence.tags[place], tags[place]) for place in mistakes]
        examples.append(_place_words(sentence, tags))
    if not wrong:
        return examples, []
    tags_are = "1 tag is" if len(wrong) == 1 else f"{len(wrong):,} tags are"
    first = "at" if len(wrong) == 1 else "the first at"
    line, old, new = wrong[0]
    became = f"{old} became {new}" if old != new else old  # what is wrong of it may be what stands beside it
    return examples, [f"{tags_are} not valid {scheme} and repaired, {first} line {line:,} of {file}: {became}"]


def _as_bioes(tag: str) -> str:
    """What BILOU calls last and unit, BIOES calls end and single."""
    prefix, dash, kind = tag.partition("-")
    return f"{_BILOU[prefix]}-{kind}" if prefix in _BILOU and dash else tag


def _is_span_tag(tag: str) -> bool:
    try:
        parse_tag(tag)
    except DataError:
        return False
    return True


# --- where words stand ------------------------------------------------------------------------------------------------


def _place_words(sentence: Sentence, tags: Sequence[str]) -> TokenClassificationExample:
    """Return the sentence with its text; where the words are not in that as they stand, it is made anew of them."""
    surface = "".join(form + " " * spaced for form, _, spaced in sentence.surface).rstrip()
    for text in (sentence.text, surface):
        spans: list[Span] = []
        end = 0
        for form, count, _ in sentence.surface if text else ():
            start = next((place for place in range(end, len(text)) if not text[place].isspace()), len(text))
            if not text.startswith(form, start):
                break
            end = start + len(form)
            words = sentence.words[len(spans) : len(spans) + count]
            if "".join(words) == form:  # written as one: do|n't
                ends = list(accumulate(map(len, words), initial=start))
                spans += pairwise(ends)
            else:  # not made of their letters, as du for de le: all of it
                spans += [(start, end)] * len(words)
        if spans and len(spans) == len(sentence.words):
            return TokenClassificationExample(tuple(sentence.words), tuple(tags), text, tuple(spans))
    return TokenClassificationExample.of(sentence.words, tags)
