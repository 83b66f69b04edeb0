"""The documentation agrees with the code in keys, defaults, options, files, commands and links."""

import dataclasses
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
import yaml
from tools import recipe_reference, reference

from seqloom import tasks
from seqloom.cli import app
from seqloom.config.constraints import Ge, key_of
from seqloom.config.yaml_text import parse_yaml
from seqloom.core.errors import SeqloomError
from seqloom.recipes import read_recipe, recipe_mapping, recipe_names
from seqloom.recipes.reference import all_sections, default_of
from seqloom.train.events import Event
from seqloom.training import RESUMABLE_KEYS

ROOT = Path(__file__).parents[1]
BUILT = ROOT / "docs/reference/python"  # written by `make docs` and not committed
PAGES = [ROOT / "README.md", *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path.parent != BUILT)]
SHIPPED_CORPORA = json.loads((ROOT / "tests/data/fingerprints.json").read_text())["corpora"]


def page(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


# --- recipes.md -------------------------------------------------------------------------------------------------------


def documented_tasks() -> list[str]:
    """Return the tasks that the page names. A new task may be undocumented, because it requires only one file."""
    row = recipe_reference.table(dict(recipe_reference.parts(page("docs/reference/recipes.md")))[recipe_reference.TOP])[
        "task"
    ]
    return [task for task in tasks.names() if f"`{task}`" in row[1]]


def shipped_sections() -> dict[str, Any]:
    """Return the configs that the page must describe, which are those of documented tasks and corpora."""
    headings = dict(recipe_reference.parts(page("docs/reference/recipes.md")))
    return {
        heading: section
        for heading, section in all_sections(documented_tasks()).items()
        if heading in headings or not heading.startswith("`data`, corpus") or heading.split("`")[3] in SHIPPED_CORPORA
    }


def test_key_tables_are_current() -> None:
    text = page("docs/reference/recipes.md")
    assert recipe_reference.update(text, shipped_sections()) == text, "the configs have changed: run make reference"


def test_task_of_documented_recipe_is_documented() -> None:
    pages = "\n".join(path.read_text("utf-8") for path in PAGES)
    documented = [name for name in recipe_names() if re.search(rf"\b{name}\b", pages)]
    assert len(documented) > 60
    assert {recipe_mapping(name)[1]["task"] for name in documented} <= set(documented_tasks())


@pytest.mark.parametrize("heading", shipped_sections())
def test_recipe_page_lists_every_key_and_default(heading: str) -> None:
    """This test parses the page independently of the tool that writes the page."""
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.*?) ?\|$", page_part(heading), re.MULTILINE)
    assert len({key for key, _, _ in rows}) == len(rows), "a key is repeated"
    assert all(meaning or key in ("kind", "corpus") for key, _, meaning in rows), "a key has no description"
    assert mistakes({key: default.strip("`") for key, default, _ in rows}, shipped_sections()[heading]) == []


def page_part(heading: str) -> str:
    """Return the text of recipes.md below a heading."""
    _, _, after = page("docs/reference/recipes.md").partition(f"# {heading}\n")
    return re.split(r"^#", after, maxsplit=1, flags=re.MULTILINE)[0]


def mistakes(table: dict[str, str], section: Any) -> list[str]:
    """Return the differences between a table of keys and defaults and its config."""
    entries = {key_of(entry.name): entry for entry in dataclasses.fields(section)}
    wrong = [f"{key} is missing" for key in entries.keys() - table.keys()]
    wrong += [f"{key} does not exist" for key in table.keys() - entries.keys()]
    for key in entries.keys() & table.keys():
        expected, given = default_of(entries[key]), parse_yaml(table[key], key)
        if given != expected or isinstance(given, bool) != isinstance(expected, bool):
            wrong.append(f"{key} defaults to {expected!r}, not to {given!r}")
    return sorted(wrong)


