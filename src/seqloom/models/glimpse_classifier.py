"""A recurrent classifier of images that reads a sequence of glimpses (recurrent visual attention, Mnih et al. 2014).

    g_t = ReLU(W_g [ReLU(W_ρ ρ(x, l_t) + b_ρ); ReLU(W_l l_t + b_l)] + b_g)      the glimpse network
    h_t = cell(g_t, h_{t-1})                                                    the core; l_1 = 0, the centre
    μ_t = tanh(W_μ h_{t-1} + b_μ)     l_t ~ N(μ_t, σ² I), clipped to [−1, 1]    the location network, a policy π
    p(y) = softmax(W h_T + b)
    b_t = w_b · h_{t-1} + c                                                     the baseline

ρ is the glimpse sensor of `seqloom.nn.glimpses`. A random location has no gradient, so the location network is trained
by REINFORCE (Williams 1992) with the reward R = 1 if the most probable label is correct, and R = 0 otherwise:

    loss = −log p(y) − λ Σ_t (R − b_t) log π(l_t | μ_t) + mean_t (R − b_t)²

The factor R − b_t of the second term is a constant, and the location network and the baseline do not change the core:
only −log p(y) does. The expectation of the gradient of the second term is that of −λ R, because the expectation of
b_t ∇ log π is 0. In evaluation, l_t = μ_t, or p(y) is the mean over `eval_samples` episodes with random locations. The
random numbers of these episodes are the same for every image.
"""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.config import config
from seqloom.config.constraints import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from seqloom.core.device import make_generator
from seqloom.models.classifier import Batch, label_loss
from seqloom.models.image_classifier import AnyImageClassifier, ImageClassifierOptions
from seqloom.nn.cells import CellOptions
from seqloom.nn.glimpses import glimpse, patch_sides
from seqloom.nn.softmax import at_least_float32

EVALUATION_SEED = 1  # seed of the random locations in evaluation


@config
class GlimpseClassifierConfig(CellOptions, ImageClassifierOptions):
    kind: Literal["glimpses"] = "glimpses"
    glimpses: PositiveInt = 6  # T, the number of glimpses
    patch: PositiveInt = 8  # g, the side of the smallest patch in pixels
    scales: PositiveInt = 1  # K, the number of patches of a glimpse
    zoom: PositiveInt = 2  # s, the ratio between the sides of successive patches
    features: PositiveInt = 128  # size of the vectors of the patches and of the location
    hidden: PositiveInt = 256  # size of g_t and of the state
    deviation: PositiveFloat = 0.1  # σ of the locations, whose coordinates are between -1 and 1
    reinforce: NonNegativeFloat = 1.0  # λ, the weight of the loss of the location network
    samples: PositiveInt = 1  # number of episodes with random locations for each training image
    eval_samples: NonNegativeInt = 0  # number of episodes in evaluation; 0: one episode with the mean locations

    loss_remark = "with policy and baseline"

    def build(self, height: int, width: int, channels: int, labels: int) -> "GlimpseClassifier":
        return GlimpseClassifier(self, height, width, channels, labels)


class Episode(NamedTuple):
    """A sequence of T glimpses at each image of a batch."""

    h: Tensor  # (B, T, H)
    locations: Tensor  # (B, T, 2)
    log_policy: Tensor  # (B, T - 1) log π of the locations after the first
    baseline: Tensor  # (B, T - 1)


