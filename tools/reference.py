"""Write the generated pages and tables in docs/reference. Called by `make reference`.

The commands come from the command line, the events and the files of a run from their modules, and the keys from the
configs. The names of metrics come from the reports of `seqloom evaluate`; their meanings are written by hand and are
kept. Equations come from tools/equations.yaml, and their line numbers from the source.
"""

import ast
import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer
import yaml
from tools import recipe_reference

from seqloom import tasks
from seqloom.cli import app
from seqloom.predict import evaluation, forecast, word_vectors
from seqloom.recipes.reference import all_sections, comments_of
from seqloom.runs import layout
from seqloom.train import checkpoints, events

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "reference"
COMMANDS = """\
# Commands

`seqloom COMMAND --help` prints the same text. With `--debug`, before or after the command name, an error also prints
its traceback.
"""
EVENTS = """\
# Events

Training is a generator of events. `seqloom train --json` prints each event as a JSON object, `log.jsonl` in the run
directory stores them, and [Python code](../how-to/python.md#training-events) can iterate over them. In JSON, the key
`event` is the name of the event's class in lower case, and non-finite numbers are `null`. Every event has the field
`step`, the number of optimizer steps so far.
"""
FILES = """\
# Files of a run

A training run writes one directory. [Training](../explanations/training.md#the-run-directory) explains checksums, links
and resuming.

```
{layout}
```

Each checkpoint is a directory:

```
{checkpoints}
```
"""
EQUATIONS = """\
# Equations in the code

Each row links to the line that computes an equation. Search this page for a name, such as "Kalman gain" or "RMSNorm".
File names are relative to `src/seqloom`. These lines define the equations. `src/seqloom/accel` contains faster
implementations of some equations, and the tests compare their results with those of the definitions.

Notation: x_t input, h_t hidden state, c_t cell state or context, s_t decoder state, ⊙ element-wise product, σ logistic
function, [a; b] concatenation.

seqloom does not yet implement three variants of the LSTM: without a forget gate (1997), with peepholes, and with
coupled gates. It also lacks minGRU, minLSTM, RG-LRU, sLSTM, mLSTM, gated DeltaNet, speech models and scaling laws.

{topics}
"""
REMARK = re.compile(r"\[(default: [^\]]*|required|[\d.]*[<=]*x[<>=][^\]]*)\]")
PLACEHOLDERS = {
    r"str|list\[str\]": "TEXT",
    r"path|list\[Path\]": "PATH",
    "int|int range": "N",
    "float|float range": "X",
}
METRIC = re.compile(r"\| `(\w+)` \| .+ \|")


# --- commands ---------------------------------------------------------------------------------------------------------


def commands_page(_: str) -> str:
    """Return the page of all commands with their arguments and options."""
    command: Any = typer.main.get_command(app.build_app())
    context = command.make_context("seqloom", [], resilient_parsing=True)
    return "\n".join([COMMANDS, *describe_commands(command, context)])


def describe_commands(group: Any, parent: Any) -> Iterator[str]:
    """Yield a part of the page for each command of a group, including nested groups."""
    for name, command in group.commands.items():
        context = command.make_context(name, [], parent=parent, resilient_parsing=True)
        yield f"{'#' * context.command_path.count(' ')}# {context.command_path}\n"
        yield inspect.cleandoc(command.help or "") + "\n"
        if hasattr(command, "commands"):
            yield from describe_commands(command, context)
            continue
        yield f"```\n{command.get_usage(context).removeprefix('Usage: ')}\n```\n"
        records = [parameter.get_help_record(context) for parameter in command.params]
        rows = [option_row(*record) for record in records if record and "--help" not in record[0]]
        yield "\n".join(["| option | default | meaning |", "|---|---|---|", *rows, ""]) if rows else ""


def option_row(names: str, text: str) -> str:
    """Return the row of an option. Its help ends with remarks such as `[default: 1; x>=1]` and `[required]`."""
    remarks = "; ".join(REMARK.findall(text)).split("; ")
    defaults = [remark.removeprefix("default: ") for remark in remarks if remark.startswith(("default: ", "required"))]
    bounds = [
        re.sub("^x>=", "at least ", remark).replace("<=x<=", " to ") for remark in remarks if re.search("x[<>]", remark)
    ]
    meaning = " ".join([REMARK.sub("", text).strip(), *(f"({bound})" for bound in bounds)])
    for kind, placeholder in PLACEHOLDERS.items():
        names = re.sub(f" <(?:{kind})>", f" {placeholder}" if names.startswith("-") else "", names)
    cells = [f"`{names}`", ", ".join(defaults), meaning]
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", "\\n") for cell in cells) + " |"


