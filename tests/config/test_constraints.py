"""Constraints in annotations hold for recipes and for configs created in Python."""

from typing import Annotated, Any

import pytest

from seqloom.config import build, config
from seqloom.config.constraints import Fraction, MinLen, NonNegativeFloat, PositiveFloat, PositiveInt, Probability
from seqloom.core.errors import UsageError


@config
class Settings:
    layers: PositiveInt = 1
    context: PositiveInt | None = None
    dropout: Fraction = 0.0
    share: Probability = 1.0
    scale: PositiveFloat = 1.0
    decay: NonNegativeFloat = 0.0
    sizes: tuple[PositiveInt, ...] = (1,)
    names: Annotated[tuple[str, ...], MinLen(1)] = ("a",)
    from_: PositiveInt = 1


WRONG = [
    ("layers", 0, "at least 1"),
    ("context", 0, "at least 1"),
    ("dropout", 1.0, "less than 1"),
    ("dropout", -0.1, "at least 0"),
    ("share", 1.5, "at most 1"),
    ("scale", 0.0, "greater than 0"),
    ("decay", -1.0, "at least 0"),
    ("sizes", (3, 0), "at least 1"),
    ("names", (), "at least 1 entries"),
    ("from_", 0, "at least 1"),
]


@pytest.mark.parametrize(("name", "value", "rule"), WRONG)
def test_python_rejects_a_value_outside_its_bounds(name: str, value: Any, rule: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}\S* must (be|have) {rule}"):
        Settings(**{name: value})


@pytest.mark.parametrize(("name", "value", "rule"), WRONG)
def test_recipe_rejects_a_value_outside_its_bounds(name: str, value: object, rule: str) -> None:
    key = name.removesuffix("_")
    with pytest.raises(UsageError, match=rf"{key}\S*: must (be|have) {rule}"):
        build(Settings, {key: value})


def test_values_on_their_bounds_are_accepted() -> None:
    settings = Settings(layers=1, context=1, dropout=0.0, share=0.0, decay=0.0, sizes=(), from_=1)
    assert settings.share == 0.0
    assert build(Settings, {"share": 1.0, "context": None}) == Settings()


def test_problems_of_several_fields_are_reported_together() -> None:
    with pytest.raises(UsageError, match=r"2 problems") as error:
        build(Settings, {"layers": 0, "share": 2.0})
    assert "layers: must be at least 1, got 0" in str(error.value)
    with pytest.raises(ValueError, match=r"layers must be at least 1; got 0\nshare must be at most 1; got 2"):
        Settings(layers=0, share=2.0)
