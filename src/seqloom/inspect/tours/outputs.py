"""The last stages of every walk that ends with a token: a vector becomes scores, scores become probabilities, and one
token is chosen."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.inspect.tours.inputs import OUT
from seqloom.inspect.tours.panels import (
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
from seqloom.text.base import END


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
    letter: str = "h",
) -> Stage:
    """One vector (D,) to a score for each of V tokens, or tags, or labels. `weight` is (V, D); None where an output
    layer has no single matrix. `letter` is what the vector is called."""
    V, D = len(logits), len(vector)
    name = names[chosen]
    same = " (its row of the lookup table from the beginning, used once more)" if tied else ""
    words = (
        f"Now one vector must become an answer. {made_from}For each of the {V:,} {what}s it could say, the model keeps "
        f"a vector, too{same}. The two are compared: multiply them number by number, and add up the products. The "
        f"better a {what} fits, the higher its score."
    )
    panels: list[Panel] = (
        [] if weight is None else [_score_panel(vector, weight, bias, logits, name, chosen, numbers, what, letter)]
    )
    equation = f"score = w · {letter}" + ("" if bias is None else " + bonus")
    letters = {letter: "the model’s vector", "w": f"the vector of the {what} that is scored"}
    if bias is not None:
        letters["bonus"] = f"one more learned number for each {what}, added whatever the text says"
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
        letters=letters,
    )


def _score_panel(
    vector: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    logits: Tensor,
    name: str,
    chosen: int,
    numbers: int,
    what: str,
    letter: str,
) -> Dot:
    note = f"So it is done with all {len(logits):,} {what}s. The next stage shows the highest scores."
    after = [] if bias is None else [(f"+ the bonus of {quoted(name)}", float(bias[chosen]))]
    return dot(
        f"How well does {quoted(name)} fit?",
        (f"{letter}, the model’s vector", vector),
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
        "Scores can be any numbers, negative ones too. The softmax makes probabilities of them: exp of each "
        f"score, which is 2.718… to the power of the score, divided by the sum of all. So every {what} gets a share, "
        "all shares together are 100%, and a score that is higher by 1 means a share 2.7 times as large."
    )
    panel = top_shares(f"From scores to probabilities: {len(names):,} {what}s", names, logits, chosen, of=what)
    panel = _quoted_labels(panel)
    return Stage(
        "softmax",
        OUT,
        "Scores become probabilities",
        words,
        f"probability = exp(score) / Σ exp(score of each {what})",
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
    *,
    remembers: bool = False,
    came: tuple[str, str] = ("written next", ""),
) -> Stage:
    """The token is put behind those that were there, and it goes on. `steps` are the rows of all steps. A model that
    `remembers` reads only the new token. `came` heads the column of the tokens that came next; and what they are."""
    panels: list[Panel] = [
        _read_next([visible(token) for token in written], ids, remembers),
        Lines(
            title="All steps",
            columns=("step", "was read", came[0], "probability"),
            rows=steps,
            marked=step,
            note=f"Click a number to walk through that step. {came[1]}".strip(),
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


def _read_next(tokens: Sequence[str], ids: Sequence[int], remembers: bool) -> Tokens:
    last, title = len(tokens) - 1, "What the model will read in the next step"
    if ids[-1] == END and last:
        note = f"The last one, {quoted(tokens[-1])}, says: this is the end."
        return Tokens(title="All that was written", tokens=tokens, ids=ids, followed=last, note=note)
    if remembers:
        note = "It reads this one token. What came before is in its memory."
        return Tokens(title=title, tokens=tokens[-1:], ids=ids[-1:], followed=0, note=note)
    return Tokens(title=title, tokens=tokens, ids=ids, followed=last, note="The last one is new.")


def output_matrix(output: nn.Module) -> tuple[Tensor | None, Tensor | None]:
    """W (V, D) and b (V,) of an output layer that has them."""
    if isinstance(output, nn.Linear):
        return output.weight, output.bias
    return None, None


def logits_of(output: Any, vector: Tensor) -> Tensor:
    """Scores (V,) of a vector (D,): where an output layer has no single matrix, log p serves as well."""
    found: Tensor = output(vector) if isinstance(output, nn.Linear) else output.log_probs(vector.unsqueeze(0))[0]
    return found
