"""numba is used only if it can compile. If caching fails, it compiles without a cache."""

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pickle import UnpicklingError
from typing import Any

import pytest

from seqloom.core.device import compile_cached, has_numba

usable = has_numba.__wrapped__  # the function without its result cache
needs_numba = pytest.mark.skipif(find_spec("numba") is None, reason="needs numba")


@needs_numba
def test_numba_is_unusable_with_disabled_jit(monkeypatch: pytest.MonkeyPatch) -> None:
    import numba

    monkeypatch.setattr(numba.config, "DISABLE_JIT", 0)
    assert usable()
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    assert not usable()


def test_numba_is_unusable_if_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    assert not usable()


@pytest.mark.parametrize("error", [RuntimeError, OSError, UnpicklingError, EOFError])
def test_failed_cache_compiles_without_cache(error: type[Exception]) -> None:
    calls: list[dict[str, Any]] = []

    def compiler(signature: str, **options: Any) -> Callable[[Any], Any]:
        def compiled(function: Any) -> Any:
            calls.append(options)
            if "cache" in options:
                raise error("no")
            return signature, function

        return compiled

    assert compile_cached(compiler, "void()", nogil=True)(len) == ("void()", len)
    assert calls == [{"nogil": True, "cache": True}, {"nogil": True}]


def test_failed_compilation_raises() -> None:
    def compiler(**options: Any) -> Callable[[Any], Any]:
        raise TypeError(options)

    with pytest.raises(TypeError):
        compile_cached(compiler)(len)
