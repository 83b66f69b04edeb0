"""Tests of the command `seqloom studio`."""

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from seqloom.cli.app import main


def test_message_for_missing_runs_suggests_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["studio"]) == 2
    assert "runs/ does not exist" in (message := capsys.readouterr().err) and "seqloom studio --demo" in message


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["nowhere"], 2, "nowhere does not exist. Name a directory of runs"),
        (["file"], 2, "file is a file"),
        (["folder", "--port", "0"], 2, "--port must be at least 1"),
        (["folder", "--host", "no.such.host.invalid"], 5, "Cannot listen on no.such.host.invalid"),
    ],
)
def test_invalid_input_is_rejected(
    words: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    assert main(["studio", *words]) == code
    assert message in capsys.readouterr().err


def test_missing_extra_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "seqloom.studio.server", raising=False)
    assert main(["studio", "anywhere"]) == 5
    assert "pip install 'seqloom[studio]'" in capsys.readouterr().err


def test_studio_serves_until_ctrl_c(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "seqloom", "studio", str(tmp_path), "--no-open"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        printed = ""
        while "Ctrl-C" not in printed and process.poll() is None:
            printed += process.stdout.readline()
        result = re.search(r"(http://127\.0\.0\.1:\d+)/#/runs\?token=([\w-]{32,})\n", printed)
        assert result is not None, printed
        address, token = result.groups()
        arguments = urllib.request.Request(f"{address}/api/runs", b"{}", {"authorization": f"Bearer {token}"})
        assert urllib.request.urlopen(arguments, timeout=20).status == 200
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(urllib.request.Request(f"{address}/api/runs", b"{}"), timeout=20)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) in (0, 130)
        message = process.communicate()[1]
        assert message.startswith(f"There are no runs in {tmp_path}.") and "seqloom studio --demo" in message
        assert "Traceback" not in message
    finally:
        process.kill()