# --- events, metrics, files -------------------------------------------------------------------------------------------


def events_page(_: str) -> str:
    """Return the page of all events with their fields."""
    parts = [EVENTS]
    for event in events.Event.__subclasses__():
        comments, fields = comments_of(event), dataclasses.fields(event)[1:]  # fields after `step`
        rows = [f"| `{field.name}` | `{annotation(field)}` | {comments[field.name]} |" for field in fields]
        parts.append(f"## {event.__name__}\n\n{inspect.getdoc(event)}\n")
        parts += ["\n".join(["| field | type | meaning |", "|---|---|---|", *rows, ""])] if rows else []
    return "\n".join(parts)


def annotation(field: "dataclasses.Field[Any]") -> str:
    """Return the type of a field as text for a table."""
    return inspect.formatannotation(field.type).replace("collections.abc.", "").replace("|", "\\|")


def metrics_page(text: str) -> str:
    """Return the page of metrics without removed metrics. New metrics are described by their labels."""
    judged = {name: label for name, (label, _) in word_vectors.JUDGED_METRICS.items()}
    names = {**judged, **forecast.METRICS, **word_vectors.METRICS, **evaluation.LABELS}
    lines = [line for line in text.split("\n") if not (row := METRIC.fullmatch(line)) or row[1] in names]
    described = {row[1] for line in lines if (row := METRIC.fullmatch(line))}
    new = [f"| `{name}` | {label.strip()} |" for name, label in names.items() if name not in described]
    return "\n".join([*lines[:-1], *new, ""])


def files_page(_: str) -> str:
    """Return the page of the files of a run, with the trees in the docstrings of the modules that write them."""
    return FILES.format(layout=first_tree(layout), checkpoints=first_tree(checkpoints))


def first_tree(module: Any) -> str:
    """Return the paragraph of a module's docstring that lists files."""
    return next(part for part in str(module.__doc__).split("\n\n") if part.partition("\n")[0].endswith("/")).rstrip()


# --- equations --------------------------------------------------------------------------------------------------------


def equations_page(_: str) -> str:
    """Return the page of equations, with a table for each topic of tools/equations.yaml."""
    topics = yaml.safe_load((ROOT / "tools/equations.yaml").read_text("utf-8"))
    anchors = {topic: re.sub(r"[^\w\- ]", "", topic.lower()).replace(" ", "-") for topic in topics}
    parts = [EQUATIONS.format(topics="\n".join(f"- [{topic}](#{anchor})" for topic, anchor in anchors.items()))]
    for topic, files in topics.items():
        rows = [equation_row(file, row) for file, file_rows in files.items() for row in file_rows]
        parts.append("\n".join([f"## {topic}\n", "| name | equation | line |", "|---|---|---|", *rows, ""]))
    return "\n".join(parts)


def equation_row(file: str, row: dict[str, str]) -> str:
    """Return the row of an equation with a link to its line."""
    line = find_line(ROOT / "src/seqloom" / file, row["code"], row.get("scope"))
    equation = row["equation"].replace("|", "\\|")
    return f"| {row['name']} | `{equation}` | [{file}:{line}](../../src/seqloom/{file}#L{line}) |"


def find_line(path: Path, code: str, scope: str | None = None) -> int:
    """Return the number of the line that contains `code`. Raise `ValueError` unless there is exactly one such line."""
    text = path.read_text("utf-8")
    spans: list[tuple[int, int | None]] = [(1, None)]
    if scope is not None:
        blocks = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef | ast.FunctionDef))
        spans = [(block.lineno, block.end_lineno) for block in blocks if block.name == scope]
    lines = list(enumerate(text.splitlines(), 1))
    found = [number for first, last in spans for number, line in lines[first - 1 : last] if code in line]
    if len(found) != 1:
        where = path.name if scope is None else f"{scope} in {path.name}"
        places = f"lines {', '.join(map(str, found))}" if found else "no line"
        raise ValueError(f"tools/equations.yaml: code must be in one line of {where}; {code!r} is in {places}")
    return found[0]


PAGES: dict[str, Callable[[str], str]] = {
    "recipes.md": lambda text: recipe_reference.update(text, all_sections(tasks.names())),
    "commands.md": commands_page,
    "events.md": events_page,
    "metrics.md": metrics_page,
    "run-files.md": files_page,
    "equations.md": equations_page,
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        path = FOLDER / name
        path.write_text(page(path.read_text("utf-8") if path.exists() else ""), "utf-8")
