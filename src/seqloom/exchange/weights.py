"""One table for both directions: which tensors of theirs are which of ours, and how the one becomes the other.

ours = how.read(theirs)          theirs = how.write(ours)          read(write(x)) = x
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
SHOWN = 12  # mismatches named one by one
# Names of norms in weights that were once converted from TensorFlow, which transformers renames for all its models.
OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


class How(Protocol):
    """What happens to a tensor, or several, on the way; `write` must also work on shapes alone (torch's meta)."""

    def read(self, theirs: Tensors) -> Tensors: ...

    def write(self, ours: Tensors) -> Tensors: ...


@dataclass(frozen=True)
class Same:
    def read(self, theirs: Tensors) -> Tensors:
        return theirs

    def write(self, ours: Tensors) -> Tensors:
        return ours


@dataclass(frozen=True)
class Transposed:
    """(in, out) there, (out, in) here: GPT-2's layers."""

    def read(self, theirs: Tensors) -> Tensors:
        return tuple(tensor.t() for tensor in theirs)

    write = read


@dataclass(frozen=True)
class Joined:
    """One tensor there, `parts` equal ones here, one after the other along `dim` of theirs."""

    parts: int
    dim: int = 0
    transposed: bool = False

    def read(self, theirs: Tensors) -> Tensors:
        found = theirs[0].chunk(self.parts, dim=self.dim)
        return tuple(tensor.t() for tensor in found) if self.transposed else found

    def write(self, ours: Tensors) -> Tensors:
        return (torch.cat([tensor.t() for tensor in ours] if self.transposed else ours, dim=self.dim),)


@dataclass(frozen=True)
class TokenRows:
    """A row for each token: order[i] is theirs of our row i. Rows that only theirs has are filled with `fill`."""

    order: Sequence[int]
    total: int  # rows there
    fill: float = 0.0

    def read(self, theirs: Tensors) -> Tensors:
        return (theirs[0][torch.tensor(self.order, device=theirs[0].device)],)

    def write(self, ours: Tensors) -> Tensors:
        made = ours[0].new_full((self.total, *ours[0].shape[1:]), self.fill)
        made[torch.tensor(self.order, device=made.device)] = ours[0]
        return (made,)


@dataclass(frozen=True)
class Leading:
    """`count` rows before ours, which mean nothing: BART's positions."""

    count: int

    def read(self, theirs: Tensors) -> Tensors:
        return (theirs[0][self.count :],)

    def write(self, ours: Tensors) -> Tensors:
        return (torch.cat([ours[0].new_zeros(self.count, *ours[0].shape[1:]), ours[0]]),)


@dataclass(frozen=True)
class Halves:
    """Rows of queries or keys whose pairs, to be turned, stand side by side here, and in two halves of a head there."""

    heads: int

    def read(self, theirs: Tensors) -> Tensors:
        first = theirs[0]
        parted = first.reshape(self.heads, 2, -1, *first.shape[1:])  # (N, 2, d/2, …)
        return (parted.transpose(1, 2).reshape(first.shape),)

    def write(self, ours: Tensors) -> Tensors:
        first = ours[0]
        parted = first.reshape(self.heads, -1, 2, *first.shape[1:])  # (N, d/2, 2, …)
        return (parted.transpose(1, 2).reshape(first.shape),)


@dataclass(frozen=True)
class Nothing:
    """A tensor there that we do without: nothing is computed with it, or it adds 0."""

    sizes: tuple[int, ...]

    def read(self, theirs: Tensors) -> Tensors:
        return ()

    def write(self, ours: Tensors) -> Tensors:
        return (torch.zeros(self.sizes),)


SAME, TRANSPOSED = Same(), Transposed()


@dataclass(frozen=True)
class WeightEntry:
    """Tensors of ours and of theirs that are the same numbers."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    how: How = SAME
    optional: bool = False  # theirs may be missing: ours are then drawn anew
    zero: bool = False  # theirs may be missing: they are then 0
    shared: tuple[str, ...] = ()  # more names of the first of ours: it is tied
    copies: tuple[str, ...] = ()  # where the first of theirs may stand once more


def weight(ours: str, theirs: str, how: How = SAME, **options: bool | tuple[str, ...]) -> WeightEntry:
    return WeightEntry((ours,), (theirs,), how, **options)  # type: ignore[arg-type]


def layers(ours: str, theirs: str, depth: int, names: Mapping[str, str], suffixes: Iterable[str]) -> list[WeightEntry]:
    """The plain rows of a stack: `ours.0.NAME.weight` is `theirs.0.NAME.weight`, and so on."""
    return [
        weight(f"{ours}.{layer}.{mine}.{suffix}", f"{theirs}.{layer}.{other}.{suffix}")
        for layer in range(depth)
        for mine, other in names.items()
        for suffix in suffixes
    ]


# --- both directions ------------------------------------------------------------------------------------------------


def read_tensors(
    table: Sequence[WeightEntry], theirs: Mapping[str, Tensor], shapes: Mapping[str, Tensor], where: str
) -> tuple[dict[str, Tensor], list[str]]:
    """Our tensors by name, in float32, and the names of those that are missing there and may be.

    `shapes` are the tensors our model has, perhaps on torch's meta device. Whatever is missing,
    left over or of another shape is refused, all at once; and so is what is no number.
    """
    wanted = write_tensors(table, shapes)
    zeros = {name: torch.zeros(wanted[name].shape) for one in table if one.zero for name in one.theirs}
    theirs = {**zeros, **theirs}
    missing = [one for one in table if one.optional and not any(name in theirs for name in one.theirs)]
    absent = {name for one in missing for name in one.theirs}
    if wrong := list(_mismatches(table, theirs, {name: wanted[name] for name in wanted if name not in absent})):
        more = [f"  and {len(wrong) - SHOWN} more"] if len(wrong) > SHOWN else []
        count = format_count(len(wrong), "mismatch", "mismatches")
        head = f"The weights of {where} are not those that its config.json describes ({count}):"
        raise CheckpointError("\n".join([head, *(f"  {line}" for line in wrong[:SHOWN]), *more]))
    found: dict[str, Tensor] = {}
    wild: list[str] = []
    for one in table:
        if one in missing:
            continue
        made = [tensor.float().contiguous() for tensor in one.how.read(tuple(theirs[name] for name in one.theirs))]
        if not all(map(_finite, made)):
            wild += [name for name in one.theirs if not _finite(theirs[name].float())]
        found.update(zip(one.ours, made, strict=True))
        found.update((name, found[one.ours[0]]) for name in one.shared)
    if wild:
        count = f"{format_count(len(wild), 'tensor')} hold{'s' * (len(wild) == 1)}"
        lines = [
            f"  {name}: {int((~theirs[name].float().isfinite()).sum()):,} of {theirs[name].numel():,}"
            for name in wild[:SHOWN]
        ]
        lines += [f"  and {len(wild) - SHOWN} more"] if len(wild) > SHOWN else []
        head = f"The weights of {where} must be finite numbers; {count} NaN or infinity. The file is damaged, or the "
        raise CheckpointError("\n".join([f"{head}training was: take another.", *lines]))
    return found, [name for one in missing for name in (*one.ours, *one.shared)]


def write_tensors(table: Sequence[WeightEntry], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their tensors by name."""
    found: dict[str, Tensor] = {}
    for one in table:
        made = one.how.write(tuple(ours[name] for name in one.ours))
        found.update((name, tensor.contiguous()) for name, tensor in zip(one.theirs, made, strict=True))
    return found


def find_uncovered(table: Sequence[WeightEntry], ours: Iterable[str]) -> list[str]:
    """Our tensors that the table forgets."""
    covered = {name for one in table for name in (*one.ours, *one.shared)}
    return sorted(set(ours) - covered)


def _mismatches(
    table: Sequence[WeightEntry], theirs: Mapping[str, Tensor], wanted: Mapping[str, Tensor]
) -> Iterator[str]:
    copies = {copy: one.theirs[0] for one in table for copy in one.copies}
    for name, tensor in wanted.items():
        if name not in theirs:
            yield f"{name} ({shape(tensor)}) is missing"
        elif theirs[name].shape != tensor.shape:
            yield f"{name} is {shape(theirs[name])}; by the config it is {shape(tensor)}"
        elif not theirs[name].is_floating_point():
            kind = str(theirs[name].dtype).removeprefix("torch.")
            yield f"{name} holds {kind}; weights must be floating-point numbers, not quantised ones"
    for name, tensor in theirs.items():
        if name in copies:
            if copies[name] in theirs and not _same(tensor, theirs[copies[name]]):
                yield f"{name} is not {copies[name]}, and by the config (tie_word_embeddings) it is"
        elif name not in wanted:
            yield f"{name} ({shape(tensor)}) has no place in the model"


def _same(one: Tensor, other: Tensor) -> bool:
    """Equal, where both are NaN too."""
    if torch.equal(one, other):
        return True
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())


def _finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())


def shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "one number"


def rename_tensors(tensors: Mapping[str, Tensor], prefix: str, ignored: Sequence[str]) -> dict[str, Tensor]:
    """Their tensors under the names of a whole model: a bare backbone lacks the prefix, and norms may have old names.
    `ignored` are patterns of names of what is no weight."""

    def name_today(name: str) -> str:
        for old, new in OLD_NAMES.items():
            renamed = name.removesuffix(old) + new
            if f".{name}".endswith(f".{old}") and renamed not in tensors:
                return renamed
        return name

    names = {name_today(name): tensor for name, tensor in tensors.items()}
    bare = prefix and not any(name.startswith(prefix) for name in names)
    whole = {f"{prefix}{name}" if bare else name: tensor for name, tensor in names.items()}
    return {
        name: tensor for name, tensor in whole.items() if not any(re.fullmatch(pattern, name) for pattern in ignored)
    }
