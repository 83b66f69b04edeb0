"""Constraints in annotations apply to recipes and to configs that are created in Python."""

from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator

from seqloom.config import build, config
from seqloom.config.constraints import Fraction, MinLen, NonNegativeFloat, PositiveFloat, PositiveInt, Probability
from seqloom.core.errors import UsageError


@config
class Settings:
    layers: PositiveInt = 1
    context: PositiveInt | None = None
    dropout: Fraction = 0.0
    weight: Probability = 1.0
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
    ("weight", 1.5, "at most 1"),
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
    settings = Settings(layers=1, context=1, dropout=0.0, weight=0.0, decay=0.0, sizes=(), from_=1)
    assert settings.weight == 0.0
    assert build(Settings, {"weight": 1.0, "context": None}) == Settings()


def test_problems_of_several_fields_are_reported_together() -> None:
    with pytest.raises(UsageError, match=r"2 problems") as error:
        build(Settings, {"layers": 0, "weight": 2.0})
    assert "layers: must be at least 1; got 0" in str(error.value)
    with pytest.raises(ValueError, match=r"layers must be at least 1; got 0\nweight must be at most 1; got 2"):
        Settings(layers=0, weight=2.0)


def refuse_odd(value: int) -> int:
    if value % 2:
        raise ValueError(f"{value} is odd")
    return value


@config
class Heads:
    width: PositiveInt = 8
    heads: PositiveInt = 2
    kv_heads: Annotated[int, AfterValidator(refuse_odd)] = 2
    sizes: tuple[PositiveInt, ...] = (1, 2)

    def problems(self) -> Iterator[str]:
        if len(set(self.sizes)) < len(self.sizes):
            yield "sizes must differ"
        if self.kv_heads % 2:
            raise ValueError(f"{self.kv_heads} is odd")  # this rule is also in the annotation
        if self.heads < 1:
            yield f"heads must be at least 1; got {self.heads}"  # this rule is also in the annotation
        if self.width % self.heads:
            yield "width must be a multiple of heads"


@config
class Model:
    layers: PositiveInt = 1
    attention: Heads = Heads()

    def problems(self) -> Iterator[str]:
        if self.attention.width < self.layers:
            yield "layers must be at most attention.width."


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        (
            {"width": -3, "sizes": [0, 0]},
            [
                *("attention.width: must be at least 1; got -3", "attention.sizes[0]: must be at least 1; got 0"),
                "attention.sizes[1]: must be at least 1; got 0",
                *("attention: sizes must differ", "attention: width must be a multiple of heads"),
            ],
        ),
        # Rules that cannot be computed are skipped, and rules that repeat a constraint are reported once.
        ({"heads": 0, "sizes": [1, 1]}, ["attention.heads: must be at least 1; got 0", "attention: sizes must differ"]),
        ({"kv_heads": 3, "sizes": [1, 1]}, ["attention.kv_heads: 3 is odd", "attention: sizes must differ"]),
        # Rules are not checked for values of other types.
        (
            {"heads": 0, "width": "x", "sizes": [1, 1]},
            ["attention.width: must be a whole number; got 'x'", "attention.heads: must be at least 1; got 0"],
        ),
    ],
)
def test_constraints_and_rules_of_a_section_are_reported_together(values: dict[str, Any], lines: list[str]) -> None:
    with pytest.raises(UsageError) as error:
        build(Model, {"attention": values})
    assert [line.strip() for line in str(error.value).splitlines()[1:]] == lines


def test_rules_are_checked_only_for_valid_sections() -> None:
    with pytest.raises(UsageError, match=r"1 problem:\n  layers: must be at least 1; got 0$"):
        build(Model, {"layers": 0})
    with pytest.raises(UsageError, match=r"1 problem:\n  layers must be at most attention.width$"):
        build(Model, {"layers": 9})
    with pytest.raises(UsageError, match=r"2 problems:\n  layers: .*\n  attention: width must be a multiple of heads$"):
        build(Model, {"layers": 0, "attention": {"width": 3}})


def test_python_reports_constraints_and_rules_together() -> None:
    with pytest.raises(ValueError, match=r"^width must be at least 1; got -3\nsizes must differ\nwidth must be"):
        Heads(width=-3, sizes=(1, 1))
    with pytest.raises(ValueError, match=r"^heads must be at least 1; got 0$"):
        Heads(heads=0)
