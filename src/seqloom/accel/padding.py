"""Padding: left out on a CPU, where that saves work; computed along on a GPU, where finding it would be to wait."""

from torch import Tensor

from seqloom.nn.bidirectional import BidirectionalStack, read_sequences
from seqloom.nn.masks import all_known_true, any_known_true, select_real
from seqloom.nn.recurrent import Stack


def install() -> None:
    all_known_true.register(is_elsewhere, answer_unknown)
    any_known_true.register(is_elsewhere, answer_unknown)
    select_real.register(selects_on_cpu, select_on_cpu)
    read_sequences.register(reads_on_cpu, read_on_cpu)


def is_elsewhere(mask: Tensor) -> bool:
    return mask.device.type != "cpu"


def answer_unknown(mask: Tensor) -> bool:
    return False


def selects_on_cpu(x: Tensor, mask: Tensor) -> bool:
    return x.device.type == "cpu"


def select_on_cpu(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask]


def reads_on_cpu(stack: Stack | BidirectionalStack, x: Tensor, mask: Tensor) -> bool:
    return not x.is_cuda


def read_on_cpu(stack: Stack | BidirectionalStack, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    outputs, state = stack(x, mask=mask)
    return outputs, stack.ends(state) if isinstance(stack, BidirectionalStack) else state[-1]["h"]
