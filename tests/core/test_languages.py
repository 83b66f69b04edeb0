import pytest

from seqloom.core.words import is_unspaced


@pytest.mark.parametrize("tag", ["ja", "zh", "zh-Hant", "zh_Hans_CN", "TH", "bo"])
def test_languages_without_spaces_are_recognized(tag: str) -> None:
    assert is_unspaced(tag)


@pytest.mark.parametrize("tag", ["", "en", "ko", "vi", "pt-BR", "jam"])
def test_other_languages_have_spaces(tag: str) -> None:
    assert not is_unspaced(tag)
