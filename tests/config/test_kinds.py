"""Configs of kinds are imported when a recipe names them."""

import sys
from pathlib import Path
from typing import Annotated, Any

import pytest

from seqloom.config import Kinds, build, config, to_mapping
from seqloom.core.errors import UsageError

MODULE = """
from typing import Literal
from seqloom.config import config
from seqloom.config.constraints import PositiveInt

@config
class Config:
    kind: Literal["{name}"] = "{name}"
    {key}: PositiveInt = 2
    sizes: tuple[int, ...] = ()

    def problems(self):
        if self.{key} == 13:
            yield "{key} must not be 13"
"""
KINDS = Kinds("kind", {"red": "kinds_red:Config", "blue": "kinds_blue:Config"})


@config
class Recipe:
    model: Annotated[Any, KINDS] = KINDS.default("red", apples=7)
    other: Annotated[Any, KINDS.only("blue")] | None = None


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, key in (("red", "apples"), ("blue", "berries")):
        (tmp_path / f"kinds_{name}.py").write_text(MODULE.format(name=name, key=key))
        monkeypatch.delitem(sys.modules, f"kinds_{name}", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))


def problem(mapping: dict[str, Any]) -> str:
    with pytest.raises(UsageError) as error:
        build(Recipe, mapping)
    return str(error.value).partition("\n")[2].strip()


def test_only_the_named_kind_is_imported() -> None:
    recipe = build(Recipe, {"model": {"kind": "blue", "berries": 3, "sizes": [1, 2]}})
    assert to_mapping(recipe.model) == {"kind": "blue", "berries": 3, "sizes": [1, 2]}
    assert recipe.model.sizes == (1, 2)
    assert "kinds_blue" in sys.modules and "kinds_red" not in sys.modules


def test_section_without_kind_has_default_kind() -> None:
    assert build(Recipe, {}).model.apples == 7
    assert build(Recipe, {"model": {"apples": 4}}).model.apples == 4
    assert build(Recipe, {"model": None}).model.apples == 7
    other = build(Recipe, {"other": {"berries": 4}}).other
    assert other is not None and other.berries == 4
    assert build(Recipe, {"other": None}).other is None


def test_extension_is_allowed_in_place_of_its_kind() -> None:
    kinds = Kinds("kind", {**KINDS.paths, "sky": "kinds_blue:Config"}, bases={"sky": "blue"})
    assert kinds.only("blue").names() == ["blue", "sky"] and kinds.only("red").names() == ["red"]
    assert [kinds.base(name) for name in ("sky", "blue", None)] == ["blue", "blue", None]
    assert kinds.only("blue").validate({"berries": 4}).berries == 4
    with pytest.raises(KeyError):
        kinds.only("bleu")


def test_unknown_kind_is_rejected_without_imports() -> None:
    assert problem({"model": {"kind": "blu"}}) == "model.kind: must be one of red, blue; got 'blu'; did you mean blue?"
    assert not {"kinds_red", "kinds_blue"} & sys.modules.keys()


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [
        ({"model": {"kind": "red", "apples": 0}}, "model.apples: must be at least 1; got 0"),
        ({"model": {"kind": "red", "apples": 13}}, "model: apples must not be 13"),
        ({"model": {"kind": "red", "apples": "x"}}, "model.apples: must be a whole number; got 'x'"),
        ({"model": {"kind": "red", "sizes": [1, "x"]}}, "model.sizes[1]: must be a whole number; got 'x'"),
        ({"model": {"kind": "red", "appels": 1}}, "model.appels: no such key; did you mean model.apples?"),
        (
            {"model": {"kind": "red", "berries": 1}},
            "model.berries: is a key of kind blue, not of red; leave it out",
        ),
        ({"model": {"berries": 1}}, "model.kind: missing; berries belongs to blue: set model.kind=blue too"),
        ({"model": 3}, "model: must be a section; got 3"),
        ({"model": "blue"}, "model: must be a section; got 'blue'; did you mean model.kind=blue?"),
        ({"other": 3}, "other: must be a section or null; got 3"),
    ],
)
def test_problem_is_located(mapping: dict[str, Any], expected: str) -> None:
    assert problem(mapping) == expected
