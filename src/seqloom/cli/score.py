"""How probable texts are to a trained model."""

import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqloom.cli._json import print_json
from seqloom.core.errors import DataError, UsageError

if TYPE_CHECKING:
    from seqloom.api import Scored

AT_ONCE = 1024  # lines read before the first is answered


def score(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts to score; without any, each line of the input.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One object per text: every token's log-probability.")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, mps.")] = "auto",
) -> None:
    """Log-probability of texts, end included: `seqloom score runs/lm-word-lstm "a text" "another"`."""
    if not texts and sys.stdin.isatty():
        raise UsageError("Give texts to score, or pipe lines in.")
    from seqloom.api import LanguageModel, load

    model = load(run, device, LanguageModel)
    lines = iter(_arguments(texts) if texts else _input(sys.stdin.buffer))
    while block := list(islice(lines, AT_ONCE)):
        for scored in model.score(block):
            print_json(_object(scored)) if as_json else print(_line(scored))


def _arguments(texts: list[str]) -> list[str]:
    for number, text in enumerate(texts, start=1):
        if not text.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in text):
            raise DataError(f"The texts must be UTF-8, but text {number} is not: {text!r}.")
    return texts


def _input(stream: Iterable[bytes]) -> Iterator[str]:
    """The lines of the input without their ends."""
    for number, line in enumerate(stream, start=1):
        try:
            yield line.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise DataError(
                f"The input must be UTF-8, but line {number} holds the byte 0x{line[error.start]:02X}. "
                "Convert it, for example: iconv -f LATIN1 -t UTF-8."
            ) from None


def _object(scored: "Scored") -> dict[str, object]:
    tokens = [{"token": token, "log_prob": value} for token, value in zip(scored.tokens, scored.log_probs, strict=True)]
    return {
        "text": scored.text,
        "log_prob": scored.log_prob,
        "perplexity": scored.perplexity,
        "tokens": tokens,
        "unknown": scored.unknown,
    }


def _line(scored: "Scored") -> str:
    unknown = f"   (unknown: {', '.join(scored.unknown)})" if scored.unknown else ""
    return f"{scored.log_prob:10.3f}  perplexity {scored.perplexity:10.2f}  {scored.text}{unknown}"
