"""What `evaluate` shows of models of scores, of choices and of answers."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from seqloom.cli._output import check_answers, escaped, print_json
from seqloom.cli._understanding import figure_lines
from seqloom.core.words import one_line

if TYPE_CHECKING:
    from seqloom.predict.answerer import Answerer
    from seqloom.predict.base import SplitPredictor
    from seqloom.predict.matcher import Chooser, Matcher

EXAMPLES = 3
LONG = 100  # letters of an example that are shown
Row = tuple[float, str, str, str]  # how wrong it is, what is right, what was said, what was asked


def evaluate_answers(model: "SplitPredictor[Any]", split: str, out: Path | None, as_json: bool) -> None:
    """All figures of a split, how sure they are, and the worst mistakes."""
    check_answers(out, "answers")
    found: Any = model.report(split)
    data = f"{model.run.data['corpus']}, {split}"
    if out is not None:
        _write(out, model, split)
    if as_json:
        intervals = {name: list(interval) for name, interval in found.intervals.items()}
        print_json({"run": model.name, "data": data, **found.metrics, "intervals": intervals})
        return
    counts = model.run.data["counts"][split]
    sizes = ", ".join(f"{count:,} {unit}" for unit, count in counts.items() if unit != "characters")
    print(f"{model.name} on {data}: {sizes}")
    for line in figure_lines(found.metrics, found.intervals):
        print(line.replace("loss, nats", "loss      ") if "pearson" in found.metrics else line)  # of scores, no nats
    _print_examples(model, split)


def _print_examples(model: Any, split: str) -> None:
    wrong = sorted((row for row in _rows(model, split) if row[0] > 0), key=lambda row: -row[0])
    if wrong:
        print("\nworst mistakes")
    for _, right, said, asked in wrong[:EXAMPLES]:
        print(f"  {_short(asked)}\n    {_short(right)}; it said {_short(said) or 'nothing'}")


def _write(out: Path, model: Any, split: str) -> None:
    """A table: what is right, what was said, what was asked."""
    from seqloom.core.files import write_atomic

    lines = (
        f"{one_line(right)}\t{one_line(said)}\t{one_line(asked)}\n" for _, right, said, asked in _rows(model, split)
    )
    write_atomic(out, "".join(["expected\tpredicted\texample\n", *lines]))
    typer.echo(f"The answers are in {out}.", err=True)


def _rows(model: Any, split: str) -> Iterator[Row]:
    from seqloom.predict.matcher import Chooser, Matcher

    if isinstance(model, Matcher):
        return _scored(model, split)
    return _chosen(model, split) if isinstance(model, Chooser) else _answered(model, split)


def _scored(model: "Matcher", split: str) -> Iterator[Row]:
    from seqloom.data.examples import scores_of

    corpus = model.own_task.corpus
    for pair, right, said in zip(corpus.split(split), scores_of(corpus, split), model.scores(split), strict=True):
        yield abs(right - said), pair.label, f"{said:.2f}", f"{pair.first} · {pair.second}"


def _chosen(model: "Chooser", split: str) -> Iterator[Row]:
    """Wrong is what was surest of a wrong option: log p of it less log p of the right one."""
    for choice, own in zip(model.own_task.corpus.split(split), model.log_probs(split), strict=True):
        place = max(range(len(own)), key=own.__getitem__)
        yield own[place] - own[choice.answer], choice.options[choice.answer], choice.options[place], choice.text


def _answered(model: "Answerer", split: str) -> Iterator[Row]:
    from seqloom.evaluate.answers import f1

    for one, said in zip(model.own_task.corpus.split(split), model.answers(split), strict=True):
        best = max(f1(said, answer.text) for answer in one.answers)
        yield 1 - best, one.answer.text, said, one.question


def _short(text: str) -> str:
    line = escaped(one_line(text))
    return line if len(line) <= LONG else f"{line[: LONG - 1]}…"
