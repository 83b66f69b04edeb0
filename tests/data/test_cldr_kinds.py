"""Selection of the kinds of CLDR phrases."""

from typing import Any

import pytest

pytest.importorskip("babel", reason="the extra `corpora` is not installed")
pytest.importorskip("num2words", reason="the extra `corpora` is not installed")

from seqloom.core.errors import DataError
from seqloom.data import corpora
from seqloom.data.corpora import cldr

SMALL: dict[str, Any] = {"train": 200, "dev": 10, "test": 10}


def test_only_requested_kinds_are_drawn() -> None:
    selected = corpora.load(cldr.Config(kinds=("full date", "time"), **SMALL))
    assert {pair.kind for pairs in selected.splits.values() for pair in pairs} == {"full date", "time"}
    complete = corpora.load(cldr.Config(**SMALL))
    assert len({pair.kind for pair in complete.split("train")}) > 12
    assert selected.fingerprint() != complete.fingerprint()


def test_only_requested_kinds_are_reported_missing() -> None:
    assert corpora.load(cldr.Config(target="hi", kinds=("time",), **SMALL)).notes == ()
    config = cldr.Config(target="hi", kinds=("time", "number"), **SMALL)
    assert corpora.load(config).notes == ("kinds left out because hi has no words for them: number",)
    with pytest.raises(DataError, match=r"data.train must be at most 0"):
        corpora.load(cldr.Config(target="hi", kinds=("number",), **SMALL))


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (("fulldate",), r"kinds contains 'fulldate', which is unknown; did you mean full date\?"),
        ((), "at least one kind"),
    ],
)
def test_unknown_kinds_are_rejected(kinds: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cldr.Config(kinds=kinds, **SMALL)
