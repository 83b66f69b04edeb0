"""Conversion of weights: one table maps tensors of `transformers` (theirs) to tensors of seqloom (ours), and back.

ours = conversion.read(theirs)          theirs = conversion.write(ours)          read(write(x)) = x
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from seqloom.core.errors import CheckpointError
from seqloom.core.words import format_count

Tensors = tuple[Tensor, ...]
MAX_LISTED = 12  # maximum number of mismatches in an error message
# Norm names in weights converted from TensorFlow. transformers also renames them.
OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


class Conversion(Protocol):
    """The conversion of one tensor or of several tensors. `write` must also support meta tensors."""

    def read(self, theirs: Tensors) -> Tensors: ...

    def write(self, ours: Tensors) -> Tensors: ...


@dataclass(frozen=True)
class Identity:
    def read(self, theirs: Tensors) -> Tensors:
        return theirs

    def write(self, ours: Tensors) -> Tensors:
        return ours


@dataclass(frozen=True)
class Transpose:
    """Transposed matrices: (in, out) in `transformers`, as in GPT-2, and (out, in) in seqloom."""

    def read(self, theirs: Tensors) -> Tensors:
        return tuple(tensor.t() for tensor in theirs)

    write = read


@dataclass(frozen=True)
class Fused:
    """A tensor of `transformers` that concatenates `parts` seqloom tensors of equal shape along `dim`."""

    parts: int
    dim: int = 0
    transposed: bool = False

    def read(self, theirs: Tensors) -> Tensors:
        chunks = theirs[0].chunk(self.parts, dim=self.dim)
        return tuple(tensor.t() for tensor in chunks) if self.transposed else chunks

    def write(self, ours: Tensors) -> Tensors:
        return (torch.cat([tensor.t() for tensor in ours] if self.transposed else ours, dim=self.dim),)


@dataclass(frozen=True)
class TokenRows:
    """One row per token: row i in seqloom is row `order[i]` in `transformers`.

    The other rows in `transformers` are set to `fill`.
    """

    order: Sequence[int]
    total: int  # number of rows in `transformers`
    fill: float = 0.0

    def read(self, theirs: Tensors) -> Tensors:
        return (theirs[0][torch.tensor(self.order, device=theirs[0].device)],)

    def write(self, ours: Tensors) -> Tensors:
        rows = ours[0].new_full((self.total, *ours[0].shape[1:]), self.fill)
        rows[torch.tensor(self.order, device=rows.device)] = ours[0]
        return (rows,)


@dataclass(frozen=True)
class LeadingRows:
    """`count` unused rows that precede the seqloom rows, as in BART's position table."""

    count: int

    def read(self, theirs: Tensors) -> Tensors:
        return (theirs[0][self.count :],)

    def write(self, ours: Tensors) -> Tensors:
        return (torch.cat([ours[0].new_zeros(self.count, *ours[0].shape[1:]), ours[0]]),)


@dataclass(frozen=True)
class RotaryHalves:
    """Queries or keys for rotary positions.

    The two rows of a pair are adjacent in seqloom; in `transformers`, they are in different halves of a head.
    """

    heads: int

    def read(self, theirs: Tensors) -> Tensors:
        first = theirs[0]
        pairs = first.reshape(self.heads, 2, -1, *first.shape[1:])  # (N, 2, d/2, …)
        return (pairs.transpose(1, 2).reshape(first.shape),)

    def write(self, ours: Tensors) -> Tensors:
        first = ours[0]
        pairs = first.reshape(self.heads, -1, 2, *first.shape[1:])  # (N, d/2, 2, …)
        return (pairs.transpose(1, 2).reshape(first.shape),)


@dataclass(frozen=True)
class Unused:
    """A tensor of `transformers` that seqloom does not need, because the tensor is unused or adds 0."""

    sizes: tuple[int, ...]

    def read(self, theirs: Tensors) -> Tensors:
        return ()

    def write(self, ours: Tensors) -> Tensors:
        return (torch.zeros(self.sizes),)


IDENTITY, TRANSPOSE = Identity(), Transpose()