def test_recipe_page_lists_top_level_keys() -> None:
    table = {
        key: row[0].strip("`")
        for key, row in recipe_reference.table(page_part(recipe_reference.TOP).split("\n")).items()
    }
    recipes = [tasks.task_info(task).recipe for task in documented_tasks()]
    assert set(table) == {entry.name for recipe in recipes for entry in dataclasses.fields(recipe)}
    for recipe in recipes:
        assert table["seed"] == str(recipe.seed)
    assert table["task"] == table["data"] == table["tokenizer"] == "required"
    assert table["batch"] == table["model"] == table["train"] == recipe_reference.SECTION


@dataclasses.dataclass
class Example:
    """An example of a section."""

    rows: Annotated[int, Ge(1)] = 32
    tied: bool = False  # share a matrix
    clip: float | None = None  # maximum gradient norm; None is no clipping
    lr: float = 2e-3


def test_outdated_page_is_detected() -> None:
    """Control: a missing key, an unknown key and a wrong default are reported."""
    right = {"rows": "32", "tied": "false", "clip": "null", "lr": "0.002"}
    assert mistakes(right, Example) == []
    wrong = {"rows": "16", "tied": "0", "lr": "2e-3", "extra": "1"}
    assert mistakes(wrong, Example) == [
        "clip is missing",
        "extra does not exist",
        "rows defaults to 32, not to 16",
        "tied defaults to False, not to 0",
    ]


def test_reference_tool_updates_outdated_page() -> None:
    """Correct rows do not change. A new section is written from its docstring and comments."""
    head = "| key | default | meaning |\n|---|---|---|\n"
    before, gone = "## `model`\n\n### `model`, kind `x`\n\nText.\n\n", "| `extra` | `1` | gone |\n"
    after = "\n## `train`\n\nEnd.\n"
    rows = "| `tied` | `false` | share a matrix |\n| `clip` | `null` | maximum gradient norm; `null` is no clipping |\n"
    old = "| `rows` | `16` | of a batch |\n| `lr` | `2e-3` | rate |\n"
    wrong = f"{before}{head}{old}{gone}\n## `gone`\n\n{head}{gone}{after}"
    right = f"{before}{head}| `rows` | `32` | of a batch |\n{rows}| `lr` | `2e-3` | rate |\n{after}"
    assert recipe_reference.update(wrong, {"`model`, kind `x`": Example}) == right
    assert recipe_reference.update(right, {"`model`, kind `x`": Example}) == right
    new = f"{head}| `rows` | `32` | a whole number, at least 1 |\n{rows}| `lr` | `0.002` | a number |\n"
    added = recipe_reference.update("## `model`\n\nText.\n", {"`model`, kind `x`": Example})
    assert added == f"## `model`\n\nText.\n\n### `model`, kind `x`\n\nAn example of a section.\n\n{new}"


@pytest.mark.parametrize("name", [name for name in reference.PAGES if name != "recipes.md"])
def test_generated_pages_are_current(name: str) -> None:
    text = page(f"docs/reference/{name}")
    assert reference.PAGES[name](text) == text, "run make reference"


def test_equations_link_to_the_lines_that_compute_them() -> None:
    """This test parses the page independently of the tool that writes the page."""
    topics = yaml.safe_load(page("tools/equations.yaml"))
    expected = [row["code"] for files in topics.values() for rows in files.values() for row in rows]
    text = page("docs/reference/equations.md")
    links = re.findall(r"^\| .+ \| \[(.+):(\d+)\]\(\.\./\.\./src/seqloom/(.+)#L(\d+)\) \|$", text, re.MULTILINE)
    assert len(links) == len(expected) > 200
    for (shown, shown_line, file, line), code in zip(links, expected, strict=True):
        assert (shown, shown_line) == (file, line)
        assert code in page(f"src/seqloom/{file}").splitlines()[int(line) - 1]
    names = re.findall(r"^\| (.+?) \| `", text, re.MULTILINE)
    assert len(set(names)) == len(names) == len(expected)
    assert "–" not in text  # a search for typed hyphens, as in tf-idf, must find the names


