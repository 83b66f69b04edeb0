"""Ladders of classifiers and taggers: data that depends on the model, and the metric."""

from pathlib import Path
from typing import Any

import pytest
from tests.understanding import classify_recipe, tag_recipe

from seqloom import ladder
from seqloom.config import to_mapping
from seqloom.config.yaml_text import dump_yaml
from seqloom.core.errors import UsageError

SPELLING = "model.characters={kind: cnn, embedding: 4, filters: 4, widths: [2]}"


def write_ladder(folder: Path, recipe: Any, **changes: Any) -> Path:
    base = to_mapping(recipe)
    base.pop("seed")
    path = folder / "tiny.yaml"
    plain: dict[str, Any] = {"base": base, "variants": {"words": [], "spelling": [SPELLING]}, "equal": "nothing"}
    path.write_text(dump_yaml({**plain, **changes}), encoding="utf-8")
    return path


def test_variant_with_characters_has_alphabet(tmp_path: Path) -> None:
    read = ladder.read_ladder(write_ladder(tmp_path, classify_recipe(tmp_path)))
    assert read.metric == "accuracy" and read.higher_is_better
    plain, spelling = ladder.solve(read).variants
    assert (plain.parameters or 0) < (spelling.parameters or 0)
    assert plain.tokens == spelling.tokens


def test_metric_of_taggers_is_required(tmp_path: Path) -> None:
    recipe = tag_recipe(tmp_path, "model.characters=null")
    with pytest.raises(UsageError, match=r"The metric of task tag depends on its data. Set `metric` in the ladder."):
        ladder.read_ladder(write_ladder(tmp_path, recipe))
    read = ladder.read_ladder(write_ladder(tmp_path, recipe, metric="span_f1"))
    assert read.higher_is_better and len(ladder.solve(read).variants) == 2
