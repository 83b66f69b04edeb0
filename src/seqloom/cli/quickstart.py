"""The main job on embedded data, from nothing to a model that writes."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqloom.core.errors import Interrupted, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from seqloom.api import LanguageModel, Training
    from seqloom.train.stop import Stop

PROMPT = "The class"


def quickstart(
    out: Annotated[Path | None, typer.Option(help="Where to write the runs. [default: a free name in runs/]")] = None,
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Recipe overrides.")] = None,
) -> None:
    """Train a character LSTM on the Python reference, watch it learn to write, and set it beside counting."""
    from seqloom import api
    from seqloom.train.stop import Stop

    began, stop = time.perf_counter(), Stop()
    place = out or _free(Path("runs/quickstart"))
    if not place.name:
        raise UsageError(f"--out must name a directory to make; got {str(place)!r}.")
    counting = place.with_name(f"{place.name}-5gram")
    for path in (place, counting):
        if path.exists():
            raise UsageError(f"{path} exists. Choose another name for the runs: --out {_free(place)}.")
    _, counted = api.read_recipe("ngram-kn5", ["tokenizer.kind=characters"])
    _, recipe = api.read_recipe("lm-char-lstm", overrides or [])
    with stop.on_signals():
        print("1. Counting: a 5-gram over characters, the baseline (interpolated modified Kneser–Ney).")
        baseline = _follow(api.begin(counted, counting), stop)

        print("\n2. Learning: an LSTM reads the same text, character by character. What it writes as it learns:")
        model = _follow(api.begin(recipe, place), stop)
    _report(model, baseline, began)


def _free(path: Path) -> Path:
    names = (path if number == 1 else path.with_name(f"{path.name}-{number}") for number in range(1, 10_000))
    return next(name for name in names if not name.exists() and not name.with_name(f"{name.name}-5gram").exists())


def _follow(training: "Training", stop: "Stop") -> "LanguageModel":
    """Show the training, and after each evaluation a line of what the model writes."""
    from seqloom.api import load
    from seqloom.cli.progress import display
    from seqloom.train.events import Evaluated, Stopped

    with display(as_json=False) as show:
        for event in training.events(stop):
            if isinstance(event, Evaluated):
                sample = _sample(load(training.run.path), 70, seed=1)
                metrics = event.metrics
                print(
                    f"step {event.step:5}  perplexity {metrics['perplexity']:6.2f}  "
                    f"bits/char {metrics['bits_per_character']:.3f}  {PROMPT}{_one_line(sample)}"
                )
            else:
                show(event)
            if isinstance(event, Stopped):
                raise Interrupted(f"Go on with: seqloom train --resume {training.run.path}")
    return load(training.run.path)


def _sample(model: "LanguageModel", tokens: int, seed: int) -> str:
    return "".join(model.generate(PROMPT, max_tokens=tokens, temperature=0.7, seed=seed, allow_unknown=True))


def _one_line(text: str) -> str:
    return " ".join(text.split()) if text[:1].strip() else " " + " ".join(text.split())


def _measured(model: "LanguageModel", baseline: "LanguageModel") -> "Iterator[tuple[str, dict[str, float]]]":
    """Each model on test, and the two mixed in the shares that were best on dev, where their tokens are the same."""
    from seqloom.api import interpolate

    yield "5-gram", baseline.evaluate("test")
    yield "LSTM", model.evaluate("test")
    if model.tokenizer.fingerprint() == baseline.tokenizer.fingerprint():
        yield "both, mixed", interpolate([model, baseline]).evaluate("test")


def _report(model: "LanguageModel", baseline: "LanguageModel", began: float) -> None:
    from seqloom.core.errors import ResourceError
    from seqloom.core.files import write_atomic
    from seqloom.inspect.curves import draw_curves
    from seqloom.inspect.figures import to_png

    print("\n3. The test split, which neither has seen:")
    for name, metrics in _measured(model, baseline):
        bits = metrics["bits_per_character"]
        print(f"   {name:12} perplexity {metrics['perplexity']:5.2f}   bits per character {bits:.3f}")
    print("\n4. A longer sample (temperature 0.7):\n")
    print("   " + (PROMPT + _sample(model, 500, seed=7)).replace("\n", "\n   "))
    path = model.run.path
    try:
        write_atomic(path / "curve.png", to_png(draw_curves([model.run, baseline.run])))
        print(f"\n5. The learning curve: {path / 'curve.png'}")
    except ResourceError as error:
        print(f"\n5. No picture: {error}")
    print(f"\nDone in {time.perf_counter() - began:.0f} s. What to try next:")
    print(f'   seqloom generate {path} --prompt "A list is" --temperature 0.8')
    print(f"   seqloom compare {path} {baseline.run.path}")
    print(f'   seqloom inspect gates {path} "The class" --out gates.png')
    print("   seqloom train lm-char-lstm model.cell=gru        another cell, the same recipe")
    print("   seqloom init your-text.txt                       a recipe for your own text")
