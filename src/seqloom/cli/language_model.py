"""Commands for language models: generate, score, and few-shot prompting. `generate` also draws images."""

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from seqloom.cli._images import write_generated_images
from seqloom.cli._input import open_lines, read_lines
from seqloom.cli._options import (
    BATCH_SIZE,
    WINDOW_BATCHES,
    Device,
    JsonLines,
    Run,
    Texts,
    Window,
    batch_option,
    json_option,
    parse_words,
    top_option,
)
from seqloom.cli._output import Notes, note_unknown, print_json, print_predictions
from seqloom.cli._tables import TableColumns, TableFile, TableIn, TableOut, check_table_options
from seqloom.core.errors import DataError, UsageError

if TYPE_CHECKING:
    from seqloom.predict.language_model import PromptAnswer

SCORE_LINES = 1024  # number of lines per batch for `score`
MAX_TOKENS = 300  # default of --max-tokens
ESCAPES = {"\\n": "\n", "\\t": "\t"}  # escape sequence on the command line → character

SearchBeam = Annotated[int | None, typer.Option(min=1, help="Use beam search with this beam size instead of sampling.")]
LengthPenalty = Annotated[float, typer.Option(min=0, help="With --beam: exponent of the length penalty.")]


def generate(
    run: Run,
    prompt: Annotated[str, typer.Option(help="The text to continue.")] = "",
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "--tokens", min=1, help="Maximum number of new tokens.")
    ] = MAX_TOKENS,
    temperature: Annotated[float, typer.Option(help="Sampling temperature; 0 is greedy.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(min=1, help="Sample from the k most probable tokens.")] = None,
    top_p: Annotated[
        float, typer.Option(help="Sample from the smallest set of tokens with this total probability.")
    ] = 1.0,
    min_tokens: Annotated[int, typer.Option(min=0, help="Minimum number of new tokens.")] = 0,
    repetition_penalty: Annotated[
        float, typer.Option(help="Divide the probability of tokens that have already occurred by this value.")
    ] = 1.0,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text. The option may be repeated.")] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Number of samples. [default: 1 text, or 64 images]")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    beam: SearchBeam = None,
    n_best: Annotated[int, typer.Option(min=1, help="With --beam: number of hypotheses to show.")] = 1,
    length_penalty: LengthPenalty = 1.0,
    stopping: Annotated[Literal["usual", "exact"], typer.Option(help="With --beam: the stopping rule.")] = "usual",
    allow_unknown: Annotated[bool, typer.Option("--allow-unknown", help="Read unknown tokens as <unk>.")] = False,
    device: Device = "auto",
    table: TableIn = None,
    column: TableColumns = None,
    out: TableOut = None,
    grid: Annotated[Path | None, typer.Option(help="For image models: write the images to this PNG file.")] = None,
    steps_grid: Annotated[
        Path | None, typer.Option(help="For image models: write the steps of each image in a row to this PNG file.")
    ] = None,
    animation: Annotated[
        Path | None, typer.Option(help="For image models: write the generation steps to this GIF file.")
    ] = None,
) -> None:
    """Generate text from a prompt: `seqloom generate runs/lm-char-lstm --prompt "The class"`.

    With --in, the prompts are read from a column of a table: `… --in in.csv --column prompt --out out.csv`.
    An image model draws images: `seqloom generate runs/draw-mnist --grid digits.png --animation digits.gif`.
    """
    check_table_options(table, column, out, prompt)
    from seqloom.predict.base import ranked_columns
    from seqloom.predict.generate_images import ImageGeneratorPredictor
    from seqloom.predict.language_model import LanguageModelPredictor
    from seqloom.predict.loader import load

    sampling: dict[str, Any] = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "repetition_penalty": repetition_penalty,
    }
    search: dict[str, Any] = {"n_best": n_best, "length_penalty": length_penalty, "stopping": stopping}
    shared: dict[str, Any] = {"max_tokens": max_tokens, "min_tokens": min_tokens, "allow_unknown": allow_unknown}
    if beam is not None:
        changed = {name: value not in (1, None) for name, value in sampling.items()}
        changed |= {"stop": bool(stop), "samples": samples not in (None, 1), "seed": seed != 0}
        rule = "controls sampling and cannot be combined with --beam; leave out one of them"
    else:
        changed = {name: value not in (1, "usual") for name, value in search.items()}
        rule = "requires beam search: add --beam, for example --beam 5"
    for name in (name for name, is_changed in changed.items() if is_changed):
        raise UsageError(f"--{name.replace('_', '-')} {rule}.")
    any_model = load(run, device)
    if isinstance(any_model, ImageGeneratorPredictor):
        is_text = any((prompt, table, beam, stop, max_tokens != MAX_TOKENS, min_tokens, allow_unknown))
        if is_text or any(value not in (None, 1) for value in sampling.values()):
            raise UsageError(f"{run} generates images: only --samples, --seed and the names of image files apply.")
        write_generated_images(any_model, grid, steps_grid, animation, samples, seed)
        return
    if any((grid, steps_grid, animation)):
        needed = "--grid, --steps-grid and --animation need a model that generates images"
        raise UsageError(f"{run} is {any_model.description}: {needed}.")
    model = any_model if isinstance(any_model, LanguageModelPredictor) else load(run, device, LanguageModelPredictor)
    samples = samples or 1
    if table is not None:
        file = TableFile(table, column, out, model)

        def continuations(text: str) -> list[str]:
            if beam is not None:
                return [each.text for each in model.search(text, beam=beam, **search, **shared)]
            seeds = range(seed, seed + samples)
            return [model.generate(text, seed=each, stop=stop or (), **sampling, **shared) for each in seeds]

        file.write_columns(ranked_columns({"generated": each} for each in continuations(text)) for text in file.texts)
        return
    if beam is not None:
        best = model.search(prompt, beam=beam, **search, **shared)
        for number, hypothesis in enumerate(best, start=1):
            if n_best > 1:
                print(f"--- {number} of {len(best)}, score {hypothesis.score:.4f}, log p {hypothesis.log_prob:.3f}")
            print(prompt + hypothesis.text)
        return
    for number in range(samples):
        pieces = model.generate(prompt, seed=seed + number, stop=stop or (), stream=True, **sampling, **shared)
        if samples > 1:
            print(f"--- {number + 1} of {samples}, seed {seed + number}")
        try:
            sys.stdout.write(prompt)
            for piece in pieces:  # print each piece immediately
                sys.stdout.write(piece)
                sys.stdout.flush()
        finally:  # end the line, even after Ctrl-C
            print(flush=True)


