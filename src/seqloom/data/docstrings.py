"""The functions, classes and modules of Python's standard library, with their docstrings.

The source files are parsed, and no module is imported.
"""

import ast
import platform
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from seqloom.core.errors import DataError
from seqloom.data.corpus import SPLITS, Corpus, version_of
from seqloom.data.examples import ParallelExample
from seqloom.data.splits import divide, hold_out, normal_form

# Folders without documentation for users: tests, installed packages and generated tables
SKIPPED = {"test", "tests", "idle_test", "idlelib", "lib2to3", "turtledemo", "site-packages", "dist-packages"}
SKIPPED |= {"pydoc_data", "ensurepip", "distutils", "__phello__", "__pycache__"}
HELD_OUT = 0.1  # fraction of the pairs for dev, and for test
LICENCE = "PSF-2.0"
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Documented:
    """A module, class or function with a docstring."""

    package: str  # name of the top-level module or package
    name: str  # "" for a module
    text: str  # the docstring without indentation
    signature: str = ""  # header of a function without annotations, such as `def f(x, y=1):`


@cache
def standard_library() -> tuple[Documented, ...]:
    """Return everything in the standard library that has a docstring, in the order of the files."""
    return tuple(read_docstrings(Path(sysconfig.get_paths()["stdlib"])))


def read_docstrings(folder: Path) -> Iterator[Documented]:
    """Yield everything in the source files of a folder that has a docstring."""
    files = sorted(path for path in folder.rglob("*.py") if not SKIPPED.intersection(path.relative_to(folder).parts))
    if not files:
        raise DataError(
            f"The docstrings of the standard library are read from its source files, but {folder} contains none. "
            "Install Python with the source files of its library."
        )
    for path in files:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about escapes in the source files
            try:
                tree = ast.parse(path.read_bytes())
            except (SyntaxError, ValueError):
                continue  # a template, or a file for tests
        package = path.relative_to(folder).parts[0].removesuffix(".py")
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | Function) and (text := ast.get_docstring(node)):
                name = "" if isinstance(node, ast.Module) else node.name
                yield Documented(package, name, text, signature_of(node) if isinstance(node, Function) else "")


def signature_of(function: Function) -> str:
    """Return the header of a function without annotations."""
    for argument in ast.walk(function.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    keyword = "async def" if isinstance(function, ast.AsyncFunctionDef) else "def"
    return f"{keyword} {function.name}({ast.unparse(function.args)}):"


def docstring_corpus(
    name: str, description: str, pairs: Iterable[tuple[str, ParallelExample]]
) -> Corpus[ParallelExample]:
    """Return a corpus of pairs, given the package of each pair.

    Pairs with the same source, apart from case and punctuation, occur once, and the pairs of a package are in the same
    split.
    """
    unique: dict[str, tuple[str, ParallelExample]] = {}
    for package, pair in pairs:
        unique.setdefault(normal_form(pair.source), (package, pair))
    size = round(HELD_OUT * len(unique))
    chosen = hold_out([package for package, _ in unique.values()], {"dev": size, "test": size})
    splits = divide((pair for _, pair in unique.values()), chosen, SPLITS)
    return Corpus(
        name=name,
        version=f"Python {platform.python_version()} {version_of(splits)}",
        licence=LICENCE,
        description=f"{description} of Python's standard library; the packages of dev and test are not in train",
        splits=splits,
    )
