"""Predictions for the masks of a text, and replaced masks."""

from pathlib import Path
from typing import Any

import pytest
from tests.masked import masked_recipe

from seqloom import load
from seqloom.core.errors import UsageError
from seqloom.inspect.views.next_tokens import predict_masks, replace_mask
from seqloom.training import begin

TEXT = "The [MASK] purr all [MASK] ."


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("gaps")
    for _ in begin(masked_recipe(folder, "train.steps=2"), folder / "run").events():
        pass
    return load(folder / "run", "cpu")


def test_predictions_match_fill_mask(model: Any) -> None:
    predictions = predict_masks(model, TEXT, top=4)
    (filled,) = model.fill_mask(TEXT, top=4)
    assert predictions.masks == filled.masks and predictions.filled == filled.filled
    assert "[MASK]".join(predictions.around) == TEXT
    assert predict_masks(model, "The cats purr .").masks == []
    assert "'zebras'" in predict_masks(model, "The zebras [MASK] .").notes[0]


def test_masks_are_replaced_individually(model: Any) -> None:
    best = [candidates[0].id for candidates in predict_masks(model, TEXT).masks]
    text = replace_mask(model, replace_mask(model, TEXT, 1, best[1]), 0, best[0])
    assert text == predict_masks(model, TEXT).filled
    with pytest.raises(UsageError, match="The mask index must be from 0 to 1; got 2"):
        replace_mask(model, TEXT, 2, best[0])
    with pytest.raises(UsageError, match="Token ids must be from 0"):
        replace_mask(model, TEXT, 0, 10**6)
