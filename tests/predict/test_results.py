"""Results of predictors: lists or iterators, and tables for notebooks. All texts in a table are escaped."""

import html.parser
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from seqloom.core.notebook import is_notebook, table_html
from seqloom.predict.base import Prediction
from seqloom.predict.classify import Classification, LabelProbability
from seqloom.predict.results import Metrics, Predictions, returns_list, returns_text

HOSTILE = '<script>alert("1")</script> & </td><img src=x onerror=1>\u202e\x1b[31m'


class Cells(html.parser.HTMLParser):
    """A parser that collects the tags and the texts of the cells of a table."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.tags.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.cells:
            self.cells[-1] += data


class Counter:
    def __init__(self) -> None:
        self.computed = 0

    @returns_list
    def count(self, end: int) -> Iterator[int]:
        """Count."""
        for number in range(end):
            self.computed += 1
            yield number

    @returns_text
    def spell(self, *letters: str) -> Iterator[str]:
        return iter(letters)


def test_method_returns_list_or_iterator() -> None:
    counter = Counter()
    assert counter.count(3) == [0, 1, 2] and isinstance(counter.count(end=3), list)
    counter.computed = 0
    numbers = counter.count(1000, stream=True)
    assert next(numbers) == 0 and counter.computed == 1
    assert counter.spell("a", "b") == "ab" and list(counter.spell("a", "b", stream=True)) == ["a", "b"]
    assert Counter.count.__doc__ == "Count."


def test_table_contains_texts_without_their_html() -> None:
    @dataclass(frozen=True)
    class Found:
        text: str
        score: float

    table = Predictions([Found(HOSTILE, 0.123456), Found("line\nbreak", 2)])._repr_html_()
    parsed = Cells(table)
    assert set(parsed.tags) == {"table", "thead", "tbody", "tr", "th", "td", "br"}
    assert parsed.cells[:2] == ["text", "score"]
    assert parsed.cells[2].startswith('<script>alert("1")</script> & </td><img src=x onerror=1>')
    assert "\u202e" not in table and "\x1b" not in table  # control characters are escaped, too
    assert parsed.cells[3] == "0.1235" and parsed.cells[4] == "linebreak"
    assert set(Cells(table_html([{HOSTILE: 1}])).tags) == {"table", "thead", "tbody", "tr", "th", "td"}


def test_table_of_predictions_has_inputs_and_candidates() -> None:
    candidates = [LabelProbability("good", 0.75), LabelProbability("bad", 0.25)]
    parsed = Cells(Predictions([Classification(candidates, text="a film")])._repr_html_())
    heads = ["text", "label", "probability", "label_2", "probability_2"]
    assert set(parsed.cells[:5]) == set(heads) and parsed.cells[0] == "text"
    row = dict(zip(parsed.cells[:5], parsed.cells[5:], strict=True))
    assert row == dict(zip(heads, ["a film", "good", "0.75", "bad", "0.25"], strict=True))


@pytest.mark.parametrize(("count", "note"), [(0, "no rows"), (20, ""), (21, "20 of 21 rows")])
def test_long_tables_are_shortened(count: int, note: str) -> None:
    table = table_html([{"n": number} for number in range(count)])
    assert Cells(table).tags.count("tr") == 1 + min(count, 20)
    assert table.endswith(f"<p>{note}</p>" if note else "</table>")


def test_metrics_are_a_dictionary_and_a_table() -> None:
    metrics = Metrics(accuracy=0.5, loss=1.25)
    assert metrics == {"accuracy": 0.5, "loss": 1.25}
    assert Cells(metrics._repr_html_()).cells == ["metric", "value", "accuracy", "0.5", "loss", "1.25"]


def test_python_outside_jupyter_is_not_a_notebook() -> None:
    assert not is_notebook()


def test_every_prediction_is_a_row() -> None:
    @dataclass(frozen=True)
    class Shown(Prediction):
        text: str
        json_names = ("text",)

        def to_line(self) -> str:
            return self.text

    assert Cells(Predictions([Shown(text="a")])._repr_html_()).cells == ["text", "a"]
