"""What moves when a model trains by gradient, and the one update that moves it all.

Its whole state is a value, written with every checkpoint: weights, optimizer, carried state, and `Tally`. What is drawn
at a step depends on the seed and the step alone. Together these make 2N steps and N + save + load + N steps the same to
the bit, with the same number of CPU threads, which a resume keeps (`seqloom.train.threads`).
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.core.allocations import build_within_memory
from seqloom.core.device import choose_device, make_deterministic
from seqloom.core.errors import CheckpointError, ResourceError, out_of_memory
from seqloom.core.expected import Expected, check_tree
from seqloom.core.fusing import Fusing
from seqloom.core.protocols import Loss, Task
from seqloom.core.seeding import derive, seed_step
from seqloom.core.tree import Tree, leaves, to_device, tree_map
from seqloom.train.captured import CannotRecord, CapturedStep, Preparation
from seqloom.train.checkpoints import Checkpoint
from seqloom.train.config import FitConfig
from seqloom.train.halving import DoesNotFit, Fitting, gradient_in_parts, portions, rows_of
from seqloom.train.levels import levels_of
from seqloom.train.memory import watch
from seqloom.train.optimizers import build_optimizer, validated_state
from seqloom.train.recompute import recompute
from seqloom.train.schedule import learning_rate
from seqloom.train.tally import Tally
from seqloom.train.threads import resume_threads, used_threads

WORTH_COMPILING = 1000  # steps: for fewer it takes longer to compile a model than to train it as it is
OVERFLOW = "the norm of the gradient overflows"
NOT_A_NUMBER = "the gradient is not a number"


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
        with build_within_memory({"model": task.model_section()}):
            self.model: nn.Module = task.model()
        self.model.to(self.device)
        self.recomputed = recompute(self.model) if config.recompute else None
        self.halved: dict[int, int] = {}  # rows of batches that did not fit, and their parts: nobody was told of yet
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
        self.tally = Tally(threads=used_threads(self.device))
        self.thread_note: str | None = None  # if a resume uses another number of threads than there would be
        self.total = config.total_steps(task.steps_per_epoch())
        self.captured = self._captured()
        self.known: list[Update] = []  # what updates did that nobody has been told of yet …
        self.unknown: list[tuple[float, int]] = []  # … and rate and tokens of those that are still under way
        self.diverged: str | None = None  # why, if too many updates in a row were not finite
        self.watched = {min(1, self.total - 1)}  # the second update is the first that finds the optimizer's numbers
        if (largest := task.largest_step(seed)) is not None:
            self.watched.add(largest // config.accumulate)

    def update(self) -> Update:
        """One optimizer step. If it is not finite, the weights and the optimizer stay exactly as they were."""
        return (*self.advance(), *self.settle())[-1]

    def advance(self) -> list[Update]:
        """One optimizer step, and what has become known of it and those before it.

        On a GPU that is nothing until somebody will look: waiting for each step to end would leave it idle. Two steps
        are watched for the memory they take: the second, and that with the largest batch of the first epoch.
        """
        if self.tally.step not in self.watched:
            self._advance()
        else:
            self.optimizer.zero_grad(set_to_none=True)  # the last update's gradients are no part of this one
            with watch(self.device, leaves(self._state())) as peak:
                self._advance()
            self.tally.memory = max(self.tally.memory, peak.bytes)
        return self.settle() if self._looked_at() else []

    def _looked_at(self) -> bool:
        """Is anybody going to look at the outcome of the last step?"""
        c, beats = self.config, [self.tally.step % self.config.log_every == 0]
        beats += [self.due(every) for every in (c.evaluate_every, c.save_every or c.evaluate_every)]
        return self.captured is None or self.captured.full or any(beats)

    def settle(self) -> list[Update]:
        """What the updates did that nobody has been told of yet; this waits for the device."""
        if self.captured is not None and self.unknown:
            for (rate, tokens), outcome in zip(self.unknown, self.captured.read(), strict=True):
                self._record(*outcome, tokens, rate, _cause(*outcome))
            self.unknown = []
        found, self.known = self.known, []
        return found

    def _record(self, loss: float, norm: float, tokens: int, rate: float, cause: str | None) -> None:
        tally = self.tally
        if cause is None:
            tally.recent_loss, tally.recent_steps, tally.skips = tally.recent_loss + loss, tally.recent_steps + 1, 0
        else:
            tally.skips += 1
            self.diverged = cause if tally.skips >= self.config.max_skips else self.diverged
        self.known.append(Update(loss, norm, tokens, rate, cause))

    def _advance(self) -> None:
        if not self.model.training:  # it has hundreds of parts to tell
            self.model.train()
        if self.levels is not None:
            self.levels.thaw(self.tally.step)
        tokens = self._one_by_one() if self.captured is None else self._at_once(self.captured)
        self.tally.step += 1
        self.tally.tokens += tokens

    def _at_once(self, captured: CapturedStep) -> int:
        """The step as one thing, on a GPU."""
        step, rate = self.tally.step, self.rate()
        for group in self.optimizer.param_groups:
            group["lr"].fill_(rate * group.get("scale", 1.0))
        try:
            self.carry, tokens = captured(
                self.task.batch(self.seed, step),
                self.carry,
                lambda: seed_step(self.seed, step),
                None if self.levels is None else self.levels.lowest(step),
            )
        except CannotRecord as reason:
            self.known = self.settle()
            self.captured = None
            self.preparation.notes.append(f"steps are made one operation at a time: {reason}")
        except Exception as error:
            if not out_of_memory(error):
                raise
            self.known = self.settle()
            self.captured, self.tally.recorded = None, False
            self.preparation.notes.append("steps are made one operation at a time: out of memory")
        if self.captured is None:  # by now what filled the memory is gone
            del captured
            return self._one_by_one()
        self.unknown.append((rate, tokens))
        return tokens

    def _one_by_one(self) -> int:
        """The step one operation after the other, on any device."""
        loss, tokens = self._fitting_backward()
        self.scaler.unscale_(self.optimizer)
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        loss_value, norm_value = torch.stack([loss.float(), norm.float()]).tolist()  # the step's one wait
        cause, rate = _cause(loss_value, norm_value), self.rate()
        if cause is None:
            self._apply(gradients, norm_value, rate)
        else:
            cause, self.carry = self._blamed(cause), None
        self.scaler.update()
        self._record(loss_value, norm_value, tokens, rate, cause)
        return tokens

    def _fitting_backward(self) -> tuple[Tensor, int]:
        """Where a batch does not fit in memory, all of it once more, from the beginning and in smaller parts."""
        first = self.carry
        while True:
            self.carry = first
            seed_step(self.seed, self.tally.step)
            self.optimizer.zero_grad(set_to_none=True)
            try:
                return self._backward()
            except DoesNotFit:
                pass  # and with it goes what filled the memory
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def _backward(self) -> tuple[Tensor, int]:
        """Gradients of the mean loss over `accumulate` batches."""
        parts, losses = self.config.accumulate, []
        for part in range(parts):
            losses.append(self._gradient(self.task.batch(self.seed, self.tally.step * parts + part)))
            self.carry = losses[-1].carry
        return torch.stack([loss.value for loss in losses]).mean(), sum(loss.tokens for loss in losses)

    def _gradient(self, batch: Tree) -> Loss:
        """Add the gradient of a batch, in as many parts as it takes to fit."""
        batch, fitting = to_device(batch, self.device), Fitting(self.tally.limit)
        parts = fitting.parts(batch, self.carry)
        try:
            return gradient_in_parts(self.model, batch, self.carry, parts, self._loss, self._add_gradient)
        except Exception as error:
            if not out_of_memory(error) or not fitting.halve(batch, self.carry):
                raise
            self.tally.limit = fitting.limit
            self.halved[rows_of(batch)] = fitting.parts(batch, self.carry)
            raise DoesNotFit from error

    def _loss(self, batch: Tree, carry: Tree) -> Loss:
        with self._autocast():
            return self.task.loss(self.model, batch, carry)

    def _add_gradient(self, value: Tensor) -> None:
        self.scaler.scale(value / self.config.accumulate).backward()

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

    def _captured(self) -> CapturedStep | None:
        """What makes whole steps at once, where that can be done."""
        c, model, task = self.config, self.model, self.task
        self.preparation = Preparation()
        if self.device.type != "cuda" or not c.fast or c.precision == "fp16" or c.accumulate > 1 or c.recompute:
            return None
        worth = self.total >= WORTH_COMPILING
        captured = CapturedStep(
            model,
            self.optimizer,
            lambda batch, carry: task.loss(model, batch, carry),
            clip=c.clip,
            autocast=self._autocast,
            device=self.device,
            # A compiler chooses kernels by the shapes it happens to meet first, so a resume would not be exact.
            fused=Fusing(dynamic=task.largest_step(self.seed) is not None) if worth and not c.deterministic else None,
        )
        self.preparation = captured.preparation
        self._ready_optimizer()
        return captured

    def _ready_optimizer(self) -> None:
        """Have it find its learning rate on the device."""
        for group in self.optimizer.param_groups:
            group["lr"] = torch.tensor(float(group["lr"]), device=self.device)
            if "capturable" in group:
                group["capturable"] = True

    def rate(self) -> float:
        """The learning rate of the next update, of the top level where there are several."""
        c = self.config
        base = learning_rate(c.schedule, c.lr, self.tally.step, self.total, c.warmup, c.min_lr)
        return max(base * self.tally.decay, min(c.min_lr, base))

    def _blamed(self, cause: str) -> str:
        """The cause of a step that was not finite; with the parameter that shows it, where one does."""
        for name, parameter in self.model.named_parameters() if cause in (OVERFLOW, NOT_A_NUMBER) else ():
            if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
                return f"the gradient of {name} is not finite"
        return cause

    def evaluate(self) -> dict[str, float]:
        """Dev: as the task looks at it while a model trains, where that is less than a whole evaluation."""
        self.model.eval()
        return self.task.validate(self.model)

    def judge(self, metrics: dict[str, float]) -> bool:
        """Record an evaluation; is it the best so far?"""
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

    def report(self, update: Update) -> dict[str, float]:
        """What the log says of the updates since the last report, whether or not there was a resume in between."""
        tally = self.tally
        loss = tally.recent_loss / tally.recent_steps if tally.recent_steps else math.nan
        tally.recent_loss, tally.recent_steps = 0.0, 0
        return {"loss": loss, "learning_rate": update.rate, "gradient_norm": update.gradient_norm}

    def notes(self) -> tuple[str, ...]:
        """What a person should know of the model and of how it learns; usually nothing."""
        own: list[str] = getattr(self.model, "notes", list)()  # not every model has something to say
        lost = ["train.recompute changes nothing: the model has no blocks or layers"] if self.recomputed == 0 else []
        threads = [] if self.thread_note is None else [self.thread_note]
        return (*own, *lost, *(self.levels.notes(self.config.lr) if self.levels is not None else ()), *threads)

    def tell_halved(self) -> list[tuple[int, int]]:
        """Rows and parts of the batches that did not fit in memory since somebody asked."""
        found, self.halved = list(self.halved.items()), {}
        return found

    def state(self) -> dict[str, Tree]:
        self.known = self.settle()  # what is under way belongs to the tally too
        return self._state()

    def _state(self) -> dict[str, Tree]:
        optimizer = self.optimizer.state_dict()
        for group in optimizer["param_groups"]:
            group["lr"] = float(group["lr"])
        return {
            "model": dict(self.model.state_dict()),
            "optimizer": optimizer,
            "scaler": self.scaler.state_dict(),
            "carry": self.carry,
            "tally": asdict(self.tally),
        }

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint. `CheckpointError`, and nothing is changed, if any part of it does not fit."""
        parts: dict[str, Any] = checkpoint.parts
        try:
            check_tree(dict.fromkeys(parts), dict.fromkeys(self._state()), "the checkpoint")
            tally = Tally.restored(parts["tally"], checkpoint.step, self.task.monitor.metric)
            check_tree(parts["model"], dict(self.model.state_dict()), "model")
            optimizer = validated_state(self.optimizer, parts["optimizer"])
            check_tree(parts["scaler"], self.scaler.state_dict(), "scaler")
            carry = self._validated_carry(parts["carry"], tally)
        except CheckpointError as error:
            raise CheckpointError(f"it does not fit the model its recipe describes ({error})") from error
        self.model.load_state_dict(parts["model"])
        self.optimizer.load_state_dict(optimizer)
        self.scaler.load_state_dict(parts["scaler"])
        self.carry, self.tally = carry, tally
        self.thread_note = resume_threads(tally.threads, self.device)
        tally.threads = used_threads(self.device)
        self.captured = self.captured if tally.recorded else None
        if self.captured is not None:
            self._ready_optimizer()

    def _validated_carry(self, carry: Tree, tally: Tally) -> Tree:
        """A saved carry on the device; `CheckpointError` if the task's loss cannot start from it.

        The expected form is that of the carry after one row of the next batch. Integers in it are tokens. A run may be
        resumed on a device with another precision, so floats are converted.
        """
        if carry is None:
            return None
        batch = to_device(self.task.batch(self.seed, tally.step * self.config.accumulate), self.device)
        rows = rows_of(batch)
        with torch.no_grad():
            template = self._loss(next(portions(batch, None, rows))[0], None).carry
        dtypes = iter([leaf.dtype for leaf in leaves(template)])
        vocabulary = max((m.num_embeddings for m in self.model.modules() if isinstance(m, nn.Embedding)), default=None)

        def expected(leaf: Tensor) -> Any:
            tokens = {} if leaf.is_floating_point() or vocabulary is None else {"low": 0, "high": vocabulary - 1}
            return Expected((rows, *leaf.shape[1:]), leaf.dtype, **tokens)

        def converted(leaf: Tensor) -> Tensor:
            dtype = next(dtypes, leaf.dtype)
            return leaf.to(self.device, dtype if dtype.is_floating_point and leaf.is_floating_point() else leaf.dtype)

        found = tree_map(converted, carry)
        check_tree(found, tree_map(expected, template), "carry")
        return found

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


def _cause(loss: float, norm: float) -> str | None:
    """Why an update must not be made, if so."""
    if not math.isfinite(loss):
        return f"the loss is {loss}"
    if math.isfinite(norm):
        return None
    return NOT_A_NUMBER if math.isnan(norm) else OVERFLOW
