"""Members of a package are discovered by their files."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from seqloom.core.operations import subclasses_by_name
from seqloom.nn.cells import CELLS, LSTM
from seqloom.nn.scores import SCORES

MEMBER = """
from seqloom.nn.cells import Cell

class {cls}(Cell):
    name = "{name}"

class Part(Cell):  # has no name: a base class of others
    pass
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "extra_cells"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "b.py").write_text(MEMBER.format(cls="Second", name="second"))
    (folder / "a.py").write_text(MEMBER.format(cls="First", name="first"))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    for name in [name for name in sys.modules if name.startswith("extra_cells")]:
        del sys.modules[name]


def test_every_file_is_searched_in_order(package: Path) -> None:
    from seqloom.nn.cells import Cell

    found = subclasses_by_name(Cell, "extra_cells", [str(package)])  # type: ignore[type-abstract]
    assert list(found) == ["first", "second"]


def test_duplicate_names_are_rejected(package: Path) -> None:
    from seqloom.nn.cells import Cell

    (package / "c.py").write_text(MEMBER.format(cls="Third", name="first"))
    with pytest.raises(ValueError, match="First and Third have the same name 'first'"):
        subclasses_by_name(Cell, "extra_cells", [str(package)])  # type: ignore[type-abstract]


def test_cells_and_scores_are_discovered() -> None:
    cells = ["elman", "lstm", "gru", "gru-cho", "mut1", "mut2", "mut3"]
    assert [name for name in CELLS if name in cells] == cells  # the order is fixed, and there may be other cells
    assert CELLS["lstm"] is LSTM
    scores = ["dot", "scaled-dot", "cosine", "general", "additive", "location"]
    assert [name for name in SCORES if name in scores] == scores
