"""Training by gradient. Nothing here is about any particular model or task.

The loop is a generator of events. Its whole state is a value, written with every checkpoint: weights, optimizer,
carried state, and `Tally`. What is drawn at a step depends on the seed and the step alone. Together these make
2N steps and N + save + load + N steps the same to the bit.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from seqloom.core.config import config
from seqloom.core.device import choose_device, make_deterministic
from seqloom.core.errors import CheckpointError, DivergedError, Interrupted, ResourceError
from seqloom.core.protocols import Task
from seqloom.core.seeding import derive, seed_step
from seqloom.core.tree import Tree, detach, leaves, to_device
from seqloom.train.checkpoints import Checkpoint, CheckpointStore
from seqloom.train.events import Damaged, Evaluated, Event, Finished, Progress, Saved, Skipped, Started, Stopped
from seqloom.train.levels import levels_of
from seqloom.train.memory import watch
from seqloom.train.optimizers import OptimizerName, build_optimizer
from seqloom.train.schedule import Schedule, learning_rate
from seqloom.train.stop import Stop

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
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "fp32"  # bf16, fp16 need CUDA; auto is bf16 where it is
    device: str = "auto"  # auto, cpu, cuda, cuda:1, mps
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


@dataclass
class Tally:
    """Everything about a training that is not a tensor."""

    step: int = 0
    tokens: int = 0
    evaluated: int = 0  # the last step that was evaluated
    best_step: int = 0
    best: dict[str, float] | None = None
    stale: int = 0  # evaluations since the best one
    since_decay: int = 0  # evaluations without a new best since plateau last lowered the rate
    decay: float = 1.0  # what plateau has multiplied the rate by
    skips: int = 0  # updates in a row that were not finite
    recent_loss: float = 0.0  # sum of the losses since the last report …
    recent_steps: int = 0  # … and over how many updates
    memory: int = 0  # most bytes in tensors during an update that was watched


@dataclass(frozen=True)
class Update:
    """What one step did. `cause` says why the weights were left alone, where they were."""

    loss: float
    gradient_norm: float
    tokens: int
    rate: float
    cause: str | None = None


def device_for(config: FitConfig) -> torch.device:
    """The device to train on; refused if this machine has none that can do what the recipe asks."""
    device = choose_device(config.device)
    if config.precision in ("bf16", "fp16") and device.type != "cuda":
        raise ResourceError(f"train.precision={config.precision} needs a CUDA GPU; here it is {device}. Use fp32.")
    return device


class Trainer:
    """Model, optimizer, carried state and tally, and the one update that moves them all."""

    def __init__(self, task: Task, config: FitConfig, seed: int):
        self.task, self.config, self.seed = task, config, seed
        self.device = device_for(config)
        if config.deterministic:
            make_deterministic()
        torch.manual_seed(derive(seed, "initial weights"))
        self.model: nn.Module = task.model().to(self.device)
        self.steps_per_epoch = max(1, task.steps_per_epoch() // config.accumulate)
        self.levels = levels_of(self.model, config, self.steps_per_epoch)
        self.optimizer = build_optimizer(
            config.optimizer,
            self.model,
            lr=config.lr,
            weight_decay=config.weight_decay,
            momentum=config.momentum,
            betas=config.betas,
            levels=self.levels,
        )
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=config.precision == "fp16")
        self.carry: Tree = None
        self.tally = Tally()
        self.total = config.total_steps(task.steps_per_epoch())
        self.watched = {min(1, self.total - 1)}  # the second update is the first that finds the optimizer's numbers
        if hasattr(task, "largest_step"):  # where batches differ
            self.watched.add(task.largest_step(seed) // config.accumulate)

    def update(self) -> Update:
        """One optimizer step. If it is not finite, the weights and the optimizer stay exactly as they were.

        Two are watched for the memory they take: the second, and that with the largest batch of the first epoch.
        """
        if self.tally.step not in self.watched:
            return self._update()
        self.optimizer.zero_grad(set_to_none=True)  # the last update's gradients are no part of this one
        with watch(self.device, leaves(self.state())) as peak:
            done = self._update()
        self.tally.memory = max(self.tally.memory, peak.bytes)
        return done

    def _update(self) -> Update:
        seed_step(self.seed, self.tally.step)
        self.model.train()
        if self.levels is not None:
            self.levels.thaw(self.tally.step)
        self.optimizer.zero_grad(set_to_none=True)
        loss, tokens = self._backward()
        self.scaler.unscale_(self.optimizer)
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        loss_value, norm_value = torch.stack([loss.float(), norm.float()]).tolist()  # the step's one wait
        cause, rate, tally = self._not_finite(loss_value, norm_value), self.rate(), self.tally
        if cause is None:
            self._apply(gradients, norm_value, rate)
            tally.recent_loss, tally.recent_steps = tally.recent_loss + loss_value, tally.recent_steps + 1
            tally.skips = 0
        else:
            self.carry = None
            tally.skips += 1
        self.scaler.update()
        tally.step += 1
        tally.tokens += tokens
        return Update(loss_value, norm_value, tokens, rate, cause)

    def _backward(self) -> tuple[Tensor, int]:
        """Gradients of the mean loss over `accumulate` batches."""
        parts, total = self.config.accumulate, 0
        losses = []
        for part in range(parts):
            batch = to_device(self.task.batch(self.seed, self.tally.step * parts + part), self.device)
            with self._autocast():
                loss = self.task.loss(self.model, batch, self.carry)
            self.scaler.scale(loss.value / parts).backward()
            self.carry = detach(loss.carry)
            total += loss.tokens
            losses.append(loss.value.detach())
        return torch.stack(losses).mean(), total

    def _autocast(self) -> torch.autocast:
        here = torch.bfloat16 if self.device.type == "cuda" else None
        dtype = {"auto": here, "fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[self.config.precision]
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)

    def _apply(self, gradients: list[Tensor], norm: float, rate: float) -> None:
        if self.config.clip is not None and norm > self.config.clip:
            torch._foreach_mul_(gradients, self.config.clip / norm)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group.get("scale", 1.0)
        self.scaler.step(self.optimizer)

    def rate(self) -> float:
        """The learning rate of the next update, of the top level where there are several."""
        c = self.config
        base = learning_rate(c.schedule, c.lr, self.tally.step, self.total, c.warmup, c.min_lr)
        return max(base * self.tally.decay, min(c.min_lr, base))

    def _not_finite(self, loss: float, norm: float) -> str | None:
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if math.isfinite(norm):
            return None
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
                return f"the gradient of {name} is not finite"
        return "the norm of the gradient overflows"

    def evaluate(self) -> dict[str, float]:
        """Dev: as the task looks at it while a model trains, where that is less than a whole evaluation."""
        self.model.eval()
        validate = getattr(self.task, "validate", None)
        return validate(self.model) if validate is not None else self.task.evaluate(self.model, "dev")

    def judge(self, metrics: dict[str, float]) -> bool:
        """Record an evaluation; is it the best so far?"""
        tally = self.tally
        tally.evaluated = tally.step
        if tally.best is None or self.task.goal.prefers(metrics, tally.best):
            tally.best_step, tally.best, tally.stale, tally.since_decay = tally.step, metrics, 0, 0
            return True
        tally.stale += 1
        tally.since_decay += 1
        if self.config.schedule == "plateau" and tally.since_decay > self.config.plateau_patience:
            tally.decay *= self.config.plateau_factor
            tally.since_decay = 0
        return False

    def report(self, update: Update) -> dict[str, float]:
        """What the log says of the updates since the last report, whether or not there was a resume in between."""
        tally = self.tally
        loss = tally.recent_loss / tally.recent_steps if tally.recent_steps else math.nan
        tally.recent_loss, tally.recent_steps = 0.0, 0
        return {"loss": loss, "learning_rate": update.rate, "gradient_norm": update.gradient_norm}

    def notes(self) -> tuple[str, ...]:
        """What a person should know of the model and of how it learns; usually nothing."""
        own: list[str] = getattr(self.model, "notes", list)()  # not every model has something to say
        return (*own, *(self.levels.notes(self.config.lr) if self.levels is not None else ()))

    def state(self) -> dict[str, Tree]:
        return {
            "model": dict(self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "carry": self.carry,
            "tally": asdict(self.tally),
        }

    def restore(self, checkpoint: Checkpoint) -> None:
        parts: dict[str, Any] = checkpoint.parts
        try:
            self.model.load_state_dict(parts["model"])
            self.optimizer.load_state_dict(parts["optimizer"])
            self.scaler.load_state_dict(parts["scaler"])
            self.carry = to_device(parts["carry"], self.device)
            self.tally = Tally(**parts["tally"])
        except (RuntimeError, KeyError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise CheckpointError(
                f"Checkpoint step-{checkpoint.step} does not fit the model its recipe describes ({reason})."
            ) from error

    def due(self, every: int | None) -> bool:
        """Is it time for something that happens every so many steps, once an epoch if not said, and at the end?"""
        step = self.tally.step
        return step > 0 and (step % (every or self.steps_per_epoch) == 0 or step == self.total)

    def exhausted(self) -> str | None:
        """Why there is nothing more to do, if so."""
        if self.tally.step >= self.total:
            return "all steps are done"
        if self.config.patience is not None and self.tally.stale >= self.config.patience:
            return f"no better evaluation in {self.tally.stale} attempts"
        return None


def fit(
    task: Task, config: FitConfig, store: CheckpointStore, *, seed: int, stop: Stop | None = None, resume: bool = False
) -> Iterator[Event]:
    """Train, yielding events as it goes; with `resume`, go on from the newest intact checkpoint."""
    stop = stop or Stop()
    trainer = Trainer(task, config, seed)
    tally = trainer.tally
    checkpoint = store.load() if resume else None
    if checkpoint is not None:
        trainer.restore(checkpoint)
        tally = trainer.tally
    parameters = sum(p.numel() for p in trainer.model.parameters())
    yield Started(tally.step, trainer.total, parameters, str(trainer.device), checkpoint is not None, trainer.notes())
    for name, cause in store.damaged:
        yield Damaged(tally.step, name, cause)

    began, meter = time.perf_counter(), Meter()
    unsaved = False  # has anything happened since the newest checkpoint?
    while True:
        try:
            if trainer.due(config.evaluate_every) and tally.evaluated != tally.step:
                with stop.interruptible():
                    metrics = trainer.evaluate()
                best, unsaved = trainer.judge(metrics), True
                if best:
                    store.save_best(trainer.model.state_dict())
                yield Evaluated(tally.step, "dev", metrics, best)
        except Interrupted:
            pass  # the evaluation is still due, and will be made after the resume
        ending = trainer.exhausted() if not stop.requested else None
        due = trainer.due(config.save_every or config.evaluate_every)
        if unsaved and (due or stop.requested or ending):
            unsaved, passing = False, not (due or ending)  # a stop is no reason to keep other checkpoints in the end
            yield Saved(tally.step, store.save(tally.step, trainer.state(), passing))
        if stop.requested:
            yield Stopped(tally.step)
            return
        if ending:
            break
        with meter:
            update = trainer.update()
        unsaved = True
        meter.add(update)
        if update.cause is not None:
            yield Skipped(tally.step, update.cause)
            if tally.skips >= config.max_skips:
                raise DivergedError(_diverged(tally, update.cause))
        if tally.step % config.log_every == 0 or tally.step == trainer.total:
            yield meter.progress(tally.step, trainer.total, trainer.report(update), task)
    seconds = time.perf_counter() - began
    measured = parameters, meter.speed(), seconds, tally.memory or None
    yield Finished(tally.step, ending, tally.best_step, tally.best or {}, *measured)


def _diverged(tally: Tally, cause: str) -> str:
    return (
        f"Training diverged at step {tally.step}: {cause}, {tally.skips} updates in a row. None of them reached the "
        "weights. Train anew with a smaller train.lr, a smaller train.clip or a longer train.warmup."
    )


class Meter:
    """Speed: time spent training only, evaluations and saves left out."""

    def __init__(self) -> None:
        self.seconds = self.tokens = self.steps = 0.0
        self._reported = (0.0, 0.0, 0.0)  # seconds, tokens and steps at the last report

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._began

    def add(self, update: Update) -> None:
        self.tokens += update.tokens
        self.steps += 1

    def speed(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    def progress(self, step: int, total: int, values: dict[str, float], task: Task) -> Progress:
        now = (self.seconds, self.tokens, self.steps)
        seconds, tokens, steps = (a - b for a, b in zip(now, self._reported, strict=True))
        self._reported = now
        left = (total - step) * seconds / steps
        speed, counted = tokens / seconds if seconds else 0.0, getattr(task, "counted", "tokens")
        return Progress(step, total, values, speed, left, task.goal.unit, counted)
