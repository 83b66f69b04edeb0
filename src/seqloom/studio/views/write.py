"""Writing: tokens as they come and what else might have come in the place of each, gaps filled, and beam search."""

from collections.abc import Generator
from contextlib import closing
from typing import Annotated

from fastapi import Response
from pydantic import Field

from seqloom.core.errors import UsageError
from seqloom.inspect.views.next_tokens import (
    Beginning,
    SearchTree,
    WrittenToken,
    beginning,
    gap_guesses,
    next_tokens,
    search_tree,
    with_token,
    write,
)
from seqloom.inspect.views.texts import one_line
from seqloom.predict.gaps import MaskedLMPredictor
from seqloom.studio.endpoints import (
    NEW_TOKENS,
    Events,
    Line,
    LineResponse,
    RunQuestion,
    View,
    pack_arrays,
    single,
    thumbnail,
)
from seqloom.studio.shelf import OpenRun
from seqloom.text import END

view = View("write")
NAMED = 200  # tokens that are told by name; of the others the page has the probability alone
TokenId = Annotated[int, Field(ge=0, le=10_000_000)]


class NextQuestion(RunQuestion):
    """A text, and tokens that are made to follow it."""

    text: Line = ""
    forced: Annotated[tuple[TokenId, ...], Field(max_length=NEW_TOKENS)] = ()


class StreamQuestion(NextQuestion):
    """How to go on."""

    temperature: float = Field(1.0, ge=0, le=10)
    top_k: int | None = Field(None, ge=1, le=10_000_000)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int = Field(0, ge=0, le=2**31 - 1)
    max_tokens: int = Field(60, ge=1, le=NEW_TOKENS)


class FillQuestion(RunQuestion):
    """A text with gaps."""

    text: Line
    mask: int | None = Field(None, ge=0)  # where `token` is put first
    token: TokenId | None = None


@view.post("/next")
def expect_next(ask: NextQuestion, run: OpenRun) -> Response:
    """The model's own distribution, whole: temperature, top-k and top-p are the page's, so they act at once."""
    expected = run.remember(
        ("write", ask.text, ask.forced), lambda: next_tokens(run.trained, ask.text, ask.forced, top=NAMED)
    )
    meta = {"ids": expected.ids[:NAMED], "tokens": expected.tokens, "entropy": expected.entropy}
    return pack_arrays(meta, log_probs=single(expected.log_probs), banned=thumbnail(expected.banned, 0, 1))


@view.post("/stream")
def stream(ask: StreamQuestion, run: OpenRun) -> Response:
    """Token by token; each is one computation in the queue, so other requests come in between."""
    begun = beginning(run.trained, ask.text, ask.forced)
    options = ask.model_dump(include={"max_tokens", "seed", "temperature", "top_k", "top_p"})
    return LineResponse(_describe_tokens(begun, write(run.trained, ask.text, ask.forced, **options)))


@view.post("/fill")
def fill(ask: FillQuestion, run: OpenRun) -> object:
    """What may stand at each gap."""
    if not isinstance(run.trained, MaskedLMPredictor):
        raise UsageError(f"{run.name} is {run.trained.what}: it does not fill gaps.")
    one_line(ask.text, "text")  # an empty one is refused
    text = ask.text
    if ask.mask is not None and ask.token is not None:
        text = with_token(run.trained, text, ask.mask, ask.token)
    guesses = gap_guesses(run.trained, text, NAMED)
    return {**vars(guesses), "masks": [[[one.id, one.token, one.probability] for one in gap] for gap in guesses.masks]}


def _describe_tokens(begun: Beginning, tokens: Generator[WrittenToken, None, None]) -> Events:
    has_source = begun.source is not None
    prompt = "" if has_source else begun.text
    yield {"begin": {"source": has_source, "prompt": prompt, "notes": begun.notes}}
    last: int | None = None
    with closing(tokens):
        for token in tokens:
            last, expected = token.token, token.expected
            place = expected.rank(token.token) - 1
            rows = zip(expected.ids, expected.tokens, expected.probabilities, expected.chances, strict=False)
            yield {
                "id": token.token,
                "text": token.text,
                "token": token.shown,
                "forced": token.forced,
                "rank": place + 1,
                "p": expected.probabilities[place],
                "chance": expected.chances[place],
                "kept": expected.kept,
                "entropy": expected.entropy,
                "top": list(rows),
            }
    yield {"end": "end" if last == END else "length"}


# --- beam search ------------------------------------------------------------------------------------------------------

BEAM = 16
SOURCE = 128  # tokens of a text whose search can still be drawn
NODE_FIELDS = ("id", "parent", "step", "text", "log_prob", "total", "score", "rank", "status", "best")
MOST_NODES = 4000  # beyond, pruned branches stay here
beam_view = View("beam")


class BeamQuestion(RunQuestion):
    """A search; None is what the run's recipe says."""

    text: Line = ""
    beam: int | None = Field(None, ge=1, le=BEAM)
    n_best: int | None = Field(None, ge=1, le=BEAM)
    length_penalty: float | None = Field(None, ge=0, le=5)
    max_tokens: int = Field(20, ge=1, le=100)  # of language models


@beam_view.post()
def beam(ask: BeamQuestion, run: OpenRun) -> object:
    """All that was compared, as a tree. The options are those of `seqloom translate`, and so is the best of it."""
    tree = run.remember(("beam", ask), lambda: _search(ask, run))
    is_cut = len(tree.nodes) > MOST_NODES
    nodes = [node for node in tree.nodes if not (is_cut and node.status == "pruned")]
    options = tree.options
    return {
        "nodes": [[getattr(node, name) for name in NODE_FIELDS] for node in nodes],
        "candidates": tree.candidates,
        "ended": tree.others,
        "forced": tree.forced,
        "steps": tree.steps,
        "options": {name: getattr(options, name) for name in ("beam", "n_best", "length_penalty", "stopping")},
        "pruned": tree.count("pruned"),
        "cut": is_cut,
        "notes": tree.notes,
    }


def _search(ask: BeamQuestion, run: OpenRun) -> SearchTree:
    begun = beginning(run.trained, ask.text)
    tokens = len(begun.source or begun.prompt)
    if tokens > SOURCE:
        raise UsageError(f"The text has {tokens} tokens; a search of more than {SOURCE} cannot be drawn. Shorten it.")
    options = ask.model_dump(include={"beam", "n_best", "length_penalty"}, exclude_none=True)
    return search_tree(run.trained, ask.text, max_tokens=ask.max_tokens, **options)
