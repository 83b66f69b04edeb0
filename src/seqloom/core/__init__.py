"""What every other room stands on: protocols, state trees, errors, seeds, safe files."""

from typing import Any, TypeAlias

VERSION = "0.1.0"
Json: TypeAlias = Any  # a value of JSON or YAML: mappings with text for keys, lists, text, numbers, booleans, None
