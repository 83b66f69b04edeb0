"""Limits: constants, environment variables, free memory, and models that do not fit in memory."""

from pathlib import Path

import pytest
import torch
from torch import nn

from seqloom.config import build, config
from seqloom.core.errors import DataError, UsageError
from seqloom.core.limits import (
    available_memory,
    format_bytes,
    list_largest_settings,
    max_line,
    max_source,
    refuse_device,
)
from seqloom.core.memory import TooLargeError, build_within_memory


def test_environment_overrides_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQLOOM_MAX_LINE", "12k")
    monkeypatch.setenv("SEQLOOM_MAX_SOURCE", "77")
    monkeypatch.setenv("SEQLOOM_MEMORY", "2G")
    assert (max_line(), max_source(), available_memory()) == (12 << 10, 77, 2 << 30)


@pytest.mark.parametrize("text", ["", "0", "-1", "many", "1.5G"])
def test_invalid_environment_variable_is_reported(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SEQLOOM_MEMORY", text)
    with pytest.raises(UsageError, match="SEQLOOM_MEMORY must be a whole number above 0"):
        available_memory()


def test_available_memory_is_at_most_machine_memory() -> None:
    free = available_memory()
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:"))
    assert free is not None
    assert 0 < free <= int(total.split()[1]) * 1024


@config
class Stack:
    layers: int = 1
    hidden: int = 8


def test_too_many_layers_are_rejected() -> None:
    with pytest.raises(UsageError, match="layers must be at most 10,000; got 1,000,000"):
        build(Stack, {"layers": 1_000_000})
    with pytest.raises(ValueError, match="layers must be at most 10,000"):
        Stack(layers=10_001)
    assert Stack(layers=10_000).layers == 10_000


def test_largest_settings_are_listed() -> None:
    settings = {"model": {"kind": "gpt", "layers": 3, "d_model": 512, "tied": True, "positions": {"max_length": 64}}}
    assert list_largest_settings(settings) == "model.d_model=512, model.positions.max_length=64, model.layers=3"


def test_too_large_model_is_rejected_before_allocation() -> None:
    with (
        pytest.raises(
            TooLargeError, match=r"does not fit .* shape \(4000000, 1000000\).*model\.hidden=1000000"
        ) as error,
        build_within_memory({"model": {"hidden": 1_000_000}}),
    ):
        nn.LSTMCell(1_000_000, 1_000_000)
    assert error.value.exit_code == 5


def test_many_small_tensors_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQLOOM_MEMORY", "1M")
    with pytest.raises(TooLargeError), build_within_memory({}):
        kept = [torch.zeros(1 << 20) for _ in range(40)]
        del kept


def test_memory_guard_does_not_change_weights() -> None:
    torch.manual_seed(1)
    plain = nn.GRU(8, 16, 2)
    torch.manual_seed(1)
    with build_within_memory({}):
        watched = nn.GRU(8, 16, 2)
    for name, value in plain.state_dict().items():
        assert torch.equal(value, watched.state_dict()[name])


def test_devices_are_rejected(tmp_path: Path) -> None:
    with open("/dev/zero", "rb") as file, pytest.raises(DataError, match="/dev/zero is a device"):
        refuse_device("/dev/zero", file.fileno())
    (tmp_path / "file").write_text("a")
    with open(tmp_path / "file") as file:
        refuse_device(tmp_path / "file", file.fileno())


def test_sizes_above_a_tebibyte_are_formatted_in_gibibytes() -> None:
    assert format_bytes(3 << 40) == "3,072.0 GiB"
