"""Predictors with calibrated probabilities, which may abstain from a prediction."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from seqloom.core.errors import UsageError
from seqloom.core.files import read_checksum
from seqloom.evaluate.classification import calibrate
from seqloom.evaluate.confidence import fit_temperature, label_thresholds, rescale, selective_metrics
from seqloom.evaluate.intervals import Values
from seqloom.predict.base import P, SplitPredictor
from seqloom.runs.calibration import RunCalibration, load_calibration
from seqloom.runs.layout import CALIBRATION_FILE, WEIGHTS_FILE
from seqloom.tasks.reading_base import UNSEEN

MIN_EXAMPLES = 10  # minimum dev examples; fewer examples do not determine a temperature reliably


class CalibratedPredictor(SplitPredictor[P]):
    """A predictor that returns calibrated probabilities if the run is calibrated."""

    # The model abstains below this probability; None: use the thresholds of the run, if any
    min_probability: float | None = None
    default_threshold: ClassVar[float] = 0.0  # threshold of labels without a threshold in the run

    @cached_property
    def _calibration(self) -> tuple[RunCalibration | None, str]:
        return load_calibration(self.run)

    @property
    def calibration(self) -> RunCalibration | None:
        """The calibration of the run, or None."""
        return self._calibration[0]

    @property
    def calibration_notes(self) -> list[str]:
        """A note if the calibration of the run is not up to date."""
        return [self._calibration[1]] if self._calibration[1] else []

    @cached_property
    def model(self) -> Any:
        model = super().model
        model.temperature = 1.0 if self.calibration is None else self.calibration.temperature
        return model

    @property
    def choices(self) -> Sequence[str]:
        """The labels that can have a threshold."""
        return ()

    def targets(self, split: str) -> Sequence[int]:
        """Return the index of each example's correct label or option, or UNSEEN if train does not contain it."""
        raise NotImplementedError

    def log_probs(self, split: str) -> tuple[Values, NDArray[np.int64]]:
        """Return log p (N, K) and the targets (N,) of a split."""
        rows = [np.asarray(row, dtype=float) for row in self.outputs(split)]
        padded = np.full((len(rows), max(map(len, rows))), -np.inf)
        for row, values in zip(padded, rows, strict=True):
            row[: len(values)] = values
        return padded, np.asarray(self.targets(split))

    def threshold(self, label: str | None = None) -> float:
        """Return the probability below which the model abstains from predicting a label."""
        if self.min_probability is not None:
            return self.min_probability
        thresholds = {} if self.calibration is None else self.calibration.thresholds
        value = thresholds.get(label or "", self.default_threshold)
        return math.inf if value is None else value

    def calibrate(self, *, f1: bool = False, precision: float | None = None) -> RunCalibration:
        """Fit the temperature on dev and store it in the run; later predictions use it.

        With `f1` or a target `precision`, also choose a threshold for each label. Below the threshold, the model
        abstains.
        """
        log_probs, targets = self.log_probs("dev")
        is_known = targets != UNSEEN
        self.check_calibration_examples(int(is_known.sum()))
        raw = rescale(log_probs, 1 / self.model.temperature)
        temperature = fit_temperature(raw[is_known], targets[is_known]) or 1.0
        thresholds: dict[str, float | None] = {}
        if f1 or precision is not None:
            if not self.choices:
                raise UsageError(f"{self.name} is {self.description}: only labels can have thresholds.")
            chosen = label_thresholds(np.exp(rescale(raw, temperature)), targets.tolist(), precision)
            thresholds = dict(zip(self.choices, chosen, strict=True))
        return self.store_calibration(temperature, int(is_known.sum()), thresholds, precision, f1=f1)

    def check_calibration_examples(self, count: int) -> None:
        if count < MIN_EXAMPLES:
            raise UsageError(f"Calibration needs at least {MIN_EXAMPLES} dev examples; got {count}.")

    def store_calibration(
        self,
        temperature: float,
        examples: int,
        thresholds: Mapping[str, float | None],
        precision: float | None,
        *,
        f1: bool,
    ) -> RunCalibration:
        """Write a calibration of the current weights to the run and use it."""
        criterion = f"precision {precision:g}" if precision is not None else "f1" if f1 else ""
        weights = read_checksum(self.run.path / WEIGHTS_FILE)
        calibration = RunCalibration(temperature, examples, weights, thresholds, criterion)
        with self.run.locked():
            calibration.save(self.run)
        self._apply(calibration)
        return calibration

    def remove_calibration(self) -> None:
        """Remove the calibration from the run. Later predictions return uncalibrated probabilities."""
        with self.run.locked(), suppress(FileNotFoundError):
            (self.run.path / CALIBRATION_FILE).unlink()
        self._apply(None)

    def _apply(self, calibration: RunCalibration | None) -> None:
        self._calibration = calibration, ""
        self.run.discard_metrics()
        self.model.temperature = 1.0 if calibration is None else calibration.temperature
        vars(self).pop("_SplitPredictor.outputs", None)  # the cached outputs have the previous temperature

    def compute_report(self, split: str) -> Any:
        report, more = super().compute_report(split), dict[str, float]()
        thresholds = [] if self.calibration is None else self.calibration.thresholds
        if self.calibration is not None or self.min_probability is not None:
            log_probs, targets = self.log_probs(split)
            best, confidence = log_probs.argmax(axis=1), np.exp(log_probs.max(axis=1))
            if self.calibration is not None:
                raw = np.exp(rescale(log_probs, 1 / self.calibration.temperature).max(axis=1))
                more["uncalibrated_error"] = calibrate(raw, best == targets).error
            if thresholds or self.min_probability is not None:
                by_choice = np.array([self.threshold(choice) for choice in self.choices] or [self.threshold()])
                limits = by_choice[best] if self.choices else by_choice
                more |= selective_metrics(confidence, best == targets, limits)
        return replace(report, metrics={**report.metrics, **more})
