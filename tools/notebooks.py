"""Convert the lessons in docs/learn to Jupyter notebooks in build/notebooks. Called by `make notebooks`.

A block that runs becomes a code cell with the output that the lesson shows. All other text becomes Markdown. Images are
embedded, and links point to the files of this checkout.
"""

import base64
import json
import os
import re
from pathlib import Path
from typing import Any

from tools.lessons import FENCE, lesson_paths, link_quotes, read_blocks

OUT = Path(__file__).parents[1] / "build" / "notebooks"
SETUP = """# Find the seqloom command that belongs to this kernel.
import os
import sys

os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]"""
IMAGE = re.compile(r"(!\[[^\]]*\])\((pictures/[^)]+)\)")
LINK = re.compile(r"(\]\()(?!https:|attachment:|#)([^)#]+)")


def notebook(path: Path, out: Path = OUT) -> dict[str, Any]:
    """Return the notebook of a lesson. It must be saved in the folder `out`."""
    cells: list[dict[str, Any]] = []

    def add(kind: str, source: str, **content: Any) -> None:
        if source.strip():
            cell = {"cell_type": kind, "id": f"cell-{len(cells)}", "metadata": {}, "source": source.strip()}
            cells.append({**cell, **content})

    def add_markdown(text: str) -> None:
        images = {Path(name).name: path.parent / name for _, name in IMAGE.findall(text)}
        files = {name: {"image/png": base64.b64encode(file.read_bytes()).decode()} for name, file in images.items()}
        text = IMAGE.sub(lambda match: f"{match[1]}(attachment:{Path(match[2]).name})", text)
        text = LINK.sub(lambda match: match[1] + os.path.relpath(path.parent / match[2], out), text)
        add("markdown", text, **({"attachments": files} if files else {}))

    title, _, rest = link_quotes(path.read_text("utf-8")).partition("\n")
    add_markdown(title)
    add("code", SETUP, execution_count=None, outputs=[])
    for part in re.split(r"(^<details.*?^</details>$)", rest, flags=re.MULTILINE | re.DOTALL):
        if part.startswith("<details"):  # an answer is not split
            add_markdown(part)
            continue
        end = 0
        for match, block in zip(FENCE.finditer(part), read_blocks(part), strict=True):
            is_output = (
                block.language == "text" and cells[-1]["cell_type"] == "code" and not part[end : match.start()].strip()
            )
            if not block.is_run and not is_output:
                continue  # the block is part of the Markdown
            add_markdown(part[end : match.start()])
            end = match.end()
            if is_output:
                cells[-1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": block.text}]
            else:
                add("code", as_code(block.language, block.text), execution_count=None, outputs=[])
        add_markdown(part[end:])
    language = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return {"cells": cells, "metadata": language, "nbformat": 4, "nbformat_minor": 5}


def as_code(language: str, text: str) -> str:
    """Return a block as the source of a code cell, with `!` before commands and with the images that they draw."""
    if language == "python":
        return text
    marks = {"seqloom studio": "# in a terminal: ", "#": ""}
    lines = text.replace("\\\n", " ").splitlines()
    code = [next((mark for start, mark in marks.items() if line.startswith(start)), "!") + line for line in lines]
    images = re.findall(r"--out (\S+\.png)", text)
    code += ["from IPython.display import Image"] * bool(images) + [f'display(Image("{name}"))' for name in images]
    return "\n".join(code)


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    for path in lesson_paths():
        file = OUT / f"{path.stem}.ipynb"
        file.write_text(json.dumps(notebook(path), ensure_ascii=False, indent=1) + "\n", "utf-8")
        print(file)


if __name__ == "__main__":
    main()
