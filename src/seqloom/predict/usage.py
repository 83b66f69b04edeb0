"""Examples that show how to use a run on the command line, in Python and over HTTP, for the model card."""

import json
import shlex
from collections.abc import Collection, Mapping
from typing import NamedTuple

from seqloom.core import Json
from seqloom.tasks.base import TaskInfo


class Arguments(NamedTuple):
    """The arguments of a command and of the method with the same name."""

    shell: str
    python: str


# The commands whose argument is not a text.
ARGUMENTS = {
    "answer": Arguments(
        '--context page.txt --question "Who wrote it?"', '["Who wrote it?"], context=open("page.txt").read()'
    ),
    "ask": Arguments('picture.png "what colour is the circle?"', '"picture.png", ["what colour is the circle?"]'),
    "choose": Arguments(
        '"It rained all day." "The street is wet." "The street is dry."',
        '[("It rained all day.", ["The street is wet.", "The street is dry."])]',
    ),
    "embed": Arguments("< lines.txt > vectors.npy", '["The first text.", "The second text."]'),
    "fill-mask": Arguments('"The [MASK] barked."', '["The [MASK] barked."]'),
    "forecast": Arguments("", ""),
    "generate": Arguments("--max-tokens 100", "max_tokens=100"),
    "match": Arguments('"It rained." "The street is wet."', '[("It rained.", "The street is wet.")]'),
}
# The requests of the studio that return predictions, with their endpoints and fields. `None` is the example of the
# task.
REQUESTS: Mapping[str, tuple[str, dict[str, Json]]] = {
    "answer": ("understand/answer", {"question": "Who wrote it?", "context": "Ada wrote it in 1843."}),
    "choose": ("understand/choose", {"text": "It rained all day.", "options": ["It is wet.", "It is dry."]}),
    "classify": ("understand/classify", {"text": None}),
    "denoise": ("write/stream", {"text": None, "temperature": 0}),
    "fill-mask": ("write/fill", {"text": "The [MASK] barked."}),
    "generate": ("write/stream", {"max_tokens": 100}),
    "match": ("understand/match", {"first": "It rained.", "second": "The street is wet."}),
    "tag": ("understand/tag", {"text": None}),
    "translate": ("write/stream", {"text": None, "temperature": 0}),
}
# Examples of tasks whose models read files, for which the studio has no endpoint
FILE_EXAMPLES = ("images", "clips", "recordings")
STREAMS = "The response has one JSON object per token, in the field `text`."


def verb_of(info: TaskInfo) -> str:
    """Return the command of a task without its arguments, such as `classify`, or "" if a run can only be evaluated."""
    verb = info.command.partition(" ")[0]
    return "" if verb in ("inspect", "words") else verb


def has_output_file(info: TaskInfo) -> bool:
    """Return whether the command of a task reads no input and writes its output to a file."""
    return bool(verb_of(info)) and not info.command.endswith("{run}")


def shell_usage(info: TaskInfo, path: str, splits: Collection[str]) -> str:
    """Return the commands that use a run and evaluate it on data with these splits."""
    verb, run, lines = verb_of(info), shlex.quote(path), []
    if verb and not has_output_file(info):
        arguments = ARGUMENTS.get(verb, Arguments(shlex.quote(info.example), ""))
        lines.append(f"seqloom {verb} {run} {arguments.shell}".rstrip())
    elif info.command:
        lines.append(f"seqloom {info.command.format(run=run)}")
    if "test" in splits:
        lines.append(f"seqloom evaluate {run} --split test")
    return "\n".join(lines or [f"seqloom evaluate {run}"])


def python_usage(info: TaskInfo, path: str) -> str:
    """Return Python code that uses a run."""
    verb = verb_of(info)
    lines = ["import seqloom", "", f"model = seqloom.load({path!r})"]
    if verb in ("prompt", ""):
        lines.append('print(model.evaluate("test"))' if not verb else f"print(model.predict([{info.example!r}]))")
    elif has_output_file(info):
        lines.append(f"print(model.{verb}())")
    else:
        arguments = ARGUMENTS.get(verb, Arguments("", f"[{info.example!r}]"))
        call = f"model.{verb.replace('-', '_')}({arguments.python})"
        lines.append(f"print({call})")
    return "\n".join(lines)


def http_usage(info: TaskInfo, path: str) -> str:
    """Return the shell commands that request a prediction from the studio.

    Return "" if the studio has no endpoint for the task.

    The studio accepts only requests that contain the token in the address that it prints.
    """
    if (verb := verb_of(info)) not in REQUESTS or has_output_file(info) or info.examples in FILE_EXAMPLES:
        return ""
    endpoint, fields = REQUESTS[verb]
    body = {"run": path, **{name: info.example if value is None else value for name, value in fields.items()}}
    return "\n".join(
        [
            f"seqloom studio {shlex.quote(path)} --port 8733 --no-open    # prints an address that ends with token=…",
            "curl http://127.0.0.1:8733/api/" + endpoint + " \\",
            '  -H "Authorization: Bearer TOKEN" -H "Content-Type: application/json" \\',
            f"  -d {shlex.quote(json.dumps(body, ensure_ascii=False))}",
        ]
    )


def http_note(info: TaskInfo) -> str:
    """Describe the HTTP response if it is not a single JSON object."""
    if has_output_file(info):
        return ""
    return f" {STREAMS}" if REQUESTS.get(verb_of(info), ("",))[0] == "write/stream" else ""
