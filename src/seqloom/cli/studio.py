"""`seqloom studio`: inspect trained runs in the browser."""

import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from seqloom.core.errors import ResourceError, UsageError

RUNS = Path("runs")


def studio(
    folder: Annotated[Path, typer.Argument(help="A directory of runs, or one run.")] = RUNS,
    host: Annotated[
        str, typer.Option(help="Address to listen on; an address other than the default is reachable from the network.")
    ] = ("127.0.0.1"),
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port to listen on. [default: the first free port from 8733]")
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="First train small models for all views.")] = (False),
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
) -> None:
    """Inspect trained models in the browser: `seqloom studio runs/`."""
    try:
        from seqloom.studio.server import Studio
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "uvicorn", "starlette"):
            raise
        raise ResourceError(
            "The studio needs FastAPI and uvicorn, which are not installed: pip install 'seqloom[studio]'."
        ) from error
    from seqloom.studio.run_folder import RunFolder, display_name
    from seqloom.studio.safety import is_loopback

    if demo:
        from seqloom.studio.demo import train_demo

        folder = train_demo(folder / "studio-demo" if folder == RUNS else folder, print)
    elif folder == RUNS and not folder.exists():
        raise UsageError(
            "runs/ does not exist. Train a model first (seqloom quickstart), name another directory, or train the "
            "demo models: seqloom studio --demo"
        )
    serving = Studio(folder, host, port)
    if not RunFolder(folder).paths():
        typer.echo(
            f"There are no runs in {display_name(str(folder))}. To train the demo models: seqloom studio --demo",
            err=True,
        )
    print(f"The studio shows {display_name(str(folder))} at\n\n    {serving.address()}\n")
    if not is_loopback(host):
        print("The studio is reachable from the network without encryption: anyone with this address can use it.")
    print("Press Ctrl-C to stop.", flush=True)
    if open_browser and sys.stdout.isatty():
        webbrowser.open(serving.address())
    serving.run()
