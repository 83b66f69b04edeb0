"""Glossaries: source terms and the terms that their translations must contain.

    cat        Katze|Katzen
    US         USA

A term has one or more words. Alternatives are separated by `|` or written in separate rows. A source term in lowercase
matches any case. A source term with capitals matches only the same spelling, so that `US` does not match `us`.
"""

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from seqloom.core.errors import DataError, UsageError
from seqloom.core.words import format_value, is_word_letter
from seqloom.data.files import expand_home, guess_encoding, read_bytes, use_encoding
from seqloom.data.table_profile import TRANSLATION_SIDES
from seqloom.data.tables import Format, column_names, find_language, format_of, read_columns, read_table

OR = "|"  # separates alternatives


@dataclass(frozen=True)
class Term:
    """A target term: a translation must contain one of its forms."""

    forms: tuple[str, ...]
    source: str | None = None  # the source term that requires it

    @classmethod
    def parse(cls, text: str) -> "Term":
        """Parse forms separated by `|`."""
        return cls(alternatives(text, "A term"))

    def occurs_in(self, text: str) -> bool:
        """Return whether a form occurs as whole words. At the start of the text, the term may have a capital letter."""
        text = normalize(text)
        forms = [normalize(form) for form in self.forms]
        return any(
            is_whole(text, start, start + len(form))
            for form in forms
            for start in [*_positions(text, form), *([0] if text.startswith(capitalize(form)) else [])]
        )


class Glossary:
    """Source terms and the terms that they require."""

    def __init__(self, terms: Mapping[str, str | Sequence[str]] | Iterable[tuple[str, str]]) -> None:
        """Create a glossary from source terms and their target terms."""
        self.terms: dict[str, Term] = {}
        for source, target in terms.items() if isinstance(terms, Mapping) else terms:
            forms = alternatives(target if isinstance(target, str) else OR.join(target), "A target term")
            for name in map(normalize, alternatives(source, "A source term")):
                known = self.terms[name].forms if name in self.terms else ()
                self.terms[name] = Term(tuple(dict.fromkeys((*known, *forms))), name)
        self._lengths: dict[str, set[int]] = {}  # first character → lengths of the source terms
        for name in self.terms:
            self._lengths.setdefault(name[0], set()).add(len(name))

    def __len__(self) -> int:
        return len(self.terms)

    def find(self, line: str) -> list[Term]:
        """Return the terms whose sources occur in a line as whole words, without repetition, in the order of the line.

        The line is searched from left to right. The longest source term at a position is used, and the search continues
        after this term.
        """
        text = normalize(line)
        lower = "".join(small if len(small := letter.lower()) == 1 else letter for letter in text)
        found: list[Term] = []
        start = 0
        while start < len(text):
            source = self._longest(text, lower, start)
            if source is not None:
                found.append(self.terms[source])
            start += len(source or " ")
        return list(dict.fromkeys(found))

    def _longest(self, text: str, lower: str, start: int) -> str | None:
        """Return the longest source term that starts at a position in a text."""
        lengths = self._lengths.get(text[start], set()) | self._lengths.get(lower[start], set())
        for length in sorted(lengths, reverse=True):
            end = start + length
            for part in (text[start:end], lower[start:end]):
                if part in self.terms and len(part) == length and is_whole(text, start, end):
                    return part
        return None


def open_glossary(
    glossary: Glossary | Mapping[str, str | Sequence[str]] | str | Path, languages: tuple[str, str] = ("", "")
) -> Glossary:
    """Return a glossary from a file or a dictionary; `languages` names the columns of a file (`read_glossary`)."""
    if isinstance(glossary, Glossary):
        return glossary
    return read_glossary(Path(glossary), languages) if isinstance(glossary, str | Path) else Glossary(glossary)


def read_glossary(path: Path, languages: tuple[str, str] = ("", "")) -> Glossary:
    """Read a glossary from a table, JSON Lines, or a TMX, XLIFF or PO file.

    If the table has columns for both `languages`, these columns are read. Otherwise, the columns `source` and `target`
    are read, or the first two columns if the table has no columns with these names.
    """
    path = expand_home(path)
    form = format_of(path) or "tsv"
    is_text = form in ("tsv", "csv", "jsonl")
    with use_encoding((guess_encoding(read_bytes(path)) if is_text else None) or "utf-8"):
        columns = _choose_columns(path, form, languages)
        if form == "tsv":  # rows of TSV files may have additional columns
            first, cells = read_columns(path, columns)
            rows = [(number, (source, target)) for number, (source, target) in enumerate(cells, start=first)]
        else:
            table = read_table(path, {"source": columns[0], "target": columns[1]}, form=form)
            rows = [(number, (row["source"], row["target"])) for number, row in table]
    terms = []
    for number, row in rows:
        if not any(map(str.strip, row)):
            continue
        try:
            terms.append(row)
            Glossary([row])
        except UsageError as error:
            raise DataError(f"Line {number:,} of {path}: {error}") from None
    if not terms:
        raise DataError(f"{path} must have rows with a source term and a target term; all are empty.")
    return Glossary(terms)


def _choose_columns(path: Path, form: Format, languages: tuple[str, str]) -> tuple[int, int] | tuple[str, str]:
    """Return the columns of the source and target terms."""
    names = [name.strip() for name in column_names(path, form)]
    if len(names) < 2:
        raise DataError(
            f"{path} must have two columns, a source term and a target term, but has one: {format_value(names[0])}."
        )
    by_language = find_language(languages[0], names, form), find_language(languages[1], names, form)
    if set(by_language) <= set(names) and len(set(by_language)) == 2:
        return by_language
    lower = [name.lower() for name in names]
    for sides in TRANSLATION_SIDES:
        if set(sides) <= set(lower):
            return names[lower.index(sides[0])], names[lower.index(sides[1])]
    return 1, 2


# --- words ------------------------------------------------------------------------------------------------------------


def normalize(text: str) -> str:
    """Compose characters and collapse white space, so that equal terms are equal strings."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def alternatives(text: str, what: str) -> tuple[str, ...]:
    """Split a term into its forms."""
    forms = tuple(" ".join(form.split()) for form in text.split(OR))
    if not all(forms):
        problem = f"it has an empty alternative: {format_value(text)}" if any(forms) else "it is empty"
        raise UsageError(f"{what} must be one or more words, with alternatives separated by {OR}; {problem}.")
    return tuple(dict.fromkeys(forms))


def capitalize(form: str) -> str:
    """Return a form with a capital first letter."""
    return form[:1].upper() + form[1:]


def is_whole(text: str, start: int, end: int) -> bool:
    """Return whether a part of a text starts and ends at word boundaries."""
    return not any(0 < i < len(text) and all(map(is_word_letter, text[i - 1 : i + 1])) for i in (start, end))


def _positions(text: str, part: str) -> Iterator[int]:
    """Yield the positions at which a part occurs in a text."""
    start = text.find(part)
    while start >= 0:
        yield start
        start = text.find(part, start + 1)
