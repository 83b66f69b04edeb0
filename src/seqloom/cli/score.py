"""How probable texts are to a trained model."""

import sys
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from seqloom.cli._input import read_lines
from seqloom.cli._options import Device, Run, json_option
from seqloom.cli._output import escaped, print_json
from seqloom.core.errors import UsageError

if TYPE_CHECKING:
    from seqloom.predict.language_model import ScoredText

AT_ONCE = 1024  # lines read before the first is answered


def score(
    run: Run,
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts to score; without any, each line of the input.")
    ] = None,
    as_json: Annotated[bool, json_option("One object per text: every token's log-probability.")] = False,
    device: Device = "auto",
) -> None:
    """Log-probability of texts, end included: `seqloom score runs/lm-word-lstm "a text" "another"`."""
    if not texts and sys.stdin.isatty():
        raise UsageError("Give texts to score, or pipe lines in.")
    from seqloom.predict.language_model import LanguageModelPredictor
    from seqloom.predict.loader import load

    model = load(run, device, LanguageModelPredictor)
    lines = iter(read_lines(texts))
    while block := list(islice(lines, AT_ONCE)):
        for scored in model.score(block):
            if as_json:
                print_json(_object(scored))
            else:
                print(_line(scored), flush=True)


def _object(scored: "ScoredText") -> dict[str, object]:
    tokens = [{"token": token, "log_prob": value} for token, value in zip(scored.tokens, scored.log_probs, strict=True)]
    return {
        "text": scored.text,
        "log_prob": scored.log_prob,
        "perplexity": scored.perplexity,
        "tokens": tokens,
        "unknown": scored.unknown,
    }


def _line(scored: "ScoredText") -> str:
    unknown = f"   (unknown: {', '.join(scored.unknown)})" if scored.unknown else ""
    return f"{scored.log_prob:10.3f}  perplexity {scored.perplexity:10.2f}  {escaped(scored.text + unknown)}"
