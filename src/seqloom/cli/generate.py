"""Continue a prompt with a trained model."""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from seqloom.cli._options import Device, Run

if TYPE_CHECKING:
    from seqloom.predict.language_model import Continuation


def generate(
    run: Run,
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
    beam: Annotated[
        int | None, typer.Option(min=1, help="Search for the likeliest text with so many hypotheses.")
    ] = None,
    n_best: Annotated[int, typer.Option(min=1, help="With --beam: show the n best.")] = 1,
    length_penalty: Annotated[
        float, typer.Option(min=0, help="With --beam: divide scores by length to this power.")
    ] = 1.0,
    stopping: Annotated[Literal["usual", "exact"], typer.Option(help="With --beam: usual, or exact.")] = "usual",
    allow_unknown: Annotated[bool, typer.Option("--allow-unknown", help="Read unknown pieces as <unk>.")] = False,
    device: Device = "auto",
) -> None:
    """Continue a prompt, streaming: `seqloom generate runs/lm-char-lstm --prompt "The class"`."""
    from seqloom.predict.language_model import LanguageModelPredictor
    from seqloom.predict.loader import load

    chance = {
        "--temperature": temperature != 1,
        "--top-k": top_k is not None,
        "--top-p": top_p != 1,
        "--repetition-penalty": repetition_penalty != 1,
        "--stop": bool(stop),
        "--samples": samples != 1,
        "--seed": seed != 0,
    }
    search = {"--n-best": n_best != 1, "--length-penalty": length_penalty != 1, "--stopping": stopping != "usual"}
    if beam is not None:
        _refuse(chance, "has no place beside --beam, which searches for the likeliest text and draws nothing by chance")
    else:
        _refuse(search, "belongs to a beam search; give --beam too, say --beam 5")
    model = load(run, device, LanguageModelPredictor)
    if beam is not None:
        found = model.search(
            prompt,
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            allow_unknown=allow_unknown,
            beam=beam,
            n_best=n_best,
            length_penalty=length_penalty,
            stopping=stopping,
        )
        return _show(prompt, found, numbered=n_best > 1)
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


def _refuse(given: dict[str, bool], why: str) -> None:
    from seqloom.core.errors import UsageError

    for option in (name for name, set_ in given.items() if set_):
        raise UsageError(f"{option} {why}.")


def _show(prompt: str, found: Sequence["Continuation"], *, numbered: bool) -> None:
    for number, one in enumerate(found, start=1):
        if numbered:
            print(f"--- {number} of {len(found)}, score {one.score:.4f}, log p {one.log_prob:.3f}")
        print(prompt + one.text)


def _stream(prompt: str, pieces: Iterable[str]) -> None:
    """Every piece as soon as it is there; the line is ended even when Ctrl-C cuts it short."""
    try:
        sys.stdout.write(prompt)
        for piece in pieces:
            sys.stdout.write(piece)
            sys.stdout.flush()
    finally:
        print(flush=True)
