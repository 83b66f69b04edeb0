"""The calibration of a run: a temperature, and the thresholds of its labels."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from seqloom.core import Json
from seqloom.core.errors import CheckpointError
from seqloom.core.files import parse_json, read_checksum, sha256, to_json, write_atomic
from seqloom.runs.layout import CALIBRATION_FILE, WEIGHTS_FILE, is_missing, read_run_file

if TYPE_CHECKING:
    from seqloom.runs.run import Run


@dataclass(frozen=True)
class RunCalibration:
    """The temperature and thresholds that `seqloom calibrate` chose on dev.

    `weights` is the checksum of the weights.
    """

    temperature: float
    examples: int  # number of dev examples
    weights: str
    # Thresholds by label; None means that the label is never predicted
    thresholds: Mapping[str, float | None] = field(default_factory=dict)
    criterion: str = ""  # how the thresholds were chosen: "f1" or, for example, "precision 0.95"

    def save(self, run: "Run") -> None:
        content: dict[str, Json] = asdict(self)
        write_atomic(run.path / CALIBRATION_FILE, to_json({**content, "sha256": _digest(content)}))


def load_calibration(run: "Run") -> tuple[RunCalibration | None, str]:
    """Return the calibration of the current weights of a run, or None, and a note if the calibration is outdated."""
    path = run.path / CALIBRATION_FILE
    if is_missing(path):
        return None, ""
    try:
        content = parse_json(read_run_file(run.path, CALIBRATION_FILE))
        digest = content.pop("sha256")
        if digest != _digest(content):
            raise ValueError
        calibration = RunCalibration(**content)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(
            f"{path} is damaged: it does not match its checksum. Remove it, then run `seqloom calibrate {run.path}`."
        ) from None
    if calibration.weights == read_checksum(run.path / WEIGHTS_FILE):
        return calibration, ""
    return None, f"{run.path} was trained after it was calibrated: its calibration is ignored. Calibrate it again"


def _digest(content: Mapping[str, Json]) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode())
