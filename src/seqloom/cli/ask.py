"""`seqloom ask`: ask questions about a picture or a text."""

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqloom.cli._input import check_unicode, decode_lines, open_lines, write_utf8
from seqloom.cli._options import Beam, Device, Run, batch_option, drop_unset, json_option, window_option
from seqloom.cli._output import check_plot_path, print_notes, print_predictions, write_plot
from seqloom.cli._tables import TableColumns, TableFile, TableIn, TableOut, check_table_options
from seqloom.core.errors import SeqloomError, UsageError
from seqloom.core.words import format_value

if TYPE_CHECKING:
    from seqloom.predict.base import AnyPredictor
    from seqloom.predict.matching import AnswerPredictor
    from seqloom.predict.visual_questions import VisualAnswer, VisualQuestionPredictor

PROMPT = "> "


def ask(
    run: Run,
    file: Annotated[
        Path | None,
        typer.Argument(help="The image to ask about. For a run of the task `answer`: the text to ask about."),
    ] = None,
    questions: Annotated[
        list[str] | None, typer.Argument(help="Questions. [default: the lines of standard input]")
    ] = None,
    choices: Annotated[
        str | None,
        typer.Option(
            help="Choose among these answers, separated by commas, and print their probabilities. With --in: the "
            "column of the choices of each row, separated by semicolons."
        ),
    ] = None,
    chat: Annotated[
        bool,
        typer.Option(
            "--chat",
            help="The questions form a dialogue: later questions can refer to earlier ones. "
            "A blank line starts a new dialogue.",
        ),
    ] = False,
    beam: Beam = None,
    attention: Annotated[
        Path | None,
        typer.Option("--attention", help="Write a plot of the attention of each word of the last answer to this file."),
    ] = None,
    as_json: Annotated[bool, json_option("One JSON object per question, with scores and candidates.")] = False,
    batch: Annotated[int, batch_option("Number of questions per batch.")] = 32,
    window: Annotated[int | None, window_option("Questions")] = None,
    device: Device = "auto",
    table: TableIn = None,
    column: TableColumns = None,
    out: TableOut = None,
) -> None:
    """Ask about a picture: `seqloom ask runs/X picture.png "what colour is the circle?" --choices "red,blue"`.

    With --chat, the questions form a dialogue: `seqloom ask runs/X picture.png --chat`. With --in, the answers are
    added to a table: `seqloom ask runs/X --in in.csv --column image --column question --out out.csv`.
    """
    check_table_options(table, column, out, file, attention=attention, as_json=as_json, chat=chat)
    if file is None and table is None:
        raise UsageError("Name the picture that the questions are about, or a table: --in FILE.")
    if attention is not None and not questions:
        raise UsageError("--attention requires the questions as arguments; the attention of the last answer is drawn.")
    check_plot_path(attention)
    from seqloom.predict.loader import load
    from seqloom.predict.matching import AnswerPredictor
    from seqloom.predict.visual_questions import VisualQuestionPredictor

    options = drop_unset(beam=beam)
    model = load(run, device)
    if isinstance(model, AnswerPredictor) and file is not None:
        refuse_picture_options(model, choices=choices, chat=chat, beam=beam, attention=attention)
        ask_text(model, file, questions, as_json, batch, window)
        return
    if not isinstance(model, VisualQuestionPredictor):
        model = load(run, device, VisualQuestionPredictor)  # raises an error that names the right command
    if table is not None:
        answer_table(model, TableFile(table, column, out, model), choices, batch, options)
        return
    assert file is not None
    options |= {"choices": split_choices(choices), "attention": attention is not None}
    if chat:
        if not model.longest_history:
            print_notes([f"{model.name} was trained without dialogues: it reads only the current question"])
        write_utf8()
        answers = hold_dialogue(model, file, questions, options)
    else:
        lines, size = open_lines(questions, batch, window)
        answers = model.ask(file, lines, batch_size=batch, window=size, stream=True, **options)
    print_answers(model, answers, attention, as_json)


def split_choices(choices: str | None) -> list[str]:
    """Return the choices between commas."""
    if choices is None:
        return []
    parts = [part.strip() for part in choices.split(",")]
    if len(parts) < 2 or not all(parts):
        raise UsageError(f'--choices must be at least two answers, such as "red,blue"; got {format_value(choices)}.')
    return check_unicode(parts)


def refuse_picture_options(model: "AnyPredictor", **options: object) -> None:
    """Raise an error if an option for pictures is used with a model that reads texts."""
    for name, value in options.items():
        if value:
            raise UsageError(f"--{name} requires a model that reads pictures; {model.name} is {model.description}.")


def ask_text(
    model: "AnswerPredictor", file: Path, questions: list[str] | None, as_json: bool, batch: int, window: int | None
) -> None:
    """Answer questions from a text, as `seqloom answer` does."""
    from seqloom.data.files import expand_home, read_nonblank

    text = read_nonblank(expand_home(file))
    lines, size = open_lines(questions, batch, window)
    answers = model.answer(lines, context=text, top=1, batch_size=batch, window=size, stream=True)
    print_predictions(model, answers, as_json)


def answer_table(
    model: "VisualQuestionPredictor", table: TableFile, choices: str | None, batch: int, options: dict[str, Any]
) -> None:
    """Add the answers to the questions of a table as new columns. Paths are relative to the current folder."""
    from seqloom.predict.visual_questions import ImageQuestion

    lists = [[]] * len(table.rows) if choices is None else table.lists(choices, "--choices")
    rows = zip(table.cells, lists, strict=True)
    questions = (ImageQuestion(image, question, tuple(given)) for (image, question), given in rows)
    table.write(model, model.answer(questions, batch_size=batch, **options))


def hold_dialogue(
    model: "VisualQuestionPredictor", picture: Path, questions: Sequence[str] | None, options: dict[str, Any]
) -> "Iterator[VisualAnswer]":
    """Yield the answers of a dialogue. A blank line starts a new dialogue.

    In a terminal, the error for an invalid question is printed, and the dialogue continues.
    """
    by_hand = questions is None and sys.stdin.isatty()
    if by_hand:
        print("Type a question and press Enter; a blank line starts a new dialogue; end with Ctrl-D.", file=sys.stderr)
    dialogue = model.dialogue(picture)
    for question in read_questions(by_hand) if questions is None else check_unicode(list(questions)):
        if not question.strip():
            dialogue = model.dialogue(picture)
            continue
        try:
            yield dialogue.ask(question, **options)
        except SeqloomError as error:
            if not by_hand:
                raise
            print(f"seqloom: {error}", file=sys.stderr)


def read_questions(by_hand: bool) -> Iterator[str]:
    """Yield the lines of standard input; in a terminal, print a prompt before each line."""
    lines = decode_lines(sys.stdin.buffer)
    while True:
        if by_hand:
            print(PROMPT, end="", file=sys.stderr, flush=True)
        line = next(lines, None)
        if line is None:
            return
        yield line


def print_answers(
    model: "VisualQuestionPredictor", answers: "Iterator[VisualAnswer]", attention: Path | None, as_json: bool
) -> None:
    """Print answers as they are computed, and plot the attention of the last answer."""
    last: deque[VisualAnswer] = deque(maxlen=1)

    def keep(answers: "Iterator[VisualAnswer]") -> "Iterator[VisualAnswer]":
        for answer in answers:
            last.append(answer)
            yield answer

    print_predictions(model, keep(answers), as_json)
    if attention is not None and last:
        write_plot(attention, model.draw_attention(last[0]))