@dataclass(frozen=True)
class WeightEntry:
    """Tensors of seqloom and the tensors of `transformers` with the same values."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    conversion: Conversion = IDENTITY
    optional: bool = False  # if the tensors are missing in `transformers`, those of seqloom are initialized randomly
    zero: bool = False  # if the tensors are missing in `transformers`, they are 0
    shared: tuple[str, ...] = ()  # other seqloom names of the first tensor, which is tied
    copies: tuple[str, ...] = ()  # possible other `transformers` names of the first tensor


def weight(ours: str, theirs: str, conversion: Conversion = IDENTITY, **options: bool | tuple[str, ...]) -> WeightEntry:
    return WeightEntry((ours,), (theirs,), conversion, **options)  # type: ignore[arg-type]


def map_layers(
    ours: str, theirs: str, depth: int, names: Mapping[str, str], suffixes: Iterable[str]
) -> list[WeightEntry]:
    """Return the identical entries of a stack: `ours.0.NAME.weight` is `theirs.0.NAME.weight`, and so on."""
    return [
        weight(f"{ours}.{layer}.{mine}.{suffix}", f"{theirs}.{layer}.{other}.{suffix}")
        for layer in range(depth)
        for mine, other in names.items()
        for suffix in suffixes
    ]


# --- import and export ----------------------------------------------------------------------------------------------


def read_tensors(
    table: Sequence[WeightEntry], theirs: Mapping[str, Tensor], shapes: Mapping[str, Tensor], where: str
) -> tuple[dict[str, Tensor], list[str]]:
    """Return the seqloom tensors by name, in float32, and the names of optional tensors that are missing.

    `shapes` contains the tensors of the seqloom model, possibly on the meta device. One error lists all tensors that
    are missing, unknown or of a wrong shape, and all tensors with NaN or infinity.
    """
    expected = write_tensors(table, shapes)
    zeros = {name: torch.zeros(expected[name].shape) for entry in table if entry.zero for name in entry.theirs}
    theirs = {**zeros, **theirs}
    missing = [entry for entry in table if entry.optional and not any(name in theirs for name in entry.theirs)]
    absent = {name for entry in missing for name in entry.theirs}
    present = {name: tensor for name, tensor in expected.items() if name not in absent}
    if mismatches := list(_mismatches(table, theirs, present)):
        more = [f"  and {len(mismatches) - MAX_LISTED} more"] if len(mismatches) > MAX_LISTED else []
        count = format_count(len(mismatches), "mismatch", "mismatches")
        head = f"The weights of {where} do not match its config.json ({count}):"
        raise CheckpointError("\n".join([head, *(f"  {line}" for line in mismatches[:MAX_LISTED]), *more]))
    tensors: dict[str, Tensor] = {}
    nonfinite: list[str] = []
    for entry in table:
        if entry in missing:
            continue
        converted = entry.conversion.read(tuple(theirs[name] for name in entry.theirs))
        ours = [tensor.float().contiguous() for tensor in converted]
        if not all(map(_finite, ours)):
            nonfinite += [name for name in entry.theirs if not _finite(theirs[name].float())]
        tensors.update(zip(entry.ours, ours, strict=True))
        tensors.update((name, tensors[entry.ours[0]]) for name in entry.shared)
    if nonfinite:
        count = format_count(len(nonfinite), "tensor has", "tensors have")
        lines = [
            f"  {name}: {int((~theirs[name].float().isfinite()).sum()):,} of {theirs[name].numel():,}"
            for name in nonfinite[:MAX_LISTED]
        ]
        lines += [f"  and {len(nonfinite) - MAX_LISTED} more"] if len(nonfinite) > MAX_LISTED else []
        head = f"The weights of {where} must be finite; {count} NaN or infinity. Use another checkpoint:"
        raise CheckpointError("\n".join([head, *lines]))
    return tensors, [name for entry in missing for name in (*entry.ours, *entry.shared)]


def write_tensors(table: Sequence[WeightEntry], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of `transformers` by name."""
    tensors: dict[str, Tensor] = {}
    for entry in table:
        theirs = entry.conversion.write(tuple(ours[name] for name in entry.ours))
        tensors.update((name, tensor.contiguous()) for name, tensor in zip(entry.theirs, theirs, strict=True))
    return tensors


def find_uncovered(table: Sequence[WeightEntry], ours: Iterable[str]) -> list[str]:
    """Return the names of the seqloom tensors that the table does not contain."""
    covered = {name for entry in table for name in (*entry.ours, *entry.shared)}
    return sorted(set(ours) - covered)


def _mismatches(
    table: Sequence[WeightEntry], theirs: Mapping[str, Tensor], expected: Mapping[str, Tensor]
) -> Iterator[str]:
    copies = {copy: entry.theirs[0] for entry in table for copy in entry.copies}
    for name, tensor in expected.items():
        if name not in theirs:
            yield f"{name} ({format_shape(tensor)}) is missing"
        elif theirs[name].shape != tensor.shape:
            yield f"{name} must be {format_shape(tensor)}; it is {format_shape(theirs[name])}"
        elif not theirs[name].is_floating_point():
            kind = str(theirs[name].dtype).removeprefix("torch.")
            yield f"{name} must be floating-point, not quantized; it is {kind}"
    for name, tensor in theirs.items():
        if name in copies:
            if copies[name] in theirs and not _equal(tensor, theirs[copies[name]]):
                yield f"{name} must equal {copies[name]} (tie_word_embeddings)"
        elif name not in expected:
            yield f"{name} ({format_shape(tensor)}) is not a tensor of the model"


def _equal(one: Tensor, other: Tensor) -> bool:
    """Compare tensors; NaN equals NaN."""
    if torch.equal(one, other):
        return True
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())


def _finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())


def format_shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "scalar"


def rename_tensors(tensors: Mapping[str, Tensor], prefix: str, ignored: Sequence[str]) -> dict[str, Tensor]:
    """Convert tensor names to those of a complete model: a backbone has no prefix, and norms may have old names.

    `ignored` contains patterns of tensors that are not weights. Such tensors are dropped.
    """

    def current_name(name: str) -> str:
        for old, new in OLD_NAMES.items():
            current = name.removesuffix(old) + new
            if f".{name}".endswith(f".{old}") and current not in tensors:
                return current
        return name

    names = {current_name(name): tensor for name, tensor in tensors.items()}
    is_backbone = prefix and not any(name.startswith(prefix) for name in names)
    renamed = {f"{prefix}{name}" if is_backbone else name: tensor for name, tensor in names.items()}
    return {
        name: tensor for name, tensor in renamed.items() if not any(re.fullmatch(pattern, name) for pattern in ignored)
    }
