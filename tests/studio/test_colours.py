"""The page and the pictures of the command line show a sign by the same colours."""

import re
from pathlib import Path

import pytest

import seqloom.studio

WEB = Path(seqloom.studio.__file__).parent / "web"


def stops(name: str, theme: str) -> list[tuple[int, ...]]:
    source = (WEB / "lib" / "colour.js").read_text()
    found = re.search(rf"const {name} = {{.*?{theme}: \[(.*?)\]", source, re.DOTALL)
    assert found is not None
    return [tuple(bytes.fromhex(one)) for one in re.findall("#([0-9a-f]{6})", found[1])]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_red_is_above_0_and_blue_below(theme: str) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    from seqloom.inspect.figures import SIGNED

    drawn = [matplotlib.colormaps[SIGNED](place / 6) for place in range(7)]
    for ours, theirs in zip(stops("DIVERGING", theme), drawn, strict=True):
        if theirs[0] != pytest.approx(theirs[2], abs=0.01):  # all but the middle
            assert (ours[0] > ours[2]) == (theirs[0] > theirs[2])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_green_is_for_and_red_against(theme: str) -> None:
    against, *_, in_favour = stops("SIDES", theme)
    assert max(against) == against[0] and max(in_favour) == in_favour[1]


def test_words_name_these_colours() -> None:
    words = " ".join(path.read_text() for path in WEB.glob("**/*.js"))
    assert "orange" not in words
    assert "Red numbers are above 0, blue ones below" in words and "red is above 0, blue below" in words
