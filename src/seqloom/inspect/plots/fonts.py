"""Fonts that have the letters a picture needs, among those installed.

matplotlib brings DejaVu Sans: Latin, Greek, Cyrillic, Arabic, Hebrew, Armenian, Georgian, but no Han, kana, Hangul,
Devanagari or Thai. Letters it lacks are looked for in the fonts of the system, and named if none has them.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from seqloom.core.errors import UsageError
from seqloom.core.words import nearest
from seqloom.inspect.plots.figures import figure_class

USUAL = "DejaVu Sans"
UNFIT = re.compile("last resort|color|emoji", re.IGNORECASE)  # boxes for every letter; pictures instead of outlines
JOINED = re.compile(r"[\u0590-\u08ff\u0900-\u0fff\u1000-\u109f\u1780-\u17ff\ufb1d-\ufdff\ufe70-\ufeff]")


class Fonts(NamedTuple):
    families: list[str]  # each for what those before it lack
    missing: str  # letters that none of them has
    joins: bool  # whether letters that change with their neighbours, or run from right to left, come out right

    def complaint(self) -> str | None:
        """What will be wrong with the picture and how to mend it, in one line."""
        if self.missing:
            few = self.missing[:12] + ("…" if len(self.missing) > 12 else "")
            return (
                f"no installed font has {few}, so boxes are drawn in their place. Install one that does (Noto fonts "
                "have every script: fonts-noto-cjk, fonts-noto-core), or write an .svg, where text stays text"
            )
        if not self.joins:
            return "this matplotlib cannot join Arabic or Indic letters: take 3.11 or newer, or write an .svg"
        return None


def fonts_for(texts: Iterable[str], font: str | None = None) -> Fonts:
    """Fonts for all letters of these texts: `font` first, if one is given, then the usual one, then what is needed."""
    figure_class()  # says what to install where there is no matplotlib
    from matplotlib import font_manager, ft2font

    installed = {entry.name: entry.fname for entry in sorted(font_manager.fontManager.ttflist, key=_preference)}
    if font is not None and font not in installed:
        close = nearest(font, installed)
        raise UsageError(f"No font '{font}' is installed" + (f"; did you mean {close}?" if close else "."))
    letters = sorted({letter for text in texts for letter in text if letter.isprintable() and not letter.isspace()})
    joins = bool(getattr(ft2font, "__libraqm_version__", "")) or not any(map(JOINED.match, letters))
    families = [USUAL] if font is None else [font, USUAL]
    missing = [letter for letter in letters if not any(_has(installed[name], letter) for name in families)]
    for name in sorted(installed, key=lambda name: _taste(name, letters)):
        found = {letter for letter in missing if not UNFIT.search(name) and _has(installed[name], letter)}
        if found:
            families.append(name)
            missing = [letter for letter in missing if letter not in found]
    return Fonts(families, "".join(missing), joins)


def _preference(entry: Any) -> bool:
    """Of the faces of a family the upright one of usual weight; sorted last, it is the one that is kept."""
    return bool(entry.style == "normal" and entry.weight in (400, "normal", "regular", "book"))


def _taste(name: str, letters: Iterable[str]) -> tuple[bool, ...]:
    """False comes first: plain sans-serif fonts, Noto's, and Han letters as the other letters' language has them."""
    kana, hangul = (any(low <= letter <= high for letter in letters) for low, high in (("぀", "ヿ"), ("가", "힣")))
    country = "JP" if kana else "KR" if hangul else "SC"
    plain = "Sans" in name and not re.search("Mono|Serif|Condensed|Display|UI", name)
    return not plain, not name.startswith("Noto"), not name.endswith(country)


@lru_cache(maxsize=64)
def _font(path: str) -> Any:
    from matplotlib.font_manager import get_font

    return get_font(path)


def _has(path: str, letter: str) -> bool:
    try:
        return bool(_font(path).get_char_index(ord(letter)))
    except (OSError, RuntimeError):  # a font that matplotlib cannot read
        return False
