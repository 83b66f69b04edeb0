"""The command-line application: register the commands, and report errors as short messages with exit codes.

A command is a function in a module of this package and a row in `GROUPS`. `seqloom --help` imports all command
modules, so these modules must be quick to import: torch and packages that depend on it are imported inside the
function.
"""

import errno
import os
import re
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from seqloom.core import VERSION
from seqloom.core.errors import RESOURCE_ERRNOS, SeqloomError, UsageError, is_out_of_memory

# Number of iterations for which a waiting OpenMP thread spins on Linux before it sleeps. The default is thirty times as
# high. It saves almost no time on an idle machine, and steps become several times slower if other programs use the
# cores.
SPIN_COUNT = "10000"

# The groups of `seqloom --help`. A row names a function, or a typer.Typer with subcommands.
GROUPS = {
    "Get started": {
        "quickstart": "seqloom.cli.quickstart:quickstart",
        "init": "seqloom.cli.init:init",
        "list": "seqloom.cli.list:list_names",
        "recipe": "seqloom.cli.recipe:recipe",
        "data": "seqloom.cli.data:data",
        "doctor": "seqloom.cli.doctor:doctor",
    },
    "Train and compare": {
        "train": "seqloom.cli.train:train",
        "evaluate": "seqloom.cli.evaluate:evaluate",
        "calibrate": "seqloom.cli.evaluate:calibrate",
        "compare": "seqloom.cli.compare:compare",
        "average": "seqloom.cli.compare:average",
        "ladder": "seqloom.cli.ladder:ladder",
        "tune": "seqloom.cli.tune:tune",
        "bleu": "seqloom.cli.bleu:bleu",
    },
    "Use a model": {
        "predict": "seqloom.cli.predict:predict",
        "translate": "seqloom.cli.translate:translate",
        "generate": "seqloom.cli.language_model:generate",
        "score": "seqloom.cli.language_model:score",
        "prompt": "seqloom.cli.language_model:prompt",
        "fill-mask": "seqloom.cli.predict:fill_mask",
        "denoise": "seqloom.cli.predict:denoise",
        "classify": "seqloom.cli.predict:classify",
        "tag": "seqloom.cli.predict:tag",
        "match": "seqloom.cli.predict:match",
        "choose": "seqloom.cli.predict:choose",
        "answer": "seqloom.cli.predict:answer",
        "caption": "seqloom.cli.caption:caption",
        "ask": "seqloom.cli.ask:ask",
        "transcribe": "seqloom.cli.transcribe:transcribe",
        "embed": "seqloom.cli.vectors:embed",
        "similar": "seqloom.cli.vectors:similar",
        "words": "seqloom.cli.vectors:words",
        "forecast": "seqloom.cli.forecast:forecast",
    },
    "Understand": {
        "studio": "seqloom.cli.studio:studio",
        "inspect": "seqloom.cli.inspect:inspect",
        "memory-test": "seqloom.cli.measurements:memory_test",
        "layers": "seqloom.cli.measurements:layers",
        "encodings": "seqloom.cli.encodings:encodings",
    },
    "Exchange": {
        "import-hf": "seqloom.cli.exchange:import_hf",
        "export-hf": "seqloom.cli.exchange:export_hf",
        "import-minilm": "seqloom.cli.exchange:import_minilm",
        "arpa": "seqloom.cli.exchange:arpa",
    },
}
COMMANDS = {name: target for commands in GROUPS.values() for name, target in commands.items()}

INTERRUPTED = 130  # 128 + SIGINT, the convention of shells
BROKEN_PIPE = 141  # 128 + SIGPIPE
NUMBER_TYPES = {  # pydantic's type of error → the expected value
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
}
HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


def show_version(is_requested: bool) -> None:
    """Print the version and exit."""
    if is_requested:
        typer.echo(f"seqloom {VERSION}")
        raise typer.Exit


def seqloom(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug", help="Show the traceback of an error. The option may be placed anywhere in the command."
        ),
    ] = False,
) -> None:
    """Train, compare, understand and use sequence models."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


class GroupedCommands(TyperGroup):
    """The commands of `seqloom --help`, grouped under titles."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, names in GROUPS.items():
            rows = [
                (name, self.commands[name].get_short_help_str(limit=200)) for name in names if name in self.commands
            ]
            with formatter.section(title):
                formatter.write_dl(rows)


