"""Run every block of the lessons in docs/learn and compare the output with the lesson. Called by `make lessons`.

All blocks of a lesson run in the same folder and the same Python namespace:

    ```bash                     commands, run by the shell
    ```python                   statements, run by Python
    ```python source="FILE"     lines quoted from FILE; not run
    ```text                     output of the preceding block; "…" represents omitted lines

Numbers are ignored in the comparison, because they differ between machines. `--update` writes the output of this run
into the lessons.
"""

import argparse
import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "learn"
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SERVER = re.compile(r"^seqloom studio\b.*\n", re.MULTILINE)  # a command that serves until it is stopped
ELLIPSIS = "…"


@dataclass(frozen=True)
class Block:
    """A fenced block of a lesson."""

    language: str
    text: str
    line: int  # number of the block's first line in the lesson
    source: str | None = None  # the quoted file

    @property
    def is_run(self) -> bool:
        return self.language in ("bash", "python") and self.source is None

    @property
    def source_line(self) -> int | None:
        """The line of `source` at which the quoted lines begin, or None if the file does not contain them."""
        text = "\n" + (ROOT / (self.source or "")).read_text("utf-8")
        position = text.find(f"\n{self.text}")
        return None if position < 0 else text.count("\n", 0, position) + 1


def lesson_paths() -> list[Path]:
    """Return the lessons in their order."""
    return sorted(FOLDER.glob("[0-9][0-9]-*.md"))


def read_blocks(markdown: str) -> list[Block]:
    """Return the fenced blocks of a lesson in their order."""
    blocks = []
    for match in FENCE.finditer(markdown):
        source = re.search(r'\bsource="([^"]+)"', match[2])
        blocks.append(Block(match[1], match[3], markdown.count("\n", 0, match.start(3)) + 1, source and source[1]))
    return blocks


def link_quotes(markdown: str) -> str:
    """Add a link to file and line below each quoted block of a lesson."""
    blocks = iter(read_blocks(markdown))

    def add_link(fence: re.Match[str]) -> str:
        source, line = (block := next(blocks)).source, block.source and block.source_line
        return f"{fence[0]}\n\n[{source}, line {line}](../../{source}#L{line})" if line else fence[0]

    return FENCE.sub(add_link, markdown)


def run_lesson(path: Path, folder: Path) -> Iterator[tuple[Block, str]]:
    """Run the blocks of a lesson in `folder`, and yield each block with its output."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for block in filter(lambda block: block.is_run, read_blocks(path.read_text("utf-8"))):
        printed = io.StringIO()
        with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
            if block.language == "python":
                exec(compile(block.text, f"{path.name}, line {block.line}", "exec"), namespace)
            else:
                script = ["bash", "-e", "-c", SERVER.sub("", block.text)]
                print(subprocess.run(script, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout)
        yield block, printed.getvalue()


def without_numbers(line: str) -> str:
    return re.sub(r"[-−+]?\d[\d.,:]*(e[-+]?\d+)?", "#", " ".join(line.split()))


def refresh(shown: str, printed: str) -> tuple[str, list[str]]:
    """Return the shown output with the numbers of the printed output, and the shown lines that were not printed."""
    actual: dict[str, list[str]] = {}
    for line in printed.splitlines():
        actual.setdefault(without_numbers(line), []).append(line.rstrip())
    lines, missing = [], []
    for line in shown.splitlines():
        same = actual.get(without_numbers(line), []) if line.strip() else []
        if same:  # of several lines with the same words, the most similar line
            lines.append(same.pop(same.index(max(same, key=lambda other: SequenceMatcher(None, line, other).ratio()))))
            continue
        lines.append(line)
        missing += [line] if line.strip() not in ("", ELLIPSIS) else []
    return "".join(f"{line}\n" for line in lines), missing


def check_lesson(path: Path, folder: Path, *, update: bool = False) -> dict[int, list[str]]:
    """Run a lesson. Return the shown lines that were not printed, by the line number of their block."""
    markdown = path.read_text("utf-8")
    blocks = read_blocks(markdown)
    missing: dict[int, list[str]] = {}
    for block, printed in run_lesson(path, folder):
        following = blocks[blocks.index(block) + 1 :][:1]
        for output in following if [other.language for other in following] == ["text"] else []:
            text, missing[output.line] = refresh(output.text, printed)
            if update:
                markdown = markdown.replace(f"```text\n{output.text}```", f"```text\n{text}```")
    if update:
        path.write_text(markdown, "utf-8")
    return {line: lines for line, lines in missing.items() if lines}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("lessons", nargs="*", type=Path, help="lessons to run; all of docs/learn if omitted")
    parser.add_argument("--update", action="store_true", help="write the output of this run into the lessons")
    arguments = parser.parse_args()
    for path in arguments.lessons or lesson_paths():
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            missing = check_lesson(path.resolve(), Path(folder), update=arguments.update)
        print(f"{path.name}: {time.monotonic() - began:.0f} s")
        for line, lines in missing.items():
            print(f"  line {line}: not printed in this run:\n" + "".join(f"    {text}\n" for text in lines), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
