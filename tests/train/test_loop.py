"""The training loop: steps, evaluations, saves, skips, plateau, and the end of training."""

import math

import pytest
import torch

from seqloom.config import build
from seqloom.core.errors import DivergedError, ResourceError, UsageError
from seqloom.core.protocols import Monitor
from seqloom.train.config import FitConfig
from seqloom.train.events import Damaged, Evaluated, Finished, Progress, Saved, Skipped, Started, event_to_json
from seqloom.train.loop import make_step
from seqloom.train.state import TrainState

pytestmark = pytest.mark.usefixtures("quick_disk")


def trainer(task, seed=3, **options):
    return TrainState(task, FitConfig(**{"steps": 10, "device": "cpu", **options}), seed)


def weights(model):
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def of_kind(events, kind):
    return [event for event in events if isinstance(event, kind)]


# --- one update -------------------------------------------------------------------------------------------------------


def test_steps_match_an_explicit_loop(tiny_task, same):
    """The loop uses the gradient of each batch, a detached carried state, and the Adam of torch, without dropout."""
    ours = trainer(tiny_task(dropout=0.0), optimizer="adam", lr=0.02, clip_norm=None)
    task = tiny_task(dropout=0.0)
    model = task.model()
    model.load_state_dict(ours.model.state_dict())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02, foreach=False)
    h = torch.zeros(3, 6)
    for step in range(7):
        update = make_step(ours)
        batch = task.batch(3, step)
        logits, h = model(batch["inputs"], None if step % 5 == 0 else h.detach())
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, 7), batch["targets"].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert update.loss == pytest.approx(loss.item(), abs=1e-6)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(ours.model.state_dict()[name], tensor, atol=1e-6, rtol=0)
    torch.testing.assert_close(ours.carry["h"], h.detach(), atol=1e-6, rtol=0)
    assert not ours.carry["h"].requires_grad


@pytest.mark.parametrize("clip", [0.05, 1e6, None])
def test_gradient_clipping_follows_the_formula(tiny_task, clip):
    plain = trainer(tiny_task(), optimizer="sgd", lr=1.0, clip_norm=None)
    clipped = trainer(tiny_task(), optimizer="sgd", lr=1.0, clip_norm=clip)
    before = weights(plain.model)
    norm = make_step(plain).gradient_norm
    assert make_step(clipped).gradient_norm == norm  # the norm before clipping is reported
    gradient = {name: before[name] - after for name, after in weights(plain.model).items()}
    total = math.sqrt(sum(g.double().square().sum().item() for g in gradient.values()))
    assert norm == pytest.approx(total, rel=1e-5)
    factor = 1.0 if clip is None else min(1.0, clip / norm)
    assert factor < 1 if clip == 0.05 else factor == 1
    for name, after in weights(clipped.model).items():
        torch.testing.assert_close(after, before[name] - factor * gradient[name], atol=1e-6, rtol=0)


def test_accumulated_batches_are_equivalent_to_one_large_batch(tiny_task):
    """For two batches of equal size and length, the mean of the two means is the overall mean."""
    small, big = tiny_task(dropout=0.0), tiny_task(dropout=0.0, batch_rows=6)
    halves = [{key: big.batch(0, 0)[key][rows] for key in ("inputs", "targets")} for rows in (slice(3), slice(3, 6))]
    small.batch = lambda seed, step: {**halves[step % 2], "fresh": True, "spoil": None}
    accumulated, single = trainer(small, accumulate_steps=2, clip_norm=0.1), trainer(big, clip_norm=0.1)
    updates = [make_step(each) for each in (accumulated, single)]
    assert updates[0].loss == pytest.approx(updates[1].loss, abs=1e-6)
    assert updates[0].gradient_norm == pytest.approx(updates[1].gradient_norm, abs=1e-6)
    assert updates[0].tokens == updates[1].tokens == 24
    for name, tensor in weights(single.model).items():
        torch.testing.assert_close(weights(accumulated.model)[name], tensor, atol=1e-6, rtol=0)


def test_learning_rate_is_used_and_reported(session, tiny_task):
    run = session(schedule="cosine", warmup=3, min_lr=0.01, steps=6)
    rates = [event.values["learning_rate"] for event in of_kind(run.train(tiny_task()), Progress)]
    cosine = [0.01 + 0.04 * 0.5 * (1 + math.cos(math.pi * k / 3)) for k in range(3)]
    assert rates == pytest.approx([0.05 / 3, 0.1 / 3, 0.05, *cosine])
    groups = dict(run.checkpoint(6)["state.json"]["optimizer"]["dict"])["param_groups"]["list"]
    assert [dict(group["dict"])["lr"]["value"] for group in groups] == pytest.approx([rates[-1]] * 2)


