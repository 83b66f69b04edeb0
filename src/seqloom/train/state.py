"""Everything that a training by gradient moves, and everything that a checkpoint of it holds.

The whole state is a value, written with every checkpoint: weights, optimizer, carried state, and
`Counters`. What is drawn at a step depends on the seed and the step alone. Together these make 2N
steps and N + save + load + N steps the same to the bit, with the same number of CPU threads, which
a resume keeps (`seqloom.core.device`).
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from seqloom.core.device import choose_device, derive, make_deterministic, resume_threads, used_threads
from seqloom.core.errors import CheckpointError, ResourceError
from seqloom.core.memory import build_within_memory
from seqloom.core.protocols import Task
from seqloom.core.tree import ANYTHING, Expected, Tree, check_tree, count_rows, leaves, slice_rows, to_device, tree_map
from seqloom.train.checkpoints import Checkpoint
from seqloom.train.config import FitConfig, Schedule
from seqloom.train.events import Event, Started
from seqloom.train.optimizers import build_layer_groups, build_optimizer, validate_optimizer_state

MAX_PENDING = 100  # steps at most whose result is not read from the device


@dataclass
class StepResult:
    """What one step did. `cause` says why the weights were left alone, if they were."""

    loss: float
    gradient_norm: float
    tokens: int
    lr: float
    cause: str | None = None
    unread: Tensor | None = None  # loss and gradient norm, if they have not been read from the device yet
    preparation_seconds: float = 0.0  # of the step's time, what later steps of its kind will not need
    seconds: float = 0.0  # of the step without preparation, if a wrapper measured them


@dataclass
class Counters:
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
    memory: int = 0  # most bytes in tensors during an update that was measured
    limit: int | None = None  # values of a batch that did not fit in memory, see `seqloom.train.wrappers`
    recorded: bool = True  # whether steps may be CUDA graphs: no longer, once there was no memory for them
    threads: int = 0  # of the CPU, which the last bits of the weights depend on; 0 on another device

    @classmethod
    def restore(cls, saved: Tree, step: int, metric: str) -> "Counters":
        """The tally of the checkpoint of a step; `CheckpointError` if it cannot be one. `metric` chooses the best."""
        check_tree(saved, asdict(cls()) | {"best": ANYTHING, "limit": ANYTHING}, "tally")
        best, limit = saved["best"], saved["limit"]
        if best is not None and not (
            isinstance(best, dict) and metric in best and all(type(value) in (int, float) for value in best.values())
        ):
            raise CheckpointError(f"tally.best must be the metrics of an evaluation, {metric} among them")
        if limit is not None and (type(limit) is not int or limit < 1):
            raise CheckpointError("tally.limit must be a number of values")
        tally = cls(**saved)
        counts = [value for value in saved.values() if type(value) is int]
        if tally.step != step or min(counts) < 0 or max(tally.evaluated, tally.best_step) > step or tally.decay <= 0:
            raise CheckpointError(f"tally does not describe a training at step {step}")
        return tally


@runtime_checkable
class WithNotes(Protocol):
    """A model that has something to say to whoever trains it."""

    def notes(self) -> Iterable[str]: ...


@runtime_checkable
class Recomputable(Protocol):
    """A layer whose activations may be dropped and computed once more in the backward pass."""

    recomputable: bool


def device_for(config: FitConfig) -> torch.device:
    """The device to train on; refused if this machine has none that can do what the recipe asks."""
    device = choose_device(config.device)
    if config.precision in ("bf16", "fp16") and device.type != "cuda":
        raise ResourceError(f"train.precision={config.precision} needs a CUDA GPU; here it is {device}. Use fp32.")
    return device


class TrainState:
    """Model, optimizer, carried state and tally of a training, and what has happened that nobody was told of yet."""

    def __init__(self, task: Task, config: FitConfig, seed: int):
        self.task, self.config, self.seed = task, config, seed
        self.device = device_for(config)
        if config.deterministic:
            make_deterministic()
        torch.manual_seed(derive(seed, "initial weights"))
        with build_within_memory({"model": task.model_section()}):
            self.model: nn.Module = task.model()
        self.model.to(self.device)
        self.steps_per_epoch = max(1, task.steps_per_epoch() // config.accumulate_steps)
        self.total = config.total_steps(task.steps_per_epoch())
        self.layer_groups = build_layer_groups(self.model, config, self.steps_per_epoch)
        self.optimizer = build_optimizer(
            config.optimizer,
            self.model,
            lr=config.lr,
            weight_decay=config.weight_decay,
            momentum=config.momentum,
            betas=config.betas,
            layer_groups=self.layer_groups,
        )
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=config.precision == "fp16")
        self.optimizer.register_step_post_hook(count_step)
        self.carry: Tree = None
        self.drawn_batches: list[Tree] = []  # of the next step, if they were asked for
        self.tally = Counters(threads=used_threads(self.device))
        self.thread_note: str | None = None  # if a resume uses another number of threads than there would be
        self.events: list[Event] = []  # what wrappers of the step report
        self.pending: list[StepResult] = []  # results that are not part of the tally yet
        self.results: list[StepResult] = []  # those that are, and nobody was told of
        self.diverged: str | None = None  # why, if too many updates in a row were not finite

    def autocast(self) -> torch.autocast:
        """The context in which losses are computed, in the precision that the recipe asks for."""
        automatic = torch.bfloat16 if self.device.type == "cuda" else None
        dtypes = {"auto": automatic, "fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
        dtype = dtypes[self.config.precision]
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)

    def learning_rate(self) -> float:
        """The learning rate of the next update, of the top layer group if there are several."""
        c = self.config
        base = learning_rate(c.schedule, c.lr, self.tally.step, self.total, c.warmup, c.min_lr)
        return max(base * self.tally.decay, min(c.min_lr, base))

    def batches(self) -> list[Tree]:
        """The batches of the next step; they are drawn once."""
        if not self.drawn_batches:
            first, count = self.tally.step * self.config.accumulate_steps, self.config.accumulate_steps
            self.drawn_batches = [self.task.batch(self.seed, first + part) for part in range(count)]
        return self.drawn_batches

    # --- results of steps ---------------------------------------------------------------------------------------------

    def count(self, result: StepResult) -> StepResult:
        """Count a step that was made. A result on the device is read once somebody will look, or many are waiting."""
        self.drawn_batches = []
        self.tally.step += 1
        self.tally.tokens += result.tokens
        self.pending.append(result)
        c = self.config
        is_awaited = self.tally.step % c.log_every == 0 or len(self.pending) >= MAX_PENDING
        if result.unread is None or is_awaited or any(map(self.is_due, (c.evaluate_every, c.save_every))):
            self.settle()
        return result

    def settle(self) -> None:
        """Enter pending results into the tally; this waits for the device."""
        if unread := [result for result in self.pending if result.unread is not None]:
            values = torch.stack([result.unread for result in unread if result.unread is not None]).tolist()
            for result, (loss, norm) in zip(unread, values, strict=True):
                result.loss, result.gradient_norm, result.unread = loss, norm, None
                result.cause = non_finite_cause(loss, norm)
        tally = self.tally
        for result in self.pending:
            if result.cause is None:
                tally.recent_loss, tally.recent_steps = tally.recent_loss + result.loss, tally.recent_steps + 1
                tally.skips = 0
            else:
                tally.skips += 1
                self.diverged = result.cause if tally.skips >= self.config.max_nonfinite_steps else self.diverged
        self.results += self.pending
        self.pending = []

    def take_results(self) -> list[StepResult]:
        """The results that nobody was told of yet, as far as they are known."""
        results, self.results = self.results, []
        return results

    def report(self, result: StepResult) -> dict[str, float]:
        """What the log says of the updates since the last report, whether or not there was a resume in between."""
        tally = self.tally
        loss = tally.recent_loss / tally.recent_steps if tally.recent_steps else math.nan
        tally.recent_loss, tally.recent_steps = 0.0, 0
        return {"loss": loss, "learning_rate": result.lr, "gradient_norm": result.gradient_norm}

    # --- evaluations and the end --------------------------------------------------------------------------------------

    def evaluate(self) -> dict[str, float]:
        """The metrics of dev that select the best checkpoint."""
        self.model.eval()
        return self.task.validate(self.model)

    def record_evaluation(self, metrics: dict[str, float]) -> bool:
        """Enter an evaluation into the tally; is it the best so far?"""
        tally = self.tally
        tally.evaluated = tally.step
        if tally.best is None or self.task.monitor.prefers(metrics, tally.best):
            tally.best_step, tally.best, tally.stale, tally.since_decay = tally.step, metrics, 0, 0
            return True
        tally.stale += 1
        tally.since_decay += 1
        if self.config.schedule == "plateau" and tally.since_decay > self.config.plateau_patience:
            tally.decay *= self.config.plateau_factor
            tally.since_decay = 0
        return False

    def is_due(self, every: int | None) -> bool:
        """Is it time for something that happens every so many steps, by default once an epoch, and at the end?"""
        step = self.tally.step
        return step > 0 and (step % (every or self.steps_per_epoch) == 0 or step == self.total)

    def reason_to_end(self) -> str | None:
        """Why there is nothing more to do, if so."""
        if self.tally.step >= self.total:
            return "all steps are done"
        if self.config.patience is not None and self.tally.stale >= self.config.patience:
            return f"no better evaluation in {self.tally.stale} attempts"
        return None

    def started(self, resumed: bool) -> Started:
        """The first event of a training."""
        size = self.parameter_count()
        return Started(self.tally.step, self.total, size, str(self.device), resumed, tuple(self.notes()))

    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def notes(self) -> list[str]:
        """What a person should know of the model and of how it learns; usually nothing."""
        notes = list(self.model.notes()) if isinstance(self.model, WithNotes) else []
        if self.config.gradient_checkpointing and not recomputable_layers(self.model):
            notes.append("train.gradient_checkpointing changes nothing: the model has no blocks or layers")
        if self.layer_groups is not None:
            notes += self.layer_groups.notes(self.config.lr)
        return notes if self.thread_note is None else [*notes, self.thread_note]

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tree]:
        """Everything that a checkpoint holds. Pending results belong to it, too."""
        self.settle()
        return {**self.tensors(), "tally": asdict(self.tally)}

    def tensors(self) -> dict[str, Tree]:
        optimizer = self.optimizer.state_dict()
        for group in optimizer["param_groups"]:
            group["lr"] = float(group["lr"])
        scaler = self.scaler.state_dict()
        return {"model": dict(self.model.state_dict()), "optimizer": optimizer, "scaler": scaler, "carry": self.carry}

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint. `CheckpointError`, and nothing is changed, if any part of it does not fit."""
        parts = checkpoint.parts
        try:
            check_tree(dict.fromkeys(parts), dict.fromkeys([*self.tensors(), "tally"]), "the checkpoint")
            tally = Counters.restore(parts["tally"], checkpoint.step, self.task.monitor.metric)
            check_tree(parts["model"], dict(self.model.state_dict()), "model")
            optimizer = validate_optimizer_state(self.optimizer, parts["optimizer"])
            check_tree(parts["scaler"], self.scaler.state_dict(), "scaler")
            carry = self.validate_carry(parts["carry"], tally.step)
        except CheckpointError as error:
            raise CheckpointError(f"it does not fit the model its recipe describes ({error})") from error
        self.model.load_state_dict(parts["model"])
        self.optimizer.load_state_dict(dict(optimizer))
        self.scaler.load_state_dict(parts["scaler"])
        self.carry, self.tally = carry, tally
        self.thread_note = resume_threads(tally.threads, self.device)
        tally.threads = used_threads(self.device)

    def validate_carry(self, carry: Tree, step: int) -> Tree:
        """A saved carry on the device; `CheckpointError` if the task's loss cannot start from it.

        The expected form is that of the carry after one row of the next batch. Integers in it are
        tokens. A run may be resumed on a device with another precision, so floats are converted.
        """
        if carry is None:
            return None
        batch = to_device(self.task.batch(self.seed, step * self.config.accumulate_steps), self.device)
        rows = count_rows(batch)
        with torch.no_grad(), self.autocast():
            template = self.task.loss(self.model, slice_rows(batch, 0, 1, rows), None).carry
        dtypes = iter([leaf.dtype for leaf in leaves(template)])
        vocabulary = max((m.num_embeddings for m in self.model.modules() if isinstance(m, nn.Embedding)), default=None)

        def expect(leaf: Tensor) -> Tree:
            tokens = {} if leaf.is_floating_point() or vocabulary is None else {"low": 0, "high": vocabulary - 1}
            return Expected((rows, *leaf.shape[1:]), leaf.dtype, **tokens)

        def convert(leaf: Tensor) -> Tensor:
            dtype = next(dtypes, leaf.dtype)
            return leaf.to(self.device, dtype if dtype.is_floating_point and leaf.is_floating_point() else leaf.dtype)

        converted = tree_map(convert, carry)
        check_tree(converted, tree_map(expect, template), "carry")
        return converted


