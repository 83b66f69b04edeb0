"""Tell what stands at [MASK], with a trained masked language model."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqloom.cli._input import open_lines
from seqloom.cli._options import BATCH_SIZE, Batch, Device, JsonLines, Texts, Window, top_option
from seqloom.cli._output import one_line, print_answers, printer

if TYPE_CHECKING:
    from seqloom.predict.masked_lm import Filled


def fill(
    run: Annotated[Path, typer.Argument(help="A run of a masked language model, such as bert-pydocs.")],
    texts: Texts = None,
    top: Annotated[int, top_option("Tokens named for each mask")] = 5,
    as_json: JsonLines = False,
    batch: Batch = BATCH_SIZE,
    window: Window = None,
    device: Device = "auto",
) -> None:
    """Tell hidden tokens: `seqloom fill runs/bert-pydocs "the [MASK] statement" --top 5`, or `… < input.txt`."""
    from seqloom.predict.loader import load
    from seqloom.predict.masked_lm import MaskedLM

    model: MaskedLM = load(run, device, MaskedLM)
    lines, size = open_lines(texts, batch, window)
    too_long = f"of {{lines}} with more than {model.longest} tokens only what is near the masks was read"
    print_answers(
        model.fill(lines, top=top, batch_size=batch, window=size),
        printer(as_json, asdict, _plain),
        {too_long: lambda answer: answer.cut > 0},
    )


def _plain(one: "Filled") -> str:
    """The text with its best guesses, then a field for each mask: tokens and their probabilities."""
    masks = (" ".join(f"{visible(said.token)} {said.probability:.4f}" for said in own) for own in one.masks)
    return "\t".join([one_line(one.filled), *masks])


def visible(token: str) -> str:
    """A token without the space it may begin with; one that is nothing else stays to be seen, line breaks as ↵."""
    shown = one_line(token.replace("\n", "↵")).strip()
    return shown.replace(" ", "␣") or "␣"
