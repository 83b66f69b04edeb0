"""Tracking with the Kalman filter and smoother from observations with noise and gaps.

The filter estimates positions from past observations, and the smoother also uses later observations. If the true
positions are known, the evaluation measures the errors of the filter, the smoother and the observations.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import torch
from torch import Tensor

from seqloom.classical.kalman import KalmanConfig, LinearDynamical
from seqloom.config import Discriminator, config
from seqloom.core.protocols import Estimate
from seqloom.data.corpora import CorpusConfig
from seqloom.data.corpus import Corpus
from seqloom.data.series import Values
from seqloom.data.vectors import Track
from seqloom.tasks.base import Task as BaseTask
from seqloom.tasks.base import TaskInfo, TaskRecipe, count_parameters
from seqloom.train.estimate import EstimateConfig

CONFIDENCE = 0.95  # probability that an ellipse contains the true position


@config
class Recipe(TaskRecipe):
    task: Literal["track"] = "track"
    data: CorpusConfig[Track]
    model: Annotated[KalmanConfig, Discriminator("kind")] = KalmanConfig(structure="constant-velocity")
    train: EstimateConfig = EstimateConfig()


class Task(BaseTask[Recipe, LinearDynamical]):
    corpus: Corpus[Track]
    reads_tokens = False

    def sizes(self) -> dict[str, int]:
        return {"variables": 2}

    def scale(self) -> tuple[int, str]:
        return count_parameters(self.model().state_dict())

    def estimates(self, model: LinearDynamical | None, step: int) -> Iterator[Estimate]:
        tracks = self.corpus.split("train")
        tensors = [(torch.from_numpy(track.observed), torch.from_numpy(track.mask)) for track in tracks]
        yield from self.recipe.model.estimates(tensors, 1, model, step, self.recipe.seed)

    def evaluate(self, model: LinearDynamical, split: str) -> dict[str, float]:
        return measure_tracks(model, self.corpus.split(split))


def measure_tracks(model: LinearDynamical, tracks: Sequence[Track]) -> dict[str, float]:
    """Compute the metrics of tracks. Errors are root-mean-square distances in the units of the tracks.

    rmse_…    errors at observed steps: of observations, filter and smoother
    gap_…     errors at steps without an observation
    within_…  the fraction of true positions inside the 95 % ellipse
    next_…    errors of predicting the next observation: by the model, and by the last observation
    """
    values, truth = pad_tracks([track.observed for track in tracks]), pad_tracks([track.truth for track in tracks])
    mask, is_known = ~values.isnan(), ~truth.isnan().any(dim=2)
    filtered, smoothed = model.filter(values), model.smooth(values)
    is_observed, is_gap = mask.all(dim=2), ~mask.any(dim=2) & is_known
    metrics = {"loss": -float(filtered.log_likelihood.sum()) / int(mask.sum())}
    metrics["rmse_observed"] = root_mean_square(values - truth, is_observed)
    positions = {
        "filtered": model.emission_moments(filtered.means, filtered.factors),
        "smoothed": model.emission_moments(smoothed.means, smoothed.factors),
    }
    errors = {name: means - truth for name, (means, _) in positions.items()}
    metrics |= {f"rmse_{name}": root_mean_square(error, is_observed) for name, error in errors.items()}
    if bool(is_gap.any()):
        metrics |= {f"gap_{name}": root_mean_square(error, is_gap) for name, error in errors.items()}
    for name, error in errors.items():
        metrics[f"within_{name}"] = float(is_inside_ellipse(error, positions[name][1])[is_known].double().mean())
    # The naive prediction for a complete observation is the previous complete observation.
    ahead = filtered.expected_means @ model.system.emission.mT + model.system.offset
    steps = torch.arange(values.shape[1]).expand_as(is_observed)
    last = torch.where(is_observed, steps, -1).cummax(dim=1).values[:, :-1]  # (B, T − 1): steps
    naive = values.gather(1, last.clamp_min(0)[..., None].expand(-1, -1, values.shape[2]))
    expected = is_observed[:, 1:] & (last >= 0)
    if bool(expected.any()):
        metrics["next_rmse"] = root_mean_square((ahead - values)[:, 1:], expected)
        metrics["next_naive"] = root_mean_square(naive - values[:, 1:], expected)
    return metrics


def is_inside_ellipse(errors: Tensor, covariances: Tensor) -> Tensor:
    """Return which errors (…, 2) are inside the 95 % ellipse of a Gaussian (squared Mahalanobis distance < 5.99)."""
    distance = (errors[..., None, :] @ torch.linalg.pinv(covariances, hermitian=True) @ errors[..., None]).flatten(-3)
    return distance.squeeze(-1) <= -2 * torch.log(torch.tensor(1 - CONFIDENCE, dtype=errors.dtype))


def root_mean_square(errors: Tensor, chosen: Tensor) -> float:
    """Return the root mean square length of the chosen errors (B, T, C)."""
    return float(errors[chosen].square().sum(dim=1).mean().sqrt())


def pad_tracks(arrays: Sequence[Values]) -> Tensor:
    """Stack sequences of different lengths (B, T, C), padded with NaN."""
    return torch.nn.utils.rnn.pad_sequence([torch.from_numpy(array) for array in arrays], True, torch.nan)


INFO = TaskInfo(
    name="track",
    recipe=Recipe,
    task=Task,
    loss_per="value",
    examples="tracks",
    metric="rmse_smoothed",
)
