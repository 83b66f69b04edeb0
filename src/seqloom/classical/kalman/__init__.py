"""The linear dynamical system: a hidden state that moves by a linear map, seen through another, both with noise.

    h_t = W_hh h_{t-1} + W_hx x_t + ε        y_t = W_yh h_t + d + δ

What the state is can be given by a name (`structures`) or left to be learned. `filter` has filter
and smoother, `em` learning. Everything is float64, and in the units of the data.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal, get_args

import torch
from torch import Tensor

from seqloom.classical.kalman.em import LEARNED, Data, Rules, check_data, expectation_maximisation
from seqloom.classical.kalman.filter import Belief, Filtered, SmoothedStates, System, kalman_filter, kalman_smoother
from seqloom.classical.kalman.structures import Structure, first_guess, rules_for, state_size
from seqloom.classical.tensor_model import Bounds, TensorModel
from seqloom.config import config
from seqloom.config.constraints import Ge, NonNegativeFloat, NonNegativeInt, PositiveInt
from seqloom.core.errors import UsageError
from seqloom.core.protocols import Estimate, FutureStep
from seqloom.core.tree import Tree

Parameter = Literal["transition", "drive", "process", "emission", "offset", "observation", "mean", "covariance"]
assert get_args(Parameter) == LEARNED


@config
class KalmanConfig:
    kind: Literal["kalman"] = "kalman"
    structure: Structure | None = None  # what the state is; null is seasonal where the data has a season, else trend
    hidden: PositiveInt = 4  # of free: the size of the state; that of the others follows from the data
    season: Annotated[int, Ge(2)] | None = None  # of seasonal: steps of a season; null is that of the data
    damped: bool = False  # of level, trend and seasonal: level and slope fade, as fast as EM finds
    start: Literal["vague", "learned"] = "vague"  # of all but free: what is known of the first state
    noise: Literal["diagonal", "full"] = "diagonal"  # of what is observed: each value's own, or with covariances
    fixed: tuple[Parameter, ...] = ()  # what EM leaves as it begins
    rounds: NonNegativeInt = 100  # of EM, at most
    tolerance: NonNegativeFloat = 1e-6  # EM stops when a round gains less, in nats for each value observed
    save_every: PositiveInt = 10  # rounds from one checkpoint to the next

    def problems(self) -> Iterator[str]:
        if self.season is not None and self.structure not in ("seasonal", None):
            yield f"season is for structure seasonal, not for {self.structure}; leave it out"
        if self.damped and self.structure in ("free", "constant-velocity"):
            yield f"damped is for structures level, trend and seasonal, not for {self.structure}"
        if len(set(self.fixed)) < len(self.fixed):
            yield f"fixed must name each parameter once, got {', '.join(self.fixed)}"

    def build(self, variables: int, season: int = 1, inputs: int = 0) -> "LinearDynamical":
        season = self.season or season
        usual: Structure = "seasonal" if season > 1 else "trend"
        return LinearDynamical(replace(self, structure=self.structure or usual), variables, season, inputs)

    def estimates(
        self,
        series: Sequence[tuple[Tensor, Tensor]],
        season: int,
        model: "LinearDynamical | None",
        step: int,
        seed: int = 1,
    ) -> Iterator[Estimate]:
        """Rounds of EM on values and masks (T, C), from round `step` of a model that was kept; no number is drawn."""
        model = model or self.build(series[0][0].shape[1], season)
        yield from model.estimates(Data.of(series), step)


class LinearDynamical(TensorModel):
    """A linear dynamical system of C observed values. Before it is estimated or loaded it expects N(0, 1) for ever.

    It stays on the CPU: it takes many small steps one after the other, in float64.
    """

    memory = None  # it looks back to the beginning
    bounds: Mapping[str, Bounds] = {"rounds": (-torch.inf, torch.inf)}
    cpu_only = True

    def __init__(self, config: KalmanConfig, variables: int, season: int = 1, inputs: int = 0) -> None:
        if config.structure == "seasonal" and season < 2:
            raise UsageError(
                "model.structure=seasonal needs a season of at least 2 steps, and this series has none. Say how many "
                "steps one has, model.season=12, or choose structure trend."
            )
        assert config.structure is not None, "a system is built by its config, which knows"
        self.structure: Structure = config.structure
        self.config, self.variables, self.season, self.inputs = config, variables, season, inputs
        self.hidden = state_size(self.structure, variables, config.hidden, season)
        learn = ["damping", "offset"] if config.damped else []
        learn += ["drive"] if inputs else []
        learn += ["mean", "covariance"] if config.start == "learned" else []
        full = config.noise == "full"
        self.rules: Rules = rules_for(self.structure, variables, season, learn, config.fixed, full)
        rank = self.hidden if self.rules.shape is None else self.rules.shape.shape[1]
        nothing = torch.zeros(self.hidden, self.hidden, dtype=torch.float64)
        self.system = System(
            transition=nothing,
            process=nothing[:, :rank],
            emission=nothing.new_zeros(variables, self.hidden),
            offset=nothing.new_zeros(variables),
            observation=torch.eye(variables, dtype=torch.float64),
            mean=nothing[0],
            factor=nothing,
            drive=nothing.new_zeros(self.hidden, inputs) if inputs else None,
        )
        # Of EM's last round: log p before it, the gain of the one before, how much farther the next will try to go.
        self.rounds = torch.tensor([-torch.inf, torch.inf, 1.0], dtype=torch.float64)

    # --- learning ----------------------------------------------------------------------------------------------------

    def begin(self, data: Data, resume: bool = False) -> None:
        """Take the first guess that the data suggests, or, to resume from a checkpoint, the floors of it alone."""
        if not resume:
            check_data(data, self.rules, self.inputs)
        config = self.config
        guess, self.rules = first_guess(self.structure, config.hidden, self.season, config.damped, data, self.rules)
        self.system = self.system if resume else guess

    def estimates(self, data: Data, step: int = 0) -> Iterator[Estimate]:
        """Rounds of EM from round `step` on, for `estimate`: the model changes in place, and every so often it is kept.

        A round's loss is that of the model it began with: −log p of a value observed, in nats.
        """
        self.begin(data, resume=step > 0)
        plan, count = self.config, int(data.mask.sum())
        if plan.rounds == 0:
            yield Estimate(0, 0, self, {})
        rounds = expectation_maximisation(self.system, data, self.rules, float(self.rounds[2]))
        while step < plan.rounds and float(self.rounds[1]) >= plan.tolerance * count:
            last = next(rounds)
            step, self.system = step + 1, last.system
            gain = last.log_likelihood - float(self.rounds[0])
            self.rounds = torch.tensor([last.log_likelihood, gain, last.stretch], dtype=torch.float64)
            over = step == plan.rounds or gain < plan.tolerance * count
            kept = self if over or step % plan.save_every == 0 else None
            loss = -last.log_likelihood / count
            yield Estimate(step, plan.rounds, kept, {"loss": loss}, count, "values", "nats per value")

    # --- inferring ---------------------------------------------------------------------------------------------------

    def filter(self, values: Tensor, mask: Tensor | None = None, inputs: Tensor | None = None) -> Filtered:
        """h_t given y_1 … y_t, for values (B, T, C). NaN is missing, and so is what `mask` does not mark."""
        return kalman_filter(self.system, *self._observed(values, mask), self._given(inputs, values))

    def smooth(self, values: Tensor, mask: Tensor | None = None, inputs: Tensor | None = None) -> SmoothedStates:
        """h_t given all of y_1 … y_T."""
        return kalman_smoother(self.system, self.filter(values, mask, inputs))

    def score(self, values: Tensor, mask: Tensor | None = None, inputs: Tensor | None = None) -> Tensor:
        """log p(y_t | y_1 … y_{t-1}) of what was observed at each step (B, T); 0 where nothing was."""
        return self.filter(values, mask, inputs).log_densities

    def emitted(self, means: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
        """What states (…, H) look like without noise: means (…, C) and covariances (…, C, C)."""
        seen = self.system.emission @ factors
        return means @ self.system.emission.mT + self.system.offset, seen @ seen.mT

    # --- forecasting -------------------------------------------------------------------------------------------------

    def start(self, rows: int = 1) -> Tree:
        """What is believed before anything was observed."""
        mean, factor = self.system.mean, self.system.factor
        return {"mean": mean.expand(rows, -1), "factor": factor.expand(rows, -1, -1)}

    def step(self, values: Tensor, state: Tree, mask: Tensor | None = None, inputs: Tensor | None = None) -> FutureStep:
        """Read values (B, T, C); what comes after them. `inputs` (B, T, X) are those of the steps after each."""
        values, mask = self._observed(values, mask)
        driven = self._given(inputs, values)
        before = None if driven is None else torch.cat([driven[:, :1], driven[:, :-1]], dim=1)  # the first is not used
        read = kalman_filter(self.system, values, mask, before, Belief(state["mean"], state["factor"]))
        belief = read.last.predict(self.system, None if driven is None else driven[:, -1])
        mean, covariance = belief.emit(self.system)
        return FutureStep(mean, {"mean": belief.mean, "factor": belief.factor}, covariance=covariance)

    def exact_forecast(
        self,
        values: Tensor,
        mask: Tensor | None,
        horizon: int,
        inputs: Tensor | None = None,
        future: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Means (B, horizon, C) and covariances (B, horizon, C, C) of what follows; `future` are its inputs."""
        if horizon < 1:
            raise UsageError(f"A forecast needs a horizon of at least 1 step, got {horizon}.")
        belief = self.filter(values, mask, inputs).last
        driven = self._given(future, values, horizon)
        means, covariances = [], []
        for ahead in range(horizon):
            belief = belief.predict(self.system, None if driven is None else driven[:, ahead])
            mean, covariance = belief.emit(self.system)
            means.append(mean)
            covariances.append(covariance)
        return torch.stack(means, dim=1), torch.stack(covariances, dim=1)

    def _observed(self, values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        values = values.to(self.device, torch.float64)
        if values.dim() != 3 or values.shape[2] != self.variables or values.shape[1] < 1:
            raise UsageError(
                f"The model reads values (sequences, steps, {self.variables}), with at least one step; "
                f"got {tuple(values.shape)}."
            )
        there = ~values.isnan()
        return values, there if mask is None else there & mask.to(self.device)

    def _given(self, inputs: Tensor | None, values: Tensor, steps: int | None = None) -> Tensor | None:
        if not self.inputs:
            return None
        wanted = (values.shape[0], steps or values.shape[1], self.inputs)
        if inputs is None or tuple(inputs.shape) != wanted or not bool(torch.isfinite(inputs).all()):
            got = "none" if inputs is None else f"{tuple(inputs.shape)}" + " with gaps" * bool(inputs.isnan().any())
            raise UsageError(f"The model is driven by inputs: give all of them, {wanted}, without a gap; got {got}.")
        return inputs.to(self.device, torch.float64)

    # --- keeping -----------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        parts = {name: part for name, part in vars(self.system).items() if part is not None}
        copies = {name: part.clone(memory_format=torch.contiguous_format) for name, part in parts.items()}
        return {**copies, "rounds": self.rounds}

    def assign(self, tensors: Mapping[str, Tensor]) -> None:
        parts = dict(tensors)
        self.rounds = parts.pop("rounds")
        self.system = System(**parts)