def count_step(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Raise the versions of the parameters after a step: torch's fused optimizers leave them as they were."""
    increment_version([parameter for group in optimizer.param_groups for parameter in group["params"]])


def recomputable_layers(model: nn.Module) -> list[nn.Module]:
    """The outermost layers of a model whose activations can be recomputed."""
    layers: list[nn.Module] = []
    for layer in model.children():
        layers += [layer] if isinstance(layer, Recomputable) else recomputable_layers(layer)
    return layers


def learning_rate(schedule: Schedule, peak: float, step: int, total: int, warmup: int = 0, floor: float = 0.0) -> float:
    """The rate for the update that leads from `step` to `step + 1`.

    All schedules first climb linearly to `peak` over `warmup` steps. Then

        constant, plateau   peak                       (plateau is lowered by the evaluations)
        inverse-sqrt        peak · √(warmup / (step + 1))    with warmup at least 1
        cosine              floor + (peak − floor) · (1 + cos π·progress) / 2,   progress from 0 to 1 at `total`
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    if schedule == "inverse-sqrt":
        return peak * math.sqrt(max(warmup, 1) / (step + 1))
    if schedule == "cosine":
        progress = min(1.0, (step - warmup) / max(1, total - warmup))
        return floor + (peak - floor) * (1 + math.cos(math.pi * progress)) / 2
    return peak


def non_finite_cause(loss: float, norm: float, model: nn.Module | None = None) -> str | None:
    """Why an update must not be made, if so; with the parameter of `model` whose gradient shows it."""
    if not math.isfinite(loss):
        return f"the loss is {loss}"
    if math.isfinite(norm):
        return None
    for name, parameter in () if model is None else model.named_parameters():
        if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
            return f"the gradient of {name} is not finite"
    return "the gradient is not a number" if math.isnan(norm) else "the norm of the gradient overflows"
