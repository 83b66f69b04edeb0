"""Search trees equal a search written here, and their leaves equal `beam_search`."""

import itertools
import math
from typing import Any

import pytest
import torch
from tests.random_models import translator, writer

from seqloom.core.errors import UsageError
from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.inspect.views.next_tokens import SearchTree, prepare_decoding, search_tree

Path = tuple[int, ...]


def log_probs(trained: Any, text: str, said: Path) -> list[float]:
    """Return log p of every next token, computed from the start; <unk> is impossible."""
    begun = prepare_decoding(trained, text, said)
    with torch.no_grad():
        output = trained.model.step(torch.tensor([[0, *begun.prefix]]), begun.start())
    found = output.log_probs[0].double().tolist()
    found[1] = -math.inf
    return list(found)


def search_manually(trained: Any, text: str, beam: int, steps: int) -> list[dict[str, set[Path]]]:
    """Return the kept, ended and pruned continuations of each step."""
    hypotheses: dict[Path, float] = {(): 0.0}
    found = []
    for _ in range(steps):
        every = [
            (total + own, (*said, token))
            for said, total in hypotheses.items()
            for token, own in enumerate(log_probs(trained, text, said))
            if own > -math.inf
        ]
        every.sort(key=lambda one: -one[0])
        compared = every[: beam + len(hypotheses)]
        ended = {said for _, said in compared[:beam] if said[-1] == 0}
        going = [(total, said) for total, said in compared if said[-1] != 0][:beam]
        hypotheses = {said: total for total, said in going}
        kept = set(hypotheses)
        found.append({"kept": kept, "ended": ended, "pruned": {said for _, said in compared} - kept - ended})
    return found


def paths(tree: SearchTree, step: int, *statuses: str) -> set[Path]:
    return {
        tuple(own.token for own in tree.path(node.id))
        for node in tree.nodes
        if node.step == step and node.status in statuses
    }


@pytest.mark.parametrize("kind", ["lstm", "ngram", "hmm", "gru", "transformer"])
@pytest.mark.parametrize("beam", [1, 3, 5])
def test_nodes_equal_manual_search(kind: str, beam: int) -> None:
    trained = writer(kind) if kind not in ("gru", "transformer") else translator(kind)
    text = "" if kind not in ("gru", "transformer") else "bad cab"
    options: dict[str, Any] = {"max_tokens": 7} if kind not in ("gru", "transformer") else {"max_length": 7}
    tree = search_tree(trained, text, beam=beam, n_best=beam, **options)
    wanted = search_manually(trained, text, beam, tree.steps)
    assert tree.steps > 1
    for step, own in enumerate(wanted, start=1):
        last = step == tree.steps
        assert paths(tree, step, "open" if last else "kept") == own["kept"]
        assert paths(tree, step, "ended") == own["ended"]
        assert paths(tree, step, "pruned") == own["pruned"]


