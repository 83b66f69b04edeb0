"""The linear dynamical system: a hidden state with linear dynamics, linear observations and Gaussian noise.

    h_t = W_hh h_{t-1} + W_hx x_t + ε        y_t = W_yh h_t + d + δ

The state is defined by a named structure (`structures`) or learned. `filter` contains the filter and the smoother, and
`em` contains the estimation. All computations use float64 and the units of the data.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal, get_args

import torch
from torch import Tensor

from seqloom.classical.kalman.em import LEARNED, Data, Rules, check_data, expectation_maximization
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
    structure: Structure | None = None  # structure of the state; null: seasonal if the data has a season, else trend
    hidden: PositiveInt = 4  # structure free: size of the state; otherwise it follows from the data
    # structure seasonal: number of steps per season; null: the season of the data
    season: Annotated[int, Ge(2)] | None = None
    damped: bool = False  # level, trend and seasonal: level and slope decay at a rate estimated by EM
    start: Literal["vague", "learned"] = "vague"  # all structures except free: prior of the first state
    noise: Literal["diagonal", "full"] = "diagonal"  # covariance of the observation noise
    fixed: tuple[Parameter, ...] = ()  # parameters that EM does not change
    rounds: NonNegativeInt = 100  # maximum number of EM iterations
    # stop when a round improves the log-likelihood by less, in nats per observed value
    tolerance: NonNegativeFloat = 1e-6
    save_every: PositiveInt = 10  # number of rounds between checkpoints

    def problems(self) -> Iterator[str]:
        if self.season is not None and self.structure not in ("seasonal", None):
            yield f"season applies only to structure seasonal, not to {self.structure}; remove it"
        if self.damped and self.structure in ("free", "constant-velocity"):
            yield f"damped applies only to structures level, trend and seasonal, not to {self.structure}"
        if len(set(self.fixed)) < len(self.fixed):
            yield f"fixed must name each parameter once; got {', '.join(self.fixed)}"

    def build(self, variables: int, season: int = 1, inputs: int = 0) -> "LinearDynamical":
        season = self.season or season
        default: Structure = "seasonal" if season > 1 else "trend"
        return LinearDynamical(replace(self, structure=self.structure or default), variables, season, inputs)

    def estimates(
        self,
        series: Sequence[tuple[Tensor, Tensor]],
        season: int,
        model: "LinearDynamical | None",
        step: int,
        seed: int = 1,
    ) -> Iterator[Estimate]:
        """Run EM on values and masks (T, C), resuming `model` after round `step`; the seed is not used."""
        model = model or self.build(series[0][0].shape[1], season)
        yield from model.estimates(Data.of(series), step)


class LinearDynamical(TensorModel):
    """A linear dynamical system of C observed values; initially it predicts N(0, 1).

    The model remains on the CPU because it performs many small sequential steps in float64.
    """

    memory = None  # reads the complete history
    bounds: Mapping[str, Bounds] = {"rounds": (-torch.inf, torch.inf)}
    cpu_only = True

    def __init__(self, config: KalmanConfig, variables: int, season: int = 1, inputs: int = 0) -> None:
        if config.structure == "seasonal" and season < 2:
            raise UsageError(
                "model.structure=seasonal needs a season of at least 2 steps, and this series has none. Set the "
                "steps per season, for example model.season=12, or use model.structure=trend."
            )
        assert config.structure is not None, "KalmanConfig.build chooses the structure"
        self.structure: Structure = config.structure
        self.config, self.variables, self.season, self.inputs = config, variables, season, inputs
        self.hidden = state_size(self.structure, variables, config.hidden, season)
        learn = ["damping", "offset"] if config.damped else []
        learn += ["drive"] if inputs else []
        learn += ["mean", "covariance"] if config.start == "learned" else []
        full = config.noise == "full"
        self.rules: Rules = rules_for(self.structure, variables, season, learn, config.fixed, full)
        rank = self.hidden if self.rules.shape is None else self.rules.shape.shape[1]
        zeros = torch.zeros(self.hidden, self.hidden, dtype=torch.float64)
        self.system = System(
            transition=zeros,
            process=zeros[:, :rank],
            emission=zeros.new_zeros(variables, self.hidden),
            offset=zeros.new_zeros(variables),
            observation=torch.eye(variables, dtype=torch.float64),
            mean=zeros[0],
            factor=zeros,
            drive=zeros.new_zeros(self.hidden, inputs) if inputs else None,
        )
        # State of EM after a round: log p before the round, gain of the previous round, stretch of the next round.
        self.rounds = torch.tensor([-torch.inf, torch.inf, 1.0], dtype=torch.float64)

    # --- estimation --------------------------------------------------------------------------------------------------

    def begin(self, data: Data, resume: bool = False) -> None:
        """Initialize the system and the variance floors from the data, or only the floors to resume."""
        if not resume:
            check_data(data, self.rules, self.inputs)
        config = self.config
        guess, self.rules = first_guess(self.structure, config.hidden, self.season, config.damped, data, self.rules)
        self.system = self.system if resume else guess

    def estimates(self, data: Data, step: int = 0) -> Iterator[Estimate]:
        """Run EM in place after round `step`; every `save_every` rounds, an `Estimate` contains the model.

        The loss of a round is the loss of the model before the round: −log p per observed value, in nats.
        """
        self.begin(data, resume=step > 0)
        plan, count = self.config, int(data.mask.sum())
        if plan.rounds == 0:
            yield Estimate(0, 0, self, {})
        rounds = expectation_maximization(self.system, data, self.rules, float(self.rounds[2]))
        while step < plan.rounds and float(self.rounds[1]) >= plan.tolerance * count:
            last = next(rounds)
            step, self.system = step + 1, last.system
            gain = last.log_likelihood - float(self.rounds[0])
            self.rounds = torch.tensor([last.log_likelihood, gain, last.stretch], dtype=torch.float64)
            is_done = step == plan.rounds or gain < plan.tolerance * count
            checkpoint = self if is_done or step % plan.save_every == 0 else None
            loss = -last.log_likelihood / count
            yield Estimate(step, plan.rounds, checkpoint, {"loss": loss}, count, "values", "nats per value")

    # --- inference ---------------------------------------------------------------------------------------------------

    def filter(self, values: Tensor, mask: Tensor | None = None, inputs: Tensor | None = None) -> Filtered:
        """Infer h_t given y_1 … y_t from values (B, T, C); NaN and masked-out values count as missing."""
        return kalman_filter(self.system, *self._check_values(values, mask), self._check_inputs(inputs, values))

    def smooth(self, values: Tensor, mask: Tensor | None = None, inputs: Tensor | None = None) -> SmoothedStates:
        """Infer h_t given y_1 … y_T."""
        return kalman_smoother(self.system, self.filter(values, mask, inputs))

    def score(self, values: Tensor, mask: Tensor | None = None, inputs: Tensor | None = None) -> Tensor:
        """Return log p(y_t | y_1 … y_{t-1}) (B, T) of each step's observed values; 0 if no value is observed."""
        return self.filter(values, mask, inputs).log_densities

    def emission_moments(self, means: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
        """Return means (…, C) and covariances (…, C, C) of the noise-free observations of states (…, H)."""
        projected = self.system.emission @ factors
        return means @ self.system.emission.mT + self.system.offset, projected @ projected.mT

    # --- forecasting -------------------------------------------------------------------------------------------------

    def start(self, rows: int = 1) -> Tree:
        """Return the prior of the state."""
        mean, factor = self.system.mean, self.system.factor
        return {"mean": mean.expand(rows, -1), "factor": factor.expand(rows, -1, -1)}

    def step(self, values: Tensor, state: Tree, mask: Tensor | None = None, inputs: Tensor | None = None) -> FutureStep:
        """Predict the step after values (B, T, C); `inputs` (B, T, X) are the inputs of the step after each value."""
        values, mask = self._check_values(values, mask)
        driven = self._check_inputs(inputs, values)
        before = None if driven is None else torch.cat([driven[:, :1], driven[:, :-1]], dim=1)  # the first is not used
        filtered = kalman_filter(self.system, values, mask, before, Belief(state["mean"], state["factor"]))
        belief = filtered.last.predict(self.system, None if driven is None else driven[:, -1])
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
        """Forecast means (B, horizon, C) and covariances (B, horizon, C, C); `future` contains their inputs."""
        if horizon < 1:
            raise UsageError(f"A forecast needs a horizon of at least 1 step; got {horizon}.")
        belief = self.filter(values, mask, inputs).last
        driven = self._check_inputs(future, values, horizon)
        means, covariances = [], []
        for ahead in range(horizon):
            belief = belief.predict(self.system, None if driven is None else driven[:, ahead])
            mean, covariance = belief.emit(self.system)
            means.append(mean)
            covariances.append(covariance)
        return torch.stack(means, dim=1), torch.stack(covariances, dim=1)

    def _check_values(self, values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        values = values.to(self.device, torch.float64)
        if values.dim() != 3 or values.shape[2] != self.variables or values.shape[1] < 1:
            raise UsageError(
                f"Values must have shape (sequences, steps, {self.variables}) with at least one step; "
                f"got {tuple(values.shape)}."
            )
        observed = ~values.isnan()
        return values, observed if mask is None else observed & mask.to(self.device)

    def _check_inputs(self, inputs: Tensor | None, values: Tensor, steps: int | None = None) -> Tensor | None:
        if not self.inputs:
            return None
        shape = (values.shape[0], steps or values.shape[1], self.inputs)
        if inputs is None or tuple(inputs.shape) != shape or not bool(torch.isfinite(inputs).all()):
            got = "none" if inputs is None else f"{tuple(inputs.shape)}" + " with gaps" * bool(inputs.isnan().any())
            raise UsageError(f"The model needs inputs of shape {shape} without gaps; got {got}.")
        return inputs.to(self.device, torch.float64)

    # --- saving and loading ------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        parts = {name: part for name, part in vars(self.system).items() if part is not None}
        copies = {name: part.clone(memory_format=torch.contiguous_format) for name, part in parts.items()}
        return {**copies, "rounds": self.rounds}

    def assign(self, tensors: Mapping[str, Tensor]) -> None:
        parts = dict(tensors)
        self.rounds = parts.pop("rounds")
        self.system = System(**parts)
