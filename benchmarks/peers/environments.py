"""A separate environment for each peer under .venv-peers/, which is created on first use.

torch is installed first, in the version that seqloom uses, so that other packages do not install another version.
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from peers.turns import Failed

ROOT = Path(__file__).resolve().parents[2] / ".venv-peers"
TORCH = "2.13.0"


@dataclass(frozen=True)
class Peer:
    name: str  # name of the environment
    packages: Sequence[str]
    proof: str  # a module whose import shows that the installation works

    @property
    def python(self) -> Path:
        return ROOT / self.name / "bin" / "python"


HUGGING_FACE = Peer("huggingface", ("transformers==5.22.2", "accelerate==1.15.0"), "transformers")
JOEY = Peer(
    "joeynmt", ("joeynmt==2.3.0", "importlib_metadata"), "joeynmt.training"
)  # joeynmt does not list the last package in its requirements
CTRANSLATE2 = Peer("ctranslate2", ("ctranslate2==4.8.4",), "ctranslate2")


def prepare_environment(peer: Peer, torch: bool = True) -> Path:
    """Return the Python of a peer's environment. Raise `Failed` if the environment cannot be installed."""
    if not _imports(peer):
        start = time.perf_counter()
        print(f"Installing {', '.join(peer.packages)} into .venv-peers/{peer.name} …", flush=True)
        _run([sys.executable, "-m", "venv", "--clear", str(ROOT / peer.name)], peer)
        for selected in ([f"torch=={TORCH}"] if torch else [], list(peer.packages)):
            if selected:
                _run([str(peer.python), "-m", "pip", "install", "-q", *selected], peer)
        if not _imports(peer):
            raise Failed(f"{peer.name} is installed but does not import")
        print(f"  done in {time.perf_counter() - start:.0f} s", flush=True)
    return peer.python


def _imports(peer: Peer) -> bool:
    results = peer.python.exists() and subprocess.run(
        [str(peer.python), "-c", f"import {peer.proof}"], capture_output=True, check=False
    )
    return bool(results) and results.returncode == 0


def _run(command: list[str], peer: Peer) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        errors = [line for line in result.stderr.splitlines() if line.lower().startswith("error")]
        raise Failed(
            f"{peer.name} does not install: {(errors or result.stderr.splitlines() or ['unknown reason'])[-1]}"
        )
