"""Conversion of events to JSON and back."""

import json
import math

import pytest

from seqloom.train import events as e

EVERY = [
    e.Started(0, 8, 1234, "cpu", False, ("a note", "another")),
    e.Progress(4, 8, {"loss": 1.5, "gradient_norm": 0.25}, 99.0, 3.0, "nats", "bits"),
    e.Evaluated(4, "dev", {"loss": 1.25}, True),
    e.Saved(4, "step-4"),
    e.Prepared(4, 12.5, 3, ("computed as it is",)),
    e.BatchSplit(5, 64, 2),
    e.Skipped(5, "the loss is nan"),
    e.Damaged(4, "step-4", "torn"),
    e.Stopped(6),
    e.Finished(8, "all steps are done", 4, {"loss": 1.25}, 1234, 99.0, 61.2, 4096, 55.5),
]


def test_samples_cover_every_event() -> None:
    assert {type(event) for event in EVERY} == set(e.Event.__subclasses__())


@pytest.mark.parametrize("event", EVERY, ids=lambda event: type(event).__name__)
def test_event_round_trips_through_json(event: e.Event) -> None:
    assert e.event_from_json(json.loads(json.dumps(e.event_to_json(event)))) == event


def test_null_metrics_become_nan() -> None:
    written = e.event_to_json(e.Evaluated(4, "dev", {"loss": math.nan, "bleu": 2.0}, False))
    read = e.event_from_json({"time": "now", **written})  # the format of the log
    assert isinstance(read, e.Evaluated)
    assert math.isnan(read.metrics["loss"]) and read.metrics["bleu"] == 2.0
