"""`seqloom inspect window`: what each place of a feed-forward language model's window is worth."""

from pathlib import Path
from typing import Annotated

import typer

from seqloom.cli._options import DataDir, JsonObject, PictureOut
from seqloom.cli._output import check_out, print_json, write_picture

BAR = 40  # letters of the longest


def window(
    runs: Annotated[list[Path], typer.Argument(help="Runs of feed-forward language models, compared if several.")],
    split: Annotated[str, typer.Option(help="The text to predict: train, dev or test.")] = "dev",
    most: Annotated[int | None, typer.Option("--tokens", help="Its first so many tokens alone. [default: all]")] = None,
    out: PictureOut = None,
    data_dir: DataDir = None,
    as_json: JsonObject = False,
) -> None:
    """What each place of the window is worth: `seqloom inspect window runs/ffnn-pydocs --out window.png`."""
    from seqloom.core.errors import UsageError
    from seqloom.data.files import use_data_folder
    from seqloom.inspect.plots.measurements import draw_window
    from seqloom.inspect.views.memory import window_lm, window_view
    from seqloom.predict.loader import load
    from seqloom.recipes import recipe_of

    check_out(out)
    if most is not None and most < 2:
        raise UsageError(f"--tokens must be at least 2, so that there is something to deal out anew; got {most}.")
    trained = [load(run, "cpu") for run in runs]
    for one in trained:
        window_lm(one)  # what has no window is refused before any data is read
    with use_data_folder(data_dir):
        names = [run.name if len({other.name for other in runs}) == len(runs) else str(run) for run in runs]
        pairs = zip(trained, names, strict=True)
        views = [window_view(one, recipe_of(one.run), split, most, name) for one, name in pairs]
    if out is not None:
        write_picture(out, draw_window(views))
    if as_json:
        found = [{"run": str(run), **vars(view), "worth": view.worth} for run, view in zip(runs, views, strict=True)]
        print_json({"split": split, "runs": found})
        return
    for view in views:
        print(f"{view.name}: {view.loss:.4f} nats per token on {split} ({view.tokens:,} tokens)")
        largest = max(*view.worth, 1e-12)
        for place, (loss, worth) in enumerate(zip(view.shuffled, view.worth, strict=True), start=1):
            bar = "█" * round(BAR * max(worth, 0) / largest)
            print(f"  {place:3} back says nothing true  {loss:8.4f}  {worth:+8.4f}  {bar}".rstrip())