def test_missing_and_ambiguous_equations_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "cells.py"
    path.write_text("class A:\n    x = 1\n\n\nclass B:\n    x = 1\n    y = 2\n")
    assert reference.find_line(path, "y = 2") == 7
    assert reference.find_line(path, "x = 1", "B") == 6
    with pytest.raises(ValueError, match=r"one line of cells\.py; 'x = 1' is in lines 2, 6$"):
        reference.find_line(path, "x = 1")
    with pytest.raises(ValueError, match=r"one line of A in cells\.py; 'y = 2' is in no line$"):
        reference.find_line(path, "y = 2", "A")


def test_removed_and_new_metrics_are_detected() -> None:
    text = page("docs/reference/metrics.md")
    line = "| `bleu` | BLEU as computed by sacreBLEU, 0 to 100 |\n"
    assert line in text
    renewed = reference.PAGES["metrics.md"](text.replace(line, "| `blue` | a metric that does not exist |\n"))
    assert "`blue`" not in renewed and renewed.endswith("| `bleu` | BLEU |\n")


# --- commands ---------------------------------------------------------------------------------------------------------


def parse(words: list[str]) -> None:
    """Fail unless the command line accepts these words; no command is run."""
    command: Any = typer.main.get_command(app.build_app())
    context, rest = command.make_context("seqloom", list(words)), words
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, list(rest), parent=context)
    if words[0] == "train" and "--resume" not in words:
        recipe, *overrides = (word for word in words[1:] if "=" in word or word in recipe_names())
        read_recipe(recipe, overrides)


def index_rows() -> list[str]:
    return [line for line in page("docs/contributing/equations-and-claims.md").split("\n") if line.startswith("| R")]


@pytest.mark.usefixtures("stub_pretrained_runs")
@pytest.mark.parametrize("row", index_rows(), ids=lambda row: row[2:5])
def test_index_names_existing_files_and_commands(row: str) -> None:
    names = re.findall(r"`([^`]+)`", row)
    files = [name for name in names if name.endswith(".py")]
    commands = [name for name in names if name.startswith("seqloom ")]
    assert files and commands
    for file in files:
        assert (ROOT / file).is_file(), file
    for command in commands:
        parse(shlex.split(command)[1:])


def test_index_has_every_completed_row() -> None:
    numbers = [row.split(" | ")[0][2:5] for row in index_rows()]
    assert numbers == [
        "R01",
        "R02",
        "R03",
        "R04",
        "R05",
        "R06",
        "R07",
        "R08",
        "R09",
        "R10",
        "R11",
        "R12",
        "R13",
        "R14",
        "R15",
        "R16",
        "R17",
        "R18",
        "R19",
        "R20",
        "R21",
        "R22",
        "R23",
        "R24",
        "R25",
        "R26",
        "R28",
        "R29",
        "R30",
        "R31",
        "R32",
        "R33",
        "R34",
        "R35",
        "R36",
        "R37",
        "R38",
        "R39",
        "R40",
        "R41",
        "R42",
        "R44",
        "R45",
        "R47",
        "R48",
        "R49",
        "R50",
        "R52",
        "R53",
    ]


@pytest.mark.parametrize(
    "words",
    [
        "trian lm-char-lstm",
        "train lm-char-lstm --oot x",
        "train lm-char-lstm model.cel=gru",
        "data shw pydocs",
        "score",
    ],
)
def test_invalid_command_is_rejected(words: str) -> None:
    with pytest.raises(Exception, match=r".") as caught:
        parse(shlex.split(words))
    assert isinstance(caught.value, SeqloomError) or hasattr(caught.value, "format_message")


def all_options(command: Any) -> Iterator[str]:
    for parameter in command.params:
        yield from (name for name in parameter.opts if name.startswith("--") and name not in ("--help", "--version"))
    for child in getattr(command, "commands", {}).values():
        yield from all_options(child)


