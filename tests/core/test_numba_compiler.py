"""Where numba does not compile, it is not used; where it cannot keep what it made, it is made all the same."""

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pickle import UnpicklingError
from typing import Any

import pytest

from seqloom.core.device import compile_cached, has_numba

usable = has_numba.__wrapped__  # without what it knows already
needs_numba = pytest.mark.skipif(find_spec("numba") is None, reason="needs numba")


@needs_numba
def test_numba_is_usable_unless_it_is_told_not_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    import numba

    monkeypatch.setattr(numba.config, "DISABLE_JIT", 0)
    assert usable()
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    assert not usable()


def test_numba_that_cannot_be_imported_is_not_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    assert not usable()


@pytest.mark.parametrize("error", [RuntimeError, OSError, UnpicklingError, EOFError])
def test_what_cannot_be_kept_is_compiled(error: type[Exception]) -> None:
    asked: list[dict[str, Any]] = []

    def compiler(signature: str, **options: Any) -> Callable[[Any], Any]:
        def compiled(function: Any) -> Any:
            asked.append(options)
            if "cache" in options:
                raise error("no")
            return signature, function

        return compiled

    assert compile_cached(compiler, "void()", nogil=True)(len) == ("void()", len)
    assert asked == [{"nogil": True, "cache": True}, {"nogil": True}]


def test_what_cannot_be_compiled_is_an_error() -> None:
    def compiler(**options: Any) -> Callable[[Any], Any]:
        raise TypeError(options)

    with pytest.raises(TypeError):
        compile_cached(compiler)(len)
