"""Translation memories and message catalogues: TMX, XLIFF 1.2 and 2, and PO.

Each file is read as a table with a column for each language. Inline codes, such as <ph> and <bpt>, are
removed; the text inside other inline elements is kept.
"""

import io
import locale
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn
from xml.etree import ElementTree
from xml.parsers import expat

from seqloom.core.errors import DataError
from seqloom.data.files import read_bytes, read_nonblank, without_compression

# The number of a row, counted from 1 (in PO files, the number of the line), and its cells by name.
Rows = list[tuple[int, dict[str, object]]]
INLINE_CODES = {"bpt", "ept", "ph", "it", "ut", "x", "bx", "ex", "sc", "ec", "cp", "sm", "em"}
LANGUAGES = {name.partition("_")[0] for name in locale.locale_alias.values() if "_" in name}
LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"


def read_tmx(path: Path) -> Rows:
    """Read the translation units of a TMX file: the first segment of each language."""
    rows: Rows = []
    source = ""
    for element in _elements(path):
        if element.tag == "header":
            source = element.get("srclang", "")
        if element.tag == "tu":
            cells: dict[str, object] = {}
            for variant in element.iter("tuv"):
                language = variant.get(LANGUAGE) or variant.get("lang") or ""
                cells.setdefault(language, _text(variant.find("seg")))
            # The source language comes first, as in the columns of a table.
            ordered = sorted(cells.items(), key=lambda cell: cell[0].casefold() != source.casefold())
            rows.append((len(rows) + 1, dict(ordered)))
            element.clear()
    return _require_rows(path, rows, "a <tu> with a <tuv> for each language")


def read_xliff(path: Path) -> Rows:
    """Read the units of an XLIFF file, version 1.2 or 2; a missing target is an empty cell."""
    rows: Rows = []
    languages = "source", "target"
    for element in _elements(path, start=("file", "xliff")):
        match element.tag:
            case "file" if element.get("source-language"):  # version 1.2
                languages = element.get("source-language", ""), element.get("target-language") or "target"
            case "xliff" if element.get("srcLang"):  # version 2
                languages = element.get("srcLang", ""), element.get("trgLang") or "target"
            case "trans-unit" | "segment":
                texts = (_text(element.find(side)) for side in ("source", "target"))
                rows.append((len(rows) + 1, dict(zip(languages, texts, strict=True))))
                element.clear()
    return _require_rows(path, rows, "a <trans-unit> or <segment> with <source> and <target>")


def read_po(path: Path) -> Rows:
    """Read the messages of a PO file, except fuzzy and obsolete messages.

    The target language is the field `Language` of the header, or else part of the file name. A PO file does not
    name its source language, so English is assumed; if the target is English, the column of the source is `source`.
    The plural of a message is a separate row with the last plural translation.
    """
    import polib

    text = read_nonblank(path)
    try:
        catalogue = polib.pofile(text)
    except (OSError, ValueError) as error:
        line = re.search(r"\(line (\d+)\)", str(error))
        where = f"Line {int(line[1]):,} of {path}" if line else str(path)
        raise DataError(f'{where} is not valid PO: a message has the lines msgid "…" and msgstr "…".') from None
    target = catalogue.metadata.get("Language", "").replace("_", "-") or language_of_name(path) or "target"
    source = "source" if target == "en" else "en"
    rows: Rows = []
    for entry in catalogue:
        if entry.obsolete or entry.fuzzy:
            continue
        messages = [(entry.msgid, entry.msgstr or entry.msgstr_plural.get(0, ""))]
        if entry.msgid_plural:
            messages.append((entry.msgid_plural, entry.msgstr_plural.get(max(entry.msgstr_plural, default=0), "")))
        rows += [(entry.linenum, {source: message, target: translation}) for message, translation in messages]
    return _require_rows(path, rows, 'msgid "…" and msgstr "…"')


def language_of_name(path: Path) -> str:
    """Return the language in the name of a PO file, such as eu.po, app.pt_BR.po or eu/LC_MESSAGES/app.po, or ""."""
    folder = path.parent.parent.name if path.parent.name == "LC_MESSAGES" else ""
    for name in (without_compression(path).removesuffix(".po"), folder):
        match = re.search(r"(?:^|[._-])([a-z]{2,3})(?:[_-]([A-Z]{2}))?$", name)
        if match and match[1] in LANGUAGES:
            return "-".join(filter(None, match.groups()))
    return ""


def _elements(path: Path, start: tuple[str, ...] = ()) -> Iterator[ElementTree.Element]:
    """Yield the elements of an XML file, without namespaces.

    An element is yielded when it ends, or when it starts if its name is in `start`.
    """
    content = read_bytes(path)
    _refuse_entities(content, path)
    try:
        for event, element in ElementTree.iterparse(io.BytesIO(content), events=("start", "end")):
            element.tag = element.tag.rpartition("}")[2]
            if (event == "start") == (element.tag in start):
                yield element
    except ElementTree.ParseError as error:
        line = error.position[0]
        problem = error.msg.partition(":")[0]
        hint = ": the end of the file may be missing" if problem in ("no element found", "unclosed token") else ""
        raise DataError(f"Line {line:,} of {path} is not valid XML ({problem}{hint}).") from None


def _refuse_entities(content: bytearray, path: Path) -> None:
    """Raise DataError if an XML file in any encoding declares entities, because the parser would expand them."""

    def refuse(*declaration: object) -> NoReturn:
        raise DataError(f"{path} must not define XML entities (<!ENTITY …>). Remove the definitions.")

    parser = expat.ParserCreate()
    parser.EntityDeclHandler = refuse
    with suppress(expat.ExpatError):  # invalid XML is reported by the parser of the elements
        parser.Parse(content, True)


def _text(element: ElementTree.Element | None) -> str:
    """Return the text of a segment on one line, without inline codes."""
    if element is None:
        return ""
    parts = [element.text or ""]
    for child in element:
        if child.tag not in INLINE_CODES:  # `_elements` removed the namespace when the child ended
            parts.append(_text(child))
        parts.append(child.tail or "")
    return " ".join("".join(parts).split())


def _require_rows(path: Path, rows: Rows, required: str) -> Rows:
    if not rows:
        raise DataError(f"{path} must contain {required}, but has none.")
    return rows