def test_every_command_and_option_is_documented() -> None:
    """The guides must name each command, because `--help` is not sufficient."""
    command: Any = typer.main.get_command(app.build_app())
    text = "\n".join(path.read_text("utf-8") for path in PAGES if path.name != "commands.md")
    assert [name for name in sorted(set(all_options(command))) if not re.search(rf"{name}\b", text)] == []
    commands = [name for name in command.commands if name != "quickstart"]  # documented as `make demo`
    assert [name for name in commands if f"seqloom {name} " not in text] == []


# --- other pages ------------------------------------------------------------------------------------------------------


def subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for child in kind.__subclasses__():
        yield child
        yield from subclasses(child)


def test_training_page_lists_every_event_and_exit_code() -> None:
    text = page("docs/explanations/training.md")
    events = {kind.__name__ for kind in subclasses(Event) if kind.__module__.startswith("seqloom.")}
    assert events == set(re.findall(r"^\| `([A-Z]\w+)` \|", text, re.MULTILINE))
    errors = [kind for kind in subclasses(SeqloomError) if kind.__module__.startswith("seqloom.")]
    codes = {kind.exit_code for kind in errors}
    assert {str(code) for code in codes} <= set(re.findall(r"^\| (\d+) \|", text, re.MULTILINE))


def test_training_page_lists_keys_that_resume_may_change() -> None:
    text = page("docs/explanations/training.md")
    paragraph = text.partition("You can pass overrides or a recipe with `--resume`")[2]
    paragraph = paragraph.partition("Any other change is rejected")[0]
    assert set(re.findall(r"`(train\.\w+)`", paragraph)) == RESUMABLE_KEYS


def test_make_help_lists_every_target() -> None:
    text = page("Makefile")
    (targets,) = re.findall(r"^\.PHONY: help (.+)$", text, re.MULTILINE)
    assert re.findall(r'@echo "make (\w+) ', text) == targets.split()


def anchors(file: Path) -> set[str]:
    """Return the anchors of a page, from headings (as on GitHub) and ids, or the lines of a source file."""
    text = file.read_text("utf-8")
    if file.suffix == ".py":
        return {f"L{number}" for number, _ in enumerate(text.splitlines(), 1)}
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    anchors_of_headings = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return anchors_of_headings | set(re.findall(r'<a id="([^"]+)">', text))


@pytest.mark.parametrize(
    "path", sorted({*PAGES, *ROOT.glob("*.md")}), ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_links_have_targets(path: Path) -> None:
    text = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)]+)\)|(?:src|srcset)=\"([^\"]+)\"", text):
        name, _, anchor = "".join(target).partition("#")
        if name.startswith("https:"):
            continue
        file = path.parent / name if name else path
        assert file.exists(), f"{path.name} links to {name}"
        assert not anchor or anchor.partition("-L")[0] in anchors(file), f"{path.name} links to {name}#{anchor}"


@pytest.mark.parametrize("folder", ["learn", "how-to", "reference", "explanations", "contributing"])
def test_every_page_is_in_the_navigation(folder: str) -> None:
    """The navigation of the site consists of the lists of links in the index pages."""
    pages = {path.name for path in (ROOT / "docs" / folder).glob("*.md")} - {"index.md"}
    links = re.findall(r"^(?:-|\d+\.) \[.+?\]\(([\w-]+\.md)\)", page(f"docs/{folder}/index.md"), re.MULTILINE)
    assert sorted(links) == sorted(pages)


@pytest.mark.parametrize("path", ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/explanations/decisions.md"])
def test_named_modules_exist(path: str) -> None:
    named = re.findall(r"`(?:src/seqloom/)?([a-z_]+/[a-z_/]+\.py)`", page(path))
    assert len(named) > 3
    assert [name for name in named if not (ROOT / "src/seqloom" / name).exists() and not (ROOT / name).exists()] == []
