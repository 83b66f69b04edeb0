"""Following something that moves, from observations with noise and gaps: the Kalman filter and smoother on tracks.

Filtering says where it is, from what was observed until now; smoothing where it was, from what was observed later too.
Where the truth is known, both can be measured against it, beside what the observations themselves are worth.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from seqloom.classical.kalman.linear_dynamical import KalmanConfig, LinearDynamical
from seqloom.config import Discriminator, config
from seqloom.core.protocols import Estimate
from seqloom.data.corpora import CorpusConfig
from seqloom.data.corpus import Corpus
from seqloom.data.vectors import Track
from seqloom.tasks.base import Task as BaseTask
from seqloom.tasks.base import TaskInfo, TaskRecipe
from seqloom.train.estimate import EstimateConfig

CONFIDENCE = 0.95  # that the truth lies within an ellipse


@config
class Recipe(TaskRecipe):
    task: Literal["track"] = "track"
    data: CorpusConfig[Track]
    model: Annotated[KalmanConfig, Discriminator("kind")] = KalmanConfig(structure="constant-velocity")
    train: EstimateConfig = EstimateConfig()


class Task(BaseTask):
    recipe: Recipe
    corpus: Corpus[Track]

    def loss_unit(self) -> str:
        return "nats per value"

    def sizes(self) -> dict[str, int]:
        return {"variables": 2}

    def scale(self) -> tuple[int, str]:
        """Numbers of the model, and where it is estimated."""
        return sum(tensor.numel() for tensor in self.model().state_dict().values()), "cpu"

    def estimates(self, model: Any, step: int) -> Iterator[Estimate]:
        tracks = [(torch.from_numpy(one.observed), torch.from_numpy(one.mask)) for one in self.corpus.split("train")]
        yield from self.recipe.model.estimates(tracks, 1, model, step, self.recipe.seed)

    def evaluate(self, model: LinearDynamical, split: str) -> dict[str, float]:
        return measured(model, self.corpus.split(split))


def measured(model: LinearDynamical, tracks: Any) -> dict[str, float]:
    """Errors are root mean squares of distances, in the units of the tracks.

    rmse_…    of the steps that were observed: of the observations themselves, filtered, smoothed
    gap_…     of the steps of which nothing was observed
    within_…  the share of true places inside the ellipse that is to hold 95 %
    next_…    how far the next observation was from what was expected: by the model, and by the last one seen
    """
    values, truth = batched([one.observed for one in tracks]), batched([one.truth for one in tracks])
    mask, there = ~values.isnan(), ~truth.isnan().any(dim=2)
    filtered = model.filter(values)
    smoothed = model.smooth(values)
    whole, gone = mask.all(dim=2), ~mask.any(dim=2) & there
    found = {"loss": -float(filtered.log_likelihood.sum()) / int(mask.sum())}
    found["rmse_observed"] = _rms(values - truth, whole)
    parts = {"filtered": (filtered.means, filtered.factors), "smoothed": (smoothed.means, smoothed.factors)}
    seen = {name: model.emitted(means, factors) for name, (means, factors) in parts.items()}
    errors = {name: places - truth for name, (places, _) in seen.items()}
    found |= {f"rmse_{name}": _rms(error, whole) for name, error in errors.items()}
    if bool(gone.any()):
        found |= {f"gap_{name}": _rms(error, gone) for name, error in errors.items()}
    for name, error in errors.items():
        found[f"within_{name}"] = float(within(error, seen[name][1])[there].double().mean())
    return found | _expected(model, filtered.expected_means, values, whole)


def within(errors: Tensor, covariances: Tensor) -> Tensor:
    """Which errors (…, 2) lie inside the ellipse of a Gaussian that holds 95 % of it: Mahalanobis' distance² < 5.99."""
    distance = (errors[..., None, :] @ torch.linalg.pinv(covariances, hermitian=True) @ errors[..., None]).flatten(-3)
    return distance.squeeze(-1) <= -2 * torch.log(torch.tensor(1 - CONFIDENCE, dtype=errors.dtype))


def _expected(model: LinearDynamical, means: Tensor, values: Tensor, whole: Tensor) -> dict[str, float]:
    """Of every whole observation after the first: that of the last whole one is the naive guess."""
    ahead = means @ model.system.emission.mT + model.system.offset
    places = torch.arange(values.shape[1]).expand_as(whole)
    last = torch.where(whole, places, -1).cummax(dim=1).values[:, :-1]  # (B, T − 1): where the last one stands
    naive = values.gather(1, last.clamp_min(0)[..., None].expand(-1, -1, values.shape[2]))
    asked = whole[:, 1:] & (last >= 0)
    if not bool(asked.any()):
        return {}
    return {"next_rmse": _rms((ahead - values)[:, 1:], asked), "next_naive": _rms(naive - values[:, 1:], asked)}


def _rms(errors: Tensor, chosen: Tensor) -> float:
    return float(errors[chosen].square().sum(dim=1).mean().sqrt())


def batched(arrays: list[Any]) -> Tensor:
    """Sequences of any lengths (B, T, C), NaN after the end of the shorter ones."""
    return torch.nn.utils.rnn.pad_sequence([torch.from_numpy(one) for one in arrays], True, torch.nan)


INFO = TaskInfo(
    name="track",
    recipe=Recipe,
    task=Task,
    loss_per="value",
    examples="tracks",
    metric="rmse_smoothed",
)
