"""The configuration of gradient-based training."""

import math
from collections.abc import Iterator
from typing import Annotated, Literal

from seqloom.config import config
from seqloom.config.constraints import (
    Fraction,
    Gt,
    Le,
    Lt,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)

OptimizerName = Literal["sgd", "adam", "adamw"]
Schedule = Literal["constant", "inverse-sqrt", "cosine", "plateau"]


@config
class FitConfig:
    """The `train` section of recipes that train by gradient descent."""

    steps: PositiveInt | None = None  # optimizer steps; null: `epochs` decides
    epochs: PositiveFloat | None = None  # passes over the training data
    optimizer: OptimizerName = "adamw"
    lr: PositiveFloat = 2e-3  # peak learning rate
    schedule: Schedule = "constant"
    warmup: NonNegativeInt = 0  # steps of linear increase from 0 to lr
    min_lr: NonNegativeFloat = 0.0  # the final rate of cosine and the lower bound of plateau
    plateau_factor: Annotated[float, Gt(0), Lt(1)] = 0.5  # plateau: multiply lr by this without improvement …
    plateau_patience: NonNegativeInt = 0  # … in more than this many consecutive evaluations
    layer_decay: Annotated[float, Gt(0), Le(1)] = 1.0  # layer group l has the rate lr · layer_decay^(top − l)
    unfreeze_every: PositiveFloat | None = None  # epochs between unfreezing layer groups, starting with the head
    freeze: NonNegativeInt = 0  # number of lowest layer groups that are never trained
    weight_decay: NonNegativeFloat = 0.0  # only on matrices
    momentum: NonNegativeFloat = 0.0  # sgd
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)  # adam, adamw
    clip_norm: PositiveFloat | None = 1.0  # g ← g · min(1, clip_norm/‖g‖); null for no clipping
    accumulate_steps: PositiveInt = 1  # batches per step
    gradient_checkpointing: bool = False  # recompute activations in the backward pass to save memory
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "fp32"  # bf16, fp16 need CUDA; auto is bf16 on CUDA
    device: str = "auto"  # auto, cpu, cuda, cuda:1, mps
    cuda_graphs: bool = True  # on a GPU: compile steps and capture them as CUDA graphs
    deterministic: bool = False  # on a GPU: exact resume, but slower
    evaluate_every: PositiveInt | None = None  # steps; null: once per epoch
    save_every: PositiveInt | None = None  # steps; null: at every evaluation
    log_every: PositiveInt = 10  # steps between lines of the log
    keep_checkpoints: PositiveInt = 2  # number of newest checkpoints to keep
    patience: PositiveInt | None = None  # stop after this many evaluations without a new best
    max_nonfinite_steps: PositiveInt = 10  # stop after this many consecutive steps with a non-finite loss or gradient

    def problems(self) -> Iterator[str]:
        if self.steps is None and self.epochs is None:
            yield "steps or epochs must be set"

    def warnings(self, steps: int) -> Iterator[str]:
        """Warn about settings that do not suit `steps` training steps."""
        if self.warmup >= steps:
            yield (
                f"train.warmup is {self.warmup} and training ends after {steps} steps: the learning rate never "
                f"reaches {self.lr:g}. Lower train.warmup or train longer."
            )

    def total_steps(self, steps_per_epoch: int) -> int:
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None  # `problems` has checked it
        return max(1, math.ceil(self.epochs * steps_per_epoch / self.accumulate_steps))