# --- nonfinite values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "cause"),
    [
        ("loss", "the loss is nan"),
        (math.inf, "the gradient of embed.weight is not finite"),
        (math.nan, "the gradient of embed.weight is not finite"),
        (1e25, "the norm of the gradient overflows"),
    ],
)
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_non_finite_step_leaves_weights_and_optimizer_unchanged(tiny_task, same, optimizer, accumulate, spoil, cause):
    task = tiny_task(spoil={accumulate * 2: spoil})
    subject = trainer(task, optimizer=optimizer, momentum=0.9, weight_decay=0.1, accumulate_steps=accumulate)
    make_step(subject)
    assert make_step(subject).cause is None
    before, optimizer_before = weights(subject.model), str(subject.optimizer.state_dict())
    update = make_step(subject)
    assert update.cause == cause
    assert same(weights(subject.model), before)
    assert str(subject.optimizer.state_dict()) == optimizer_before
    assert subject.carry is None  # the carried state may be nonfinite, like the gradient
    assert subject.tally.skips == 1
    assert make_step(subject).cause is None
    assert subject.tally.skips == 0
    assert not same(weights(subject.model), before)
    assert all(tensor.isfinite().all() for tensor in subject.model.state_dict().values())


def test_skipped_update_is_reported_with_step_and_cause(session, tiny_task):
    events = session(steps=5).train(tiny_task(spoil={2: "loss", 3: math.inf}))
    assert of_kind(events, Skipped) == [
        Skipped(3, "the loss is nan"),
        Skipped(4, "the gradient of embed.weight is not finite"),
    ]
    assert isinstance(events[-1], Finished)
    assert math.isnan(of_kind(events, Progress)[2].values["loss"])


def test_mean_loss_excludes_skipped_steps(session, tiny_task):
    clean = of_kind(session("a", steps=2, log_every=1).train(tiny_task()), Progress)
    events = session("b", steps=3, log_every=3).train(tiny_task(spoil={2: "loss"}))
    (progress,) = of_kind(events, Progress)
    assert progress.values["loss"] == pytest.approx(sum(event.values["loss"] for event in clean) / 2)


def test_divergence_error_names_the_step_and_the_cause(session, tiny_task):
    spoil = {
        1: "loss",
        **dict.fromkeys(range(3, 20), math.inf),
    }  # a single skip does not contribute to four consecutive skips
    run, events = session(max_nonfinite_steps=4, save_every=1), []
    with pytest.raises(
        DivergedError, match=r"at step 7: the gradient of embed\.weight is not finite in 4 consecutive steps"
    ) as caught:
        events.extend(run.events(tiny_task(spoil=spoil)))
    assert caught.value.exit_code == 5
    assert "train.lr" in str(caught.value)


def test_diverged_run_diverges_again_when_resumed(session, tiny_task):
    """The counter of skips is saved, so that resuming does not reset it."""
    spoil = dict.fromkeys(range(3, 20), "loss")
    run = session(max_nonfinite_steps=4, save_every=1)
    with pytest.raises(DivergedError):
        run.train(tiny_task(spoil=spoil))
    with pytest.raises(DivergedError, match="at step 7"):
        run.train(tiny_task(spoil=spoil), resume=True)


def test_json_has_no_nan():
    event = Progress(3, 9, {"loss": math.nan, "gradient_norm": math.inf, "learning_rate": 0.5})
    assert event_to_json(event)["values"] == {"loss": None, "gradient_norm": None, "learning_rate": 0.5}
    assert event_to_json(event)["event"] == "progress"


# --- schedule of evaluations and saves --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "evaluated", "saved"),
    [
        ({}, [5, 10, 14], [5, 10, 14]),  # once per epoch, and at the end
        ({"evaluate_every": 4}, [4, 8, 12, 14], [4, 8, 12, 14]),
        ({"evaluate_every": 4, "save_every": 6}, [4, 8, 12, 14], [6, 12, 14]),
        ({"save_every": 6}, [5, 10, 14], [6, 12, 14]),
        (
            {"accumulate_steps": 2},
            [2, 4, 6, 8, 10, 12, 14],
            [2, 4, 6, 8, 10, 12, 14],
        ),  # 5 batches are 2.5 updates
        ({"accumulate_steps": 9}, list(range(1, 15)), list(range(1, 15))),
        ({"evaluate_every": 99}, [14], [14]),
    ],
)
def test_evaluations_and_saves_follow_their_intervals(session, tiny_task, options, evaluated, saved):
    events = session(**options).train(tiny_task())
    assert [event.step for event in of_kind(events, Evaluated)] == evaluated
    assert [event.step for event in of_kind(events, Saved)] == saved


