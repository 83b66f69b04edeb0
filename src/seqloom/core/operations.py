"""Operations: functions with a readable reference implementation that faster implementations may replace.

    @operation
    def run_cell(cell, x, state, mask): ...                        # the reference implementation, in plain PyTorch

    run_cell.register(applies=fits_kernel, run=run_kernel)         # only in `seqloom.accel`

A call uses the first registered implementation whose `applies` accepts its arguments; if none accepts them, the call
uses the reference implementation (the `definition`). The tests of `seqloom.accel` check that each implementation
computes the same results as the reference implementation. Within `definitions_only()`, every call uses the reference
implementation.

A function marked `compiled_region` is an ordinary function unless `compile_regions` sets a compiler.
`subclasses_by_name` discovers classes such as cells: adding a class requires only one new file.
"""

import functools
import importlib
import inspect
import pkgutil
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Implementation(NamedTuple, Generic[P, R]):
    applies: Callable[P, bool]
    run: Callable[P, R]


class Operation(Generic[P, R]):
    """A function with a reference implementation and optional faster implementations."""

    def __init__(self, definition: Callable[P, R]) -> None:
        functools.update_wrapper(self, definition)
        self.definition = definition
        self.implementations: list[Implementation[P, R]] = []

    def register(self, applies: Callable[P, bool], run: Callable[P, R]) -> None:
        """Register an implementation for the calls that `applies` accepts; earlier implementations take precedence."""
        if not any(existing.run is run for existing in self.implementations):
            self.implementations.append(Implementation(applies, run))

    def select(self, *args: P.args, **kwargs: P.kwargs) -> Callable[P, R]:
        """Return the implementation for a call with these arguments."""
        if torch.compiler.is_compiling() or not _thread.definitions_only:
            for implementation in self.implementations:
                if implementation.applies(*args, **kwargs):
                    return implementation.run
        return self.definition

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.select(*args, **kwargs)(*args, **kwargs)


def always(*_: Any, **__: Any) -> bool:
    """Accept every call; pass this function as `applies` to register an implementation without conditions."""
    return True


def operation(definition: Callable[P, R]) -> Operation[P, R]:
    """Create an operation from its reference implementation."""
    return Operation(definition)


class _Thread(threading.local):
    definitions_only = False


_thread = _Thread()


@contextmanager
def definitions_only() -> Iterator[None]:
    """Use the reference implementation of every operation in this block and thread."""
    before, _thread.definitions_only = _thread.definitions_only, True
    try:
        yield
    finally:
        _thread.definitions_only = before


class Compiler(Protocol):
    def __call__(self, function: Callable[P, R]) -> Callable[P, R]: ...


_compiler: Compiler | None = None


def compiled_region(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function of tensors that can be compiled as one region."""

    @functools.wraps(function)
    def region(*args: P.args, **kwargs: P.kwargs) -> R:
        if _compiler is None or torch.compiler.is_compiling():
            return function(*args, **kwargs)
        return _compiler(function)(*args, **kwargs)

    return region


@contextmanager
def compile_regions(compiler: Compiler | None) -> Iterator[None]:
    """Compile marked regions that are called in this block; a `compiler` of None disables compilation."""
    global _compiler
    before, _compiler = _compiler, compiler
    try:
        yield
    finally:
        _compiler = before


def subclasses_by_name(base: type[T], package: str, path: Iterable[str]) -> dict[str, type[T]]:
    """Import every module of a package and return the subclasses of `base` defined there, by their `name`.

    The subclasses are sorted by module and, within a module, in the order of their definition. A duplicate name raises
    an error.
    """
    classes: dict[str, type[T]] = {}
    for module in sorted(info.name for info in pkgutil.iter_modules(path)):
        for member in vars(importlib.import_module(f"{package}.{module}")).values():
            if not inspect.isclass(member) or not issubclass(member, base) or "name" not in vars(member):
                continue
            if member.__module__ != f"{package}.{module}":
                continue
            name = str(vars(member)["name"])
            if name in classes:
                raise ValueError(
                    f"{package}: {classes[name].__qualname__} and {member.__qualname__} have the same name {name!r}"
                )
            classes[name] = member
    return classes
