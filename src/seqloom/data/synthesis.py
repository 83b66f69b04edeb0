"""Synthetic speech by espeak-ng, with the times of its phonemes.

The package espeakng-loader contains the library espeak-ng and its voices. espeak-ng is under the GPL (version 3 or
later), so seqloom neither contains nor requires the package: the extra `speech` installs it. The library runs in a
separate process, `espeak_process.py`. A sound depends only on the text, the voice and the version of espeak-ng.
"""

import atexit
import json
import subprocess
import sys
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from seqloom.core.errors import DataError, ResourceError
from seqloom.data.sound_files import Samples

PROGRAM = Path(__file__).with_name("espeak_process.py")
RATE, VOLUME, PITCH, RANGE = 1, 2, 3, 4  # numbers of parameters of espeak-ng
FULL_VOLUME = 90


@dataclass(frozen=True, order=True)
class Voice:
    """A voice of espeak-ng: a language, a variant such as f2, and how the voice speaks."""

    language: str  # such as en-us or fr
    variant: str = ""  # "" for the default voice of the language
    words_per_minute: int = 175
    pitch: int = 50  # between 0 and 99
    pitch_range: int = 50  # between 0 (monotonous) and 99

    @property
    def name(self) -> str:
        """The language and the variant, which identify the speaker."""
        return f"{self.language}+{self.variant}" if self.variant else self.language


class TimedPhoneme(NamedTuple):
    """A phoneme in the notation of espeak-ng, and its start in seconds. Names that start with "_" are pauses."""

    name: str
    start: float


class Utterance(NamedTuple):
    """A synthesized sound."""

    samples: Samples
    rate: int
    phonemes: tuple[TimedPhoneme, ...]


class Synthesizer:
    """A process that speaks one text at a time."""

    def __init__(self) -> None:
        try:
            import espeakng_loader
        except ImportError:
            raise ResourceError("Synthetic speech needs espeak-ng: pip install 'seqloom[speech]'.") from None
        paths = espeakng_loader.get_library_path(), espeakng_loader.get_data_path()
        command = [sys.executable, "-I", "-S", str(PROGRAM), *paths]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        atexit.register(self.close)
        self._lock = threading.Lock()
        about = self._read()
        self.rate, self.version = int(about["rate"]), str(about["version"])
        if self.rate <= 0:
            raise ResourceError("espeak-ng cannot read its voices: pip install --force-reinstall espeakng-loader.")

    def close(self) -> None:
        """End the process."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process.wait()

    def _read(self) -> dict:
        """Read the description at the start of a response."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ResourceError(
                "espeak-ng ended unexpectedly. Install it again: pip install --force-reinstall espeakng-loader."
            )
        description: dict[str, object] = json.loads(line)
        return description

    def speak(self, text: str, voice: Voice) -> Utterance:
        """Synthesize a text."""
        parameters = {RATE: voice.words_per_minute, VOLUME: FULL_VOLUME, PITCH: voice.pitch, RANGE: voice.pitch_range}
        request = {"text": text.replace("\0", " "), "voice": voice.name, "parameters": parameters}
        with self._lock:
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            description = self._read()
            if "error" in description:
                raise DataError(f"The text {text!r} cannot be spoken: {description['error']}.")
            content = self._process.stdout.read(description["bytes"])
        samples = (np.frombuffer(content, dtype="<i2") / 32768).astype(np.float32)
        phonemes = tuple(TimedPhoneme(name, start / 1000) for name, start in description["phonemes"])
        return Utterance(samples, self.rate, phonemes)


@cache
def synthesizer() -> Synthesizer:
    """Return the process, which is started once."""
    return Synthesizer()


def speak(text: str, voice: Voice) -> Utterance:
    """Synthesize a text with a voice."""
    return synthesizer().speak(text, voice)
