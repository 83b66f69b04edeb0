"""Sounds that consist of several recordings with pauses between them."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from seqloom.core.device import derive_seed
from seqloom.data.sound import Sound
from seqloom.data.sound_files import Samples

PAUSE = (0.02, 0.30)  # minimum and maximum length in seconds of a pause between two recordings
MARGIN = (0.0, 0.15)  # minimum and maximum length of a pause at the start and the end
BACKGROUND = 0.02  # standard deviation of the noise in pauses, relative to the loudness of the recordings


@dataclass(frozen=True, eq=False)
class JoinedSound(Sound):
    """Recordings with pauses of random length between them, before them and after them. Pauses contain quiet noise."""

    name: str
    parts: tuple[Sound, ...]  # recordings with the same rate
    seed: int

    @property
    def rate(self) -> int:  # type: ignore[override]
        return self.parts[0].rate

    @cached_property
    def pauses(self) -> list[float]:
        """The lengths of the pauses in seconds: before, between and after the recordings."""
        draws = np.random.default_rng(derive_seed(self.seed, self.name))
        margins = draws.uniform(*MARGIN, 2)
        return [margins[0], *draws.uniform(*PAUSE, len(self.parts) - 1), margins[1]]

    def read(self) -> Samples:
        recordings = [part.read() for part in self.parts]
        loudness = float(np.sqrt(np.mean(np.concatenate(recordings) ** 2)))
        draws = np.random.default_rng(derive_seed(self.seed, self.name, "noise"))
        pieces: list[Samples] = []
        for pause, recording in zip(self.pauses, [*recordings, np.zeros(0, dtype=np.float32)], strict=True):
            noise = draws.normal(0, BACKGROUND * loudness, round(pause * self.rate))
            pieces += [noise.astype(np.float32), recording]
        return np.concatenate(pieces)

    def starts(self) -> list[float]:
        """Return the start of each recording in seconds."""
        position, starts = 0.0, []
        for pause, part in zip(self.pauses, self.parts, strict=False):
            position += pause
            starts.append(position)
            position += len(part.read()) / self.rate
        return starts
