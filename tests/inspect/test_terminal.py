"""Heat maps in the terminal: alignment in any script, and width."""

import io
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from seqloom.inspect.plots.figures import format_word
from seqloom.inspect.plots.terminal import COLOURS, SHADES, render_heat_map, render_links, render_scale

ENGLISH = ["Sunday", ",", "November", "15", ",", "2026", "</s>"]
SCRIPTS = [
    "dimanche",
    "रविवार",
    "نوفمبر",
    "،",
    "일요일",
    "日",
    "วันอาทิตย์",
    "cafe\u0301",
    "👩\u200d👩\u200d👧",
    "\u0301",
    "וְ",
]


def plain(rows: list[str], columns: list[str], weights: Any, width: int = 80) -> list[str]:
    return render_heat_map(rows, columns, np.asarray(weights), width=width, colour=False).plain.split("\n")


def test_heat_map_shows_known_weights_as_shades() -> None:
    weights = [[0.04, 0.05, 0.91], [0.3, 0.6, 0.1]]
    assert plain(["le", "chien"], ["a", "dog", "</s>"], weights) == [
        "        a  dog  </s> ",
        "    le  ·  ░░░  ████ ",
        " chien  ▒  ▓▓▓  ░░░░ ",
        "",
    ]


@pytest.mark.parametrize(
    ("weight", "shade"),
    [(0, "·"), (0.049, "·"), (0.05, "░"), (0.25, "▒"), (0.5, "▓"), (0.75, "█"), (1, "█"), (1.1, "█")],
)
def test_larger_weights_have_darker_shades(weight: float, shade: str) -> None:
    assert plain(["x"], ["y"], [[weight]])[1] == f" x  {shade} "


def test_nan_is_drawn_as_zero() -> None:
    assert plain(["x"], ["y"], [[np.nan]])[1] == " x  · "


@pytest.mark.parametrize("colour", [True, False])
def test_lines_are_as_wide_as_heading(colour: bool) -> None:
    draw = np.random.default_rng(0)
    shown = render_heat_map(SCRIPTS, SCRIPTS, draw.random((11, 11)), width=120, colour=colour).plain.split("\n")
    assert len(shown) == 1 + 11 + 1
    assert len({cell_len(line) for line in shown[:-1]}) == 1 and cell_len(shown[0]) <= 120


@given(st.lists(st.text(max_size=30), min_size=1, max_size=30), st.integers(20, 120))
def test_lines_fit_the_screen(words: list[str], width: int) -> None:
    weights = np.full((2, len(words)), 0.5)
    lines = plain(["a row", "\u202eanother"], words, weights, width)
    # a line has at least one column and a label of at most 20 characters
    assert all(cell_len(line) <= max(width, 26) for line in lines)
    assert "\u202e" not in "".join(lines) and all("\x1b" not in line for line in lines)


def test_numbers_replace_long_column_labels() -> None:
    words = [f"word{number}" for number in range(12)]
    weights = np.eye(12)
    assert "word11" in plain(words, words, weights, 110)[0]
    lines = plain(words, words, weights, 60)
    assert [line.split()[:2] for line in lines[:2]] == [["1", "word0"], ["7", "word6"]]
    assert lines[2].split() == [str(number) for number in range(1, 13)]
    assert [line.index("█") for line in lines[3:15]] == [lines[2].index(f"{n:2} ") + 1 for n in range(1, 13)]


def test_columns_are_split_into_blocks() -> None:
    words = [f"w{number}" for number in range(120)]
    lines = plain(["row"], words, np.eye(1, 120, 119), 70)
    heads = [line for line in lines if re.fullmatch(r" {5}[\d ]+", line)]
    assert [number for head in heads for number in head.split()] == [str(number) for number in range(1, 121)]
    assert [("█" in line) for line in lines if line.startswith(" row")] == [False] * (len(heads) - 1) + [True]


def test_right_to_left_words_are_isolated() -> None:
    """Unicode isolates preserve the direction of words and the order of columns."""
    lines = plain(["15", "نوفمبر"], ["الأحد", "ok", "וְ"], np.eye(2, 3))
    assert lines[0].count("\u2068") == lines[0].count("\u2069") == 2
    assert "\u2068نوفمبر\u2069" in lines[2] and "\u2068" not in lines[1]
    assert re.sub(r"\u2068.*?\u2069", "", lines[0]).strip() == "ok"


def test_long_words_are_truncated() -> None:
    (head, *_) = plain(["x"], ["Donaudampfschifffahrtsgesellschaft", "日" * 30], [[1, 0]])
    assert "Donaudampfschifffah…" in head and "日" * 9 + "…" in head.replace("  ", "") and "日" * 10 not in head


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("\u0301", "◌\u0301"),
        ("़a", "◌़a"),
        (" un", "␣un"),
        ("14\u202fh", "14␣h"),
        ("\u200fא", "א"),
        ("\u200f", "\\x200f"),
        ("क्\u200dष", "क्\u200dष"),
        ("a\x1b[1m", "a\\x1b[1m"),
        ("", ""),
    ],
)
def test_invisible_and_combining_characters_are_made_visible(word: str, shown: str) -> None:
    assert format_word(word) == shown


def printed(text: Any) -> str:
    file = io.StringIO()
    Console(file=file, force_terminal=True, color_system="truecolor", width=80).print(text)
    return file.getvalue()


def test_coloured_heat_map_uses_backgrounds_instead_of_shades() -> None:
    shown = printed(render_heat_map(["a", "b"], ["x", "y"], np.array([[1.0, 0.0], [0.5, 0.5]]), width=80, colour=True))
    none, everything = ("48;2;{};{};{}m".format(*COLOURS[end]) for end in (0, -1))
    first = shown.split("\n")[1]
    assert first.index(everything) < first.index(none)
    assert shown.count(everything) == shown.count(none) == 1
    assert not any(shade in shown for shade in SHADES)


def test_legend_shows_the_scale() -> None:
    assert render_scale(False).plain == "0 ·░▒▓█ 1"
    assert printed(render_scale(True)).count("48;2;") == 11


def test_links_are_listed_by_weight_with_numbered_repetitions() -> None:
    weights = np.array([[0.3, 0.6, 0.04], [0, 0.05, 0.95], [0, 0, 0]])
    assert render_links(["le", "نوفمبر", "日"], [",", "dog", ","], weights).plain.split("\n") == [
        "    le → dog 0.60   , [1] 0.30",
        "\u2068نوفمبر\u2069 → , [3] 0.95   dog 0.05",
        "    日 → ",
        "",
    ]
    assert render_links(["le"], ["a", "b"], np.array([[0.3, 0.6]]), min_weight=0.5).plain == "le → b 0.60\n"