@pytest.mark.parametrize(
    ("options", "total"),
    [
        ({"steps": 7}, 7),
        ({"epochs": 2}, 10),
        ({"epochs": 0.5}, 3),
        ({"epochs": 2, "accumulate_steps": 2}, 5),
        ({"epochs": 1, "accumulate_steps": 2}, 3),
        ({"epochs": 0.01}, 1),
        ({"epochs": 2, "steps": 3}, 3),
    ],
)
def test_total_steps_follow_from_steps_or_epochs(options, total):
    assert FitConfig(**options).total_steps(5) == total


def test_events_are_complete_and_in_order(session, tiny_task):
    events = session(steps=5).train(tiny_task())
    kinds = [type(event) for event in events]
    assert kinds == [Started, *[Progress] * 5, Evaluated, Saved, Finished]
    started, finished = events[0], events[-1]
    assert started.parameters == sum(p.numel() for p in tiny_task().model().parameters()) == finished.parameters
    assert (started.step, started.total, started.device, started.resumed) == (0, 5, "cpu", False)
    assert finished.reason == "all steps are done"
    assert finished.tokens_per_second > 0
    assert all(event.tokens_per_second > 0 for event in of_kind(events, Progress))
    assert [event.step for event in of_kind(events, Progress)] == [1, 2, 3, 4, 5]
    assert events[-4].seconds_left == 0


def test_last_step_is_always_reported(session, tiny_task):
    events = session(steps=7, log_every=3).train(tiny_task())
    assert [event.step for event in of_kind(events, Progress)] == [3, 6, 7]


def test_damaged_checkpoint_is_an_event_and_the_previous_checkpoint_is_used(session, tiny_task, same):
    complete, parts = session("whole"), session("parts")
    complete.train(tiny_task())
    parts.train(tiny_task(), until=12)
    (parts.path / "checkpoints" / "step-12" / "model.safetensors").write_bytes(b"")
    events = parts.train(tiny_task(), resume=True)
    assert events[0].step == 10
    assert isinstance(events[1], Damaged)
    assert events[1].checkpoint == "step-12"
    assert "model.safetensors" in events[1].cause
    assert same(parts.checkpoint(14), complete.checkpoint(14))


# --- best evaluation, plateau, and end --------------------------------------------------------------------------------


def evaluate_losses(subject, losses):
    """Return, for each evaluation, whether it is the best so far, and the decay of the rate."""
    judgements = []
    for step, loss in enumerate(losses, start=1):
        subject.tally.step = step
        judgements.append((subject.record_evaluation({"loss": loss}), subject.tally.decay))
    return judgements


def test_plateau_lowers_the_rate_after_patience(tiny_task):
    subject = trainer(tiny_task(), schedule="plateau", plateau_factor=0.5, plateau_patience=1, lr=1.0, min_lr=0.2)
    losses = [3, 2, 2, 2.5, 1.9, 2, 2, 2, 2, 2, 2]
    best, decay = zip(*evaluate_losses(subject, losses), strict=True)
    assert best == (True, True, False, False, True, False, False, False, False, False, False)
    assert decay == (1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125, 0.0625)
    assert subject.learning_rate() == 0.2  # the rate is not below min_lr
    subject.tally.decay = 0.5
    assert subject.learning_rate() == 0.5
    assert (subject.tally.best_step, subject.tally.best) == (5, {"loss": 1.9})


def test_only_plateau_lowers_the_rate(tiny_task):
    assert evaluate_losses(trainer(tiny_task(), schedule="constant"), [1, 2, 3])[-1] == (False, 1.0)


def test_monitored_metric_may_be_maximized(tiny_task):
    task = tiny_task()
    task.monitor = Monitor("loss", higher_is_better=True)
    assert [best for best, _ in evaluate_losses(trainer(task), [1, 2, 1.5, 3])] == [True, True, False, True]


