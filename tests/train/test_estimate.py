"""Training without gradients: the same events, checkpoints and stops."""

import pytest
import torch

from seqloom.core.device import describe_machine
from seqloom.core.errors import CheckpointError
from seqloom.core.files import tensors_from_file
from seqloom.core.protocols import Estimable, Estimate, Monitor
from seqloom.train.checkpoints import CheckpointStore
from seqloom.train.estimate import EstimateConfig, estimate
from seqloom.train.events import Damaged, Evaluated, Finished, Progress, Saved, Started, Stopped
from seqloom.train.stop import Stop

pytestmark = pytest.mark.usefixtures("quick_disk")


class Mean:
    """A model with one number."""

    def __init__(self):
        self.value = torch.zeros((), dtype=torch.float64)

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, tensors):
        self.value = tensors["value"]


class Halving(Estimable):
    """A task of six stages that each halve the distance to 1. Every second stage has a model to save."""

    monitor = Monitor("loss")

    def __init__(self, before=lambda stage: None):
        self.before, self.began_at = before, None

    def model(self):
        return Mean()

    def estimates(self, model, step):
        self.began_at = step
        model = model or Mean()
        for stage in range(step + 1, 7):
            self.before(stage)
            model.value = (model.value + 1) / 2
            yield Estimate(stage, 6, model if stage % 2 == 0 else None, {"distance": 1 - model.value.item()})

    def evaluate(self, model, split):
        self.before("evaluation")
        return {"loss": 1 - model.value.item()}


def run(path, task, stop=None, resume=False):
    return estimate(
        task, EstimateConfig(keep_checkpoints=9), CheckpointStore(path, 9), seed=1, stop=stop, resume=resume
    )


def kinds(events):
    return [type(event) for event in events]


def test_estimation_yields_progress_evaluation_and_result(tmp_path):
    events = list(run(tmp_path, Halving()))
    stage = [Progress, Progress, Saved]
    assert kinds(events) == [Started, *stage * 3, Evaluated, Finished]
    assert events[0] == Started(0, 0, 0, "cpu", resumed=False, machine=describe_machine("cpu"))
    assert [event.values["distance"] for event in events if isinstance(event, Progress)] == [
        2.0**-k for k in range(1, 7)
    ]
    assert events[-2] == Evaluated(6, "dev", {"loss": 2.0**-6}, best=True)
    assert (events[-1].best_step, events[-1].best, events[-1].parameters) == (6, {"loss": 2.0**-6}, 1)
    assert tensors_from_file(tmp_path / "model.safetensors")["value"].item() == 1 - 2.0**-6


@pytest.mark.parametrize("when", [1, 2, 3, 4, 5, 6, "evaluation"])
def test_estimation_stopped_at_any_point_and_resumed_gives_the_same_results(tmp_path, when):
    stop = Stop()
    events = list(run(tmp_path, Halving(lambda stage: stop.request() if stage == when else None), stop))
    assert isinstance(events[-1], Stopped)
    assert not (tmp_path / "model.safetensors").exists()
    task = Halving()
    after = list(run(tmp_path, task, resume=True))
    saved_step = 6 if when == "evaluation" else (when - 1) // 2 * 2
    assert task.began_at == saved_step
    assert after[0] == Started(saved_step, saved_step, 0, "cpu", saved_step > 0, machine=describe_machine("cpu"))
    assert isinstance(after[-1], Finished)
    assert after[-1].best == {"loss": 2.0**-6}


def test_stop_request_while_saving_takes_effect_after_the_save(tmp_path, monkeypatch):
    stop = Stop()
    fill = CheckpointStore._fill

    def interrupted(*arguments):
        stop.request()
        fill(*arguments)

    monkeypatch.setattr(CheckpointStore, "_fill", interrupted)
    events = list(run(tmp_path, Halving(), stop))
    assert kinds(events)[-2:] == [Saved, Stopped]
    checkpoint = CheckpointStore(tmp_path).load()
    assert checkpoint is not None
    assert checkpoint.step == 2


def test_damaged_checkpoint_is_reported_and_the_previous_checkpoint_is_used(tmp_path):
    list(run(tmp_path, Halving()))
    (tmp_path / "checkpoints" / "step-6" / "state.json").write_text("")
    events = list(run(tmp_path, Halving(), resume=True))
    assert events[0].step == 4
    assert (events[1].checkpoint, type(events[1])) == ("step-6", Damaged)
    assert events[-1].best == {"loss": 2.0**-6}


def test_run_with_only_damaged_checkpoints_raises_an_error(tmp_path):
    list(run(tmp_path, Halving()))
    for path in (tmp_path / "checkpoints").glob("step-*/state.json"):
        path.unlink()
    with pytest.raises(CheckpointError):
        list(run(tmp_path, Halving(), resume=True))
