"""Ladders of classifiers and taggers: what a rung's model wants read is read for it, and what ranks."""

from pathlib import Path
from typing import Any

import pytest
from tests.understanding import classify_recipe, tag_recipe

from seqloom import ladder
from seqloom.config import to_mapping
from seqloom.config.yaml_text import dump_yaml
from seqloom.core.errors import UsageError

SPELLING = "model.characters={kind: cnn, embedding: 4, filters: 4, widths: [2]}"


def written(folder: Path, recipe: Any, **changes: Any) -> Path:
    base = to_mapping(recipe)
    base.pop("seed")
    path = folder / "tiny.yaml"
    plain: dict[str, Any] = {"base": base, "rungs": {"words": [], "spelling": [SPELLING]}, "equal": "nothing"}
    path.write_text(dump_yaml({**plain, **changes}), encoding="utf-8")
    return path


def test_a_rung_that_spells_has_an_alphabet(tmp_path: Path) -> None:
    read = ladder.read_ladder(written(tmp_path, classify_recipe(tmp_path)))
    assert read.metric == "accuracy" and read.higher_is_better
    plain, spelling = ladder.solve(read).rungs
    assert (plain.parameters or 0) < (spelling.parameters or 0)
    assert plain.tokens == spelling.tokens


def test_what_taggers_are_ranked_by_must_be_said(tmp_path: Path) -> None:
    recipe = tag_recipe(tmp_path, "model.characters=null")
    with pytest.raises(UsageError, match=r"the task tag is measured by .* `metric`"):
        ladder.read_ladder(written(tmp_path, recipe))
    read = ladder.read_ladder(written(tmp_path, recipe, metric="span_f1"))
    assert read.higher_is_better and len(ladder.solve(read).rungs) == 2
