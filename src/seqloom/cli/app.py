"""The shell around the commands: registration, and every error as one or two lines with the right exit code.

A command is a file beside this one and a row in `COMMANDS`. Its module must be light (torch and the rooms that need it
are imported inside the function), since all of them are imported to write `seqloom --help`.
"""

import errno
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer

from seqloom.core import VERSION
from seqloom.core.errors import LACKING, SeqloomError, UsageError, out_of_memory

# How often a thread of torch's on Linux looks for work before it sleeps. OpenMP's own choice is thirty times that: it
# gains next to nothing on an idle machine, and where other programs want the cores it makes steps several times slower.
PATIENCE = "10000"

# In the order of `seqloom --help`. What a row names is a function, or a typer.Typer with commands of its own.
COMMANDS = {
    "quickstart": "seqloom.cli.quickstart:quickstart",
    "init": "seqloom.cli.init:init",
    "doctor": "seqloom.cli.doctor:doctor",
    "train": "seqloom.cli.train:train",
    "predict": "seqloom.cli.predict:predict",
    "generate": "seqloom.cli.language_model:generate",
    "score": "seqloom.cli.language_model:score",
    "prompt": "seqloom.cli.language_model:prompt",
    "fill": "seqloom.cli.predict:fill",
    "restore": "seqloom.cli.predict:restore",
    "translate": "seqloom.cli.translate:translate",
    "classify": "seqloom.cli.predict:classify",
    "tag": "seqloom.cli.predict:tag",
    "match": "seqloom.cli.predict:match",
    "choose": "seqloom.cli.predict:choose",
    "answer": "seqloom.cli.predict:answer",
    "embed": "seqloom.cli.vectors:embed",
    "similar": "seqloom.cli.vectors:similar",
    "forecast": "seqloom.cli.forecast:forecast",
    "evaluate": "seqloom.cli.evaluate:evaluate",
    "average": "seqloom.cli.average:average",
    "bleu": "seqloom.cli.bleu:bleu",
    "compare": "seqloom.cli.compare:compare",
    "ladder": "seqloom.cli.ladder:ladder",
    "memory": "seqloom.cli.measurements:memory",
    "encodings": "seqloom.cli.encodings:encodings",
    "layers": "seqloom.cli.measurements:layers",
    "import-hf": "seqloom.cli.exchange:import_hf",
    "export-hf": "seqloom.cli.exchange:export_hf",
    "import-minilm": "seqloom.cli.exchange:import_minilm",
    "studio": "seqloom.cli.studio:studio",
    "list": "seqloom.cli.list:list_things",
    "data": "seqloom.cli.data:data",
    "inspect": "seqloom.cli.inspect:inspect",
    "words": "seqloom.cli.vectors:words",
    "arpa": "seqloom.cli.exchange:arpa",
}

INTERRUPTED = 130  # 128 + SIGINT, as shells count
BROKEN_PIPE = 141  # 128 + SIGPIPE
NUMBERS = {  # as pydantic calls what is none
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
}
HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"seqloom {VERSION}")
        raise typer.Exit


def seqloom(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it, leave.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error; may stand anywhere.")] = False,
) -> None:
    """Train, compare, understand and use sequence models."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def build_app(commands: dict[str, str] = COMMANDS) -> typer.Typer:
    app = typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, context_settings=HELP
    )
    app.callback(invoke_without_command=True)(seqloom)
    for name, target in commands.items():
        module, _, attribute = target.partition(":")
        command = getattr(import_module(module), attribute)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name, short_help=_summary(command), context_settings=HELP)(command)
    return app


def _summary(command: Callable[..., Any]) -> str:
    """The first line of a command's docstring, without the example it may end with."""
    line = (command.__doc__ or "").strip().partition("\n")[0]
    return re.sub(r"\W*`seqloom .*", "", line).rstrip(".") + "."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; without `arguments`, as the last thing the process does."""
    try:
        return _run(arguments)
    finally:
        if arguments is None:
            for number in (signal.SIGINT, signal.SIGTERM):  # what has ended is not interrupted: its exit code stands
                signal.signal(number, signal.SIG_IGN)


def _run(arguments: Sequence[str] | None) -> int:
    words, debug = _without_debug(sys.argv[1:] if arguments is None else list(arguments))
    os.environ.setdefault("GOMP_SPINCOUNT", PATIENCE)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that lacks a letter shows ? instead of failing
    command: Any = None
    try:
        command = typer.main.get_command(build_app())
        result = command.main(args=words, prog_name="seqloom", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except SystemExit:
        raise
    except BaseException as error:
        if debug:
            traceback.print_exc()
        code, message = explain(error)
        if isinstance(error, UsageError) and command is not None:
            message = _by_options(message, _options(command, words))
        if message:
            print(message if message.startswith("Usage: ") else f"seqloom: {message}", file=sys.stderr)
        if code == BROKEN_PIPE:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains on its way out
        return code


def _without_debug(words: list[str]) -> tuple[list[str], bool]:
    """`--debug` may stand before or after the command, but after `--` it is an argument like any other."""
    end = words.index("--") if "--" in words else len(words)
    kept = [word for word in words[:end] if word != "--debug"]
    return kept + words[end:], len(kept) < end


def _options(command: Any, words: Sequence[str]) -> dict[str, str]:
    """The options of the command that these words call, each by the name that Python knows it by."""
    for word in words:
        if (inner := getattr(command, "commands", {}).get(word)) is None:
            break
        command = inner
    named = {param.name: [name for name in param.opts if name.startswith("--")] for param in command.params}
    return {name: written[0] for name, written in named.items() if written}


def _by_options(message: str, options: Mapping[str, str]) -> str:
    """What Python's arguments are told, said of options: n_best must be at most beam, --n-best at most --beam."""
    for name, option in options.items():
        alone = rf"(?<![\w./'\"-]){name}(?![\w/=]|\.\w)" if "_" in name else rf"^{name}(?= must be )"
        message = re.sub(rf"{alone}|(?<= must be at most ){name}\b", option, message)
    return message


