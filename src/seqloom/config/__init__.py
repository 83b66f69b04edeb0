"""The recipe grammar: configs as frozen dataclasses, constraints in their annotations, YAML, overrides, messages."""

from seqloom.config.kinds import Kinds
from seqloom.config.schema import (
    ABSENT,
    Discriminator,
    apply_overrides,
    build,
    config,
    differences,
    parse_overrides,
    to_mapping,
)
from seqloom.config.yaml_text import dump_yaml, load_yaml
from seqloom.core.words import nearest

__all__ = [
    "ABSENT",
    "Discriminator",
    "Kinds",
    "apply_overrides",
    "build",
    "config",
    "differences",
    "dump_yaml",
    "load_yaml",
    "nearest",
    "parse_overrides",
    "to_mapping",
]