class GlimpseClassifier(AnyImageClassifier):
    """An image classifier that reads glimpses. A batch contains images (B, H, W, C) as bytes."""

    def __init__(self, config: GlimpseClassifierConfig, height: int, width: int, channels: int, labels: int) -> None:
        super().__init__()
        self.config = config
        self.read_patches = nn.Linear(config.scales * config.patch**2 * channels, config.features)
        self.read_location = nn.Linear(2, config.features)
        self.merge = nn.Linear(2 * config.features, config.hidden)
        self.cell = config.make_cell(config.hidden, config.hidden)
        self.locate = nn.Linear(config.hidden, 2)
        self.baseline = nn.Linear(config.hidden, 1)
        self.output = nn.Linear(config.hidden, labels)
        nn.init.zeros_(self.output.bias)

    def pixel_values(self, images: Tensor) -> Tensor:
        """Map bytes to [0, 1], so that pixels outside the image are black."""
        return (images if images.is_floating_point() else images.to(torch.get_default_dtype())) / 255

    def look(self, x: Tensor, location: Tensor) -> Tensor:
        """Return the vector g_t (B, H) of a glimpse at a location (B, 2)."""
        patches = glimpse(x, location, self.config.patch, self.config.scales, self.config.zoom)
        what, where = F.relu(self.read_patches(patches.flatten(1))), F.relu(self.read_location(location.to(x.dtype)))
        return F.relu(self.merge(torch.cat([what, where], dim=1)))

    def episode(self, x: Tensor, noise: Tensor | None = None) -> Episode:
        """Take T glimpses at images x (B, H, W, C).

        `noise` (B, T - 1, 2) has independent values from N(0, 1). Without noise, the locations are the means.
        """
        location = at_least_float32(x).new_zeros(len(x), 2)
        state, states, locations = self.cell.initial_state(len(x)), [], [location]
        log_policy, baseline = [location.new_zeros(len(x), 0)], [location.new_zeros(len(x), 0)]
        for t in range(self.config.glimpses):
            if t > 0:
                h = state["h"].detach()
                mean = at_least_float32(self.locate(h)).tanh()
                sample = mean if noise is None else mean + self.config.deviation * noise[:, t - 1].to(mean.dtype)
                sample = sample.detach()
                log_policy.append(self.log_density(sample, mean).unsqueeze(1))
                baseline.append(at_least_float32(self.baseline(h)))
                location = sample.clamp(-1, 1)
                locations.append(location)
            state = self.cell(self.look(x, location), state)
            states.append(state["h"])
        stacked = torch.stack(states, dim=1), torch.stack(locations, dim=1)
        return Episode(*stacked, torch.cat(log_policy, dim=1), torch.cat(baseline, dim=1))

    def log_density(self, sample: Tensor, mean: Tensor) -> Tensor:
        """Return log π (B,) of locations (B, 2) without its constant."""
        return -((sample - mean) ** 2).sum(dim=1) / (2 * self.config.deviation**2)

    def logits(self, x: Tensor) -> Tensor:
        """Compute the logits (B, L) of images x (B, H, W, C), from random locations if `eval_samples` is not 0."""
        if self.config.eval_samples == 0:
            return self.output(self.episode(x).h[:, -1])
        generator, log_probs = make_generator(EVALUATION_SEED, "glimpses"), []
        for noise in torch.randn(self.config.eval_samples, self.config.glimpses - 1, 2, generator=generator):
            logits = self.output(self.episode(x, noise.to(x.device).expand(len(x), -1, -1)).h[:, -1])
            log_probs.append(at_least_float32(logits).log_softmax(dim=1))
        return torch.stack(log_probs).logsumexp(dim=0)

    def loss(
        self,
        batch: Batch,
        class_weights: Tensor | None = None,
        label_smoothing: float = 0.0,
        consistency: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        """Return the mean loss of episodes with random locations, and the number of images."""
        episodes = self.config.samples
        labels = batch["labels"].repeat_interleave(episodes)
        x = self.pixel_values(batch["images"]).repeat_interleave(episodes, dim=0)
        episode = self.episode(x, torch.randn(len(x), self.config.glimpses - 1, 2, device=x.device))
        logits = self.output(episode.h[:, -1])
        value, count = label_loss(logits, labels, class_weights, label_smoothing)
        reward = (logits.argmax(dim=1) == labels).to(episode.baseline.dtype).unsqueeze(1)  # (B, 1)
        advantage = reward - episode.baseline  # (B, T - 1)
        policy = -(advantage.detach() * episode.log_policy).sum(dim=1).mean()
        square = (advantage**2).sum() / max(1, advantage.numel())
        return value + self.config.reinforce * policy + square, count // episodes

    @torch.no_grad()
    def glimpse_path(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean locations (B, T, 2), and p (B, T, L) if the model stopped after each glimpse."""
        episode = self.episode(self.pixel_values(images))
        return episode.locations, at_least_float32(self.output(episode.h)).softmax(dim=2)

    def patch_sides(self) -> list[int]:
        return patch_sides(self.config.patch, self.config.scales, self.config.zoom)
