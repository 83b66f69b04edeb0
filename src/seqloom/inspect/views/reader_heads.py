"""Where every head of a BERT looks while it reads a text: an encoder alone; see `seqloom.inspect.views.heads`.

The text stands between [CLS] and [SEP], which are looked at, too: [SEP], at its end, takes the place of END. The text
may have masks.
"""

from typing import Any

import torch

from seqloom.core.errors import UsageError
from seqloom.evaluate.alignment import words_of
from seqloom.inspect.views.alignment import one_line, unknown_note
from seqloom.inspect.views.heads import HeadsView, framed_words, part_of
from seqloom.inspect.views.reading import evaluating
from seqloom.text.gaps import read_gaps
from seqloom.text.specials import framed


def reader_heads_view(reader: Any, text: str) -> HeadsView:
    """`reader` is what `seqloom.load` gives for the run of a masked language model. Dropout is off."""
    model, tokenizer, specials = reader.model, reader.tokenizer, reader.specials
    text = one_line(text, "text")
    gaps = read_gaps(tokenizer, specials, text)
    row = framed(specials, "bert", gaps.ids).tokens
    if reader.longest is not None and len(row) > reader.longest:
        raise UsageError(
            f"{reader.name} reads {reader.longest:,} tokens at once, [CLS] and [SEP] included; the text has "
            f"{len(row):,}. Shorten it."
        )
    with evaluating(model), torch.no_grad():
        layers = model.attentions(torch.tensor([row], device=reader.device))
    shown = [specials.names.get(token) or tokenizer.token(token) for token in row]
    words = framed_words(words_of(text, gaps.spans), shown, before=1)
    part = part_of("encoder", layers, (shown, shown), (words, words))
    notes = (unknown_note(gaps.unknown, "text"),) if gaps.unknown else ()
    return HeadsView(reader.name, None, text, True, True, None, {"encoder": part}, notes, "text")
