"""Commands that apply a trained model to lines; each command calls one method of a predictor."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from seqloom.cli._images import classify_image_files, tag_frames
from seqloom.cli._input import check_unicode, open_lines
from seqloom.cli._options import (
    BATCH_SIZE,
    Batch,
    Device,
    JsonLines,
    MinProbability,
    Run,
    Texts,
    Window,
    batch_option,
    drop_unset,
    json_option,
    top_option,
    window_option,
)
from seqloom.cli._output import open_console, predict_lines, print_notes, print_predictions
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
WORD_COLOURS = {  # the name for terminals with few colours, and the amounts of red, green and blue
    "for": ("green", (24, 128, 62)),
    "against": ("red", (178, 34, 52)),
    "attention": ("blue", (30, 100, 190)),  # attention weights have no sign
}
MIN_SHADE = 0.08  # words below this fraction of the largest weight have no background
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
    table: TableIn = None,
    column: TableColumns = None,
    out: TableOut = None,
) -> None:
    """Apply any model to texts: `seqloom predict runs/X "a text"`, `… --file lines.txt`, or `… < lines.txt`.

    With --in, the predictions are added to the table: `seqloom predict runs/X --in in.csv --column text --out out.csv`.
    """
    if texts and file is not None:
        raise UsageError("Texts and --file cannot be used together; give one of them.")
    check_table_options(table, column, out, texts, file=file, as_json=as_json)
    from seqloom.predict.loader import load

    model: Predictor[Prediction] = load(run, device)
    if table is not None:
        table_file = TableFile(table, column, out, model)
        table_file.write(model, model.predict(table_file.lines, batch_size=batch))
        return
    lines, size = open_lines(texts, batch, window, file, model.reads_files)
    print_predictions(model, model.predict(lines, batch_size=batch, window=size, stream=True), as_json)


def fill_mask(
    run: Annotated[Path, typer.Argument(help="Run directory of a masked language model, such as bert-pydocs.")],
    texts: Texts = None,
    top: Annotated[int, top_option("Show this many tokens for each mask")] = 5,
    as_json: JsonLines = False,
    batch: Batch = BATCH_SIZE,
    window: Window = None,
    device: Device = "auto",
    table: TableIn = None,
    column: TableColumns = None,
    out: TableOut = None,
) -> None:
    """Fill masked tokens: `seqloom fill-mask runs/bert-pydocs "the [MASK] statement" --top 5`, or `… < input.txt`.

    With --in, the results are added to the table: `seqloom fill-mask runs/X --in in.csv --column text --out out.csv`.
    """
    check_table_options(table, column, out, texts, as_json=as_json)
    from seqloom.predict.gaps import MaskedLMPredictor
    from seqloom.predict.loader import load

    model = load(run, device, MaskedLMPredictor)
    if table is not None:
        table_file = TableFile(table, column, out, model)
        table_file.write(model, model.fill_mask(table_file.texts, top=top, batch_size=batch))
        return
    predict_lines(model, model.fill_mask, texts, batch, window, as_json, top=top)


def denoise(
    run: Annotated[Path, typer.Argument(help="Run directory of the task `denoise`, such as denoise-pydocs.")],
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
    table: TableIn = None,
    column: TableColumns = None,
    out: TableOut = None,
) -> None:
    """Reconstruct corrupted texts: `seqloom denoise runs/denoise-pydocs "the [MASK] statement"`, or `… < input.txt`.

    With --in, the results are added to the table: `seqloom denoise runs/X --in in.csv --column text --out out.csv`.
    """
    check_table_options(table, column, out, texts, as_json=as_json)
    from seqloom.predict.gaps import DenoisedText, DenoiserPredictor
    from seqloom.predict.loader import load

    def with_input(restored: DenoisedText) -> str:
        return f"{one_line(restored.corrupted)}\t{restored.to_line()}"

    model = load(run, device, DenoiserPredictor)
    options = {"noise": noise, "seed": seed, **drop_unset(beam=beam, max_length=max_length)}
    if table is not None:
        table_file = TableFile(table, column, out, model)
        table_file.write(model, model.denoise(table_file.texts, batch_size=batch, **options))
        return
    predict_lines(model, model.denoise, texts, batch, window, as_json, with_input if noise else None, **options)


def classify(
    run: Run,
    texts: Texts = None,
    top: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Show this many labels for each text, best first. [default: 1, or all for a multi-label classifier]",
        ),
    ] = None,
    min_probability: MinProbability = None,
    why: Annotated[
        bool,
        typer.Option("--why", help="Show how much each word, or each part of an image, contributes to the prediction."),
    ] = False,
    color: Annotated[
        bool | None,
        typer.Option(
            "--color/--no-color",
            help="With --why: show the weights as colours or as numbers. [default: depends on the terminal]",
        ),
    ] = None,
    as_json: JsonLines = False,
    batch: Batch = BATCH_SIZE,
    window: Window = None,
    device: Device = "auto",
    table: TableIn = None,
    column: TableColumns = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="With --in: the table to write. With --why and an image: the plot. [default: CSV on standard output]"
        ),
    ] = None,
) -> None:
    """Classify texts: `seqloom classify runs/X "a gripping, funny film" --top 2 --why`, or `… < input.txt`.

    With --in, the labels are added to the table: `seqloom classify runs/X --in in.csv --column text --out out.csv`.
    An image classifier reads files: `seqloom classify runs/X digit.png --why --out why.png`.
    """
    options = {"as_json": as_json, "why": why}
    check_table_options(table, column, None if why else out, texts, **options)
    from seqloom.predict.classify import ClassifierPredictor, LabelPredictor, SeriesClassifierPredictor
    from seqloom.predict.classify_images import ImageClassifierPredictor
    from seqloom.predict.loader import load

    model = load(run, device)
    if isinstance(model, LabelPredictor):
        model.min_probability = min_probability
        print_notes(model.calibration_notes)
    if isinstance(model, ImageClassifierPredictor):
        if table is not None:
            table_file = TableFile(table, column, out, model)
            table_file.write(model, model.classify(table_file.texts, top=top or 1, batch_size=batch))
            return
        classify_image_files(model, texts, top or 1, why, out, as_json, batch, window)
        return
    check_table_options(table, column, out, texts, **options)
    if isinstance(model, SeriesClassifierPredictor):
        if table is not None:
            table_file = TableFile(table, column, out, model)
            table_file.write(model, model.predict(table_file.lines, top=top or 1))
            return
        print_predictions(model, model.predict(open_lines(texts, 1, 1)[0], top=top or 1, stream=True), as_json)
        return
    classifier = model if isinstance(model, ClassifierPredictor) else load(run, device, ClassifierPredictor)
    top = top or classifier.default_top
    if table is not None:
        table_file = TableFile(table, column, out, classifier)
        table_file.write(classifier, classifier.classify(table_file.texts, top=top, batch_size=batch))
        return
    lines, size = open_lines(texts, batch, window)
    predictions = classifier.classify(lines, top=top, why=why, batch_size=batch, window=size, stream=True)
    print_predictions(classifier, predictions, as_json, print_one=shaded_printer(color) if why else None)


def shaded_printer(color: bool | None) -> "Callable[[Classification], None] | None":
    """Return a function that prints a classification with coloured words, or None if the output has no colours."""
    console, is_coloured = open_console(color)
    has_few_colours = console.color_system in ("standard", "windows")

    def print_shaded(result: "Classification") -> None:
        fields = iter(replace(result, why=None).to_line().split("\t"))
        console.print(
            "  ".join(" ".join(pair) for pair in zip(fields, fields, strict=False)), markup=False, soft_wrap=True
        )
        if result.why is not None:
            console.print(shade_words(result.text, result.why, few_colours=has_few_colours), soft_wrap=True)

    return print_shaded if is_coloured else None


def shade_words(text: str, why: "WordWeights", *, few_colours: bool = False) -> "Text":
    """Return the text with coloured words; the colour is proportional to the weight.

    With `few_colours`, words with a large weight get a coloured background, and other words get coloured letters.
    """
    from rich.text import Text

    largest = max((abs(word.weight) for word in why.words), default=0.0)
    shaded = Text(one_line(text))
    for word in why.words:
        strength = abs(word.weight) / largest if largest else 0.0
        if strength < MIN_SHADE:
            continue
        kind = "attention" if why.kind == "attention" else "for" if word.weight > 0 else "against"
        name, rgb = WORD_COLOURS[kind]
        if few_colours:
            style = f"white on {name}" if strength > 0.5 else name
        else:  # with readable letters
            red, green, blue = (round(255 + (part - 255) * strength) for part in rgb)
            style = f"{'#ffffff' if strength > 0.5 else '#000000'} on rgb({red},{green},{blue})"
        shaded.stylize(style, word.start, word.end)
    return shaded


def tag(
    run: Run,
    texts: Texts = None,
    form: Annotated[
        Literal["text", "conll", "words"] | None,
        typer.Option(
            "--format",
            help="Output format. text: Pankaj:PER lives …; conll: one word per line; words: Pankaj/B-PER lives/O …",
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
    check_table_options(table, column, out if table is not None else None, texts, as_json=as_json, format=form)
    if as_json and form is not None:
        raise UsageError("--json and --format cannot be used together; leave out one of them.")
    from seqloom.predict.frames import FrameTagger
    from seqloom.predict.loader import load
    from seqloom.predict.tag import TaggerPredictor

    frames = load(run, device)
    if isinstance(frames, FrameTagger):
        if form is not None or spaces:
            raise UsageError(f"--format and --spaces require texts; this run is {frames.description}.")
        tag_frames(frames, texts, table, column, out, as_json, batch, window)
        return
    check_table_options(table, column, out, texts, as_json=as_json, format=form)
    model = load(run, device, TaggerPredictor)
    if table is not None:
        table_file = TableFile(table, column, out, model)
        table_file.write(model, model.tag(table_file.texts, spaces=spaces, batch_size=batch))
        return
    predict_lines(model, model.tag, texts, batch, window, as_json, FORMATS[form or "text"], spaces=spaces)


def match(
    run: Run,
    pairs: Annotated[
        list[str] | None,
        typer.Argument(help="Pairs of texts. [default: tab-separated lines from standard input]"),
    ] = None,
    top: Annotated[int, top_option("Show this many labels for each pair")] = 1,
    min_probability: MinProbability = None,
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
    check_table_options(table, column, out, pairs, as_json=as_json)
    from seqloom.predict.base import split_columns
    from seqloom.predict.loader import load
    from seqloom.predict.matching import PairPredictor

    model = load(run, device, PairPredictor)
    if min_probability is not None and model.scored:
        raise UsageError(f"--min-probability requires labels; {run} predicts scores.")
    model.min_probability = min_probability
    print_notes(model.calibration_notes)
    if table is not None:
        table_file = TableFile(table, column, out, model)
        matched = model.match(((first, second) for first, second in table_file.cells), top=top, batch_size=batch)
        table_file.write(model, matched)
        return
    lines, size = open_lines(pairs, batch, window)
    if pairs and len(pairs) % 2:
        raise DataError(
            f"The number of texts must be even; got {len(pairs)}. The last text is {format_value(pairs[-1])}."
        )
    rows = zip(pairs[::2], pairs[1::2], strict=True) if pairs else split_columns(lines, 2, "two texts", most=2)
    both = ((first, second) for first, second in rows)
    print_predictions(model, model.match(both, top=top, batch_size=batch, window=size, stream=True), as_json)


def choose(
    run: Run,
    texts: Annotated[
        list[str] | None,
        typer.Argument(help="A text and its options. [default: tab-separated lines from standard input]"),
    ] = None,
    top: Annotated[int, top_option("Show this many options for each text")] = 1,
    as_json: JsonLines = False,
    batch: Annotated[int, batch_option("Number of texts per batch, each with all its options.")] = CHOICE_BATCH_SIZE,
    window: Annotated[int | None, window_option("Texts")] = None,
    device: Device = "auto",
    table: TableIn = None,
    column: TableColumns = None,
    out: TableOut = None,
) -> None:
    """Choose the right option: `seqloom choose runs/choice-endings "It rained." "…" "…"`, or `… < choices.tsv`.

    With --in, the choices are added to the table. Repeat --column: first the column of the text, then a column for
    each option or one column with a list of options:
    `seqloom choose runs/X --in in.csv --column text --column a --column b --out out.csv`.
    """
    check_table_options(table, column, out, texts, as_json=as_json)
    if texts and len(texts) < 3:
        raise UsageError(f"Give a text and at least two options; got {len(texts)} arguments in total.")
    from seqloom.predict.base import split_columns
    from seqloom.predict.loader import load
    from seqloom.predict.matching import ChoicePredictor

    model = load(run, device, ChoicePredictor)
    if table is not None:
        table_file = TableFile(table, column, out, model)
        choices = ((cells[0], cells[1:]) for cells in table_file.cells)
        table_file.write(model, model.choose(choices, top=top, batch_size=batch))
        return
    lines, size = open_lines(texts, batch, window)
    rows = [texts] if texts else split_columns(lines, 3, "a text and at least two options")
    choices = ((text, options) for text, *options in rows)
    print_predictions(model, model.choose(choices, top=top, batch_size=batch, window=size, stream=True), as_json)


def answer(
    run: Run,
    context: Annotated[
        Path | None,
        typer.Option(help="The text that contains the answers: a UTF-8 file, which may be compressed (.gz)."),
    ] = None,
    question: Annotated[
        list[str] | None,
        typer.Option(help="A question. The option may be repeated. [default: the lines of standard input]"),
    ] = None,
    top: Annotated[int, top_option("Show this many answers for each question")] = 1,
    as_json: Annotated[
        bool, json_option("One JSON object per question, with character offsets and probabilities.")
    ] = False,
    batch: Annotated[int, batch_option("Number of windows of the text per batch.")] = BATCH_SIZE,
    window: Annotated[int | None, window_option("Questions")] = None,
    device: Device = "auto",
    table: TableIn = None,
    column: TableColumns = None,
    out: TableOut = None,
) -> None:
    """Answer questions from a text: `seqloom answer runs/answer-squad --context page.txt --question "Who was it?"`.

    With --in, each row has a question and a text: `… --in in.csv --column question --column context --out out.csv`.
    """
    check_table_options(table, column, out, question, context=context, as_json=as_json)
    from seqloom.data.files import expand_home, read_nonblank
    from seqloom.predict.loader import load
    from seqloom.predict.matching import AnswerPredictor

    model = load(run, device, AnswerPredictor)
    if table is not None:
        table_file = TableFile(table, column, out, model)
        pairs = ((question, context) for question, context in table_file.cells)
        table_file.write(model, model.answer_pairs(pairs, top=top, batch_size=batch))
        return
    if context is None:
        raise UsageError("Name the text that contains the answers: --context FILE, or a table: --in FILE.")
    text = read_nonblank(expand_home(context))
    questions = check_unicode(question) if question else None
    predict_lines(model, model.answer, questions, batch, window, as_json, context=text, top=top)
