"""What a recipe may say of training by gradient."""

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
    """How to train by gradient."""

    steps: PositiveInt | None = None  # updates to make; if left out, `epochs` decides
    epochs: PositiveFloat | None = None  # passes over the training data
    optimizer: OptimizerName = "adamw"
    lr: PositiveFloat = 2e-3  # peak learning rate
    schedule: Schedule = "constant"
    warmup: NonNegativeInt = 0  # steps of linear climb to lr
    min_lr: NonNegativeFloat = 0.0  # where cosine ends, and below which plateau does not go
    plateau_factor: Annotated[float, Gt(0), Lt(1)] = 0.5  # plateau: multiply lr by this if nothing improves …
    plateau_patience: NonNegativeInt = 0  # … for more than this many evaluations in a row
    layer_decay: Annotated[float, Gt(0), Le(1)] = 1.0  # rate of layer group l is lr · layer_decay^(top − l)
    unfreeze_every: PositiveFloat | None = None  # epochs: at first the head alone learns, one more level after each
    freeze: NonNegativeInt = 0  # so many levels, from the embeddings up, never learn
    weight_decay: NonNegativeFloat = 0.0  # on matrices only
    momentum: NonNegativeFloat = 0.0  # sgd
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)  # adam, adamw
    clip_norm: PositiveFloat | None = 1.0  # g ← g · min(1, clip_norm/‖g‖); null for no clipping
    accumulate_steps: PositiveInt = 1  # batches per update
    gradient_checkpointing: bool = False  # blocks and layers are computed twice, so that less is kept for the gradient
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "fp32"  # bf16, fp16 need CUDA; auto is bf16 where it is
    device: str = "auto"  # auto, cpu, cuda, cuda:1, mps
    cuda_graphs: bool = True  # on a GPU: whole steps are compiled and recorded; false for one operation after the other
    deterministic: bool = False  # on a GPU: exact resume, at some cost in speed
    evaluate_every: PositiveInt | None = None  # steps; if left out, once an epoch
    save_every: PositiveInt | None = None  # steps; if left out, at every evaluation
    log_every: PositiveInt = 10  # steps between lines of the log
    keep_checkpoints: PositiveInt = 2  # newest checkpoints to keep
    patience: PositiveInt | None = None  # stop after this many evaluations without a new best
    max_nonfinite_steps: PositiveInt = 10  # give up after this many updates in a row that were not finite

    def problems(self) -> Iterator[str]:
        if self.steps is None and self.epochs is None:
            yield "needs steps or epochs: say how long to train"

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
        assert self.epochs is not None  # `problems` has checked it
        return max(1, math.ceil(self.epochs * steps_per_epoch / self.accumulate_steps))
