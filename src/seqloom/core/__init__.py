"""Foundations of all packages: protocols, state trees, errors, seeds, safe file access."""

from typing import Any, TypeAlias

VERSION = "0.1.0"
END = 0  # ends a document, is the context of its first token, and fills padding
Json: TypeAlias = Any  # a JSON or YAML value: mappings with string keys, lists, strings, numbers, booleans, None
JsonObject: TypeAlias = dict[str, Json]
