"""What every other room stands on: protocols, state trees, errors, seeds, safe files."""

from typing import Any, TypeAlias

VERSION = "0.1.0"
END = 0  # the token that ends a document and is the context of its first token; padding repeats it
Json: TypeAlias = Any  # a value of JSON or YAML: mappings with text for keys, lists, text, numbers, booleans, None
