"""Tests of import times: a command imports only what it needs."""

import subprocess
import sys

import pytest

import seqloom


def loaded_by(code: str) -> set[str]:
    """Return the modules that are imported after running this code."""
    program = f"import sys\n{code}\nprint('\\n'.join(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_help_imports_no_large_packages() -> None:
    loaded = loaded_by("from seqloom.cli.app import main\nmain(['--help'])")
    assert "seqloom.cli.translate" in loaded
    assert not loaded & {"torch", "numpy", "pydantic", "yaml", "matplotlib", "babel", "num2words", "tokenizers"}
    assert not any(name.startswith(("seqloom.models", "seqloom.nn", "seqloom.data")) for name in loaded)


def test_translator_imports_no_other_optional_packages() -> None:
    loaded = loaded_by(
        "from seqloom.predict.loader import load\nfrom seqloom.predict.translate import TranslatorPredictor"
    )
    assert "seqloom.predict.translate" in loaded
    others = (
        "seqloom.exchange",
        "seqloom.inspect.",
        "seqloom.studio",
        "seqloom.predict.tag",
        "seqloom.predict.word_vectors",
    )
    assert not [name for name in loaded - {"seqloom.inspect.picture"} if name.startswith(others)]
    assert not loaded & {"num2words", "babel", "matplotlib", "scipy", "sklearn"}


def test_every_public_name_can_be_imported() -> None:
    assert {*seqloom.MODULES, "__version__"} == set(seqloom.__all__) <= set(dir(seqloom))
    for name in seqloom.MODULES:
        assert callable(getattr(seqloom, name))


def test_unknown_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = seqloom.nothing
