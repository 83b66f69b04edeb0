"""Continue a prompt with a trained model."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer


def generate(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    prompt: Annotated[str, typer.Option(help="Text to continue.")] = "",
    max_tokens: Annotated[int, typer.Option("--max-tokens", "--tokens", min=1, help="Most tokens to add.")] = 300,
    temperature: Annotated[float, typer.Option(help="Below 1 safer, above 1 wilder, 0 always the likeliest.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(min=1, help="Choose among the k likeliest only.")] = None,
    top_p: Annotated[float, typer.Option(help="Choose among the fewest that hold this share of probability.")] = 1.0,
    min_tokens: Annotated[int, typer.Option(min=0, help="Do not end before this many tokens.")] = 0,
    repetition_penalty: Annotated[float, typer.Option(help="Divide the probability of what was said by this.")] = 1.0,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be given several times.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="How many continuations.")] = 1,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text.")] = 0,
    allow_unknown: Annotated[bool, typer.Option("--allow-unknown", help="Read unknown pieces as <unk>.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, mps.")] = "auto",
) -> None:
    """Continue a prompt, streaming: `seqloom generate runs/lm-char-lstm --prompt "The class"`."""
    from seqloom.api import LanguageModel, load

    model = load(run, device, LanguageModel)
    for number in range(samples):
        pieces = model.generate(
            prompt,
            max_tokens=max_tokens,
            seed=seed + number,
            stop=stop or (),
            allow_unknown=allow_unknown,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_tokens=min_tokens,
            repetition_penalty=repetition_penalty,
        )
        if samples > 1:
            print(f"--- {number + 1} of {samples}, seed {seed + number}")
        _stream(prompt, pieces)


def _stream(prompt: str, pieces: Iterable[str]) -> None:
    """Every piece as soon as it is there; the line is ended even when Ctrl-C cuts it short."""
    try:
        sys.stdout.write(prompt)
        for piece in pieces:
            sys.stdout.write(piece)
            sys.stdout.flush()
    finally:
        print(flush=True)
