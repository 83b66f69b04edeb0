"""The documentation against the code: keys, defaults, options, files, commands, links."""

import dataclasses
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from seqloom import tasks
from seqloom.cli import app
from seqloom.config import to_mapping
from seqloom.config.messages import field_types, key_of, options, tags
from seqloom.config.yaml_text import parse_yaml
from seqloom.core.errors import SeqloomError
from seqloom.recipes import read_recipe, recipe_names
from seqloom.train.events import Event
from seqloom.training import RESUMABLE

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TOP = "The top level"
SHIPPED_CORPORA = json.loads((ROOT / "tests/data/fingerprints.json").read_text())["corpora"]
SECTION = "section"  # stands where a default is a whole section, described further down

Table = dict[str, str]  # key → default, as a page gives them


def page(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


# --- recipes.md -----------------------------------------------------------------------------------------------------


def tables(text: str) -> dict[str, Table]:
    """The tables of keys, by the heading above them; each row must also say what the key means, or its kind."""
    found: dict[str, Table] = {}
    heading = ""
    for line in text.split("\n"):
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif row := re.fullmatch(r"\| `(\w+)` \| (.+?) \| (.*?) ?\|", line):
            assert row[1] not in found.get(heading, {}), f"{heading}: {row[1]} stands twice"
            assert row[3] or row[1] in ("kind", "corpus"), f"{heading}: what does {row[1]} mean?"
            found.setdefault(heading, {})[row[1]] = row[2].strip("`")
    return found


def sections(recipe: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every config a recipe can hold, sections within sections too, with how its heading in recipes.md begins."""
    for name, annotation in field_types(recipe).items():
        if name == "body":  # a model itself, described as such
            continue
        key = prefix + name
        found = options(annotation)
        for member in found.members:
            if not dataclasses.is_dataclass(member):
                continue
            if found.discriminator:
                (tag,) = tags(member, found.discriminator)
                yield f"`{key}`, {found.discriminator} `{tag}`", member
            else:
                yield f"`{key}` of the task", member
            yield from sections(member, f"{key}.")


def default(entry: dataclasses.Field[Any]) -> Any:
    if entry.default is not dataclasses.MISSING:
        return to_mapping(entry.default)
    return "required" if entry.default_factory is dataclasses.MISSING else to_mapping(entry.default_factory())


def all_sections() -> dict[str, Any]:
    """By heading; a section without a kind is named by its tasks: all those that share it."""
    found: dict[tuple[str, Any], list[str]] = {}
    for task in tasks.names():
        for heading, section in sections(tasks.task_info(task).recipe):
            found.setdefault((heading, section), []).append(f"`{task}`")
    users = {what: list(dict.fromkeys(names)) for what, names in found.items()}  # a task may have it in several places
    made: dict[str, Any] = {}
    for beginning, section in found:
        again = " of the task" if beginning in made else ""  # a kind that means another model in this task
        made[_heading(beginning + again, users[beginning, section])] = section
    return made


def _heading(beginning: str, users: list[str]) -> str:
    if not beginning.endswith("of the task"):
        return beginning
    return f"{beginning} {users[0]}" if len(users) == 1 else f"{beginning}s {', '.join(users[:-1])} and {users[-1]}"


def mistakes(table: Table, section: Any) -> list[str]:
    entries = {key_of(entry.name): entry for entry in dataclasses.fields(section)}
    wrong = [f"{key} is missing" for key in entries.keys() - table.keys()]
    wrong += [f"{key} does not exist" for key in table.keys() - entries.keys()]
    for key in entries.keys() & table.keys():
        expected, given = default(entries[key]), parse_yaml(table[key], key)
        if given != expected or isinstance(given, bool) != isinstance(expected, bool):
            wrong.append(f"{key} defaults to {expected!r}, not to {given!r}")
    return sorted(wrong)


@pytest.mark.parametrize("heading", all_sections())
def test_recipes_names_every_key_and_its_default(heading: str) -> None:
    table = tables(page("docs/recipes.md")).get(heading)
    if table is None and heading.startswith("`data`, corpus") and heading.split("`")[3] not in SHIPPED_CORPORA:
        pytest.skip("a new corpus is documented by the comments of its Config")
    assert mistakes(table or {}, all_sections()[heading]) == []


def test_recipes_describes_no_section_that_is_gone() -> None:
    assert set(tables(page("docs/recipes.md"))) <= {TOP, *all_sections()}


def test_the_top_level_of_recipes() -> None:
    table = tables(page("docs/recipes.md"))[TOP]
    recipes = [tasks.task_info(task).recipe for task in tasks.names()]
    assert set(table) == {entry.name for recipe in recipes for entry in dataclasses.fields(recipe)}
    for recipe in recipes:
        assert table["seed"] == str(recipe.seed)
        assert f"`{recipe.task}`" in page("docs/recipes.md")
    assert table["task"] == table["data"] == table["tokenizer"] == "required"
    assert table["batch"] == table["model"] == table["train"] == SECTION


def test_a_wrong_page_is_found_out() -> None:
    """The control: a key left out, one that is not there, and a default that differs."""

    @dataclasses.dataclass
    class Section:
        rows: int = 32
        tied: bool = False
        clip: float | None = None
        lr: float = 2e-3

    right = {"rows": "32", "tied": "false", "clip": "null", "lr": "0.002"}
    assert mistakes(right, Section) == []
    wrong = {"rows": "16", "tied": "0", "lr": "2e-3", "extra": "1"}
    assert mistakes(wrong, Section) == [
        "clip is missing",
        "extra does not exist",
        "rows defaults to 32, not to 16",
        "tied defaults to False, not to 0",
    ]


# --- commands -------------------------------------------------------------------------------------------------------


def parse(words: list[str]) -> None:
    """Fail unless the command line would accept these words; nothing is run."""
    command: Any = typer.main.get_command(app.build_app())
    context, rest = command.make_context("seqloom", list(words)), words
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, list(rest), parent=context)
    if words[0] == "train" and "--resume" not in words:
        recipe, *overrides = (word for word in words[1:] if "=" in word or word in recipe_names())
        read_recipe(recipe, overrides)


def rows_of_the_index() -> list[str]:
    return [line for line in page("docs/index.md").split("\n") if line.startswith("| R")]


@pytest.mark.usefixtures("pretended_runs")
@pytest.mark.parametrize("row", rows_of_the_index(), ids=lambda row: row[2:5])
def test_the_index_leads_to_files_and_commands(row: str) -> None:
    names = re.findall(r"`([^`]+)`", row)
    files = [name for name in names if name.endswith(".py")]
    commands = [name for name in names if name.startswith("seqloom ")]
    assert files and commands
    for file in files:
        assert (ROOT / file).is_file(), file
    for command in commands:
        parse(shlex.split(command)[1:])


def test_the_index_has_every_row_that_is_done() -> None:
    found = [row.split(" | ")[0][2:5] for row in rows_of_the_index()]
    assert found == [
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
        "R47",
        "R48",
        "R49",
        "R50",
        "R52",
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
def test_a_wrong_command_does_not_parse(words: str) -> None:
    with pytest.raises(Exception, match=r".") as caught:
        parse(shlex.split(words))
    assert isinstance(caught.value, SeqloomError) or hasattr(caught.value, "format_message")


def all_options(command: Any) -> Iterator[str]:
    for parameter in command.params:
        yield from (name for name in parameter.opts if name.startswith("--") and name not in ("--help", "--version"))
    for child in getattr(command, "commands", {}).values():
        yield from all_options(child)


def test_every_command_and_option_is_documented() -> None:
    """In words, not only in `--help`."""
    command: Any = typer.main.get_command(app.build_app())
    text = "\n".join(path.read_text("utf-8") for path in PAGES)
    assert [name for name in sorted(set(all_options(command))) if not re.search(rf"{name}\b", text)] == []
    commands = [name for name in command.commands if name != "quickstart"]  # that one is `make demo`
    assert [name for name in commands if f"seqloom {name} " not in text] == []


# --- the rest -------------------------------------------------------------------------------------------------------


def subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for child in kind.__subclasses__():
        yield child
        yield from subclasses(child)


def test_training_names_every_event_and_exit_code() -> None:
    text = page("docs/training.md")
    events = {kind.__name__ for kind in subclasses(Event) if kind.__module__.startswith("seqloom.")}
    assert events == set(re.findall(r"^\| `([A-Z]\w+)` \|", text, re.MULTILINE))
    errors = [kind for kind in subclasses(SeqloomError) if kind.__module__.startswith("seqloom.")]
    codes = {kind.exit_code for kind in errors}
    assert {str(code) for code in codes} <= set(re.findall(r"^\| (\d+) \|", text, re.MULTILINE))


def test_training_names_what_may_change_on_resume() -> None:
    paragraph = page("docs/training.md").partition("Overrides, or a recipe, may be given with `--resume`")[2]
    paragraph = paragraph.partition("Anything else is refused")[0]
    assert set(re.findall(r"`(train\.\w+)`", paragraph)) == RESUMABLE


def test_make_help_names_every_target() -> None:
    text = page("Makefile")
    (targets,) = re.findall(r"^\.PHONY: help (.+)$", text, re.MULTILINE)
    assert re.findall(r'@echo "make (\w+) ', text) == targets.split()


def anchors(text: str) -> set[str]:
    """The anchors of the headings, made as GitHub makes them, and those set by hand."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return made | set(re.findall(r'<a id="([^"]+)">', text))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        file = path.parent / name if name else path
        assert file.exists(), f"{path.name} links to {target}"
        assert not anchor or anchor in anchors(file.read_text("utf-8")), f"{path.name} links to {target}"
