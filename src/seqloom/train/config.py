"""What a recipe may say of training by gradient."""

import math
from collections.abc import Iterator
from typing import Literal

from seqloom.config import config
from seqloom.train.optimizers import OptimizerName
from seqloom.train.schedule import Schedule

_LENGTHS = ("steps", "epochs", "accumulate", "evaluate_every", "save_every", "log_every")
_ABOVE_ZERO = (*_LENGTHS, "lr", "clip", "keep", "patience", "max_skips", "unfreeze_every")


@config
class FitConfig:
    """How to train by gradient."""

    steps: int | None = None  # updates to make; if left out, `epochs` decides
    epochs: float | None = None  # passes over the training data
    optimizer: OptimizerName = "adamw"
    lr: float = 2e-3  # peak learning rate
    schedule: Schedule = "constant"
    warmup: int = 0  # steps of linear climb to lr
    min_lr: float = 0.0  # where cosine ends, and below which plateau does not go
    plateau_factor: float = 0.5  # plateau: multiply lr by this when the evaluations stop improving …
    plateau_patience: int = 0  # … for more than this many in a row
    layer_decay: float = 1.0  # rate of level l is lr · layer_decay^(top − l), see `seqloom.train.levels`
    unfreeze_every: float | None = None  # epochs: at first the head alone learns, one more level after each
    freeze: int = 0  # so many levels, from the embeddings up, never learn
    weight_decay: float = 0.0  # on matrices only
    momentum: float = 0.0  # sgd
    betas: tuple[float, float] = (0.9, 0.999)  # adam, adamw
    clip: float | None = 1.0  # g ← g · min(1, clip/‖g‖); null for no clipping
    accumulate: int = 1  # batches per update
    recompute: bool = False  # blocks and layers are computed twice, so that less is kept for the gradient
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "fp32"  # bf16, fp16 need CUDA; auto is bf16 where it is
    device: str = "auto"  # auto, cpu, cuda, cuda:1, mps
    fast: bool = True  # on a GPU: whole steps are compiled and recorded; false for one operation after the other
    deterministic: bool = False  # on a GPU: exact resume, at some cost in speed
    evaluate_every: int | None = None  # steps; if left out, once an epoch
    save_every: int | None = None  # steps; if left out, at every evaluation
    log_every: int = 10  # steps between lines of the log
    keep: int = 2  # newest checkpoints to keep
    patience: int | None = None  # stop after this many evaluations without a new best
    max_skips: int = 10  # give up after this many updates in a row that were not finite

    def problems(self) -> Iterator[str]:
        if self.steps is None and self.epochs is None:
            yield "needs steps or epochs: say how long to train"
        for name in _ABOVE_ZERO:
            value = getattr(self, name)
            if value is not None and value <= 0:
                yield f"{name} must be above 0, got {value}"
        for name in ("warmup", "min_lr", "plateau_patience", "weight_decay", "momentum", "freeze"):
            if getattr(self, name) < 0:
                yield f"{name} must be at least 0, got {getattr(self, name)}"
        if not 0 < self.plateau_factor < 1:
            yield f"plateau_factor must be between 0 and 1, got {self.plateau_factor}"
        if not 0 < self.layer_decay <= 1:
            yield f"layer_decay must be above 0 and at most 1, got {self.layer_decay}"
        if not all(0 <= beta < 1 for beta in self.betas):
            yield f"betas must be at least 0 and below 1, got {list(self.betas)}"

    def warnings(self, steps: int) -> Iterator[str]:
        """What will hardly be wanted of a training of so many steps."""
        if self.warmup >= steps:
            yield (
                f"train.warmup is {self.warmup} and training ends after {steps} steps: the learning rate never "
                f"reaches {self.lr:g}. Lower train.warmup or train longer."
            )

    def total_steps(self, steps_per_epoch: int) -> int:
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None  # __post_init__ saw to it
        return max(1, math.ceil(self.epochs * steps_per_epoch / self.accumulate))