def test_loss_breaks_ties_between_evaluations(tiny_task):
    task = tiny_task()
    task.monitor = Monitor("f1", higher_is_better=True)
    subject = trainer(task)
    evaluations = [(0.9, 0.5), (0.9, 0.4), (0.9, 0.4), (0.9, 0.6), (0.8, 0.1), (0.9, math.nan), (0.95, 0.7)]
    best = [subject.record_evaluation({"f1": f1, "loss": loss}) for f1, loss in evaluations]
    assert best == [True, True, *[False] * 4, True]
    without = trainer(task)
    assert [without.record_evaluation({"f1": f1}) for f1 in (0.9, 0.9, 0.8, 0.95)] == [True, False, False, True]


def test_nan_is_never_preferred_to_a_number(tiny_task):
    is_best = [
        best for best, _ in evaluate_losses(trainer(tiny_task()), [math.nan, math.nan, math.inf, 2.0, math.nan, 1.0])
    ]
    assert is_best == [True, False, True, True, False, True]


def test_early_stopping_counts_evaluations_since_the_best(tiny_task):
    subject = trainer(tiny_task(), patience=2, steps=100)
    reasons = []
    for loss in (3, 2, 2.1, 1.9, 2, 1.9):
        evaluate_losses(subject, [loss])
        reasons.append(subject.reason_to_end())
    assert reasons == [None, None, None, None, None, "no improvement in 2 evaluations"]


def test_best_weights_are_from_the_best_step(session, tiny_task, same):
    run = session(lr=0.4, evaluate_every=1, steps=12)
    events = run.train(tiny_task())
    losses = [event.metrics["loss"] for event in of_kind(events, Evaluated)]
    best = losses.index(min(losses)) + 1
    assert 1 < best < 12, "a test of something in between"
    assert [event.best for event in of_kind(events, Evaluated)] == [
        loss < min(losses[:index], default=math.inf) for index, loss in enumerate(losses)
    ]
    assert events[-1].best_step == best
    assert events[-1].best["loss"] == min(losses)
    best_weights = run.best()
    at_best = run.checkpoint(best)["model.safetensors"]
    names = [name for name, _ in run.checkpoint(best)["state.json"]["model"]["dict"]]
    assert same([best_weights[name] for name in names], [at_best[f"leaf{index}"] for index in range(len(names))])
    last = run.checkpoint(12)["model.safetensors"]
    assert not same([best_weights[name] for name in names], [last[f"leaf{index}"] for index in range(len(names))])


def test_newest_checkpoints_are_kept(session, tiny_task):
    run = session(keep_checkpoints=2)
    run.train(tiny_task())
    assert sorted(path.name for path in (run.path / "checkpoints").glob("step-*")) == ["step-10", "step-14"]


# --- settings that this machine does not support, and invalid recipes -------------------------------------------------


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_needs_a_gpu(tiny_task, precision):
    with pytest.raises(ResourceError, match=f"train.precision={precision} needs a CUDA GPU") as caught:
        trainer(tiny_task(), precision=precision)
    assert caught.value.exit_code == 5


def test_automatic_precision_is_fp32_without_a_gpu(tiny_task):
    full, automatic = (trainer(tiny_task(), precision=name, device="cpu") for name in ("fp32", "auto"))
    assert [make_step(full).loss for _ in range(3)] == [make_step(automatic).loss for _ in range(3)]


def test_missing_gpu_is_reported(tiny_task, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ResourceError, match="cuda is not available: this machine has 0") as caught:
        trainer(tiny_task(), device="cuda")
    assert caught.value.exit_code == 5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "steps or epochs must be set"),
        ({"steps": 0}, "steps: must be at least 1"),
        ({"steps": 5, "lr": -1.0}, "lr: must be greater than 0"),
        ({"steps": 5, "clip_norm": 0.0}, "clip_norm: must be greater than 0"),
        ({"steps": 5, "patience": 0}, "patience: must be at least 1"),
        ({"steps": 5, "max_nonfinite_steps": 0}, "max_nonfinite_steps: must be at least 1"),
        ({"steps": 5, "warmup": -1}, "warmup: must be at least 0"),
        ({"steps": 5, "weight_decay": -0.1}, "weight_decay: must be at least 0"),
        ({"steps": 5, "betas": [0.9, 1.0]}, r"betas.*must be less than 1"),
        ({"steps": 5, "plateau_factor": 1.0}, "plateau_factor: must be less than 1"),
        ({"steps": 5, "optimizer": "adm"}, "did you mean adam"),
        ({"steps": 5, "stepps": 5}, "steps"),
    ],
)
def test_invalid_settings_are_reported(options, words):
    with pytest.raises(UsageError, match=words):
        build(FitConfig, options)
