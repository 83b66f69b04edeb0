"""The command tokens of `seqloom inspect`: the tokens of a text, and the merges of a byte-pair tokenizer."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqloom.cli._options import DataDir, JsonObject, RunData
from seqloom.cli._output import make_table, open_wide_console, print_json, print_notes
from seqloom.core.errors import DataError, UsageError
from seqloom.core.words import format_count

if TYPE_CHECKING:
    from seqloom.inspect.views.tokens import Merge, ShownToken
    from seqloom.text import Tokenizer

TRAINED_SIZE = 8000  # maximum vocabulary of byte pairs that are learned from a file


def tokens(
    source: Annotated[Path, typer.Argument(help="A run directory, or a text file from which byte pairs are learned.")],
    text: Annotated[str | None, typer.Argument(help="The text to divide into tokens.")] = None,
    merges: Annotated[
        int | None, typer.Option(min=1, help="Show the first merges of a byte-pair tokenizer, with their counts.")
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(min=257, help=f"Maximum vocabulary learned from a text file. [default: {TRAINED_SIZE}]"),
    ] = None,
    data: RunData = None,
    data_dir: DataDir = None,
    as_json: JsonObject = False,
) -> None:
    """Show the tokens of a text: `seqloom inspect tokens runs/lm-bpe-gru "The newest class" --merges 10`."""
    from seqloom.data.files import use_data_folder

    if text is None and merges is None:
        raise UsageError("Give a text, or add --merges N.")
    if size is not None and not source.is_file():
        raise UsageError("--size applies only to a text file, from which byte pairs are learned.")
    with use_data_folder(data_dir, data):
        tokenizer, learned, notes = read_source(source, merges, size or TRAINED_SIZE)
    from seqloom.inspect.views.tokens import token_view

    shown = [] if text is None else token_view(tokenizer, text)
    print_notes(notes)
    if as_json:
        head = {"source": str(source), "kind": tokenizer.kind, "vocabulary": len(tokenizer), "text": text}
        rows = [vars(each) for each in shown]
        print_json({**head, "tokens": rows, "merges": None if merges is None else [vars(merge) for merge in learned]})
        return
    if merges is not None:
        print_merges(learned)
    if text is not None:
        if merges is not None:
            print()
        print_tokens(tokenizer, shown)


def read_source(source: Path, merges: int | None, size: int) -> "tuple[Tokenizer, list[Merge], list[str]]":
    """Return a tokenizer, its first merges, and notes. The counts of a run need its training data."""
    from seqloom.inspect.views.tokens import byte_pairs, count_merges, list_merges, train_on_file
    from seqloom.predict.loader import load

    if source.is_file():
        trained, texts = train_on_file(source, size)
        return trained, count_merges(trained, texts, merges or 0), []
    model = load(source, "cpu")
    if merges is None:
        return model.tokenizer, [], []
    tokenizer = byte_pairs(model.tokenizer, model.name)
    try:
        task = model.task()
        return tokenizer, count_merges(tokenizer, task.training_texts(task.recipe, task.corpus), merges), []
    except DataError as error:
        return tokenizer, list_merges(tokenizer, merges), [f"the merges have no counts: {str(error).splitlines()[0]}"]


def print_merges(merges: "list[Merge]") -> None:
    """Print the merges in the order in which they were learned."""
    from rich.text import Text

    from seqloom.inspect.plots.figures import format_token

    table = make_table(["merge", "left", "right", "  token", "count"], left=0)
    for column in (1, 2, 3):
        table.columns[column].justify = "left"
    for merge in merges:
        left, right, merged = map(format_token, (merge.left, merge.right, merge.merged))
        count = "" if merge.count is None else f"{merge.count:,}"
        table.add_row(str(merge.number), Text(left), Text(right), Text(f"  {merged}"), count)
    open_wide_console().print(table)


def print_tokens(tokenizer: "Tokenizer", shown: "list[ShownToken]") -> None:
    """Print the tokens with their ids on lines that fit the terminal."""
    from rich.text import Text

    from seqloom.inspect.plots.figures import format_token

    console = open_wide_console(100)
    line = Text()
    for token in shown:
        line.append(format_token(token.token), style="bold red" if token.unknown else "bold")
        line.append(f" {token.id}   ", style="dim")
    console.print(line)
    unknown = sum(token.unknown for token in shown)
    read = f", {unknown:,} of them unknown" if unknown else ""
    vocabulary = f"the {len(tokenizer):,} tokens of the {tokenizer.kind} tokenizer"
    console.print(f"{format_count(len(shown), 'token')}{read}, from {vocabulary}", markup=False)
