"""Beam search: all that was compared, as a tree, and what was found."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from pydantic import Field

from seqloom.core.errors import UsageError
from seqloom.inspect.views.next_tokens import SearchTree, beginning, search_tree
from seqloom.studio.asking import BEAM, Line, RunQuestion, StudioShelf
from seqloom.studio.endpoints import queued
from seqloom.tasks import has_view

router = APIRouter(prefix="/api/beam")
SOURCE = 128  # tokens of a text whose search can still be drawn
MOST_TOKENS = 100  # that a prompt is continued by
NODE_FIELDS = ("id", "parent", "step", "text", "log_prob", "total", "score", "rank", "status", "best")
MOST_NODES = 4000  # beyond, pruned branches stay here


def suits(recipe: Mapping[str, Any]) -> bool:
    return has_view(recipe, "beam")


class BeamQuestion(RunQuestion):
    text: Line = ""
    beam: int | None = Field(None, ge=1, le=BEAM)  # None: as the run's recipe says
    n_best: int | None = Field(None, ge=1, le=BEAM)
    length_penalty: float | None = Field(None, ge=0, le=5)
    max_tokens: int = Field(20, ge=1, le=MOST_TOKENS)  # of language models


@router.post("")
@queued
def beam(ask: BeamQuestion, shelf: StudioShelf) -> dict[str, Any]:
    """The options are those of `seqloom translate`, and so is the best of what was found."""
    given = {"beam": ask.beam, "n_best": ask.n_best, "length_penalty": ask.length_penalty}
    options = {name: value for name, value in given.items() if value is not None}
    with shelf.using(ask.run) as trained:
        tree: SearchTree = shelf.remember(ask.run, ("beam", ask), lambda: _search(trained, ask, options))
    return _described(tree)


def _search(trained: Any, ask: BeamQuestion, options: dict[str, Any]) -> SearchTree:
    begun = beginning(trained, ask.text)
    tokens = len(begun.source or begun.prompt)
    if tokens > SOURCE:
        raise UsageError(f"The text has {tokens} tokens; a search of more than {SOURCE} cannot be drawn. Shorten it.")
    return search_tree(trained, ask.text, max_tokens=ask.max_tokens, **options)


def _described(tree: SearchTree) -> dict[str, Any]:
    cut = len(tree.nodes) > MOST_NODES
    nodes = [node for node in tree.nodes if not (cut and node.status == "pruned")]
    options = tree.options
    return {
        "nodes": [[getattr(node, name) for name in NODE_FIELDS] for node in nodes],
        "candidates": tree.candidates,
        "ended": tree.others,
        "forced": tree.forced,
        "steps": tree.steps,
        "options": {name: getattr(options, name) for name in ("beam", "n_best", "length_penalty", "stopping")},
        "pruned": tree.count("pruned"),
        "cut": cut,
        "notes": tree.notes,
    }
