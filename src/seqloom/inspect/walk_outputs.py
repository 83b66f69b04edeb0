"""The last stages of every walk that ends with a token: a vector becomes scores, scores become probabilities, and one
token is chosen."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.inspect.walk_inputs import OUT
from seqloom.inspect.walk_parts import (
    Dot,
    Lines,
    Link,
    Panel,
    Shares,
    Stage,
    Tokens,
    array,
    dot,
    quoted,
    size,
    top_shares,
    visible,
)


def score_stage(
    vector: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    logits: Tensor,
    names: Sequence[str],
    chosen: int,
    numbers: int,
    *,
    what: str = "token",
    tied: bool = False,
    made_from: str = "",
) -> Stage:
    """One vector (D,) to a score for each of V tokens, or tags, or labels. `weight` is (V, D); None where an output
    layer has no single matrix."""
    V, D = len(logits), len(vector)
    name = names[chosen]
    same = f" (the table of {what}s from the beginning, used once more)" if tied else ""
    words = (
        f"Now one vector must become an answer. For each of the {V:,} {what}s it could say, the model keeps a "
        f"vector{same}. It compares: multiply number by number, add up. The better a {what} fits, the higher its "
        f"score. {made_from}"
    )
    panels: list[Panel] = (
        [] if weight is None else [_score_panel(vector, weight, bias, logits, name, chosen, numbers, what)]
    )
    equation = "sᵥ = wᵥ · r + bᵥ" if bias is not None else "sᵥ = wᵥ · r"
    return Stage(
        "logits",
        OUT,
        f"Every {what} gets a score",
        words,
        equation,
        size(1, "vector", D),
        size(V, "score"),
        panels,
        output=array(logits),
    )


def _score_panel(
    vector: Tensor, weight: Tensor, bias: Tensor | None, logits: Tensor, name: str, chosen: int, numbers: int, what: str
) -> Dot:
    note = f"So it is done with all {len(logits):,} {what}s. The next stage shows the highest scores."
    after = [] if bias is None else [(f"+ the bonus of {quoted(name)}", float(bias[chosen]))]
    return dot(
        f"How well does {quoted(name)} fit?",
        ("r, the model’s vector", vector),
        (f"w, the vector of {quoted(name)}", weight[chosen]),
        numbers,
        after=[*after, ("= the score", float(logits[chosen]))],
        note=note,
    )


def probability_stage(
    names: Sequence[str],
    logits: Tensor,
    chosen: int,
    *,
    what: str = "token",
    links: Sequence[Link] = (),
) -> Stage:
    """Scores (V,) to shares of 1."""
    words = (
        "Scores can be any numbers, negative ones too. The softmax makes probabilities of them: e (2.718…) to the "
        f"power of each score, divided by the sum of all. So every {what} gets a share, all shares together are 100%, "
        "and a score that is higher by 1 means a share 2.7 times as large."
    )
    panel = top_shares(f"From scores to probabilities: {len(names):,} {what}s", names, logits, chosen, of=what)
    panel = _quoted_labels(panel)
    return Stage(
        "softmax",
        OUT,
        "Scores become probabilities",
        words,
        "pᵥ = e^sᵥ / Σᵤ e^sᵤ",
        size(len(names), "score"),
        f"{len(names):,} probabilities, together 100%",
        (panel,),
        links,
        output=array(torch.log_softmax(logits.double(), dim=-1).exp()),
    )


def _quoted_labels(panel: Shares) -> Shares:
    return Shares(**{**vars(panel), "labels": [quoted(label) for label in panel.labels]})


def next_stage(
    written: Sequence[str],
    ids: Sequence[int],
    steps: Sequence[Sequence[Any]],
    step: int,
    words: str,
    links: Sequence[Link],
) -> Stage:
    """The token is put behind those that were there, and all begins anew. `steps` are the rows of all steps."""
    panels: list[Panel] = [
        Tokens(
            title="What the model will read in the next step",
            tokens=[visible(token) for token in written],
            ids=ids,
            followed=len(written) - 1,
            note="The last one is new.",
        ),
        Lines(
            title="All steps",
            columns=("step", "was read", "written next", "probability"),
            rows=steps,
            marked=step,
            note="Click a number to walk through that step.",
        ),
    ]
    return Stage(
        "next",
        OUT,
        "One token is chosen, and it goes on",
        words,
        "",
        "probabilities",
        size(1, "token"),
        panels,
        links,
        output=array(torch.tensor(ids)),
    )


def output_matrix(output: nn.Module) -> tuple[Tensor | None, Tensor | None]:
    """W (V, D) and b (V,) of an output layer that has them."""
    if isinstance(output, nn.Linear):
        return output.weight, output.bias
    return None, None


def logits_of(output: Any, vector: Tensor) -> Tensor:
    """Scores (V,) of a vector (D,): where an output layer has no single matrix, log p serves as well."""
    found: Tensor = output(vector) if isinstance(output, nn.Linear) else output.log_probs(vector.unsqueeze(0))[0]
    return found