def score(
    run: Run,
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts to score. [default: the lines of standard input]")
    ] = None,
    allow_unknown: Annotated[
        bool,
        typer.Option(
            "--allow-unknown/--no-allow-unknown",
            help="Score unknown words as <unk> and list them, or report them as an error.",
        ),
    ] = True,
    as_json: Annotated[bool, json_option("One JSON object per text, with the log-probability of each token.")] = False,
    device: Device = "auto",
    table: TableIn = None,
    column: TableColumns = None,
    out: TableOut = None,
) -> None:
    """Compute the log-probability of texts: `seqloom score runs/lm-word-lstm "a text" "another"`.

    With --in, the results are added to the table: `seqloom score runs/X --in in.csv --column text --out out.csv`.
    """
    check_table_options(table, column, out, texts, as_json=as_json)
    if not texts and table is None and sys.stdin.isatty():
        raise UsageError("Give texts to score, or lines on standard input: < lines.txt.")
    from seqloom.predict.language_model import LanguageModelPredictor
    from seqloom.predict.loader import load

    model = load(run, device, LanguageModelPredictor)
    rows, notes = None if table is None else TableFile(table, column, out, model), Notes("row")
    lines = iter(read_lines(texts) if rows is None else note_unknown(rows.texts, model, notes))
    blocks = iter(lambda: list(islice(lines, SCORE_LINES)), [])
    scored = (scored for block in blocks for scored in model.score(block, allow_unknown=allow_unknown))
    if rows is not None:
        rows.write_columns(result.to_columns() for result in scored)
        notes.show()
        return
    for result in scored:
        print_json(result.to_json()) if as_json else print(result.to_line(), flush=True)