def explain(error: BaseException) -> tuple[int, str]:
    """The exit code and the words for anything a command can raise."""
    if isinstance(error, SeqloomError):
        return error.exit_code, str(error)
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return INTERRUPTED, "interrupted"
    if isinstance(error, BrokenPipeError):
        return BROKEN_PIPE, ""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        place = f" while writing {error.filename}" if error.filename else ""
        return 5, f"the disk is full{place}. What was saved before is intact; free some space and run it again."
    if isinstance(error, OSError) and error.errno in LACKING:
        place = f" ({error.filename})" if error.filename else ""
        return 5, f"the system refused: {error.strerror}{place}. What was saved before is intact; run it again."
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return 2, f"no file can have a name as long as this: {error.filename}"
    if out_of_memory(error):
        return 5, "out of memory. Use a smaller batch or model, train.recompute=true, or free memory held by others."
    if hasattr(error, "format_message"):  # the command line itself is wrong; typer's errors share no public base
        return _usage(error)
    first_line = (str(error) or "no message").splitlines()[0]
    return (
        1,
        f"unexpected {type(error).__name__}: {first_line}\nThis is a bug; run again with --debug for the traceback.",
    )


def _usage(error: Any) -> tuple[int, str]:
    message, context = _in_our_words(error) or error.format_message(), getattr(error, "ctx", None)
    if message.startswith("Usage: "):  # a group without its command: the whole help
        return error.exit_code, message
    command = context.command_path if context is not None else "seqloom"
    hint = _option_for(message, context.command.params) if context is not None else ""
    return error.exit_code, f"{message}{hint}\nTry '{command} --help'."


def _in_our_words(error: Any) -> str | None:
    """What is wrong with a value, where pydantic found it for typer; None where it did not, or we have no words."""
    from seqloom.config.constraints import BOUNDS

    name = re.match(r"Invalid value for (.+?): ", error.format_message())
    cause: Any = error.__cause__
    if name is None or not hasattr(cause, "errors"):
        return None
    first = cause.errors(include_url=False)[0]
    kind, context = first["type"], first.get("ctx", {})
    if kind in BOUNDS:
        must = f"{BOUNDS[kind].words} {context[BOUNDS[kind].attribute]:g}"
    elif kind in NUMBERS:
        must = NUMBERS[kind]
    elif choices := re.search(r" is not one of (.*?)\.?$", str(context.get("error", ""))):
        must = f"one of {choices[1]}".replace("'", "")
    else:
        return None
    option, value = name[1].replace("'", ""), first["input"]
    return f"{option} must be {must}; got {value if kind in BOUNDS else repr(value)}."


def _option_for(message: str, options: Sequence[Any]) -> str:
    """A word that stands where none is wanted may belong to an option that speaks of it: `memory recall`."""
    extra = re.search(r"unexpected extra argument(?:s|\(s\))? \((\S+)", message)
    word = extra[1].rstrip(")") if extra else ""
    found = [option.opts[0] for option in options if word and word in re.findall(r"[\w-]+", option.help or "")]
    return f"; did you mean {found[0]} {word}?" if found else ""
