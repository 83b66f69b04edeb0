"""Commands that apply a trained model to lines: each calls one method of a predictor."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from seqloom.cli._input import check_unicode, open_lines
from seqloom.cli._options import (
    BATCH_SIZE,
    Batch,
    Device,
    JsonLines,
    Run,
    Texts,
    Window,
    batch_option,
    drop_unset,
    json_option,
    top_option,
    window_option,
)
from seqloom.cli._output import open_console, predict_lines, print_predictions
from seqloom.cli._tables import TableColumns, TableFile, TableIn, TableOut, check_table_options
from seqloom.core.errors import DataError, UsageError
from seqloom.core.words import format_value, one_line

if TYPE_CHECKING:
    from rich.text import Text

    from seqloom.inspect.views.labels import WordWeights
    from seqloom.predict.base import Prediction, Predictor
    from seqloom.predict.classify import Classification
    from seqloom.predict.tag import TaggedLine

CHOICE_BATCH_SIZE = 8
FOR, AGAINST, ATTENDED = (
    (24, 128, 62),
    (178, 34, 52),
    (30, 100, 190),
)  # green, red; blue for attention, which has no sign
MIN_SHADE = 0.08  # relative to the largest weight; words below it have no background
FORMATS: dict[str, Callable[["TaggedLine"], str]] = {
    "text": lambda line: line.to_line(),
    "conll": lambda line: "".join(f"{word.text}\t{word.tag}\n" for word in line.words),
    "words": lambda line: " ".join(f"{word.text}/{word.tag}" for word in line.words),
}


def predict(
    run: Run,
    texts: Texts = None,
    file: Annotated[Path | None, typer.Option(help="A UTF-8 file with one text per line.")] = None,
    as_json: JsonLines = False,
    batch: Annotated[int, batch_option("Number of lines per batch.")] = 32,
    window: Window = None,
    device: Device = "auto",
) -> None:
    """Apply any model to texts: `seqloom predict runs/X "a text"`, `… --file lines.txt`, or `… < lines.txt`."""
    if texts and file is not None:
        raise UsageError("Texts and --file exclude each other; give one of them.")
    from seqloom.predict.loader import load

    model: Predictor[Prediction] = load(run, device)
    lines, size = open_lines(texts, batch, window, file)
    print_predictions(model, model.predict(lines, batch_size=batch, window=size), as_json)


def fill_mask(
    run: Annotated[Path, typer.Argument(help="Run directory of a masked language model, such as bert-pydocs.")],
    texts: Texts = None,
    top: Annotated[int, top_option("Tokens shown for each mask")] = 5,
    as_json: JsonLines = False,
    batch: Batch = BATCH_SIZE,
    window: Window = None,
    device: Device = "auto",
) -> None:
    """Fill masked tokens: `seqloom fill-mask runs/bert-pydocs "the [MASK] statement" --top 5`, or `… < input.txt`."""
    from seqloom.predict.gaps import MaskedLMPredictor
    from seqloom.predict.loader import load

    model = load(run, device, MaskedLMPredictor)
    predict_lines(model, model.fill_mask, texts, batch, window, as_json, top=top)


def denoise(
    run: Annotated[Path, typer.Argument(help="Run directory of the task denoise, such as denoise-pydocs.")],
    texts: Texts = None,
    noise: Annotated[bool, typer.Option("--noise", help="Corrupt each text first, as in training.")] = False,
    seed: Annotated[int, typer.Option(help="With --noise: random seed.")] = 1,
    beam: Annotated[
        int | None, typer.Option(min=1, help="Beam size; 1 is greedy search. [default: the recipe's]")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of output tokens. [default: 2 × input tokens + 20]")
    ] = None,
    as_json: JsonLines = False,
    batch: Batch = BATCH_SIZE,
    window: Window = None,
    device: Device = "auto",
) -> None:
    """Reconstruct corrupted texts: `seqloom denoise runs/denoise-pydocs "the [MASK] statement"`, or `… < input.txt`."""
    from seqloom.predict.gaps import DenoisedText, DenoiserPredictor
    from seqloom.predict.loader import load

    def with_input(restored: DenoisedText) -> str:
        return f"{one_line(restored.corrupted)}\t{restored.to_line()}"

    model = load(run, device, DenoiserPredictor)
    options = {"noise": noise, "seed": seed, **drop_unset(beam=beam, max_length=max_length)}
    predict_lines(model, model.denoise, texts, batch, window, as_json, with_input if noise else None, **options)


def classify(
    run: Run,
    texts: Texts = None,
    top: Annotated[int, top_option("Labels shown for each text")] = 1,
    why: Annotated[bool, typer.Option("--why", help="Show how much each word contributed.")] = False,
    color: Annotated[
        bool | None,
        typer.Option("--color/--no-color", help="With --why: colours or numbers. [default: depends on the terminal]"),
    ] = None,
    as_json: JsonLines = False,
    batch: Batch = BATCH_SIZE,
    window: Window = None,
    device: Device = "auto",
    table: TableIn = None,
    column: TableColumns = None,
    out: TableOut = None,
) -> None:
    """Classify texts: `seqloom classify runs/X "a gripping, funny film" --top 2 --why`, or `… < input.txt`.

    With --in, the labels are added to the table: `seqloom classify runs/X --in in.csv --column text --out out.csv`.
    """
    check_table_options(table, column, out, texts)
    from seqloom.predict.classify import ClassifierPredictor, SeriesClassifierPredictor
    from seqloom.predict.loader import load

    model = load(run, device)
    if isinstance(model, SeriesClassifierPredictor):
        print_predictions(model, model.predict(open_lines(texts, 1, 1)[0], top=top), as_json)
        return
    classifier = load(run, device, ClassifierPredictor)
    if table is not None:
        rows = TableFile(table, column, out, classifier.run)
        rows.write(classifier.classify(rows.texts, top=top, batch_size=batch))
        return
    console, is_coloured = open_console(color)
    has_few_colours = console.color_system in ("standard", "windows")

    def print_shaded(result: "Classification") -> None:
        labels = "  ".join(f"{one_line(each.label)} {each.probability:.4f}" for each in result.candidates)
        console.print(labels, markup=False, soft_wrap=True)
        if result.why is not None:
            console.print(shade_words(result.text, result.why, few_colours=has_few_colours), soft_wrap=True)

    lines, size = open_lines(texts, batch, window)
    predictions = classifier.classify(lines, top=top, why=why, batch_size=batch, window=size)
    print_predictions(classifier, predictions, as_json, print_one=print_shaded if why and is_coloured else None)


def shade_words(text: str, why: "WordWeights", *, few_colours: bool = False) -> "Text":
    """Return the text with coloured words; the colour is proportional to the weight.

    With `few_colours`, strong words have a coloured background and other words coloured letters.
    """
    from rich.text import Text

    largest = max((abs(word.weight) for word in why.words), default=0.0)
    shaded = Text(one_line(text))
    for word in why.words:
        strength = abs(word.weight) / largest if largest else 0.0
        if strength < MIN_SHADE:
            continue
        sign = 0 if why.kind == "attention" else 1 if word.weight > 0 else 2
        if few_colours:
            name = ("blue", "green", "red")[sign]
            style = f"white on {name}" if strength > 0.5 else name
        else:  # with readable letters
            red, green, blue = (round(255 + (part - 255) * strength) for part in (ATTENDED, FOR, AGAINST)[sign])
            style = f"{'#ffffff' if strength > 0.5 else '#000000'} on rgb({red},{green},{blue})"
        shaded.stylize(style, word.start, word.end)
    return shaded


def tag(
    run: Run,
    texts: Texts = None,
    form: Annotated[
        Literal["text", "conll", "words"] | None,
        typer.Option(
            "--format", help="text: Pankaj:PER lives …; conll: one word per line; words: Pankaj/B-PER lives/O …"
        ),
    ] = None,
    as_json: Annotated[
        bool, json_option("One JSON object per line, with character offsets and probabilities.")
    ] = False,
    spaces: Annotated[bool, typer.Option("--spaces", help="Split words only at white space.")] = False,
    batch: Batch = BATCH_SIZE,
    window: Window = None,
    device: Device = "auto",
    table: TableIn = None,
    column: TableColumns = None,
    out: TableOut = None,
) -> None:
    """Tag the words of sentences: `seqloom tag runs/tag-people "Pankaj lives in Munich"`, or `… < input.txt`.

    With --in, the tags are added to the table: `seqloom tag runs/X --in in.csv --column text --out out.csv`.
    """
    check_table_options(table, column, out, texts)
    if as_json and form is not None:
        raise UsageError("--json and --format exclude each other; leave out one of them.")
    from seqloom.predict.loader import load
    from seqloom.predict.tag import TaggerPredictor

    model = load(run, device, TaggerPredictor)
    if table is not None:
        rows = TableFile(table, column, out, model.run)
        rows.write(model.tag(rows.texts, spaces=spaces, batch_size=batch))
        return
    predict_lines(model, model.tag, texts, batch, window, as_json, FORMATS[form or "text"], spaces=spaces)


def match(
    run: Run,
    pairs: Annotated[
        list[str] | None,
        typer.Argument(help="Pairs of texts. [default: tab-separated lines from standard input]"),
    ] = None,
    top: Annotated[int, top_option("Labels shown for each pair")] = 1,
    as_json: JsonLines = False,
    batch: Annotated[int, batch_option("Number of pairs per batch.")] = BATCH_SIZE,
    window: Annotated[int | None, window_option("Pairs")] = None,
    device: Device = "auto",
    table: TableIn = None,
    column: TableColumns = None,
    out: TableOut = None,
) -> None:
    """Classify or score sentence pairs: `seqloom match runs/pair-rte "It rained." "It is wet."`, or `… < pairs.tsv`.

    With --in, the results are added to the table: `… --in in.csv --column first --column second --out out.csv`.
    """
    check_table_options(table, column, out, pairs)
    from seqloom.predict.base import split_columns
    from seqloom.predict.loader import load
    from seqloom.predict.matching import PairPredictor

    model = load(run, device, PairPredictor)
    if table is not None:
        both_columns = TableFile(table, column, out, model.run, count=2)
        both_columns.write(model.match(both_columns.pairs, top=top, batch_size=batch))
        return
    lines, size = open_lines(pairs, batch, window)
    if pairs and len(pairs) % 2:
        raise DataError(f"The number of texts must be even; got {len(pairs)}, the last {format_value(pairs[-1])}.")
    rows = zip(pairs[::2], pairs[1::2], strict=True) if pairs else split_columns(lines, 2, "two texts", most=2)
    both = ((first, second) for first, second in rows)
    print_predictions(model, model.match(both, top=top, batch_size=batch, window=size), as_json)


def choose(
    run: Run,
    texts: Annotated[
        list[str] | None,
        typer.Argument(help="A text and its options. [default: tab-separated lines from standard input]"),
    ] = None,
    top: Annotated[int, top_option("Options shown for each text")] = 1,
    as_json: JsonLines = False,
    batch: Annotated[int, batch_option("Number of texts per batch, each with all its options.")] = CHOICE_BATCH_SIZE,
    window: Annotated[int | None, window_option("Texts")] = None,
    device: Device = "auto",
) -> None:
    """Choose the right option: `seqloom choose runs/choice-endings "It rained." "…" "…"`, or `… < choices.tsv`."""
    if texts and len(texts) < 3:
        raise UsageError(f"Give a text and at least two options; got {len(texts)} in all.")
    from seqloom.predict.base import split_columns
    from seqloom.predict.loader import load
    from seqloom.predict.matching import ChoicePredictor

    model = load(run, device, ChoicePredictor)
    lines, size = open_lines(texts, batch, window)
    rows = [texts] if texts else split_columns(lines, 3, "a text and at least two options")
    choices = ((text, options) for text, *options in rows)
    print_predictions(model, model.choose(choices, top=top, batch_size=batch, window=size), as_json)


def answer(
    run: Run,
    context: Annotated[
        Path, typer.Option(help="The text that contains the answers: a UTF-8 file, which may be compressed (.gz).")
    ],
    question: Annotated[
        list[str] | None,
        typer.Option(help="A question. The option may be repeated. [default: the lines of standard input]"),
    ] = None,
    top: Annotated[int, top_option("Answers shown for each question")] = 1,
    as_json: Annotated[
        bool, json_option("One JSON object per question, with character offsets and probabilities.")
    ] = False,
    batch: Annotated[int, batch_option("Number of windows of the text per batch.")] = BATCH_SIZE,
    window: Annotated[int | None, window_option("Questions")] = None,
    device: Device = "auto",
) -> None:
    """Answer questions from a text: `seqloom answer runs/answer-squad --context page.txt --question "Who was it?"`."""
    from seqloom.data.files import expand_home, read_nonblank
    from seqloom.predict.loader import load
    from seqloom.predict.matching import AnswerPredictor

    model = load(run, device, AnswerPredictor)
    text = read_nonblank(expand_home(context))
    questions = check_unicode(question) if question else None
    predict_lines(model, model.answer, questions, batch, window, as_json, context=text, top=top)
