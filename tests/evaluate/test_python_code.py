"""The fraction of predictions that Python can parse."""

import pytest

from seqloom.evaluate.python_code import is_python, python_validity


@pytest.mark.parametrize(
    "text",
    ["def f(self, x=1, *args, key=None, **kwargs):", "async def f():", "x = 1", "class A:", "if x: y", r"'\d'"],
)
def test_valid_code(text: str) -> None:
    assert is_python(text)


@pytest.mark.parametrize(
    "text",
    ["", " ", "def f(", "def f(x=1, y):", "def f(**k, *a):", "def (x):", "a b", "\0", "(" * 5000],
)
def test_invalid_code_is_recognized(text: str) -> None:
    assert not is_python(text)


def test_validity_is_the_fraction_of_valid_predictions() -> None:
    assert python_validity(["x", "def f(", "def f():", ""]) == {"valid_python": 0.5}
