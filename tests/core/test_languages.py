import pytest

from seqloom.core.words import is_unspaced


@pytest.mark.parametrize("tag", ["ja", "zh", "zh-Hant", "zh_Hans_CN", "TH", "bo"])
def test_written_without_spaces(tag: str) -> None:
    assert is_unspaced(tag)


@pytest.mark.parametrize("tag", ["", "en", "ko", "vi", "pt-BR", "jam"])
def test_written_with_spaces(tag: str) -> None:
    assert not is_unspaced(tag)
