"""Foundations of all packages: protocols, state trees, errors, seeds, safe file access."""

from typing import Any, TypeAlias

VERSION = "0.1.0"
END = 0  # the end token, which is also the padding and the context of a document's first token
Json: TypeAlias = Any  # a JSON or YAML value: mapping with string keys, list, string, number, boolean or None
JsonObject: TypeAlias = dict[str, Json]
