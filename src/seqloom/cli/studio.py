"""`seqloom studio`: the page that shows the insides of trained runs."""

import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from seqloom.core.errors import ResourceError, UsageError

RUNS = Path("runs")


def studio(
    folder: Annotated[Path, typer.Argument(help="The folder that holds your runs, or one run.")] = RUNS,
    host: Annotated[str, typer.Option(help="Address to listen at; any but this machine's own lets others ask.")] = (
        "127.0.0.1"
    ),
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port to listen at. [default: the first free one from 8733]")
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="First train the small models that bring every view alive.")] = (
        False
    ),
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open a browser, where there is one.")] = True,
) -> None:
    """See inside trained models, in the browser: `seqloom studio runs/`."""
    try:
        from seqloom.studio.server import Studio
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "uvicorn", "starlette"):
            raise
        raise ResourceError(
            "The studio needs FastAPI and uvicorn, which are not installed: pip install 'seqloom[studio]'."
        ) from error
    from seqloom.studio.safety import is_here
    from seqloom.studio.shelf import Shelf, displayable

    if demo:
        from seqloom.studio.demo import make

        folder = make(folder / "studio-demo" if folder == RUNS else folder, print)
    elif folder == RUNS and not folder.exists():
        raise UsageError(
            "There are no runs yet: no folder runs/ here. Train something first (seqloom quickstart), name another "
            "folder, or see an example: seqloom studio --demo"
        )
    serving = Studio(folder, host, port)
    if not Shelf(folder).paths():
        typer.echo(
            f"There are no runs in {displayable(str(folder))} yet. To see an example: seqloom studio --demo", err=True
        )
    print(f"The studio shows {displayable(str(folder))} at\n\n    {serving.address()}\n")
    if not is_here(host):
        print("It listens beyond this machine, without encryption: whoever has this address can ask your models.")
    print("Ctrl-C ends it.", flush=True)
    if open_browser and sys.stdout.isatty():
        webbrowser.open(serving.address())
    serving.run()
