"""Command-line options that the benchmarks share. Errors are reported in one line before anything is measured."""

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

from peers.turns import Failed

from seqloom.core.errors import SeqloomError, UsageError
from seqloom.core.files import check_writable

PARTS = ("training", "cells", "decoding")
NOISE = 0.5  # load that may be caused by the start of a benchmark itself


class Parser(argparse.ArgumentParser):
    """A parser that shows the docstring of the script as help and reports each error in one line."""

    def __init__(self, description: str | None = None) -> None:
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see --help\n")


def run_main(main: Callable[[], None]) -> None:
    """Run a script. Report errors of the user in one line without a traceback."""
    try:
        main()
    except (SeqloomError, Failed) as error:
        line = " ".join(str(error).split()).replace("--data-dir", "--data")
        print(f"{Path(sys.argv[0]).name}: {line}", file=sys.stderr)
        sys.exit(2 if isinstance(error, SeqloomError) else 1)


# --- argument types ---------------------------------------------------------------------------------------------------


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1; got {text!r}")
    return int(text)


def count_or_none(text: str) -> int:
    return 0 if text == "0" else count(text)


def one_of(names: Iterable[str]) -> Callable[[str], str]:
    """Return a type for optional lists of names, because argparse's `choices` would reject an empty list."""

    def chosen(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"there is no {text!r}, choose from {', '.join(names)}")
        return text

    return chosen


def result_file(text: str) -> Path:
    """Return a path that can be written after the measurements."""
    path = Path(text)
    try:
        if path.is_dir():
            raise UsageError(f"{path} is a folder, name a file")
        if not path.parent.is_dir():
            raise UsageError(f"the folder {path.parent} does not exist")
        check_writable(path)
    except SeqloomError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return path


def data_folder(text: str) -> Path:
    path = Path(text).resolve()
    if not (path / "multi30k").is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder multi30k/ in {path}")
    return path


def common(parser: Parser, steps: int) -> None:
    """Add the options that `cpu.py` and `gpu.py` share."""
    parts = f"{', '.join(PARTS)}; default: all"
    parser.add_argument("parts", nargs="*", type=one_of(PARTS), metavar="part", help=parts)
    data = "training: the folder with multi30k/ (or SEQLOOM_DATA)"
    parser.add_argument("--data", type=data_folder, metavar="FOLDER", help=data)
    parser.add_argument("--rounds", type=count, default=7, help="all parts: rounds (7)")
    parser.add_argument("--steps", type=count, default=steps, help=f"training: optimizer steps per round ({steps})")
    parser.add_argument("--smoke", action="store_true", help="a small version of all parts, to test the benchmark")
    parser.add_argument("--json", type=result_file, metavar="FILE", help="write all results to this JSON file")


def real_data(chosen: Path | None) -> bool:
    """Whether Multi30k is available, from `--data` or SEQLOOM_DATA."""
    if chosen is not None:
        os.environ["SEQLOOM_DATA"] = str(chosen)
    folder = os.environ.get("SEQLOOM_DATA")
    if folder and not (Path(folder) / "multi30k").is_dir():
        raise UsageError(f"SEQLOOM_DATA is {folder}, and there is no folder multi30k/ in it. Name another with --data.")
    return bool(folder)


# --- the machine ------------------------------------------------------------------------------------------------------


def busy(load: float, cores: int, threads: int) -> bool:
    """Return whether other load needs the cores that the benchmark uses."""
    return load > max(0, cores - threads) + NOISE


def print_load(threads: int) -> float | None:
    """Print the load, with a warning if other programs run. Return the load of the last minute, if it is known."""
    if not hasattr(os, "getloadavg"):
        return None
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    print(f"load average {load:.2f}, {cores} cores, {threads} threads", flush=True)
    if busy(load, cores, threads):
        print(
            "WARNING: other programs use this machine, so the results are not reliable. Measure again when it is idle.",
            flush=True,
        )
    return load
