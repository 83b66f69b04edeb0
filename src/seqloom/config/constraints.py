"""What the annotation of a field allows: bounds of a value, and the sections to choose from.

A constraint on a single value is written in its annotation: `layers: PositiveInt = 2`. `build`
checks it when a recipe is read, `violations` when a config is created in Python. A rule between
several fields belongs to the config's method `problems`. A section that comes in kinds is imported
when a recipe names it:

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
from seqloom.core.words import shown

__all__ = ["Ge", "Gt", "Le", "Lt", "MinLen"]  # besides what is defined here

Annotation: TypeAlias = Any  # of a field: a type, a union of them, or Annotated
PositiveInt = Annotated[int, Ge(1)]
NonNegativeInt = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0)]
NonNegativeFloat = Annotated[float, Ge(0)]
Probability = Annotated[float, Ge(0), Le(1)]
Fraction = Annotated[float, Ge(0), Lt(1)]  # a share that is never the whole, such as the rate of dropout
Difference = Literal["none", "step", "season"]  # what is subtracted from a value of a series before it is modelled


class Bound(NamedTuple):
    """A bound of numbers: the attribute of its constraint that holds it, when it is kept, and its words."""

    constraint: type
    attribute: str
    holds: Callable[[float, float], bool]
    words: str


BOUNDS = {  # by what pydantic calls their breach
    "greater_than_equal": Bound(Ge, "ge", operator.ge, "at least"),
    "greater_than": Bound(Gt, "gt", operator.gt, "greater than"),
    "less_than_equal": Bound(Le, "le", operator.le, "at most"),
    "less_than": Bound(Lt, "lt", operator.lt, "less than"),
}


def lag_of(difference: Difference | None, season: int) -> int:
    """How many steps back lies what is subtracted; 0 for nothing. None is a season, or one step where there is none."""
    return season if difference is None else {"none": 0, "step": 1, "season": season}[difference]


def key_of(name: str) -> str:
    """The key of a field. One that Python keeps for itself has a _ after it there: `from_` is `from` in a recipe."""
    return name.removesuffix("_")


def join(path: str, key: str) -> str:
    """The path of a key within a section."""
    return f"{path}.{key}" if path else key


def field_types(section: Annotation) -> dict[str, Annotation]:
    """The keys a section may have, each with its annotation."""
    return _field_types(section)


@cache
def _field_types(section: type) -> dict[str, Annotation]:
    hints = typing.get_type_hints(section, include_extras=True)
    return {key_of(entry.name): hints[entry.name] for entry in fields(section) if entry.init}


def origin(annotation: Any) -> Any:
    """What a generic annotation is made of: tuple of tuple[int, ...], Literal, Annotated, a union; None of others."""
    return get_origin(annotation)


def item_type(annotation: Annotation, index: int) -> Annotation:
    """The annotation of an entry of a tuple or list."""
    arguments = [argument for argument in get_args(annotation) if argument is not ...]
    return arguments[min(index, len(arguments) - 1)] if arguments else Any


# --- constraints ------------------------------------------------------------------------------------------------------


def violations(instance: object) -> Iterator[str]:
    """One sentence for each field whose value violates a constraint of its annotation."""
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
        sentences = [f"{name} must {rule}; got {shown(value)}" for rule in rules[:1]]
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
    return None if bound.holds(value, limit) else f"be {bound.words} {shown(limit)}"


# --- sections to choose from ------------------------------------------------------------------------------------------


@cache
def adapter(cls: Annotation) -> TypeAdapter[Any]:
    """The validator of a config."""
    return TypeAdapter(cls)


@dataclass(frozen=True)
class Discriminator:
    """Marks a union of configs with the key that tells them apart: `Annotated[A | B, Discriminator("kind")]`.

    Unlike pydantic's own it also stands before a single config, so that a registry may begin with
    one member.
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
    """The configs a section is chosen from by its key `discriminator`: name → "module:Class".

    `bases` has the kinds that extend another kind: name → the other. An extension is allowed
    wherever its base is.
    """

    def __init__(self, discriminator: str, paths: Mapping[str, str], bases: Mapping[str, str] | None = None):
        self.discriminator, self.paths, self.bases = discriminator, dict(paths), dict(bases or {})

    def names(self) -> list[str]:
        return list(self.paths)

    def find(self, name: object) -> Any:
        """Import the config of a kind; None for a name that no kind has."""
        if not isinstance(name, str) or name not in self.paths:
            return None
        module, _, attribute = self.paths[name].partition(":")
        return getattr(import_module(module), attribute)

    def base(self, name: Any) -> Any:
        """Return the kind that a kind extends, or the kind itself."""
        return self.bases.get(name, name)

    def members(self) -> tuple[Annotation, ...]:
        """Import the configs of all kinds."""
        return tuple(self.find(name) for name in self.names())

    def only(self, *names: str) -> "Kinds":
        """Return some of these kinds, each followed by its extensions."""
        kinds = [kind for name in names for kind in (name, *(each for each in self.bases if self.base(each) == name))]
        return Kinds(self.discriminator, {kind: self.paths[kind] for kind in kinds}, self.bases)

    def default(self, name: str, **values: Json) -> Any:
        """The default of a field: a config of this kind."""
        return field(default_factory=lambda: self.find(name)(**values))

    def __get_pydantic_core_schema__(self, source: Annotation, handler: object) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self.validate)

    def validate(self, section: Json) -> Any:
        """Validate a section with the config of its kind. Locations of problems begin with the kind."""
        if not isinstance(section, Mapping):
            raise PydanticKnownError("dataclass_type", {"class_name": "section"})
        if self.discriminator in section:
            name = section[self.discriminator]
        elif len(names := [name for name in self.names() if name not in self.bases]) == 1:
            (name,) = names
        else:
            raise PydanticKnownError("union_tag_not_found", {"discriminator": self.discriminator})
        if (config := self.find(name)) is None:  # only the config of the kind that is named is imported
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
    """An annotation taken apart: the types it allows, what tells them apart, and whether null is one of them."""

    fixed: tuple[Annotation, ...]
    discriminator: str | None = None
    nullable: bool = False
    kinds: Kinds | None = None  # sections to choose from besides, which are not imported yet

    @property
    def members(self) -> tuple[Annotation, ...]:
        """All types it allows, imported."""
        return self.fixed if self.kinds is None else (*self.fixed, *self.kinds.members())

    @property
    def is_section(self) -> bool:
        """Whether it allows sections and, perhaps, null."""
        return self.kinds is not None or all(map(is_dataclass, self.fixed))

    def sections(self) -> dict[str, Annotation]:
        """The sections to choose from that are imported already, by the names they answer to."""
        key = self.discriminator or "kind"
        sections = filter(is_dataclass, self.fixed)
        return {name: section for section in sections for name in get_args(field_types(section).get(key))}

    def names(self) -> list[str]:
        """The names that the sections to choose from answer to."""
        return list(self.sections()) if self.kinds is None else self.kinds.names()

    def choose(self, label: int | str) -> Annotation:
        """The section that a label of pydantic's means: its name, or that of its class."""
        if self.kinds is not None:
            return self.kinds.find(label)
        if self.discriminator:
            return self.sections().get(str(label))
        classes = [one for one in self.fixed if isinstance(one, type) and is_dataclass(one)]
        return next((one for one in classes if one.__name__ == label), None)


def options(annotation: Annotation) -> Options:
    """Take an annotation apart."""
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
    """The names a union member answers to."""
    return get_args(field_types(section)[discriminator])