def prompt(
    run: Annotated[Path, typer.Argument(help="A run directory of a language model.")],
    texts: Texts = None,
    shots: Annotated[
        Path | None, typer.Option(help="Labelled examples for the prompt: a .tsv, .csv or .jsonl file.")
    ] = None,
    first: Annotated[int | None, typer.Option(min=0, help="Number of examples to use. [default: all]")] = None,
    choices: Annotated[
        str | None, typer.Option(help="Labels, separated by commas. [default: those of the examples]")
    ] = None,
    template: Annotated[
        str | None, typer.Option(help="Template of an example. [default: the run's, else '{text} = {label}']")
    ] = None,
    separator: Annotated[str, typer.Option(help="Separator between examples.")] = "\\n",
    by: Annotated[
        Literal["mean", "sum"], typer.Option(help="Rank by the mean log-probability per token, or by the sum.")
    ] = "mean",
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Subtract each label's log-probability for an empty text.")
    ] = False,
    top: Annotated[int, top_option("Show this many labels for each text")] = 1,
    check: Annotated[
        bool, typer.Option("--check", help="Read the correct label after a tab in each line, and report the accuracy.")
    ] = False,
    generate: Annotated[bool, typer.Option("--generate", help="Generate the label instead of choosing it.")] = False,
    max_tokens: Annotated[int, typer.Option(min=1, help="With --generate: maximum number of tokens.")] = 50,
    as_json: JsonLines = False,
    batch: Annotated[int, batch_option("Number of texts per batch.")] = BATCH_SIZE,
    window: Window = None,
    device: Device = "auto",
    table: TableIn = None,
    column: TableColumns = None,
    out: TableOut = None,
) -> None:
    """Classify by few-shot prompting: `seqloom prompt runs/X --shots examples.tsv --choices yes,no < lines.txt`.

    With --in, the answers are added to the table: `seqloom prompt runs/X --in in.csv --column text --out out.csv`.
    """
    check_table_options(table, column, out, texts, check=check, as_json=as_json)
    if generate and (choices is not None or calibrate or by != "mean" or top != 1):
        raise UsageError("--generate excludes --choices, --by, --calibrate and --top; leave them out.")
    if first is not None and shots is None:
        raise UsageError("--first requires examples: add --shots FILE.")
    from seqloom.data.prompts import read_shots
    from seqloom.predict.language_model import LanguageModelPredictor
    from seqloom.predict.loader import load

    examples = [] if shots is None else read_shots(shots)[:first]
    model = load(run, device, LanguageModelPredictor)
    rows = None if table is None else TableFile(table, column, out, model)
    lines, size = open_lines(texts, batch, window) if rows is None else (rows.texts, WINDOW_BATCHES * batch)
    checker = LabelChecker() if check else None
    lines = lines if checker is None else checker.take_labels(lines)
    options: dict[str, Any] = {"shots": examples, "separator": unescape(separator)}
    options["template"] = None if template is None else unescape(template)
    answers: Iterator[PromptAnswer]
    if generate:
        answers = model.complete(lines, max_tokens=max_tokens, window=size if window else 1, stream=True, **options)
    else:
        labels = () if choices is None else parse_words("--choices", choices, "positive,negative")
        options |= {"by": by, "calibrate": calibrate, "top": top}
        answers = model.choose(lines, labels, batch_size=batch, window=size, stream=True, **options)
    if rows is not None:
        rows.write(model, answers)
        return
    print_predictions(model, answers if checker is None else checker.check(answers), as_json)
    if checker is not None:
        accuracy = f", {checker.correct / checker.total:.2%}" if checker.total else ""
        typer.echo(f"correct: {checker.correct:,} of {checker.total:,}{accuracy}", err=True)


def unescape(text: str) -> str:
    """Replace \\n and \\t by a line break and a tab."""
    for typed, meant in ESCAPES.items():
        text = text.replace(typed, meant)
    return text


class LabelChecker:
    """A filter that removes the labels from lines and counts the answers that match them."""

    def __init__(self) -> None:
        self._labels: deque[str] = deque()  # labels of lines that are still waiting for an answer
        self.correct = self.total = 0

    def take_labels(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the lines without their labels."""
        for number, line in enumerate(lines, start=1):
            text, tab, label = line.rpartition("\t")
            if line.strip() and not (tab and text.strip() and label.strip()):
                raise DataError(
                    f"With --check, a line must consist of a text, a tab and a label; line {number:,} is {line!r}."
                )
            self._labels.append(label.strip())
            yield text

    def check(self, answers: Iterable["PromptAnswer"]) -> Iterator["PromptAnswer"]:
        """Yield the answers with their expected labels."""
        for answer in answers:
            expected = self._labels.popleft()
            if expected:
                self.total += 1
                self.correct += answer.label == expected
            yield replace(answer, expected=expected)
