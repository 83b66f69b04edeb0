"""Find the members of a package: adding one is adding a file."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def subclasses_by_name(base: type[T], package: str, path: Iterable[str]) -> dict[str, type[T]]:
    """Import every module of a package and return the subclasses of `base` that are defined there, by their `name`.

    They are ordered by module and, within a module, as they are defined. Two of one name are an error.
    """
    found: dict[str, type[T]] = {}
    for module in sorted(info.name for info in pkgutil.iter_modules(path)):
        for member in vars(importlib.import_module(f"{package}.{module}")).values():
            if not inspect.isclass(member) or not issubclass(member, base) or "name" not in vars(member):
                continue
            if member.__module__ != f"{package}.{module}":
                continue
            name = str(vars(member)["name"])
            if name in found:
                raise ValueError(
                    f"{package}: {found[name].__qualname__} and {member.__qualname__} are both called {name!r}"
                )
            found[name] = member
    return found
