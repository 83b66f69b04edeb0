"""Foundations of all packages: protocols, state trees, errors, seeds, safe file access."""

from typing import Any, TypeAlias

VERSION = "0.1.0"
END = 0  # the end token, also the context of a document's first token and the padding
Json: TypeAlias = Any  # a JSON or YAML value: mappings with string keys, lists, strings, numbers, booleans, None
JsonObject: TypeAlias = dict[str, Json]
