"""The architecture rules, checked on syntax trees: imports between packages, lazy imports, forbidden calls."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "seqloom"
MODULES = sorted(SOURCE.rglob("*.py"))

# Each package or top-level module, and the packages that it may import directly. It may also import what these import.
DEPENDENCIES: dict[str, set[str]] = {
    "core": set(),
    "config": {"core"},
    "nn": {"config"},
    "models": {"nn"},
    "text": {"config"},
    "data": {"text"},
    "decoding": {"config"},
    "evaluate": {"decoding"},
    "train": {"config"},
    "classical": {"nn", "text", "decoding", "train"},
    "accel": {"nn", "models", "decoding", "train", "classical"},
    "runs": {"models", "classical", "text", "data", "train"},
    "tasks": {"runs", "evaluate"},
    "inspect": {"tasks", "accel"},  # accel is used for the rehearsal of a training run
    "exchange": {"tasks"},
    "recipes": {"tasks"},
    "predict": {"recipes", "inspect", "exchange", "accel"},
    "training": {"predict"},
    "ladder": {"training"},
    "estimators": {"training"},
    "tuning": {"training"},
    "__init__": {"estimators", "tuning"},
    "studio": {"__init__"},
    "serve": {"__init__"},
    "cli": {"__init__", "ladder", "studio", "serve"},
    "__main__": {"cli"},
}
FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
AUDITED_CALLS = {"runs/image_weights.py": ["torch.load"]}  # loads a file with a known hash, with weights_only
FORBIDDEN_CALLS = {"eval", "exec", "torch.load", "builtins.eval", "builtins.exec", "yaml.load", "yaml.unsafe_load"}
HEAVY = ("torch", "numpy", "tokenizers", "safetensors", "matplotlib", "tensorboard", "optuna", "rich.progress")


def allowed(package: str) -> set[str]:
    """Return all packages that a package may import."""
    return {package}.union(*(allowed(other) for other in DEPENDENCIES[package]))


def package_of(parts: list[str]) -> str:
    """`["seqloom", "nn", "cells"]` → nn; the package itself is the module __init__."""
    return parts[1] if len(parts) > 1 else "__init__"


def module_parts(path: Path, root: Path = SOURCE) -> list[str]:
    return ["seqloom", *path.relative_to(root).with_suffix("").parts]


def imports(tree: ast.AST, parts: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield line and target of every import of seqloom, including imports in functions and under TYPE_CHECKING."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = parts[: len(parts) - node.level] if node.level else []
            base = [*base, *(node.module or "").split(".")] if node.module else base
            for alias in node.names:
                names_package = base == ["seqloom"] and alias.name in DEPENDENCIES
                yield node.lineno, [*base, alias.name] if names_package else base
        elif isinstance(node, ast.Call) and call_name(node).endswith("import_module") and node.args:
            name = node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield node.lineno, name.value.split(".")


def call_name(node: ast.Call) -> str:
    return ast.unparse(node.func)


def broken_rules(text: str, parts: list[str]) -> list[str]:
    """Return the violations of the import rules in a module."""
    package = package_of(parts)
    if package not in DEPENDENCIES:
        here = Path(__file__).name
        return [f"seqloom/{package} is not a known package: add it to DEPENDENCIES in {here} and to ARCHITECTURE.md"]
    return [
        f"{'.'.join(parts)} line {line}: {package} may not import {package_of(target)}; it may import "
        f"{', '.join(sorted(allowed(package) - {package})) or 'no package of seqloom'}"
        for line, target in imports(ast.parse(text), parts)
        if target[:1] == ["seqloom"] and package_of(target) not in allowed(package)
    ]


def unsafe_calls(text: str) -> list[str]:
    """Return the names in a module that could run code that is hidden in data."""
    calls_by_module = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            calls_by_module += [alias.name for alias in node.names if alias.name.split(".")[0] in FORBIDDEN_MODULES]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            calls_by_module += (
                [node.module] if node.module.split(".")[0] in FORBIDDEN_MODULES else sorted(names & FORBIDDEN_CALLS)
            )
        elif isinstance(node, ast.Call):
            calls_by_module += [name] if (name := call_name(node)) in FORBIDDEN_CALLS else []
            calls_by_module += [keyword.arg for keyword in node.keywords if keyword.arg == "allow_pickle"]
    return calls_by_module


def test_packages_import_only_allowed_packages() -> None:
    assert len(MODULES) > 100
    broken = {path: broken_rules(path.read_text("utf-8"), module_parts(path)) for path in MODULES}
    assert [rule for rules in broken.values() for rule in rules] == []


def test_models_do_not_import_the_packages_that_extend_them() -> None:
    named = [path.name for path in (SOURCE / "models").rglob("*.py") if "seqloom.exchange" in path.read_text("utf-8")]
    assert named == []


def test_code_does_not_call_pickle_or_eval() -> None:
    names = {str(path.relative_to(SOURCE)): unsafe_calls(path.read_text("utf-8")) for path in MODULES}
    assert {name: calls for name, calls in names.items() if calls} == AUDITED_CALLS


def test_audited_file_is_compared_with_its_hash_and_loaded_without_code() -> None:
    text = (SOURCE / "runs/image_weights.py").read_text("utf-8")
    (call,) = [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and "torch.load" in call_name(node)
    ]
    assert ast.unparse(call) == "torch.load(io.BytesIO(content), map_location='cpu', weights_only=True)"
    assert 0 < text.index("if sha256(content) != SHA256") < text.index("torch.load(io.BytesIO(content)")


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("nn.x", "from seqloom.models.recurrent_lm import RecurrentLM"),
        ("nn.x", "import seqloom.models"),
        ("nn.x", "from seqloom import models"),
        ("nn.x", "import seqloom"),
        ("nn.x", "from ..models import recurrent_lm"),
        ("nn.x", "from .. import models"),
        ("data.corpora.x", "from ...models import recurrent_lm"),
        ("decoding.x", "def f():\n    from seqloom.nn.cells import LSTM"),
        ("train.x", "if TYPE_CHECKING:\n    import seqloom.models.recurrent_lm as m"),
        ("train.x", "import importlib\nimportlib.import_module('seqloom.models.recurrent_lm')"),
        ("core.x", "from seqloom.predict.loader import load"),
        ("tasks.x", "from seqloom.cli.app import main"),
        ("inspect.x", "from seqloom import load"),
        ("attic.x", "import math"),
        ("helpers", "import math"),
    ],
)
def test_forbidden_import_is_detected(module: str, text: str) -> None:
    assert broken_rules(text, ["seqloom", *module.split(".")])


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("models.x", "from seqloom.core.tree import Tree\nfrom ..nn import cells\nfrom . import other"),
        ("runs.x", "from seqloom.decoding.generate import generate  # through classical"),
        ("nn.x", "import torch.nn.models\nfrom torch import models"),
        ("__main__", "from seqloom.cli.app import main"),
    ],
)
def test_allowed_import_is_accepted(module: str, text: str) -> None:
    assert broken_rules(text, ["seqloom", *module.split(".")]) == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "def f():\n    from cloudpickle import loads",
        "import torch\ntorch.load('x')",
        "from torch import load",
        "eval('1')",
        "np.load('x', allow_pickle=True)",
        "import yaml\nyaml.load('x', Loader=yaml.Loader)",
    ],
)
def test_unsafe_calls_are_detected(text: str) -> None:
    assert unsafe_calls(text)


def test_eval_method_is_allowed() -> None:
    assert unsafe_calls("model.eval()\njson.load(file)\nseqloom.load('runs/x')") == []


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["list", "--help"], ["list", "recipes"]])
def test_command_line_starts_without_torch(words: list[str]) -> None:
    loaded = python(
        f"import sys\nfrom seqloom.cli.app import main\ncode = main({words})\nprint()\nprint(code, *sys.modules)"
    ).splitlines()[-1]
    code, *modules = loaded.split()
    assert code == "0"
    assert [name for name in HEAVY if name in modules] == []


def test_package_imports_its_names_on_demand() -> None:
    loaded = python("import sys, seqloom; dir(seqloom); print(seqloom.__version__, *sys.modules)").split()
    assert loaded[0].count(".") == 2
    assert [name for name in HEAVY if name in loaded] == []
    import seqloom

    assert {"load", "train_recipe"} <= set(dir(seqloom))
    assert callable(seqloom.load)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = seqloom.trian
