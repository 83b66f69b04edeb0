"""Where every head of a denoiser looks while it restores a text; see `seqloom.inspect.views.heads`.

What it reads has [MASK] where something is hidden. A model that says what gaps hide, and nothing else, says first which
gap it means: such a sentinel is shown as <1>, <2> … on both sides.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch

from seqloom.core.specials import Specials
from seqloom.evaluate.alignment import Word, words_of
from seqloom.inspect.views.alignment import Said, one_line, unknown_note
from seqloom.inspect.views.heads import HeadsView, Part, check_heads, parts_of
from seqloom.inspect.views.reading import evaluating
from seqloom.text.base import END, END_TEXT
from seqloom.text.gaps import read_gaps
from seqloom.text.spans import decoded_spans


def restorer_heads_view(restorer: Any, text: str, **options: Any) -> HeadsView:
    """`restorer` is what `seqloom.load` gives for the run of a denoiser; `options` are those of its search."""
    check_heads(restorer)
    said = _said(restorer, one_line(text, "text"), options)
    batch = said.batch(restorer.model)
    with evaluating(restorer.model), torch.no_grad():
        attentions, log_probs = restorer.model.attentions(batch), restorer.model.target_log_probs(batch)
    parts: dict[str, Part] = dict(parts_of(attentions, said, getattr(restorer.model.config, "align_layer", None)))
    log_prob = log_probs.double().sum().item()
    return HeadsView(
        restorer.name, said.source, said.text, False, said.finished, log_prob, parts, said.notes, "restored"
    )


def _said(restorer: Any, text: str, options: dict[str, Any]) -> Said:
    tokenizer = restorer.tokenizer
    read, best = restorer.said(text, **options)
    gaps = read_gaps(tokenizer, Specials.after(len(tokenizer)), text)
    said = [*best.tokens, *[END] * best.finished]
    names = {
        **Specials.after(len(tokenizer)).names,
        **{sentinel: f"<{number}>" for number, sentinel in enumerate(restorer.sentinels, start=1)},
    }
    shown = [[names.get(token) or tokenizer.token(token) for token in row] for row in (read, said)]
    words = _words(tokenizer, best.tokens, names)
    spoken = " ".join(word.text for word in words)
    notes = [unknown_note(gaps.unknown, "text")] if gaps.unknown else []
    notes += [] if best.finished else ["what it says was cut at the longest allowed: the model did not end it"]
    return Said(
        text,
        spoken if restorer.spans else tokenizer.decode(best.tokens),
        False,
        best.finished,
        read,
        said,
        shown[0],
        shown[1],
        words_of(text, gaps.spans, END_TEXT),
        [*words, *[Word(END_TEXT, (len(best.tokens),))] * best.finished],
        tuple(notes),
    )


def _words(tokenizer: Any, ids: Sequence[int], names: dict[int, str]) -> list[Word]:
    """What is said, by words; what is not the tokenizer's is a word of its own."""
    found: list[Word] = []
    for special, run in groupby(enumerate(ids), key=lambda one: one[1] in names):
        places, tokens = zip(*run, strict=True)
        if special:
            found += [Word(names[token], (place,)) for place, token in zip(places, tokens, strict=True)]
        else:
            own = words_of(tokenizer.decode(tokens), decoded_spans(tokenizer, tokens))
            found += [Word(word.text, tuple(place + places[0] for place in word.tokens)) for word in own]
    return found