@pytest.mark.parametrize("kind", ["lstm", "gpt", "window", "ngram", "hmm", "gru", "transformer"])
@pytest.mark.parametrize(("beam", "n_best", "alpha"), [(1, 1, 1.0), (4, 1, 0.0), (4, 4, 1.0), (6, 3, 2.0)])
def test_scores_and_hypotheses_equal_beam_search(kind: str, beam: int, n_best: int, alpha: float) -> None:
    """Totals are sums and scores normalised totals; the recorded search equals a search without a recorder."""
    trained = translator(kind) if kind in ("gru", "transformer") else writer(kind)
    options: dict[str, Any] = {"beam": beam, "n_best": n_best, "length_penalty": alpha}
    tree = search_tree(trained, "bad cab", **options)
    for node in tree.nodes[1:]:
        assert node.parent is not None
        parent = tree.nodes[node.parent]
        assert node.step == parent.step + 1 and parent.status in ("root", "forced", "kept")
        assert node.total == pytest.approx(parent.total + node.log_prob, abs=1e-9)
        assert node.score == pytest.approx(node.total / node.step**alpha, abs=1e-9)
        assert node.text == trained.tokenizer.token(node.token)
    for step, nodes in itertools.groupby(tree.nodes[1:], lambda node: node.step):
        rows = list(nodes)
        assert [node.rank for node in rows] == list(range(1, len(rows) + 1))
        assert [node.total for node in rows] == sorted((node.total for node in rows), reverse=True)
        assert sum(node.status in ("kept", "open") for node in rows) <= (1 if step <= tree.forced else beam)
    alone = search_without_tree(trained, options)
    assert len(tree.candidates) == len(alone) <= n_best
    for number, (found, (words, score, log_prob, finished)) in enumerate(
        zip(tree.candidates, alone, strict=True), start=1
    ):
        assert (found.text, found.score, found.log_prob, found.finished) == (words, score, log_prob, finished)
        leaf = tree.nodes[found.node]
        assert leaf.best == number and leaf.status == ("ended" if finished else "open")
        assert (leaf.total, leaf.score) == pytest.approx((log_prob, score), abs=1e-12)
        assert all(node.best is not None and node.best <= number for node in tree.path(leaf.id))
    assert {node.best for node in tree.nodes} <= {None, *range(1, n_best + 1)}
    every = [tree.nodes[found.node] for found in (*tree.candidates, *tree.others)]
    assert {node.id for node in every if node.status == "ended"} == {n.id for n in tree.nodes if n.status == "ended"}
    for other in tree.others:
        said = [node.token for node in tree.path(other.node)][tree.forced : -1]
        assert other.finished and other.text == prepare_decoding(trained, "bad cab").decode(said)


def search_without_tree(trained: Any, options: dict[str, Any]) -> list[tuple[str, float, float, bool]]:
    """Return the hypotheses of the API, which the commands print."""
    if hasattr(trained, "translate"):
        (found,) = trained.translate("bad cab", **options)
        return [(one.text, one.score, one.log_prob, one.finished) for one in found.candidates]
    return [
        (one.text, one.score, one.log_prob, one.finished) for one in trained.search("bad cab", max_tokens=20, **options)
    ]


def test_prompt_and_prefix_are_forced() -> None:
    trained = writer("lstm")
    tree = search_tree(trained, "ab", trained.tokenizer.encode("c"), beam=2, max_tokens=4)
    assert tree.forced == 3
    assert [node.token for node in tree.nodes if node.status == "forced"] == trained.tokenizer.encode("abc")
    assert all(found.text.startswith("c") for found in tree.candidates)
    speaker = translator()
    tree = search_tree(speaker, "bad", speaker.tokenizer.encode("fe"), beam=2)
    (same,) = speaker.translate("bad", prefix="fe", beam=2)
    assert tree.candidates[0].text == same.text and tree.count("forced") == 2


def test_recorder_does_not_change_search() -> None:
    """A batch of sources gives identical results, with attention and coverage."""
    trained = translator()
    tokens = torch.tensor([[3, 4, 5, 0], [6, 7, 0, 0], [8, 2, 3, 0]])
    source = {"tokens": tokens, "mask": torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1]]).bool()}
    options = BeamConfig(beam=3, n_best=3, coverage_penalty=0.3)

    class Counting:
        seen = 0

        def step(self, step: Any) -> None:
            self.seen += int((step.total > -math.inf).sum())
            assert step.score.shape == step.total.shape == step.node.shape
            shorter = step.total / step.length
            assert (step.score <= shorter + 1e-12).all()  # the penalty lowers the score

    counting = Counting()
    alone, watched = (
        beam_search(trained.model, source=source, options=options, end=0, attention=True, recorder=recorder)
        for recorder in (None, counting)
    )
    assert counting.seen > 30
    for one, other in zip(itertools.chain(*alone), itertools.chain(*watched), strict=True):
        assert (one.tokens, one.score, one.token_log_probs) == (other.tokens, other.score, other.token_log_probs)


def test_invalid_requests_are_rejected() -> None:
    with pytest.raises(UsageError, match="The forced tokens end with END"):
        search_tree(writer("lstm"), "a", [0])
    with pytest.raises(UsageError, match="beam must be at least 1"):
        search_tree(writer("lstm"), "a", beam=0)
    with pytest.raises(UsageError, match="n_best must be at most beam"):
        search_tree(translator(), "a", beam=2, n_best=3)
