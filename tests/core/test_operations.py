"""Operations: the first implementation that applies is called, and otherwise the definition."""

import threading

import pytest

from seqloom.core.operations import Operation, always, definitions_only, operation


@pytest.fixture
def doubled() -> Operation[[int], str]:
    @operation
    def double(x: int) -> str:
        """Twice x."""
        return f"defined {2 * x}"

    return double


def run_fast(x: int) -> str:
    return f"fast {2 * x}"


def run_faster(x: int) -> str:
    return f"faster {2 * x}"


def test_reference_implementation_is_called_if_no_fast_implementation_applies(doubled: Operation[[int], str]) -> None:
    assert doubled(3) == "defined 6" and doubled.__doc__ == "Twice x."
    doubled.register(lambda x: x > 10, run_fast)
    assert (doubled(3), doubled(11)) == ("defined 6", "fast 22")


def test_implementations_are_tried_in_registration_order(doubled: Operation[[int], str]) -> None:
    doubled.register(lambda x: x > 10, run_faster)
    doubled.register(always, run_fast)
    assert (doubled(3), doubled(11)) == ("fast 6", "faster 22")
    assert doubled.select(11) is run_faster


def test_registering_twice_has_no_effect(doubled: Operation[[int], str]) -> None:
    doubled.register(always, run_fast)
    doubled.register(lambda x: False, run_fast)
    assert len(doubled.implementations) == 1 and doubled(1) == "fast 2"


def test_definitions_only_is_restored_after_an_exception(doubled: Operation[[int], str]) -> None:
    doubled.register(always, run_fast)
    with pytest.raises(KeyError), definitions_only():
        with definitions_only():
            assert doubled(1) == "defined 2"
        assert doubled(1) == "defined 2"
        raise KeyError
    assert doubled(1) == "fast 2"


def test_definitions_only_does_not_affect_other_threads(doubled: Operation[[int], str]) -> None:
    doubled.register(always, run_fast)
    results: list[str] = []
    with definitions_only():
        thread = threading.Thread(target=lambda: results.append(doubled(1)))
        thread.start()
        thread.join()
        results.append(doubled(1))
    assert results == ["fast 2", "defined 2"]
