"""Constraints in the annotations of fields: bounds of values, and sections of several kinds.

A constraint on a single value is written in its annotation: `layers: PositiveInt = 2`. `build` checks constraints when
a recipe is read, and `violations` checks them when a config is created in Python. Rules between fields are written in
the method `problems` of the config. The config of a kind is imported only when a recipe names the kind:

    MODELS = Kinds("kind", {"gpt": "seqloom.models.gpt:GPTConfig", …})

    @config
    class Recipe:
        model: Annotated[ModelConfig, MODELS.only("gpt", "recurrent-lm")] = MODELS.default("recurrent-lm")
"""

import json
import operator
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from importlib import import_module
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import InitErrorDetails, PydanticKnownError, core_schema

from seqloom.core import Json
from seqloom.core.words import format_value

__all__ = ["Ge", "Gt", "Le", "Lt", "MinLen"]  # imported names that this module exports

Annotation: TypeAlias = Any  # the annotation of a field: a type, a union, or Annotated
PositiveInt = Annotated[int, Ge(1)]
NonNegativeInt = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0)]
NonNegativeFloat = Annotated[float, Ge(0)]
Probability = Annotated[float, Ge(0), Le(1)]
Fraction = Annotated[float, Ge(0), Lt(1)]  # below 1, such as a dropout probability
Difference = Literal["none", "step", "season"]  # the lag of the differences of a series


class Bound(NamedTuple):
    """A numeric bound: its constraint, the attribute with the limit, the comparison, and the wording in messages."""

    constraint: type
    attribute: str
    holds: Callable[[float, float], bool]
    words: str


BOUNDS = {  # pydantic's error type → the bound
    "greater_than_equal": Bound(Ge, "ge", operator.ge, "at least"),
    "greater_than": Bound(Gt, "gt", operator.gt, "greater than"),
    "less_than_equal": Bound(Le, "le", operator.le, "at most"),
    "less_than": Bound(Lt, "lt", operator.lt, "less than"),
}


def lag_of(difference: Difference | None, season: int) -> int:
    """Return the lag of a difference in steps, or 0 for no difference.

    If `difference` is None, the lag is one season, or one step if the series has no season.
    """
    return season if difference is None else {"none": 0, "step": 1, "season": season}[difference]


def key_of(name: str) -> str:
    """Return the recipe key of a field: `from` for `from_`, because `from` is a Python keyword."""
    return name.removesuffix("_")


def join(path: str, key: str) -> str:
    """Return the path of a key in a section."""
    return f"{path}.{key}" if path else key


def field_types(section: Annotation) -> dict[str, Annotation]:
    """Return the annotation of each key of a section."""
    return _field_types(section)


@cache
def _field_types(section: type) -> dict[str, Annotation]:
    hints = typing.get_type_hints(section, include_extras=True)
    return {key_of(entry.name): hints[entry.name] for entry in fields(section) if entry.init}


def origin(annotation: Any) -> Any:
    """Return the origin of a generic annotation (tuple for tuple[int, ...], Literal, Annotated, a union), or None."""
    return get_origin(annotation)


def item_type(annotation: Annotation, index: int) -> Annotation:
    """Return the annotation of an entry of a tuple or list."""
    arguments = [argument for argument in get_args(annotation) if argument is not ...]
    return arguments[min(index, len(arguments) - 1)] if arguments else Any


# --- constraints ------------------------------------------------------------------------------------------------------


def violations(instance: object) -> Iterator[str]:
    """Yield one sentence for each field whose value violates a constraint of its annotation."""
    annotations = field_types(type(instance))
    for name, value in vars(instance).items():
        if key_of(name) in annotations:
            yield from _broken_constraints(name, value, annotations[key_of(name)])


def _broken_constraints(name: str, value: Json, annotation: Annotation) -> list[str]:
    if value is None:
        return []
    if origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        rules = [rule for constraint in metadata if (rule := _broken_rule(constraint, value))]
        sentences = [f"{name} must {rule}; got {format_value(value)}" for rule in rules[:1]]
        return sentences + _broken_constraints(name, value, inner)
    if origin(annotation) is tuple:
        items = enumerate(value) if isinstance(value, tuple | list) else ()
        return [text for i, x in items for text in _broken_constraints(f"{name}[{i}]", x, item_type(annotation, i))]
    if origin(annotation) in (Union, types.UnionType):
        members = (_broken_constraints(name, value, member) for member in get_args(annotation))
        return next(filter(None, members), [])
    return []


def _broken_rule(constraint: object, value: Json) -> str | None:
    if isinstance(constraint, MinLen):
        return None if len(value) >= constraint.min_length else f"have at least {constraint.min_length} entries"
    bound = next((bound for bound in BOUNDS.values() if isinstance(constraint, bound.constraint)), None)
    if bound is None or not isinstance(value, int | float) or isinstance(value, bool):
        return None
    limit = getattr(constraint, bound.attribute)
    return None if bound.holds(value, limit) else f"be {bound.words} {format_value(limit)}"


# --- sections to choose from ------------------------------------------------------------------------------------------


@cache
def adapter(cls: Annotation) -> TypeAdapter[Any]:
    """Return the cached validator of a config."""
    return TypeAdapter(cls)


@dataclass(frozen=True)
class Discriminator:
    """A marker with the key that selects a config of a union: `Annotated[A | B, Discriminator("kind")]`.

    Unlike pydantic's discriminator, this marker also accepts a single config.
    """

    discriminator: str

    def __get_pydantic_core_schema__(self, source: Annotation, handler: Any) -> core_schema.CoreSchema:
        schema: core_schema.CoreSchema
        if is_dataclass(source):
            schema = handler(source)
        else:
            schema = handler.generate_schema(Annotated[source, Field(discriminator=self.discriminator)])
        return schema


