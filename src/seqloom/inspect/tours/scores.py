"""Attention of a recurrent translator in a walk: how well each token of the source fits, and what is taken from it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from seqloom.inspect.tours.inputs import WRITE, Read
from seqloom.inspect.tours.panels import Link, Panel, Stage, added, array, dot, mixture, quoted, size, softmax

EQUATIONS = {
    "cosine": "scoreⱼ = β × cos(s, knownⱼ)",
    "additive": "scoreⱼ = v · tanh(W s + U knownⱼ)",
    "location": "scoreⱼ = wⱼ · s",
    "general": "scoreⱼ = s · (W knownⱼ)",
    "dot": "scoreⱼ = s · knownⱼ",
    "scaled-dot": "scoreⱼ = s · knownⱼ / √n",
}
LETTERS = {
    "cosine": {"β": "a learned number", "cos": "how far two vectors point into the same direction: 1 is the same"},
    "additive": {
        "W, U": "weights that the model has learned: each number that comes out is a weighted sum of all that go in",
        "v": "a vector that the model has learned",
    },
    "location": {"wⱼ": "a learned vector for place j"},
    "scaled-dot": {"√n": "the root of how many numbers s has, so that scores stay moderate"},
}
KNOWN = {"s": "the memory of the half that writes", "knownⱼ": "what is known at token j of the sentence"}


def raw_scores(model: Any, s: Tensor, memory: dict[str, Tensor], coverage: Tensor | None) -> Tensor:
    """(S,) for a state (H,)."""
    seen = None if coverage is None else coverage[None, None]
    found: Tensor = model.attend.score(s[None, None], memory["keys"], seen)[0, 0]
    return found


def attention_stages(
    model: Any, now: Any, memory: dict[str, Tensor], read: Read, step: int, numbers: int
) -> list[Stage]:
    """`now` is the step of the decoder, as `walk_seq2seq` has it."""
    S, M = memory["annotations"].shape[1:]
    best = int(now.scores.argmax())
    kind = model.config.attention.score
    panels = _score_panels(model, kind, now, memory, read, best, numbers)
    names = [quoted(token) for token in read.tokens]
    scores = Stage(
        "scores",
        WRITE,
        "Which part of the sentence is needed now?",
        "Before it writes, the model looks at the sentence again. Its memory s is compared with what is known at "
        f"each token, and each gets a score: how much is it needed now? {_how(kind)} Shown is the one with the "
        f"highest score, {names[best]}.",
        EQUATIONS[kind],
        f"1 memory, {S} tokens × {M} numbers",
        size(S, "score"),
        panels,
        output=array(now.scores),
        letters=(KNOWN if kind != "location" else {"s": KNOWN["s"]}) | LETTERS.get(kind, {}),
    )
    weights = Stage(
        "weights",
        WRITE,
        "Scores become attention",
        "The scores become shares, which together are 100%. This is done by the softmax: take exp of each score, which "
        "is 2.718… to the power of the score, and divide by the sum of all. The shares say how much will be taken "
        "from each token. Nobody told the model which words belong together: it found out, because looking at the "
        "right one made its translations better.",
        "shareⱼ = exp(scoreⱼ) / Σᵢ exp(scoreᵢ)",
        size(S, "score"),
        f"{S} shares, together 100%",
        (softmax(f"Where the model looks in step {step + 1}", names, now.scores, followed=best),),
        (Link("alignment", "See where it looks in all steps"),),
        output=array(now.weights),
    )
    mix = Stage(
        "context",
        WRITE,
        "A mixture of what was read",
        "Now the model takes what it found: what is known at each token times its share, all added up. This one "
        "vector, the context, holds what is needed of the sentence right now. In the next step another one will be "
        "mixed.",
        "context = Σⱼ shareⱼ × knownⱼ",
        f"{S} shares, {S} tokens × {M} numbers",
        size(1, "vector", M),
        (
            mixture(
                "The context",
                names,
                now.weights,
                memory["annotations"][0],
                now.context,
                numbers,
                names=("what is known there", "context"),
            ),
        ),
        output=array(now.context),
        letters={"knownⱼ": KNOWN["knownⱼ"]},
    )
    return [scores, weights, mix]


def _how(kind: str) -> str:
    return {
        "additive": "Weighted sums of the memory and weighted sums of what is known are added, and tanh squeezes them "
        "between −1 and 1. The result is multiplied, number by number, by a learned vector v; the products, added up, "
        "are the score.",
        "location": "In this model the memory alone says where to look: each place has a vector of its own.",
        "cosine": "The score is high where the two point into the same direction.",
        "general": "What is known becomes weighted sums. Memory and sums are multiplied, number by number; the "
        "products, added up, are the score.",
    }.get(kind, "The two are multiplied, number by number; the products, added up, are the score.")


def _score_panels(
    model: Any, kind: str, now: Any, memory: dict[str, Tensor], read: Read, best: int, numbers: int
) -> Sequence[Panel]:
    """One score, in full."""
    score, s = model.attend.score, now.asked
    name, key = quoted(read.tokens[best]), memory["keys"][0, best]
    covered = (
        []
        if now.coverage is None
        else [("+ what it has been looked at before", float(score.covered.sum() * now.coverage[best]))]
    )
    result = [("= the score", float(now.scores[best]))]
    if kind == "additive":
        return _additive(score, now, s, key, name, best, numbers)
    if kind == "location":
        return [
            dot(
                f"The score of {name}",
                ("s, the memory", s),
                (f"the vector of place {best + 1}", score.weight.weight[best]),
                numbers,
                after=[*covered, *result],
            )
        ]
    scaled = [(f"÷ √{score.query}", float(s @ key) / score.query**0.5)] if kind == "scaled-dot" else []
    if kind == "cosine":
        s = torch.nn.functional.normalize(s, dim=-1)
        scaled = [(f"× β = {float(score.strength):.2f}", float(score.strength * (s @ key)))]
    what = f"what is known at {name}" + (", weighted by W" if kind == "general" else "")
    return [dot(f"The score of {name}", ("s, the memory", s), (what, key), numbers, after=[*scaled, *covered, *result])]


def _additive(score: Any, now: Any, s: Tensor, key: Tensor, name: str, best: int, numbers: int) -> Sequence[Panel]:
    from_s = score.weight_s(s)
    terms = [("", "from the memory s", from_s), ("+", f"from {name}", key)]
    total = from_s + key
    if now.coverage is not None:
        seen = now.coverage[best] * score.covered
        terms.append(("+", "looked at before", seen))
        total = total + seen
    bent = torch.tanh(total)
    return [
        added(f"Memory and {name} are put together", [*terms, ("=", "sum", total), ("→", "tanh", bent)], numbers),
        dot(
            f"The score of {name}",
            ("v", score.v.weight[0]),
            ("tanh", bent),
            numbers,
            after=[("= the score", float(now.scores[best]))],
        ),
    ]
