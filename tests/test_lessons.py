"""The lessons in docs/learn: structure, quoted source, commands, notebooks and, in the slow tests, every block.

tests/test_readme.py runs the blocks with short training runs.
"""

import re
import shlex
from pathlib import Path

import pytest
from tests.test_docs import parse
from tools import lessons, notebooks

ROOT = Path(__file__).parents[1]
PATHS = lessons.lesson_paths()
HEADINGS = ["Question", "Idea", "Equation and code", "Experiment", "Look inside", "Exercises"]
each_lesson = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


def text_of(path: Path) -> str:
    return path.read_text("utf-8")


def missing_quotes(markdown: str) -> list[str]:
    """Return the quoted blocks that do not occur line by line in their source file."""
    quotes = [block for block in lessons.read_blocks(markdown) if block.source]
    return [f"{block.source}:\n{block.text}" for block in quotes if block.source_line is None]


@each_lesson
def test_lesson_has_common_structure(path: Path) -> None:
    text = re.sub(lessons.FENCE, "", text_of(path))
    assert re.match(rf"# {int(path.stem[:2])}\. \w", text)
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == HEADINGS
    exercises = text.partition("## Exercises")[2]
    assert 3 <= exercises.count("<details") == exercises.count("</details>") <= 6
    assert 100 <= len(text_of(path).splitlines()) <= 300


@each_lesson
def test_quoted_source_exists_and_is_linked(path: Path) -> None:
    text = text_of(path)
    sources = {block.source for block in lessons.read_blocks(text) if block.source}
    assert sources
    assert missing_quotes(text) == []
    assert [source for source in sources if f"](../../{source})" not in text] == []


def test_changed_quote_is_reported() -> None:
    quote = '```python source="src/seqloom/nn/cells/standard.py"\n        c = f * state["c"] + i * g\n```\n'
    assert missing_quotes(quote) == []
    assert len(missing_quotes(quote.replace("i * g", "i + g"))) == 1
    assert len(missing_quotes(quote.replace("        c", "c"))) == 1
    (line,) = re.findall(r"standard\.py#L(\d+)\)", lessons.link_quotes(quote))
    assert text_of(ROOT / "src/seqloom/nn/cells/standard.py").splitlines()[int(line) - 1].strip().startswith("c = f *")


@each_lesson
@pytest.mark.usefixtures("stub_pretrained_runs")
def test_lesson_blocks_are_valid_and_their_commands_are_accepted(path: Path) -> None:
    blocks = lessons.read_blocks(text_of(path))
    assert {block.language for block in blocks} <= {"bash", "python", "text", "yaml"}
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        assert following is None or following.language != "text" or block.is_run, (
            f"line {following.line} shows no output"
        )
        if block.language == "bash":
            for command in re.findall(r"\bseqloom (.+)", block.text.replace("\\\n", " ")):
                words = shlex.split(command, comments=True)
                parse(words[: words.index("<")] if "<" in words else words)


@pytest.mark.slow
@each_lesson
def test_all_blocks_of_a_lesson_are_executable(path: Path, tmp_path: Path) -> None:
    """At most half of the lines of an output may have other words, because generated text differs between machines."""
    blocks = {block.line: block for block in lessons.read_blocks(text_of(path))}
    for line, missing in lessons.check_lesson(path, tmp_path).items():
        assert len(missing) <= len(blocks[line].text.splitlines()) / 2, f"line {line}: {missing}"


def test_output_is_compared_without_numbers() -> None:
    printed = "step 1/3  loss 2.5\nstep 2/3  loss 1.25\ndone\n"
    assert lessons.refresh("step 1/3  loss 9.9\n…\ndone\n", printed) == ("step 1/3  loss 2.5\n…\ndone\n", [])
    assert lessons.refresh("step 2/3  loss 1.2\n", printed) == ("step 2/3  loss 1.25\n", [])
    assert lessons.refresh("step 1/3  cost 9.9\n", printed)[1] == ["step 1/3  cost 9.9"]


# --- notebooks --------------------------------------------------------------------------------------------------------


@each_lesson
def test_notebook_is_valid(path: Path, tmp_path: Path) -> None:
    document = notebooks.notebook(path, tmp_path)
    assert (document["nbformat"], document["nbformat_minor"]) == (4, 5)
    identifiers = [cell["id"] for cell in document["cells"]]
    assert len(set(identifiers)) == len(identifiers)
    for cell in document["cells"]:
        extra = {"execution_count", "outputs"} if cell["cell_type"] == "code" else {"attachments"} & cell.keys()
        assert cell.keys() == {"cell_type", "id", "metadata", "source"} | extra
        for name in re.findall(r"\]\(attachment:([^)]+)\)", cell["source"]):
            assert name in cell["attachments"]
    code = [cell["source"] for cell in document["cells"] if cell["cell_type"] == "code"]
    visible_text = re.sub(r"^<details.*?^</details>$", "", text_of(path), flags=re.MULTILINE | re.DOTALL)
    assert len(code) == 1 + sum(block.is_run for block in lessons.read_blocks(visible_text))


def test_notebook_cells_are_executable(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cells = notebooks.notebook(PATHS[0], tmp_path)["cells"]
    first, second = [cell for cell in cells if cell["cell_type"] == "code"][:2]
    for cell in (first, second):
        exec(compile(cell["source"], cell["id"], "exec"), {})
    printed = capsys.readouterr().out
    assert lessons.refresh(second["outputs"][0]["text"], printed)[1] == []


def test_commands_become_shell_lines() -> None:
    code = notebooks.as_code("bash", "# first\nseqloom train a \\\n  --out b\nseqloom studio runs/\n")
    assert code.splitlines() == ["# first", "!seqloom train a    --out b", "# in a terminal: seqloom studio runs/"]
    assert notebooks.as_code("bash", "seqloom inspect gates a --out b.png\n").endswith('display(Image("b.png"))')
