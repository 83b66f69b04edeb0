"""Search trees equal those of a search in this file, and their leaves equal the results of `beam_search`."""

import itertools
import math
from typing import Any

import pytest
import torch
from tests.random_models import translator, writer

from seqloom.core.errors import UsageError
from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.inspect.views.next_tokens import prepare_decoding
from seqloom.inspect.views.search_tree import SearchTree, search_tree

Path = tuple[int, ...]


def log_probs(trained: Any, text: str, prefix: Path) -> list[float]:
    """Return log p of every next token, computed from the start; <unk> is impossible."""
    start = prepare_decoding(trained, text, prefix)
    with torch.no_grad():
        output = trained.model.step(torch.tensor([[0, *start.prefix]]), start.start())
    values = output.log_probs[0].double().tolist()
    values[1] = -math.inf
    return list(values)


def search_manually(trained: Any, text: str, beam: int, steps: int) -> list[dict[str, set[Path]]]:
    """Return the kept, ended and pruned continuations of each step."""
    hypotheses: dict[Path, float] = {(): 0.0}
    steps_found = []
    for _ in range(steps):
        every = [
            (total + log_prob, (*prefix, token))
            for prefix, total in hypotheses.items()
            for token, log_prob in enumerate(log_probs(trained, text, prefix))
            if log_prob > -math.inf
        ]
        every.sort(key=lambda item: -item[0])
        compared = every[: beam + len(hypotheses)]
        ended = {prefix for _, prefix in compared[:beam] if prefix[-1] == 0}
        going = [(total, prefix) for total, prefix in compared if prefix[-1] != 0][:beam]
        hypotheses = {prefix: total for total, prefix in going}
        kept = set(hypotheses)
        steps_found.append({"kept": kept, "ended": ended, "pruned": {prefix for _, prefix in compared} - kept - ended})
    return steps_found


def paths(tree: SearchTree, step: int, *statuses: str) -> set[Path]:
    return {
        tuple(step_node.token for step_node in tree.path(node.id))
        for node in tree.nodes
        if node.step == step and node.status in statuses
    }


@pytest.mark.parametrize("kind", ["lstm", "ngram", "hmm", "gru", "transformer"])
@pytest.mark.parametrize("beam", [1, 3, 5])
def test_nodes_match_manual_search(kind: str, beam: int) -> None:
    trained = writer(kind) if kind not in ("gru", "transformer") else translator(kind)
    text = "" if kind not in ("gru", "transformer") else "bad cab"
    options: dict[str, Any] = {"max_tokens": 7} if kind not in ("gru", "transformer") else {"max_length": 7}
    tree = search_tree(trained, text, beam=beam, n_best=beam, **options)
    expected = search_manually(trained, text, beam, tree.steps)
    assert tree.steps > 1
    for step, continuations in enumerate(expected, start=1):
        last = step == tree.steps
        assert paths(tree, step, "open" if last else "kept") == continuations["kept"]
        assert paths(tree, step, "ended") == continuations["ended"]
        assert paths(tree, step, "pruned") == continuations["pruned"]


@pytest.mark.parametrize("kind", ["lstm", "gpt", "window", "ngram", "hmm", "gru", "transformer"])
@pytest.mark.parametrize(("beam", "n_best", "alpha"), [(1, 1, 1.0), (4, 1, 0.0), (4, 4, 1.0), (6, 3, 2.0)])
def test_scores_and_hypotheses_match_beam_search(kind: str, beam: int, n_best: int, alpha: float) -> None:
    """Totals are sums, and scores are normalized totals. The recorder does not change the search."""
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
    for number, (candidate, (words, score, log_prob, finished)) in enumerate(
        zip(tree.candidates, alone, strict=True), start=1
    ):
        assert (candidate.text, candidate.score, candidate.log_prob, candidate.finished) == (
            words,
            score,
            log_prob,
            finished,
        )
        leaf = tree.nodes[candidate.node]
        assert leaf.best == number and leaf.status == ("ended" if finished else "open")
        assert (leaf.total, leaf.score) == pytest.approx((log_prob, score), abs=1e-12)
        assert all(node.best is not None and node.best <= number for node in tree.path(leaf.id))
    assert {node.best for node in tree.nodes} <= {None, *range(1, n_best + 1)}
    every = [tree.nodes[candidate.node] for candidate in (*tree.candidates, *tree.others)]
    assert {node.id for node in every if node.status == "ended"} == {n.id for n in tree.nodes if n.status == "ended"}
    for other in tree.others:
        tokens = [node.token for node in tree.path(other.node)][tree.forced : -1]
        assert other.finished and other.text == prepare_decoding(trained, "bad cab").decode(tokens)


def search_without_tree(trained: Any, options: dict[str, Any]) -> list[tuple[str, float, float, bool]]:
    """Return the hypotheses of the API, which the commands print."""
    if hasattr(trained, "translate"):
        (translation,) = trained.translate("bad cab", **options)
        return [
            (hypothesis.text, hypothesis.score, hypothesis.log_prob, hypothesis.finished)
            for hypothesis in translation.candidates
        ]
    return [
        (hypothesis.text, hypothesis.score, hypothesis.log_prob, hypothesis.finished)
        for hypothesis in trained.search("bad cab", max_tokens=20, **options)
    ]


def test_prompt_and_prefix_are_forced() -> None:
    trained = writer("lstm")
    tree = search_tree(trained, "ab", trained.tokenizer.encode("c"), beam=2, max_tokens=4)
    assert tree.forced == 3
    assert [node.token for node in tree.nodes if node.status == "forced"] == trained.tokenizer.encode("abc")
    assert all(candidate.text.startswith("c") for candidate in tree.candidates)
    speaker = translator()
    tree = search_tree(speaker, "bad", speaker.tokenizer.encode("fe"), beam=2)
    (same,) = speaker.translate("bad", prefix="fe", beam=2)
    assert tree.candidates[0].text == same.text and tree.count("forced") == 2


def test_recorder_does_not_change_the_search() -> None:
    """A batch of sources gives results that are identical to those of single sources, with attention and coverage."""
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
    for expected, recorded in zip(itertools.chain(*alone), itertools.chain(*watched), strict=True):
        assert (expected.tokens, expected.score, expected.token_log_probs) == (
            recorded.tokens,
            recorded.score,
            recorded.token_log_probs,
        )


def test_invalid_requests_are_rejected() -> None:
    with pytest.raises(UsageError, match="The forced tokens end with END"):
        search_tree(writer("lstm"), "a", [0])
    with pytest.raises(UsageError, match="beam must be at least 1"):
        search_tree(writer("lstm"), "a", beam=0)
    with pytest.raises(UsageError, match="n_best must be at most beam"):
        search_tree(translator(), "a", beam=2, n_best=3)
