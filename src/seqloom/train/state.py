"""The state of gradient-based training, which every checkpoint contains.

A checkpoint has the weights, the optimizer state, the carried state and `Counters`. The random numbers of a step depend
only on the seed and the step. Training for N steps, saving, loading and training for N more steps therefore gives the
same bits as training for 2N steps without interruption. This requires the same number of CPU threads, which is restored
when a run is resumed (`seqloom.core.device`).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from seqloom.core.device import (
    choose_device,
    derive_seed,
    describe_machine,
    make_deterministic,
    resume_threads,
    training_threads,
)
from seqloom.core.errors import CheckpointError, ResourceError
from seqloom.core.memory import build_within_memory
from seqloom.core.protocols import Task
from seqloom.core.tree import ANYTHING, Expected, Tree, check_tree, count_rows, leaves, slice_rows, to_device, tree_map
from seqloom.core.words import format_count
from seqloom.train.checkpoints import Checkpoint
from seqloom.train.config import FitConfig, Schedule
from seqloom.train.events import Event, Started
from seqloom.train.optimizers import build_layer_groups, build_optimizer, validate_optimizer_state

STALE = "no improvement in"  # first words of the reason for stopping early
MAX_PENDING = 100  # maximum number of steps whose results have not been read from the device


@dataclass
class StepResult:
    """The result of one step. `cause` is the reason if the step was skipped."""

    loss: float
    gradient_norm: float
    tokens: int
    lr: float
    cause: str | None = None
    unread: Tensor | None = None  # loss and gradient norm that have not been read from the device
    preparation_seconds: float = 0.0  # time for compilation and graph capture, which later steps do not repeat
    seconds: float = 0.0  # duration without preparation, if a wrapper measures the duration


@dataclass
class Counters:
    """The part of the training state that does not consist of tensors."""

    step: int = 0
    tokens: int = 0
    evaluated: int = 0  # the last step that was evaluated
    best_step: int = 0
    best: dict[str, float] | None = None
    stale: int = 0  # number of evaluations since the best evaluation
    since_decay: int = 0  # evaluations without a new best since the schedule plateau last lowered the rate
    decay: float = 1.0  # product of the factors that the schedule plateau has applied
    skips: int = 0  # number of consecutive skipped steps
    recent_loss: float = 0.0  # sum of the losses since the last report
    recent_steps: int = 0  # number of steps since the last report
    memory: int = 0  # peak bytes of tensors during a measured step
    limit: int | None = None  # smallest batch, in values, that did not fit in memory (`seqloom.train.wrappers`)
    cuda_graphs: bool = True  # whether steps may be CUDA graphs; false if their memory was exhausted
    threads: int = 0  # CPU threads, which affect the rounding of sums; 0 on other devices

    @classmethod
    def restore(cls, saved: Tree, step: int, metric: str) -> "Counters":
        """Restore the counters of a checkpoint. Raise `CheckpointError` if they are invalid.

        `metric` is the metric that selects the best checkpoint.
        """
        check_tree(saved, asdict(cls()) | {"best": ANYTHING, "limit": ANYTHING}, "tally")
        best, limit = saved["best"], saved["limit"]
        if best is not None and not (
            isinstance(best, dict) and metric in best and all(type(value) in (int, float) for value in best.values())
        ):
            raise CheckpointError(f"tally.best must be the metrics of an evaluation, including {metric}")
        if limit is not None and (type(limit) is not int or limit < 1):
            raise CheckpointError("tally.limit must be a positive whole number")
        tally = cls(**saved)
        counts = [value for value in saved.values() if type(value) is int]
        if tally.step != step or min(counts) < 0 or max(tally.evaluated, tally.best_step) > step or tally.decay <= 0:
            raise CheckpointError(f"tally does not describe training at step {step}")
        return tally


@runtime_checkable
class WithNotes(Protocol):
    """A model with notes for the user who trains it."""

    def notes(self) -> Iterable[str]: ...


@runtime_checkable
class Recomputable(Protocol):
    """A layer whose activations can be recomputed in the backward pass."""

    recomputable: bool


@runtime_checkable
class WithRunningStatistics(Protocol):
    """A layer with tensors that change in the forward pass of training, such as the averages of batch norm."""

    def running_statistics(self) -> Sequence[Tensor]: ...


def device_for(config: FitConfig) -> torch.device:
    """Return the training device. Raise `ResourceError` if this machine cannot train with these settings."""
    device = choose_device(config.device)
    if config.precision in ("bf16", "fp16") and device.type != "cuda":
        raise ResourceError(f"train.precision={config.precision} needs a CUDA GPU, not {device}. Use fp32.")
    return device


class TrainState:
    """The model, optimizer, carried state and counters (`tally`) of training, with results and events to report."""

    def __init__(self, task: Task, config: FitConfig, seed: int):
        self.task, self.config, self.seed = task, config, seed
        self.device = device_for(config)
        if config.deterministic:
            make_deterministic()
        torch.manual_seed(derive_seed(seed, "initial weights"))
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
        layers = [layer for layer in self.model.modules() if isinstance(layer, WithRunningStatistics)]
        self.statistics = [tensor for layer in layers for tensor in layer.running_statistics()]
        self.carry: Tree = None
        self.drawn_batches: list[Tree] = []  # the batches of the next step, after they have been drawn
        self.tally = Counters(threads=training_threads(self.device))
        self.thread_note: str | None = None  # set if the number of threads changes when a run is resumed
        self.events: list[Event] = []  # events that wrappers of the step report
        self.pending: list[StepResult] = []  # results that have not been added to the tally
        self.results: list[StepResult] = []  # results in the tally that have not been reported
        self.diverged: str | None = None  # the cause, if too many consecutive steps were skipped

    def autocast(self) -> torch.autocast:
        """Return the autocast context for the precision of the recipe."""
        automatic = torch.bfloat16 if self.device.type == "cuda" else None
        dtypes = {"auto": automatic, "fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
        dtype = dtypes[self.config.precision]
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)

    def learning_rate(self) -> float:
        """Return the learning rate of the top layer group in the next step."""
        c = self.config
        base = learning_rate(c.schedule, c.lr, self.tally.step, self.total, c.warmup, c.min_lr)
        return max(base * self.tally.decay, min(c.min_lr, base))

    def batches(self) -> list[Tree]:
        """Return the batches of the next step. The batches are drawn on the first call."""
        if not self.drawn_batches:
            first, count = self.tally.step * self.config.accumulate_steps, self.config.accumulate_steps
            self.drawn_batches = [self.task.batch(self.seed, first + part) for part in range(count)]
        return self.drawn_batches

    def statistics_before_step(self) -> list[Tensor]:
        """Return a copy of the running statistics. `restore_statistics` uses the copy if the step is not applied."""
        return [tensor.clone() for tensor in self.statistics]

    def restore_statistics(self, before: Sequence[Tensor], keep: Tensor | bool = False) -> None:
        """Restore the running statistics unless `keep` is true."""
        for tensor, old in zip(self.statistics, before, strict=True):
            tensor.copy_(torch.where(torch.as_tensor(keep, device=tensor.device), tensor, old))

    # --- results of steps ---------------------------------------------------------------------------------------------

    def count(self, result: StepResult) -> StepResult:
        """Add the result of a step. A result on the device is read before the next report, evaluation or save."""
        self.drawn_batches = []
        self.tally.step += 1
        self.tally.tokens += result.tokens
        self.pending.append(result)
        c = self.config
        is_needed = self.tally.step % c.log_every == 0 or len(self.pending) >= MAX_PENDING
        if result.unread is None or is_needed or any(map(self.is_due, (c.evaluate_every, c.save_every))):
            self.settle()
        return result

    def settle(self) -> None:
        """Wait for the device and add the pending results to the tally."""
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
        """Remove and return the results that have not been reported."""
        results, self.results = self.results, []
        return results

    def report(self, result: StepResult) -> dict[str, float]:
        """Return the values to log for the steps since the last report, including steps before the run was resumed."""
        tally = self.tally
        loss = tally.recent_loss / tally.recent_steps if tally.recent_steps else math.nan
        tally.recent_loss, tally.recent_steps = 0.0, 0
        return {"loss": loss, "learning_rate": result.lr, "gradient_norm": result.gradient_norm}

    # --- evaluations and the end of training --------------------------------------------------------------------------

    def evaluate(self) -> dict[str, float]:
        """Compute the dev metrics that select the best checkpoint."""
        self.model.eval()
        return self.task.validate(self.task.inference_model(self.model))

    def record_evaluation(self, metrics: dict[str, float]) -> bool:
        """Add an evaluation to the tally and return whether it is the best so far."""
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
        """Return whether an action with this interval is due. All actions are due at the last step.

        The default interval is one epoch.
        """
        step = self.tally.step
        return step > 0 and (step % (every or self.steps_per_epoch) == 0 or step == self.total)

    def reason_to_end(self) -> str | None:
        """Return why training is complete, or None if it is not complete."""
        if self.tally.step >= self.total:
            return "all steps are done"
        if self.config.patience is not None and self.tally.stale >= self.config.patience:
            return f"{STALE} {format_count(self.tally.stale, 'evaluation')}"
        return None

    def started(self, resumed: bool) -> Started:
        """Return the `Started` event of a training run."""
        size = self.parameter_count()
        notes, machine = tuple(self.notes()), describe_machine(self.device)
        return Started(self.tally.step, self.total, size, str(self.device), resumed, notes, machine)

    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def notes(self) -> list[str]:
        """Return notes for the user about the model and its training. The result is usually empty."""
        notes = list(self.model.notes()) if isinstance(self.model, WithNotes) else []
        if self.config.gradient_checkpointing and not recomputable_layers(self.model):
            notes.append("train.gradient_checkpointing has no effect: the model has no blocks or layers")
        if self.layer_groups is not None:
            notes += self.layer_groups.notes(self.config.lr)
        trained = sum(parameter.numel() for parameter in self.model.parameters() if parameter.requires_grad)
        if trained < self.parameter_count():
            notes.append(f"{trained:,} of {self.parameter_count():,} parameters are trained")
        return notes if self.thread_note is None else [*notes, self.thread_note]

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tree]:
        """Return the content of a checkpoint, including pending results."""
        self.settle()
        return {**self.tensors(), "tally": asdict(self.tally)}

    def tensors(self) -> dict[str, Tree]:
        optimizer = self.optimizer.state_dict()
        for group in optimizer["param_groups"]:
            group["lr"] = float(group["lr"])
        scaler = self.scaler.state_dict()
        return {"model": dict(self.model.state_dict()), "optimizer": optimizer, "scaler": scaler, "carry": self.carry}

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore a checkpoint. If a part does not match, raise `CheckpointError` and change nothing."""
        parts = checkpoint.parts
        try:
            check_tree(dict.fromkeys(parts), dict.fromkeys([*self.tensors(), "tally"]), "the checkpoint")
            tally = Counters.restore(parts["tally"], checkpoint.step, self.task.monitor.metric)
            check_tree(parts["model"], dict(self.model.state_dict()), "model")
            optimizer = validate_optimizer_state(self.optimizer, parts["optimizer"])
            check_tree(parts["scaler"], self.scaler.state_dict(), "scaler")
            carry = self.validate_carry(parts["carry"], tally.step)
        except CheckpointError as error:
            raise CheckpointError(f"it does not match the model of its recipe ({error})") from error
        self.model.load_state_dict(parts["model"])
        self.optimizer.load_state_dict(dict(optimizer))
        self.scaler.load_state_dict(parts["scaler"])
        self.carry, self.tally = carry, tally
        self.thread_note = resume_threads(tally.threads, self.device)
        tally.threads = training_threads(self.device)

    def validate_carry(self, carry: Tree, step: int) -> Tree:
        """Move a saved carried state to the device.

        Raise `CheckpointError` if the task's loss cannot start from this state.

        The saved state must have the structure of the carried state after one example of the next batch. Integers in
        the state are token ids. Floats are converted, because a run may be resumed on a device with another precision.
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
    """Increment the version counters of the parameters after a step, because torch's fused optimizers omit this."""
    increment_version([parameter for group in optimizer.param_groups for parameter in group["params"]])


def recomputable_layers(model: nn.Module) -> list[nn.Module]:
    """Return the outermost layers of a model whose activations can be recomputed."""
    layers: list[nn.Module] = []
    for layer in model.children():
        layers += [layer] if isinstance(layer, Recomputable) else recomputable_layers(layer)
    return layers


def learning_rate(schedule: Schedule, peak: float, step: int, total: int, warmup: int = 0, floor: float = 0.0) -> float:
    """Return the learning rate for the step from `step` to `step + 1`.

    All schedules first rise linearly to `peak` in `warmup` steps. After the warm-up, they follow

        constant, plateau   peak                       (with plateau, evaluations lower the rate)
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
    """Return why a step must be skipped. If a gradient is not finite, include the name of the parameter of `model`."""
    if not math.isfinite(loss):
        return f"the loss is {loss}"
    if math.isfinite(norm):
        return None
    for name, parameter in () if model is None else model.named_parameters():
        if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
            return f"the gradient of {name} is not finite"
    return "the gradient is not a number" if math.isnan(norm) else "the norm of the gradient overflows"
