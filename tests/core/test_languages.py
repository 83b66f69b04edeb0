import pytest

from seqloom.core.words import is_unspaced


@pytest.mark.parametrize("tag", ["ja", "zh", "zh-Hant", "zh_Hans_CN", "TH", "bo"])
def test_unspaced_languages(tag: str) -> None:
    assert is_unspaced(tag)


@pytest.mark.parametrize("tag", ["", "en", "ko", "vi", "pt-BR", "jam"])
def test_spaced_languages(tag: str) -> None:
    assert not is_unspaced(tag)
