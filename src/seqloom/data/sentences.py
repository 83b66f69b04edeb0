"""Sentences of a document, as well as its marks show them.

A sentence ends after . ! ? … and what closes a quotation or a bracket, where white space follows. So it does at a blank
line: headings stand by themselves. The parts of a document, put together again, are the document; each begins with the
white space before it.
"""

import re

ENDS = re.compile(
    r"""(?:[.!?…]['"”’)\]]*(?=\s))  # . " ' ) then white space
    |   (?:[。！？][”’」』）]*)        # no space stands after these
    |   (?<=\S)(?=\s*\n\s*\n)      # a blank line
    """,
    re.VERBOSE,
)


def sentences(document: str) -> list[str]:
    """A document cut where its sentences end; what is only white space goes with what follows."""
    found: list[str] = []
    start = 0
    for match in ENDS.finditer(document):
        if document[start : match.end()].strip():
            found.append(document[start : match.end()])
            start = match.end()
    rest = document[start:]
    if rest.strip() or not found:
        found.append(rest)
    else:
        found[-1] += rest
    return [sentence for sentence in found if sentence.strip()]
