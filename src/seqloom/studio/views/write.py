"""The views "Translate, generate" and "Beam search".

The views show streamed tokens, next-token distributions, filled masks and search trees.
"""

from collections.abc import Generator
from contextlib import closing
from typing import Annotated

from fastapi import Response
from pydantic import Field

from seqloom.core.errors import UsageError
from seqloom.inspect.views.next_tokens import (
    DecodingStart,
    GeneratedToken,
    next_tokens,
    predict_masks,
    prepare_decoding,
    replace_mask,
    stream_tokens,
)
from seqloom.inspect.views.search_tree import SearchTree, search_tree
from seqloom.inspect.views.texts import one_line
from seqloom.predict.gaps import MaskedLMPredictor
from seqloom.studio.endpoints import (
    MAX_NEW_TOKENS,
    Events,
    JsonLinesResponse,
    Line,
    RunRequest,
    View,
    pack_arrays,
    pack_float32,
    pack_uint8,
)
from seqloom.studio.run_folder import OpenRun
from seqloom.text import END

view = View("write", "Translate, generate")
NAMED_TOKENS = 200  # number of tokens that are sent with their names; other tokens are sent only as probabilities
TokenId = Annotated[int, Field(ge=0, le=10_000_000)]


class NextTokenRequest(RunRequest):
    """A text, and the tokens that are forced to follow it."""

    text: Line = ""
    forced: Annotated[tuple[TokenId, ...], Field(max_length=MAX_NEW_TOKENS)] = ()


class StreamRequest(NextTokenRequest):
    """Sampling options."""

    temperature: float = Field(1.0, ge=0, le=10)
    top_k: int | None = Field(None, ge=1, le=10_000_000)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int = Field(0, ge=0, le=2**31 - 1)
    max_tokens: int = Field(60, ge=1, le=MAX_NEW_TOKENS)


class FillMaskRequest(RunRequest):
    """A text with masks."""

    text: Line
    mask: int | None = Field(None, ge=0)  # if given, this mask is first replaced by `token`
    token: TokenId | None = None


@view.post("/next")
def expect_next(body: NextTokenRequest, run: OpenRun) -> Response:
    """Return the full next-token distribution. The page applies temperature, top-k and top-p."""
    expected = run.get_or_compute(
        ("write", body.text, body.forced), lambda: next_tokens(run.trained, body.text, body.forced, top=NAMED_TOKENS)
    )
    meta = {"ids": expected.ids[:NAMED_TOKENS], "tokens": expected.tokens, "entropy": expected.entropy}
    return pack_arrays(meta, log_probs=pack_float32(expected.log_probs), banned=pack_uint8(expected.banned, 0, 1))


@view.post("/stream")
def stream(body: StreamRequest, run: OpenRun) -> Response:
    """Stream tokens. Each token is a separate computation, so that other requests run between them."""
    start = prepare_decoding(run.trained, body.text, body.forced)
    options = body.model_dump(include={"max_tokens", "seed", "temperature", "top_k", "top_p"})
    return JsonLinesResponse(_describe_tokens(start, stream_tokens(run.trained, body.text, body.forced, **options)))


@view.post("/fill")
def fill(body: FillMaskRequest, run: OpenRun) -> object:
    """Return the predictions for each mask."""
    if not isinstance(run.trained, MaskedLMPredictor):
        raise UsageError(f"{run.name} is {run.trained.description} without masks. Choose a masked language model.")
    one_line(body.text, "text")  # rejects an empty text
    text = body.text
    if body.mask is not None and body.token is not None:
        text = replace_mask(run.trained, text, body.mask, body.token)
    guesses = predict_masks(run.trained, text, NAMED_TOKENS)
    return {
        **vars(guesses),
        "masks": [[[guess.id, guess.token, guess.probability] for guess in mask] for mask in guesses.masks],
    }


def _describe_tokens(start: DecodingStart, tokens: Generator[GeneratedToken, None, None]) -> Events:
    has_source = start.source is not None
    prompt = "" if has_source else start.text
    yield {"begin": {"source": has_source, "prompt": prompt, "notes": start.notes}}
    last: int | None = None
    with closing(tokens):
        for token in tokens:
            last, expected = token.token, token.expected
            rank = expected.rank(token.token)
            sampling = expected.sampling_probabilities
            rows = zip(expected.ids, expected.tokens, expected.probabilities, sampling, strict=False)
            yield {
                "id": token.token,
                "text": token.text,
                "token": token.name,
                "forced": token.forced,
                "rank": rank,
                "p": expected.probabilities[rank - 1],
                "chance": sampling[rank - 1],
                "kept": expected.candidate_count,
                "entropy": expected.entropy,
                "top": list(rows),
            }
    yield {"end": "end" if last == END else "length"}


# --- beam search ------------------------------------------------------------------------------------------------------

MAX_BEAM = 16
MAX_SOURCE_TOKENS = 128
MAX_TERMS = 20
NODE_FIELDS = ("id", "parent", "step", "text", "log_prob", "total", "score", "rank", "status", "best")
MAX_NODES = 4000  # a larger tree is sent without its pruned nodes
beam_view = View("beam", "Beam search")


class BeamRequest(RunRequest):
    """Options of beam search. None means the value in the recipe of the run."""

    text: Line = ""
    beam: int | None = Field(None, ge=1, le=MAX_BEAM)
    n_best: int | None = Field(None, ge=1, le=MAX_BEAM)
    length_penalty: float | None = Field(None, ge=0, le=5)
    max_tokens: int = Field(20, ge=1, le=100)  # used by language models
    terms: Annotated[tuple[Line, ...], Field(max_length=MAX_TERMS)] = ()  # used by translators


@beam_view.post()
def beam(body: BeamRequest, run: OpenRun) -> object:
    """Return the search tree. The options and the best hypothesis equal those of `seqloom translate`."""
    tree = run.get_or_compute(("beam", body), lambda: _search(body, run))
    is_cut = len(tree.nodes) > MAX_NODES
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


def _search(body: BeamRequest, run: OpenRun) -> SearchTree:
    start = prepare_decoding(run.trained, body.text)
    tokens = len(start.source or start.prompt)
    if tokens > MAX_SOURCE_TOKENS:
        raise UsageError(
            f"The text has {tokens} tokens; the tree supports at most {MAX_SOURCE_TOKENS}. Shorten the text."
        )
    options = body.model_dump(include={"beam", "n_best", "length_penalty"}, exclude_none=True)
    return search_tree(run.trained, body.text, max_tokens=body.max_tokens, terms=body.terms, **options)
