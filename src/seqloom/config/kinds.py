"""Sections that come in kinds, whose configs are imported when a recipe names them.

    MODELS = Kinds("kind", {"gpt": "seqloom.models.gpt:GPTConfig", …})

    @config
    class Recipe:
        model: Annotated[ModelConfig, MODELS.only("gpt", "recurrent-lm")] = MODELS.default("recurrent-lm")

`Discriminator` does the same for a union of configs that are imported already.
"""

import json
from collections.abc import Mapping
from dataclasses import field
from functools import cache
from importlib import import_module
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import InitErrorDetails, PydanticKnownError, core_schema


@cache
def adapter(cls: Any) -> TypeAdapter[Any]:
    """The validator of a config."""
    return TypeAdapter(cls)


class Kinds:
    """The configs a section is chosen from by its key `discriminator`: name → "module:Class"."""

    def __init__(self, discriminator: str, paths: Mapping[str, str]):
        self.discriminator, self.paths = discriminator, dict(paths)

    def names(self) -> list[str]:
        return list(self.paths)

    def find(self, name: Any) -> Any:
        """Import the config of a kind; None for a name that no kind has."""
        if not isinstance(name, str) or name not in self.paths:
            return None
        module, _, attribute = self.paths[name].partition(":")
        return getattr(import_module(module), attribute)

    def members(self) -> tuple[Any, ...]:
        """Import the configs of all kinds."""
        return tuple(self.find(name) for name in self.names())

    def only(self, *names: str) -> "Kinds":
        """Some of these kinds."""
        return Kinds(self.discriminator, {name: self.paths[name] for name in names})

    def default(self, name: str, **values: Any) -> Any:
        """The default of a field: a config of this kind."""
        return field(default_factory=lambda: self.find(name)(**values))

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validate)

    def _validate(self, section: Any) -> Any:
        """Validate a section with the config of its kind. Locations of problems begin with the kind."""
        if not isinstance(section, Mapping):
            raise PydanticKnownError("dataclass_type", {"class_name": "section"})
        if self.discriminator in section:
            name = section[self.discriminator]
        elif len(self.names()) == 1:
            name = self.names()[0]
        else:
            raise PydanticKnownError("union_tag_not_found", {"discriminator": self.discriminator})
        if (config := self.find(name)) is None:
            expected = ", ".join(self.names())
            known = {"discriminator": self.discriminator, "tag": str(name), "expected_tags": expected}
            raise PydanticKnownError("union_tag_invalid", known)
        try:
            return adapter(config).validate_json(json.dumps(section))
        except ValidationError as error:
            problems = [_below(name, problem) for problem in error.errors()]
            raise ValidationError.from_exception_data(error.title, problems) from None


def _below(name: str, error: Any) -> InitErrorDetails:
    found = InitErrorDetails(type=error["type"], loc=(name, *error["loc"]), input=error["input"])
    if "ctx" in error:
        found["ctx"] = error["ctx"]
    return found