class Kinds:
    """The configs of a section, selected by its key `discriminator`: name → "module:Class".

    `bases` maps the name of each extension to the name of the kind that it extends. A section that allows a kind also
    allows its extensions.
    """

    def __init__(self, discriminator: str, paths: Mapping[str, str], bases: Mapping[str, str] | None = None):
        self.discriminator, self.paths, self.bases = discriminator, dict(paths), dict(bases or {})

    def names(self) -> list[str]:
        return list(self.paths)

    def find(self, name: object) -> Any:
        """Import the config of a kind; return None for an unknown name."""
        if not isinstance(name, str) or name not in self.paths:
            return None
        module, _, attribute = self.paths[name].partition(":")
        return getattr(import_module(module), attribute)

    def base(self, name: Any) -> Any:
        """Return the kind that the kind `name` extends, or `name` itself."""
        return self.bases.get(name, name)

    def members(self) -> tuple[Annotation, ...]:
        """Import the configs of all kinds."""
        return tuple(self.find(name) for name in self.names())

    def only(self, *names: str) -> "Kinds":
        """Return the named kinds, each followed by its extensions."""
        kinds = [kind for name in names for kind in (name, *(each for each in self.bases if self.base(each) == name))]
        return Kinds(self.discriminator, {kind: self.paths[kind] for kind in kinds}, self.bases)

    def default(self, name: str, **values: Json) -> Any:
        """Return a dataclass field whose default is a config of this kind."""
        return field(default_factory=lambda: self.find(name)(**values))

    def __get_pydantic_core_schema__(self, source: Annotation, handler: object) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self.validate)

    def validate(self, section: Json) -> Any:
        """Validate a section with the config of its kind; the locations of problems begin with the kind."""
        if not isinstance(section, Mapping):
            raise PydanticKnownError("dataclass_type", {"class_name": "section"})
        if self.discriminator in section:
            name = section[self.discriminator]
        elif len(names := [name for name in self.names() if name not in self.bases]) == 1:
            (name,) = names
        else:
            raise PydanticKnownError("union_tag_not_found", {"discriminator": self.discriminator})
        if (config := self.find(name)) is None:  # imports only the config of this kind
            known = {"discriminator": self.discriminator, "tag": str(name), "expected_tags": ", ".join(self.names())}
            raise PydanticKnownError("union_tag_invalid", known)
        try:
            return adapter(config).validate_json(json.dumps(section))
        except ValidationError as error:
            problems = []
            for problem in error.errors():
                located = InitErrorDetails(type=problem["type"], loc=(name, *problem["loc"]), input=problem["input"])
                if "ctx" in problem:
                    located["ctx"] = problem["ctx"]
                problems.append(located)
            raise ValidationError.from_exception_data(error.title, problems) from None


@dataclass(frozen=True)
class Options:
    """A parsed annotation: the types it allows, the key that selects one of them, and whether null is allowed."""

    fixed: tuple[Annotation, ...]
    discriminator: str | None = None
    nullable: bool = False
    kinds: Kinds | None = None  # further sections, which are not yet imported

    @property
    def members(self) -> tuple[Annotation, ...]:
        """Import and return all types that the annotation allows."""
        return self.fixed if self.kinds is None else (*self.fixed, *self.kinds.members())

    @property
    def is_section(self) -> bool:
        """Whether the annotation allows only sections and null."""
        return self.kinds is not None or all(map(is_dataclass, self.fixed))

    def sections(self) -> dict[str, Annotation]:
        """Return the imported sections by the names that select them."""
        key = self.discriminator or "kind"
        sections = filter(is_dataclass, self.fixed)
        return {name: section for section in sections for name in get_args(field_types(section).get(key))}

    def names(self) -> list[str]:
        """List the names that select a section."""
        return list(self.sections()) if self.kinds is None else self.kinds.names()

    def choose(self, label: int | str) -> Annotation:
        """Return the section that has this label in the location of a pydantic error: the name of its kind or class."""
        if self.kinds is not None:
            return self.kinds.find(label)
        if self.discriminator:
            return self.sections().get(str(label))
        classes = [member for member in self.fixed if isinstance(member, type) and is_dataclass(member)]
        return next((member for member in classes if member.__name__ == label), None)


def options(annotation: Annotation) -> Options:
    """Parse an annotation."""
    if origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        if kinds := next((entry for entry in metadata if isinstance(entry, Kinds)), None):
            return Options((), kinds.discriminator, kinds=kinds)
        allowed = options(inner)
        names = (entry.discriminator for entry in metadata if isinstance(entry, Discriminator))
        return Options(allowed.fixed, next(names, allowed.discriminator), allowed.nullable, allowed.kinds)
    if origin(annotation) in (Union, types.UnionType):
        parts = [options(part) for part in get_args(annotation)]
        members = tuple(member for part in parts for member in part.fixed)
        name = next((part.discriminator for part in parts if part.discriminator), None)
        kinds = next((part.kinds for part in parts if part.kinds is not None), None)
        return Options(members, name, any(part.nullable for part in parts), kinds)
    return Options((), nullable=True) if annotation is type(None) else Options((annotation,))


def tags(section: Annotation, discriminator: str) -> tuple[str, ...]:
    """Return the values of the discriminator that select this member of a union."""
    return get_args(field_types(section)[discriminator])
