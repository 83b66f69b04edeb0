import errno
import os
import re
import subprocess
import sys
from typing import Any

import pytest
import typer

from seqloom.cli import app
from seqloom.core.errors import CheckpointError, DataError, Interrupted, ResourceError, SeqloomError, UsageError


class OutOfMemoryError(RuntimeError):
    """An error with the same class name as an error of torch."""


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Install a command `break` that raises the given error."""

    def install(error: BaseException | None) -> None:
        def broken() -> None:
            """Raise an error. `seqloom break`"""
            if error is not None:
                raise error

        created = typer.Typer()
        created.callback(invoke_without_command=True)(app.seqloom)
        created.command("break")(broken)
        monkeypatch.setattr(app, "build_app", lambda: created)

    return install


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (SeqloomError("something"), 1, "seqloom: something"),
        (UsageError("model.hiden: no such key"), 2, "seqloom: model.hiden: no such key"),
        (DataError("a.txt, line 3"), 3, "seqloom: a.txt, line 3"),
        (CheckpointError("damaged"), 4, "seqloom: damaged"),
        (ResourceError("no GPU"), 5, "seqloom: no GPU"),
        (Interrupted("saved"), 75, "seqloom: saved"),
        (OSError(errno.ENOSPC, "No space", "runs/x"), 5, "seqloom: the disk is full while writing runs/x."),
        (OSError(errno.EDQUOT, "Quota"), 5, "seqloom: the disk is full. Saved files are intact"),
        (MemoryError(), 5, "seqloom: out of memory. Use a smaller batch"),
        (OutOfMemoryError("CUDA out of memory. Tried to allocate"), 5, "seqloom: out of memory."),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), 5, "out of memory."),
        (typer.Abort(), 130, "seqloom: interrupted"),
        (ZeroDivisionError("division by zero\nmore"), 1, "seqloom: unexpected ZeroDivisionError: division by zero\n"),
        (KeyError(), 1, "seqloom: unexpected KeyError: no message\nThis is a bug; run again with --debug"),
        (FileNotFoundError(2, "No such file", "x"), 1, "seqloom: unexpected FileNotFoundError: [Errno 2]"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_errors_have_exit_code_and_message(
    command: Any, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, words: str
) -> None:
    command(error)
    assert app.main(["break"]) == code
    shown = capsys.readouterr()
    assert words in shown.err
    assert shown.err.startswith("seqloom: ")
    assert shown.err.count("\n") <= 2
    assert shown.out == ""


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (
            "n_best must be at most beam, and 9 is more than 3.",
            "--n-best must be at most --beam, and 9 is more than 3.",
        ),
        ("beam must be at least 1, not 0.", "--beam must be at least 1, not 0."),
        ("A beam search needs n_best; beam must be set.", "A beam search needs --n-best; beam must be set."),
        ("decode.n_best, n_best=3, /tmp/n_best/x, n_bests", "decode.n_best, n_best=3, /tmp/n_best/x, n_bests"),
    ],
)
def test_argument_names_become_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], message: str, shown: str
) -> None:
    def broken(beam: int = 1, n_best: int = 1) -> None:
        raise UsageError(message)

    created = typer.Typer()
    created.callback(invoke_without_command=True)(app.seqloom)
    created.command("break")(broken)
    monkeypatch.setattr(app, "build_app", lambda: created)
    assert app.main(["break"]) == 2
    assert capsys.readouterr().err == f"seqloom: {shown}\n"


def test_torch_out_of_memory_is_recognized() -> None:
    import torch

    assert app.explain(torch.OutOfMemoryError("CUDA out of memory"))[0] == 5
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert app.explain(caught.value)[0] == 5


@pytest.mark.parametrize("words", [["--debug", "break"], ["break", "--debug"]])
def test_debug_shows_traceback(command: Any, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    command(DataError("a.txt is empty"))
    assert app.main(words) == 3
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert shown.endswith("seqloom: a.txt is empty\n")


def test_debug_after_double_dash_is_an_argument(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    command(None)
    assert app.main(["break", "--", "--debug"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_ctrl_c_exits_with_130(command: Any) -> None:
    command(KeyboardInterrupt())
    assert app.main(["break"]) == 130


def test_command_sets_exit_code(command: Any) -> None:
    command(typer.Exit(75))
    assert app.main(["break"]) == 75
    command(None)
    assert app.main(["break"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lst"], "seqloom: No such command 'lst'. Did you mean 'list'?\nTry 'seqloom --help'.\n"),
        (["list", "--nope"], "seqloom: No such option: --nope\nTry 'seqloom list --help'.\n"),
        (["list", "cells", "more"], "\nTry 'seqloom list --help'.\n"),
        (["--nope"], "\nTry 'seqloom --help'.\n"),
        (
            ["similar", "x", "--pooling", "cls"],
            "seqloom: --pooling must be one of mean, first, last, max; got 'cls'.\n",
        ),
        (["similar", "x", "--top", "0"], "seqloom: --top must be at least 1; got 0.\n"),
        (["similar", "x", "--top", "a"], "seqloom: --top must be a whole number; got 'a'.\n"),
        (["generate", "x", "--max-tokens", "0"], "seqloom: --max-tokens / --tokens must be at least 1; got 0.\n"),
    ],
)
def test_invalid_command_line_exits_with_2(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert app.main(words) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.startswith("seqloom: ")
    assert shown.err.count("\n") == 2
    assert shown.out == ""


@pytest.mark.parametrize("words", [["--help"], ["-h"], []])
def test_help_lists_every_command_with_summary(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert app.main(words) == 0
    shown = capsys.readouterr().out
    listed = shown.partition("Get started:\n")[2]
    assert [line.split()[0] for line in listed.splitlines() if re.match(r"  \S", line)] == list(app.COMMANDS)
    assert all(f"\n{title}:\n" in shown for title in app.GROUPS)
    assert "..." not in listed
    assert "`" not in listed


@pytest.mark.parametrize("name", app.COMMANDS)
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert app.main([name, "--help"]) == 0
    assert f"Usage: seqloom {name}" in capsys.readouterr().out


def test_every_command_file_is_registered() -> None:
    targets = {target.partition(":")[0].rpartition(".")[2] for target in app.COMMANDS.values()}
    folder = os.path.dirname(app.__file__)
    files = {name[:-3] for name in os.listdir(folder) if name.endswith(".py")}
    helpers = {name for name in files if name.startswith("_")} | {"app", "progress"}
    assert files - helpers == targets, "a command needs a row in GROUPS of cli/app.py"


def test_version_is_printed() -> None:
    shown = subprocess.run([sys.executable, "-m", "seqloom", "--version"], capture_output=True, text=True)
    assert shown.stdout.startswith("seqloom 0.")
    assert shown.returncode == 0


def test_closed_pipe_prints_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.run(
        [sys.executable, "-m", "seqloom", "list", "recipes"], stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    assert process.stderr == ""
    assert process.returncode != 0


def test_unencodable_characters_are_replaced() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    process = subprocess.run(
        [sys.executable, "-m", "seqloom", "list", "tasks"], capture_output=True, text=True, env=environment
    )
    assert process.returncode == 0
    assert "Kneser?Ney" in process.stdout
