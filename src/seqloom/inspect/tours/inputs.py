"""The first stages of every walk: a text becomes tokens, and tokens become vectors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seqloom.core.errors import UsageError
from seqloom.inspect.tours.panels import (
    Lines,
    Link,
    Map,
    Panel,
    Stage,
    Stop,
    Tokens,
    added,
    array,
    matrix,
    quoted,
    size,
)
from seqloom.nn.embedded import Embedded
from seqloom.text.base import END_TEXT

IN, READ, WRITE, OUT = "From text to numbers", "Reading", "Writing", "The answer"
LONGEST = 64  # tokens of a text that is walked with
NUMBERS = 8  # of each vector, where nothing is said


@dataclass(frozen=True)
class Follow:
    """What a walk keeps to. Places are counted from 1; None is what the walk would choose."""

    word: int | None = None  # the token of the text that is followed
    step: int | None = None  # the token of the answer that is being written
    layer: int = 1
    head: int = 1
    numbers: int = NUMBERS  # of each vector that are shown

    def check(self, layers: int, heads: int) -> None:
        for value, most, what in ((self.layer, layers, "layer"), (self.head, heads, "head")):
            if not 1 <= value <= max(1, most):
                raise UsageError(f"There is no {what} {value}: the model has {max(1, most)} of them.")
        if self.numbers < 1:
            raise UsageError(f"At least one number of each vector must be shown; got {self.numbers}.")


def chosen(value: int | None, usual: int, count: int, what: str) -> int:
    """A place from 0, of one that people count from 1."""
    place = usual if value is None else value - 1
    if not 0 <= place < count:
        raise UsageError(f"There is no {what} {value}: there are {count}.")
    return place


def check_length(tokens: Sequence[Any], what: str = "text") -> None:
    if len(tokens) > LONGEST:
        raise UsageError(
            f"A walk is for a sentence of at most {LONGEST} tokens; this {what} has {len(tokens):,}. Shorten it."
        )


class Read(NamedTuple):
    """The tokens that a model reads, as it embeds them."""

    ids: list[int]
    tokens: list[str]
    row: int  # the place that is followed

    @property
    def followed(self) -> str:
        return quoted(self.tokens[self.row])


class Intro(NamedTuple):
    """What is said of a model before the walk begins."""

    task: str  # what it does, in a sentence
    facts: Sequence[Sequence[str]]
    kind: str  # of its tokens
    answer: str  # what it will say


GLOSSARY = [
    ["token", "a piece of text: a word, a part of one, or a single letter"],
    ["vector", "a list of numbers that stands for something, such as a token"],
    ["weight", "a number that the model has learned, and by which it multiplies others"],
    ["weighted sum", "many numbers become one: each is multiplied by its weight, and the products are added up"],
]


def text_stage(text: str, intro: Intro, stops: Sequence[Stop], back: tuple[int, str] | None = None) -> Stage:
    """The sentence, and a map of the way between it and the answer; `back` is where that goes round, and why."""
    words = (
        f"{intro.task} A computer cannot calculate with letters, so the sentence must become numbers, and in the end "
        "the numbers must become an answer. We follow your sentence all the way. Every number you will see is this "
        "model’s own, for this very sentence."
    )
    whole = [Stop("Sentence", text, "text"), *stops, Stop("Answer", intro.answer, "next")]
    way = Map(title="The way we will walk", stops=whole, back=back, note="Click a box to go there, or go on with Next.")
    about = Lines(title="The model we walk through", columns=("", ""), rows=intro.facts)
    glossary = Lines(title="Words you will meet", columns=("", ""), rows=GLOSSARY)
    characters = size(len(text), "character")
    return Stage("text", IN, "A sentence comes in", words, "", "", characters, (way, glossary, about))


def tokens_stage(read: Read, vocabulary: int, kind: str, end: str = "", lowercase: bool = False) -> Stage:
    """`end` says what the special tokens are for; `lowercase` whether capitals are lost."""
    case = " The model reads all words in lower case." if lowercase else ""
    unknown = " What it does not know is read as <unk>." if "<unk>" in read.tokens else ""
    space = " The sign ␣ stands for a space." if any("␣" in token for token in read.tokens) else ""
    words = (
        f"The sentence is cut into pieces that the model knows, its tokens. {_pieces(kind)} The model knows "
        f"{vocabulary:,} tokens, and each has a number, its id. From here on the model sees only these ids."
        f"{unknown}{space} {end}"
    ).strip()
    panel = Tokens(
        title="The tokens and their ids",
        tokens=read.tokens,
        ids=read.ids,
        followed=read.row,
        note=f"We follow {read.followed}. Click another token to follow that one.{_bytes_words(read)}{case}",
    )
    gives = size(len(read.ids), "token")
    return Stage(
        "tokens", IN, "The sentence is cut into tokens", words, "", "text", gives, (panel,), output=_ids(read.ids)
    )


def _bytes_words(read: Read) -> str:
    one = next((token for token in read.tokens if "<0x" in token), None)
    if one is None:
        return ""
    return (
        f" Letters that are not among the model’s tokens are read as bytes, several to a letter; {one} is one of them."
    )


def _ids(ids: Sequence[int]) -> Any:
    return array(torch.tensor(list(ids)))


def _pieces(kind: str) -> str:
    return {
        "characters": "Here every letter is a token.",
        "words": "Here every word is a token.",
    }.get(kind, "Here frequent words are one token, and rare words are spelled with several.")


def end_words(before: bool) -> str:
    """What END is for, in a sentence."""
    if before:
        return f"{END_TEXT} stands before every text, so that the first token is predicted from something, too."
    return f"{END_TEXT} marks the end."


def lookup_stage(read: Read, rows: Tensor, vectors: Tensor, numbers: int, *, where: str = "", key: str = "") -> Stage:
    """Ids to the rows (T, D) of an embedding table. `vectors` is the table (V, D)."""
    V, D = vectors.shape
    words = (
        f"Each id is swapped for a list of {D} numbers: its vector, one row of a lookup table that the model has "
        f"learned. The table has {V:,} rows, one for each token. In training, tokens that are used alike get similar "
        "rows." + (f" Here are the first {numbers} numbers of each." if numbers < D else "")
    )
    panel = matrix(
        f"Row {read.ids[read.row]} of the lookup table is the vector of {read.followed}",
        read.tokens,
        rows,
        numbers,
        marked=read.row,
    )
    return Stage(
        key or "embeddings",
        IN,
        f"Each token becomes a vector{where}",
        words,
        "xⱼ = E[idⱼ]",
        size(len(read.ids), "id"),
        size(len(read.ids), "token", D),
        (panel,),
        (Link("vectors", "See all these vectors as points"),),
        output=array(rows),
        letters={"xⱼ": f"the vector of token j: {D} numbers"},
    )


# --- a Transformer's: scaled, and told where it stands ----------------------------------------------------------------


class Embedding(NamedTuple):
    """What `Embedded` does with tokens (1, T), part by part; each (T, D)."""

    rows: Tensor
    scaled: Tensor
    positions: Tensor | None
    segments: Tensor | None
    x: Tensor


def embed(embedded: Embedded, ids: Sequence[int], device: Any) -> Embedding:
    tokens = torch.tensor(list(ids), device=device)
    rows = embedded.embed(tokens)
    scaled = rows * embedded.scale
    places = torch.arange(len(tokens), device=device)
    whole = embedded(tokens.unsqueeze(0), places, len(tokens), torch.tensor([len(tokens)]))[0]
    positions = None if embedded.positions is None else embedded.positions(places, like=scaled)
    segments = None if embedded.segments is None else embedded.segments.weight[0].expand_as(scaled)
    return Embedding(rows, scaled, positions, segments, whole)


def first_rows(found: Embedding, rows: int) -> Embedding:
    """As it is when only so many tokens are there."""
    positions = None if found.positions is None else found.positions[:rows]
    segments = None if found.segments is None else found.segments[:rows]
    return Embedding(found.rows[:rows], found.scaled[:rows], positions, segments, found.x[:rows])


def embedding_stages(read: Read, embedded: Embedded, found: Embedding, kind: str, numbers: int) -> list[Stage]:
    """The rows, then what says where each token stands. `kind` is that of the positions."""
    rows = found.rows[read.row]
    looked_up = lookup_stage(read, found.rows, embedded.embed.weight, numbers)
    D = rows.shape[0]
    panels: list[Panel] = []
    terms = [
        (
            "",
            f"{read.followed} from the lookup table" + (f" × √{D}" if embedded.scale != 1 else ""),
            found.scaled[read.row],
        )
    ]
    if found.positions is not None:
        terms.append(("+", f"place {read.row + 1}", found.positions[read.row]))
    if found.segments is not None:
        terms.append(("+", "first text", found.segments[read.row]))
    total = sum((term[2] for term in terms[1:]), terms[0][2])
    normed = type(embedded.norm).__name__ != "Identity"
    if len(terms) > 1:
        panels.append(added(f"What goes in for {read.followed}", [*terms, ("=", "sum", total)], numbers))
    if found.positions is not None:
        panels.append(
            matrix(
                "The vectors of the places",
                [f"place {j + 1}" for j in range(len(read.ids))],
                found.positions,
                numbers,
                marked=read.row,
                row_title="place",
            )
        )
    panels.append(
        matrix(
            "What goes into the first layer" + (", normed" if normed else ""),
            read.tokens,
            found.x,
            numbers,
            marked=read.row,
        )
    )
    segment = (
        "" if found.segments is None else "One more vector says which of two texts it is in; here there is only one."
    )
    shape = size(len(read.ids), "token", D)
    stage = Stage(
        "positions",
        IN,
        "Where does each token stand?",
        _position_words(kind, found.positions is not None) + _scale_words(embedded.scale, D) + segment,
        _input_equation(
            D if embedded.scale != 1 else None, found.positions is not None, found.segments is not None, normed
        ),
        shape,
        shape,
        panels,
        output=array(found.x),
        letters={"xⱼ": "the vector of token j"}
        | scale_letters(D if embedded.scale != 1 else None)
        | ({} if found.segments is None else {"G[first text]": "a learned vector that says: this is the first text"}),
    )
    return [looked_up, stage]


def _position_words(kind: str, is_added: bool) -> str:
    if kind == "rotary":
        return (
            "The next step, attention, looks at all tokens at once and would not notice their order. This model "
            "adds nothing here. Instead it will turn every query and key by an angle that grows with its place, so "
            "that how far two tokens are apart shows when they are compared. "
        )
    if not is_added:
        return "This model is told nothing about places: it sees its tokens as a set. "
    how = (
        "The numbers are waves of different speed, sines and cosines, that are never the same at two places."
        if kind == "sinusoidal"
        else "The model has learned one vector for each place."
    )
    return (
        "The next step, attention, looks at all tokens at once and would not notice their order. So a second "
        f"vector, which depends on the place alone, is added to each token’s own. {how} "
    )


def _scale_words(scale: float, width: int) -> str:
    if scale == 1:
        return ""
    return f"Before that, the token’s numbers are multiplied by √{width} {equals(scale)}, or places would drown them."


def equals(root: float) -> str:
    """A root as people write it: `= 8`, `≈ 11.3`."""
    return f"= {root:.0f}" if root == round(root) else f"≈ {root:.1f}"


def _input_equation(scaled: int | None, placed: bool, segmented: bool, normed: bool) -> str:
    """`scaled` is by the root of how many numbers, if it is."""
    whole = scaling(scaled) + "xⱼ" + (" + PE(j)" if placed else "") + (" + G[first text]" if segmented else "")
    return f"xⱼ ← norm({whole})" if normed else f"xⱼ ← {whole}"


def scaling(width: int | None) -> str:
    return "" if width is None else f"√{width} × "


def scale_letters(width: int | None) -> dict[str, str]:
    return {} if width is None else {f"√{width}": f"the root of {width}, which is how many numbers a vector has"}
