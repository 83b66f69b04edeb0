"""Translate and generate: tokens as they come, and what else might have come in the place of each. Masked language
models tell what may stand at a gap."""

from collections.abc import Generator, Mapping
from contextlib import closing
from typing import Annotated, Any

from fastapi import APIRouter, Response
from pydantic import Field

from seqloom.core.errors import UsageError
from seqloom.inspect.views.next_tokens import (
    Beginning,
    NextTokens,
    WrittenToken,
    beginning,
    gap_guesses,
    next_tokens,
    with_token,
    write,
)
from seqloom.inspect.views.texts import one_line
from seqloom.studio.arrays import lines, packed, single, thumbnail
from seqloom.studio.asking import NEW_TOKENS, Line, RunQuestion, StudioShelf
from seqloom.studio.endpoints import queued
from seqloom.tasks import has_view
from seqloom.text import END

router = APIRouter(prefix="/api/write")
NAMED = 200  # tokens that are told by name; of the others the page has the probability alone

Id = Annotated[int, Field(ge=0, le=10_000_000)]
Forced = Annotated[tuple[Id, ...], Field(max_length=NEW_TOKENS)]


def suits(recipe: Mapping[str, Any]) -> bool:
    return has_view(recipe, "write")


class AskNext(RunQuestion):
    text: Line = ""
    forced: Forced = ()


class AskStream(AskNext):
    temperature: float = Field(1.0, ge=0, le=10)
    top_k: int | None = Field(None, ge=1, le=10_000_000)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int = Field(0, ge=0, le=2**31 - 1)
    max_tokens: int = Field(60, ge=1, le=NEW_TOKENS)


class AskFill(RunQuestion):
    text: Line
    mask: int | None = Field(None, ge=0)  # where `token` is put first
    token: Id | None = None


@router.post("/next")
@queued
def expected(ask: AskNext, shelf: StudioShelf) -> Response:
    """The model's own distribution, whole: temperature, top-k and top-p are the page's, so they act at once."""
    with shelf.using(ask.run) as trained:
        key = ("write", ask.text, ask.forced)
        found: NextTokens = shelf.remember(ask.run, key, lambda: next_tokens(trained, ask.text, ask.forced, top=NAMED))
    meta = {"ids": found.ids[:NAMED], "tokens": found.tokens, "entropy": found.entropy}
    return packed(meta, log_probs=single(found.log_probs), banned=thumbnail(found.banned, 0, 1))


@router.post("/stream")
@queued
def stream(ask: AskStream, shelf: StudioShelf) -> Response:
    """Token by token; each is one computation in the queue, so other requests come in between."""
    with shelf.using(ask.run) as trained:
        begun = beginning(trained, ask.text, ask.forced)
        tokens = write(
            trained,
            ask.text,
            ask.forced,
            max_tokens=ask.max_tokens,
            seed=ask.seed,
            temperature=ask.temperature,
            top_k=ask.top_k,
            top_p=ask.top_p,
        )
    return lines(_events(begun, tokens))


@router.post("/fill")
@queued
def fill(ask: AskFill, shelf: StudioShelf) -> dict[str, Any]:
    with shelf.using(ask.run) as trained:
        if not hasattr(trained, "fill"):
            raise UsageError(f"{ask.run} is {trained.what}: it does not fill gaps.")
        one_line(ask.text, "text")  # an empty one is refused
        text = ask.text
        if ask.mask is not None and ask.token is not None:
            text = with_token(trained, text, ask.mask, ask.token)
        found = gap_guesses(trained, text, NAMED)
    return {**vars(found), "masks": [[[one.id, one.token, one.probability] for one in own] for own in found.masks]}


def _events(begun: Beginning, tokens: Generator[WrittenToken, None, None]) -> Generator[dict[str, Any], None, None]:
    yield {
        "begin": {
            "source": begun.has_source,
            "prompt": "" if begun.has_source else begun.text,
            "notes": begun.notes,
        }
    }
    last: WrittenToken | None = None
    with closing(tokens):
        for token in tokens:
            last = token
            yield _event(token)
    yield {"end": "end" if last is not None and last.token == END else "length"}


def _event(token: WrittenToken) -> dict[str, Any]:
    found, place = token.expected, token.expected.rank(token.token) - 1
    return {
        "id": token.token,
        "text": token.text,
        "token": token.shown,
        "forced": token.forced,
        "rank": place + 1,
        "p": found.probabilities[place],
        "chance": found.chances[place],
        "kept": found.kept,
        "entropy": found.entropy,
        "top": [
            [int(found.ids[i]), name, found.probabilities[i], found.chances[i]] for i, name in enumerate(found.tokens)
        ],
    }