def build_app(commands: dict[str, str] = COMMANDS) -> typer.Typer:
    app = typer.Typer(
        cls=GroupedCommands,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=HELP,
    )
    app.callback(invoke_without_command=True)(seqloom)
    for name, target in commands.items():
        module, _, attribute = target.partition(":")
        command = getattr(import_module(module), attribute)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
            continue
        line = (command.__doc__ or "").strip().partition("\n")[0]
        summary = re.sub(r"\W*`seqloom .*", "", line).rstrip(".") + "."  # without the example that follows the summary
        app.command(name, short_help=summary, context_settings=HELP)(command)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code. If `arguments` is None, ignore signals afterwards."""
    try:
        return run_command(sys.argv[1:] if arguments is None else list(arguments))
    finally:
        if arguments is None:
            for number in (signal.SIGINT, signal.SIGTERM):  # a late signal must not change the exit code
                signal.signal(number, signal.SIG_IGN)


def run_command(words: list[str]) -> int:
    """Run a command, print its error if it fails, and return the exit code.

    `--debug` is allowed before and after the command. After `--`, it is an ordinary argument.
    """
    end = words.index("--") if "--" in words else len(words)
    debug = "--debug" in words[:end]
    words = [word for word in words[:end] if word != "--debug"] + words[end:]
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # characters that the terminal cannot encode become ?
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
            message = name_options(message, command, words)
        if message:
            print(message if message.startswith("Usage: ") else f"seqloom: {message}", file=sys.stderr)
        if code == BROKEN_PIPE:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise Python reports the pipe at exit
        return code


def name_options(message: str, command: Any, words: Sequence[str]) -> str:
    """Replace argument names by option names, as in "--n-best must be at most --beam" for "n_best … beam"."""
    for word in words:
        if not isinstance(command, TyperGroup) or word not in command.commands:
            break
        command = command.commands[word]
    for param in command.params:
        option = next((name for name in param.opts if name.startswith("--")), None)
        if option is not None:
            name = param.name
            alone = rf"(?<![\w./'\"-]){name}(?![\w/=]|\.\w)" if "_" in name else rf"^{name}(?= must be )"
            message = re.sub(rf"{alone}|(?<= must be at most ){name}\b", option, message)
    return message


def explain(error: BaseException) -> tuple[int, str]:
    """Return the exit code and the message for an exception raised by a command."""
    if isinstance(error, SeqloomError):
        return error.exit_code, str(error)
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return INTERRUPTED, "interrupted"
    if isinstance(error, BrokenPipeError):
        return BROKEN_PIPE, ""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f" while writing {error.filename}" if error.filename else ""
        return 5, f"the disk is full{where}. Saved files are intact; free some space and run the command again."
    if isinstance(error, OSError) and error.errno in RESOURCE_ERRNOS:
        where = f" ({error.filename})" if error.filename else ""
        return 5, f"the system reported: {error.strerror}{where}. Saved files are intact; run the command again."
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return 2, f"the file name is too long: {error.filename}. Choose a shorter name."
    if is_out_of_memory(error):
        return (
            5,
            "out of memory. Use a smaller batch or model, set train.gradient_checkpointing=true, or free memory.",
        )
    if hasattr(error, "format_message"):  # this is a usage error; typer's usage errors have no public base class
        return explain_usage(error)
    first_line = (str(error) or "no message").splitlines()[0]
    return (
        1,
        f"unexpected {type(error).__name__}: {first_line}\nThis is a bug; run again with --debug for the traceback.",
    )


def explain_usage(error: Any) -> tuple[int, str]:
    """Return the exit code and the message for an invalid command line."""
    message, context = describe_value(error) or error.format_message(), vars(error).get("ctx")
    if message.startswith("Usage: "):  # a group without a command prints its help
        return error.exit_code, message
    if context is None:
        return error.exit_code, f"{message}\nTry 'seqloom --help'."
    # An unexpected word may be the value of an option whose help mentions the word, as in `memory-test recall`.
    extra = re.search(r"unexpected extra argument(?:s|\(s\))? \((\S+)", message)
    word = extra[1].rstrip(")") if extra else ""
    options = [param.opts[0] for param in context.command.params if word in re.findall(r"[\w-]+", param.help or "")]
    hint = f"; did you mean {options[0]} {word}?" if word and options else ""
    return error.exit_code, f"{message}{hint}\nTry '{context.command_path} --help'."


def describe_value(error: Any) -> str | None:
    """Describe an invalid value that pydantic reported to typer; return None for other errors."""
    from pydantic import ValidationError

    from seqloom.config.constraints import BOUNDS

    name = re.match(r"Invalid value for (.+?): ", error.format_message())
    if name is None or not isinstance(error.__cause__, ValidationError):
        return None
    first = error.__cause__.errors(include_url=False)[0]
    kind, context = first["type"], first.get("ctx", {})
    if kind in BOUNDS:
        must = f"{BOUNDS[kind].words} {context[BOUNDS[kind].attribute]:g}"
    elif kind in NUMBER_TYPES:
        must = NUMBER_TYPES[kind]
    elif choices := re.search(r" is not one of (.*?)\.?$", str(context.get("error", ""))):
        must = f"one of {choices[1]}".replace("'", "")
    else:
        return None
    option, value = name[1].replace("'", ""), first["input"]
    return f"{option} must be {must}; got {value if kind in BOUNDS else repr(value)}."
