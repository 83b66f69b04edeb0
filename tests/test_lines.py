"""Reading lines in windows and batches."""

from seqloom.predict.base import TOKENS, as_lines, batch_by_length, predict_windows


def test_batches_have_lines_of_similar_length() -> None:
    lengths = [5, 1, 9, 2, 5, 1]
    assert list(batch_by_length(lengths, 2)) == [[1, 5], [3, 0], [4, 2]]
    assert list(batch_by_length([], 2)) == []


def test_long_lines_form_smaller_batches() -> None:
    lengths = [TOKENS // 2, TOKENS * 3, TOKENS // 2, 1]
    assert list(batch_by_length(lengths, 32)) == [[3, 0], [2], [1]]


def test_window_is_predicted_before_next_is_read() -> None:
    seen: list[list[str]] = []

    def answer(lines: list[str], batch_size: int) -> list[str]:
        seen.append(lines)
        return [line.upper() for line in lines]

    assert list(predict_windows(iter("abcde"), answer, batch_size=1, window=2)) == list("ABCDE")
    assert seen == [["a", "b"], ["c", "d"], ["e"]]
    # A single text is one line
    assert list(predict_windows(as_lines("abc"), answer, batch_size=1, window=2)) == ["ABC"]
