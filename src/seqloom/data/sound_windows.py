"""Windows of long recordings, which may be longer than memory.

A recording that is longer than a window is cut at its quietest moments. Neighbouring windows overlap by `OVERLAP`
seconds on each side of a cut, so that a word near the cut is read as a whole. Each window keeps only the words of its
own side.
"""

from collections.abc import Iterator

import numpy as np

from seqloom.core.errors import DataError
from seqloom.data.sound import SampledSound
from seqloom.data.sound_files import Samples, SoundReader

OVERLAP = 0.5  # seconds on each side of a cut that both windows read
SEARCHED = 0.5  # a cut lies in this last fraction of a window
QUIET_SECONDS = 0.1  # length of the part whose energy is compared


def read_windows(reader: SoundReader, seconds: float) -> Iterator[SampledSound]:
    """Yield a recording in windows of at most about `seconds`; a short recording is yielded as a whole.

    Only one window is in memory. Raise `DataError` if the recording has no samples.
    """
    rate, size = reader.rate, int(seconds * reader.rate)
    overlap = int(OVERLAP * rate)
    pending, first, cut = (
        np.zeros(0, dtype=np.float32),
        0,
        0,
    )  # `pending` starts at sample `first`; `cut` is the last cut
    for block in reader.blocks(min(seconds, 10.0)):
        pending = np.concatenate([pending, block])
        while first + len(pending) - cut > size + overlap:
            end = cut + find_cut(pending[cut - first : cut - first + size], rate)
            yield make_window(reader, pending[: end + overlap - first], first, cut, end)
            start = max(0, end - overlap)
            pending, first, cut = pending[start - first :], start, end
    if not first + len(pending):
        raise DataError(f"{reader.name} must contain sound, but it has zero samples.")
    if first + len(pending) > cut:
        yield make_window(reader, pending, first, cut, None)


def make_window(reader: SoundReader, samples: Samples, first: int, cut: int, end: int | None) -> SampledSound:
    """Return a window that starts at sample `first` and keeps the words from `cut` to `end`."""
    if first == cut == 0 and end is None:
        return SampledSound(reader.name, samples, reader.rate)
    last = first + len(samples) if end is None else end
    part = cut / reader.rate, last / reader.rate
    return SampledSound(reader.name, samples.copy(), reader.rate, first / reader.rate, part)


def find_cut(samples: Samples, rate: int) -> int:
    """Return the middle of the quietest part of the last half of a window."""
    width = min(max(1, int(QUIET_SECONDS * rate)), len(samples) // 2)
    searched = samples[int((1 - SEARCHED) * len(samples)) :].astype(np.float64)
    sums = np.concatenate([[0.0], np.cumsum(searched**2)])
    quietest = int(np.argmin(sums[width:] - sums[: len(sums) - width]))
    return len(samples) - len(searched) + quietest + width // 2
