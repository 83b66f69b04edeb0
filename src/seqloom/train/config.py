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

    steps: PositiveInt | None = None  # number of optimizer steps; null: computed from `epochs`
    epochs: PositiveFloat | None = None  # number of passes over the training data
    optimizer: OptimizerName = "adamw"
    lr: PositiveFloat = 2e-3  # peak learning rate
    schedule: Schedule = "constant"
    warmup: NonNegativeInt = 0  # number of steps of linear increase from 0 to lr
    min_lr: NonNegativeFloat = 0.0  # final learning rate of cosine, and lowest learning rate of plateau
    plateau_factor: Annotated[float, Gt(0), Lt(1)] = 0.5  # plateau: factor by which the learning rate is multiplied
    # plateau: number of evaluations without improvement before the rate is lowered
    plateau_patience: NonNegativeInt = 0
    layer_decay: Annotated[float, Gt(0), Le(1)] = 1.0  # layer group l has the learning rate lr · layer_decay^(top − l)
    unfreeze_every: PositiveFloat | None = None  # number of epochs until the next layer group is unfrozen, head first
    freeze: NonNegativeInt = 0  # number of lowest layer groups that are never trained
    weight_decay: NonNegativeFloat = 0.0  # weight decay, which applies only to matrices
    momentum: NonNegativeFloat = 0.0  # momentum of sgd
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)  # β₁ and β₂ of adam and adamw
    clip_norm: PositiveFloat | None = 1.0  # maximum gradient norm: g ← g · min(1, clip_norm/‖g‖); null: no clipping
    accumulate_steps: PositiveInt = 1  # number of batches per optimizer step
    gradient_checkpointing: bool = False  # recompute activations in the backward pass to save memory
    # bf16 and fp16 require a CUDA GPU; auto selects bf16 on a CUDA GPU, else fp32
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "fp32"
    device: str = "auto"  # auto, cpu, cuda, cuda:1 or mps
    cuda_graphs: bool = True  # on a GPU: compile steps and capture them as CUDA graphs
    deterministic: bool = False  # on a GPU: make resuming exact, at some cost in speed
    evaluate_every: PositiveInt | None = None  # number of steps between evaluations; null: once per epoch
    save_every: PositiveInt | None = None  # number of steps between checkpoints; null: at every evaluation
    log_every: PositiveInt = 10  # number of steps between log lines
    keep_checkpoints: PositiveInt = 2  # number of newest checkpoints to keep
    patience: PositiveInt | None = None  # stop after this many evaluations without improvement
    max_nonfinite_steps: PositiveInt = 10  # stop after this many consecutive steps with a non-finite loss or gradient

    def problems(self) -> Iterator[str]:
        if self.steps is None and self.epochs is None:
            yield "steps or epochs must be set"

    def warnings(self, steps: int) -> Iterator[str]:
        """Yield warnings about settings that are unsuitable for `steps` training steps."""
        if self.warmup >= steps:
            yield (
                f"train.warmup is {self.warmup}, but training ends after {steps} steps, so the learning rate never "
                f"reaches {self.lr:g}. Lower train.warmup or train longer."
            )

    def total_steps(self, steps_per_epoch: int) -> int:
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None  # `problems` has checked it
        return max(1, math.ceil(self.epochs * steps_per_epoch / self.accumulate_steps))
