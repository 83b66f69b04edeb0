"""The forecasting task: training data, visible values and metrics."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seqloom.core.errors import DataError, UsageError
from seqloom.predict.forecast import ForecasterPredictor
from seqloom.predict.loader import load
from seqloom.recipes import build_recipe, read_recipe
from seqloom.tasks.forecast import Origin, Task
from seqloom.train.config import FitConfig
from seqloom.train.estimate import EstimateConfig
from seqloom.training import begin, resume

Make = Callable[..., Task]
AR = ("model.kind=ar", "model.taps=3")
LSTM = ("model.kind=lstm", "model.hidden=4", "model.context=8", "train.steps=6", "train.evaluate_every=3")


def sales(path: Path, steps: int = 120, change: Callable[[np.ndarray], None] | None = None) -> Path:
    """Write months of two variables with a season of 12, a trend and noise."""
    t = np.arange(steps)
    noise = np.random.default_rng(0).normal(size=(2, steps))
    values = np.stack([100 + 0.5 * t + 20 * np.sin(2 * np.pi * t / 12) + 3 * noise[0], 50 + 2 * noise[1]])
    if change is not None:
        change(values)
    rows = [f"{2000 + n // 12}-{n % 12 + 1:02d},{a:.4f},{b:.4f}" for n, (a, b) in enumerate(values.T)]
    path.write_text("\n".join(["month,sales,visits", *rows]) + "\n")
    return path


@pytest.fixture
def recipe(tmp_path: Path) -> Callable[..., Any]:
    def read(*overrides: str, file: Path | None = None) -> Any:
        file = file or sales(tmp_path / "sales.csv")
        weights_of_train = ["data.corpus=series-file", f"data.file={file}", "forecast.horizon=6", *overrides]
        return read_recipe("series-forecast", weights_of_train)[1]

    return read


@pytest.fixture
def make(recipe: Callable[..., Any]) -> Make:
    return lambda *overrides, **options: Task.prepare(recipe(*overrides, **options))


def estimated(task: Task) -> Any:
    (*_, last) = task.estimates(None, 0)
    return last.model


# --- recipes ----------------------------------------------------------------------------------------------------------


def test_recipe_supports_gradient_descent_and_estimation(recipe: Callable[..., Any]) -> None:
    assert isinstance(recipe(*LSTM).train, FitConfig)
    assert recipe(*AR).train == EstimateConfig() and isinstance(recipe("model.kind=kalman").train, EstimateConfig)
    estimated_recipe = recipe(*AR, "train.keep_checkpoints=3")
    assert estimated_recipe.train == EstimateConfig(keep_checkpoints=3)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            (*AR, "train.keep_checkpoint=3"),
            ["train.keep_checkpoint: no such key", "did you mean train.keep_checkpoints"],
        ),
        (("train.lrr=1",), ["train.lrr: no such key; did you mean train.lr?"]),
        (("train.lr=-1", "forecast.paths=1", "batch.size=0", "data.season=0"), ["lr: must", "paths", "size", "season"]),
        (("model.kind=lstm", "model.taps=3"), ["model.taps: is a key of kind ar, not of lstm"]),
        (("model.kind=rnn",), ["model.kind: must be one of ar, kalman, ffn, lstm, transformer"]),
        (("train=null",), ["train"]),
    ],
)
def test_recipe_problems_are_reported(recipe: Callable[..., Any], overrides: tuple[str, ...], words: list[str]) -> None:
    with pytest.raises(UsageError) as error:
        recipe(*overrides)
    assert all(word in str(error.value) for word in words), str(error.value)
    lines = str(error.value).splitlines()
    assert len(lines) == len(set(lines)) and "EstimateConfig" not in str(error.value)


def test_gradient_training_needs_epochs_or_steps() -> None:
    with pytest.raises(UsageError, match=r"is trained by gradient descent: set train\.epochs"):
        build_recipe({"task": "forecast", "data": {"corpus": "series"}, "model": {"kind": "lstm"}}, "it")


# --- visible values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [AR, ("model.kind=kalman", "model.rounds=3"), LSTM])
def test_training_uses_only_train(recipe: Callable[..., Any], tmp_path: Path, kind: tuple[str, ...]) -> None:
    """The values of dev and test do not affect scale or weights; the values of train do."""

    def weights(begins: int | None) -> dict[str, torch.Tensor]:
        def change(values: np.ndarray) -> None:
            if begins is not None:
                values[:, begins:] += 1000

        task = Task.prepare(recipe(*kind, file=sales(tmp_path / f"{begins}.csv", change=change)))
        torch.manual_seed(0)
        model = task.model() if task.trains_by_gradient else estimated(task)
        return {name: value.clone() for name, value in model.state_dict().items()}

    weights_of_train, later, train = weights(None), weights(84), weights(50)
    assert all(torch.equal(weights_of_train[name], later[name]) for name in weights_of_train)
    assert any(not torch.equal(weights_of_train[name], train[name]) for name in weights_of_train)


@pytest.mark.parametrize("kind", [AR, LSTM])
@pytest.mark.parametrize("fill", ["mask", "previous", "season"])
def test_forecast_uses_only_past_values(make: Make, tmp_path: Path, kind: tuple[str, ...], fill: str) -> None:
    def change(values: np.ndarray) -> None:
        values[0, 90] = np.nan

    def later(values: np.ndarray) -> None:
        change(values)
        values[:, 96:] *= 3

    means = []
    for name, changed in (("a", change), ("b", later)):
        file = sales(tmp_path / f"{name}.csv", change=changed)
        task = make(*kind, f"data.fill={fill}", file=file)
        torch.manual_seed(0)
        model = task.model().eval() if task.trains_by_gradient else estimated(task)
        means.append(task.forecasts(model, [Origin(task.corpus.split("test")[0], 96)], paths=5).mean)
    assert torch.equal(*means)


# --- metrics ----------------------------------------------------------------------------------------------------------


def test_forecast_origins_are_one_horizon_apart(make: Make) -> None:
    task = make(*AR)
    origins = task.origins("dev")
    assert [origin.position for origin in origins] == [84, 90, 96]
    truth = task.true_values(origins)
    dev = task.corpus.split("dev")[0]
    assert np.array_equal(truth[1], dev.values[90:96]) and np.array_equal(truth[2], dev.values[96:102])
    test = task.true_values(task.origins("test"))
    assert test.shape == (3, 6, 2) and not np.isnan(test).any()


def test_report_includes_naive_forecast(make: Make) -> None:
    task = make(*AR, "model.taps=13")
    means = task.report(estimated(task), "test")
    metrics = means.metrics
    assert metrics["mase"] < metrics["naive_mase"] and metrics["crps"] < metrics["mase"]
    assert 0.5 < metrics["coverage_80"] <= metrics["coverage_95"] <= 1
    assert len(means.by_step) == 6 and set(means.by_variable) == {"sales", "visits"}
    sales_error = means.by_variable["sales"]["naive_mase"]
    test = task.corpus.split("test")[0].values
    by_hand = np.abs(test[102:] - test[90:-12]).mean(
        axis=0
    )  # the value of twelve months before, because the horizon is shorter than a season
    assert sales_error == pytest.approx(by_hand[0] / task.error_scale[0])


def test_loss_of_logarithms_is_converted_to_values(make: Make) -> None:
    """With logarithms, −log p(y) = −log N(log y; μ, σ²) + log y."""
    task = make(*AR, "forecast.transform=log", "data.columns=[sales]", "data.test_fraction=0")
    model, dev = estimated(task), task.corpus.split("dev")[0]
    values = torch.from_numpy(dev.values).log()
    total = 0.0
    for t in range(dev.begins, len(dev)):
        after = model.step(values[None, :t], model.start(1))
        mean, variance = after.mean.item(), after.covariance.item()
        y = values[t].item()
        total += 0.5 * (y - mean) ** 2 / variance + 0.5 * math.log(2 * math.pi * variance) + y
    assert task.one_step_loss(model, "dev") == pytest.approx(total / dev.new_steps, rel=1e-6)
    plain = make(*AR, "data.columns=[sales]", "data.test_fraction=0")
    assert plain.one_step_loss(estimated(plain), "dev") == pytest.approx(total / dev.new_steps, rel=0.2), "comparable"


def test_filled_values_are_excluded_from_loss(make: Make, tmp_path: Path) -> None:
    def change(values: np.ndarray) -> None:
        values[0, 86] = np.nan

    task = make(*AR, "data.fill=previous", file=sales(tmp_path / "gaps.csv", change=change))
    model, dev = estimated(task), task.corpus.split("dev")[0]
    ((values, mask),) = task.model_inputs("dev")
    scores = model.score(values[None], mask[None])[0]
    complete = [t for t in range(dev.begins, len(dev)) if t != 86]
    assert task.one_step_loss(model, "dev") == pytest.approx(
        -float(scores[complete].sum()) / (2 * len(complete)), rel=1e-6
    )


def test_missing_true_values_are_excluded(make: Make, tmp_path: Path) -> None:
    def change(values: np.ndarray) -> None:
        values[0, 86] = values[1, 100] = np.nan

    file = sales(tmp_path / "gaps.csv", change=change)
    metrics = make(*AR, file=file).evaluate(estimated(make(*AR, file=file)), "dev")
    assert all(math.isfinite(value) for value in metrics.values())


# --- errors and warnings ----------------------------------------------------------------------------------------------


def test_unsuitable_series_are_rejected(make: Make, tmp_path: Path) -> None:
    def zero(values: np.ndarray) -> None:
        values[1, 3] = 0.0

    with pytest.raises(DataError, match=r"values above 0, but visits of sales.csv has 0 at 2000-04"):
        make(*AR, "forecast.transform=log", file=sales(tmp_path / "sales.csv", change=zero))
    with pytest.raises(DataError, match=r"A season of 90 steps must be shorter than the training part, which has 84"):
        make(*AR, "data.season=90")
    with pytest.raises(DataError, match=r"A horizon of 85 steps must not be longer .* which has 84"):
        make(*AR, "forecast.horizon=85")
    with pytest.raises(DataError, match=r"windows of 213 steps.*has 84"):
        make(*LSTM, "model.context=200")
    with pytest.raises(DataError, match=r"no dev split"):
        make(*AR, "data.dev_fraction=0")


def test_short_split_and_nearly_constant_variables_give_warnings(make: Make, tmp_path: Path) -> None:
    def flat(values: np.ndarray) -> None:
        values[1] = 7.0

    means = make(*AR, "forecast.horizon=24", file=sales(tmp_path / "flat.csv", change=flat)).warnings()
    assert any("dev has 18 steps, fewer than the horizon of 24" in line for line in means)
    assert any("visits is the same in every season" in line for line in means)
    assert make(*AR).warnings() == []

    def far(values: np.ndarray) -> None:
        values[0] += 1e8

    file = sales(tmp_path / "far.csv", change=far)
    assert "sales changes by less than 1e-05 of its magnitude" in make(*LSTM, file=file).warnings()[0]
    assert make(*AR, file=file).warnings() == [] == make(*LSTM).warnings()


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [LSTM, ("model.kind=ffn", *LSTM[1:]), ("model.kind=transformer", "model.d_model=8", *LSTM[2:])]
)
def test_resumed_training_is_bit_identical(recipe: Callable[..., Any], tmp_path: Path, kind: tuple[str, ...]) -> None:
    complete = begin(recipe(*kind, "train.schedule=constant"), tmp_path / "whole")
    for _ in complete.events():
        pass
    part = begin(recipe(*kind, "train.schedule=constant", "train.steps=3"), tmp_path / "part")
    for _ in part.events():
        pass
    again = resume(tmp_path / "part", ["train.steps=6"])
    for _ in again.events():
        pass
    ours, theirs = (run.store().load() for run in (complete.run, again.run))
    assert ours is not None and theirs is not None
    assert all(torch.equal(value, theirs.parts["model"][name]) for name, value in ours.parts["model"].items())


def test_reopened_run_gives_equal_forecasts_and_checks_its_data(recipe: Callable[..., Any], tmp_path: Path) -> None:
    for name, kind in (("ar", AR), ("transformer", ("model.kind=transformer", "model.d_model=8", *LSTM[2:]))):
        training = begin(recipe(*kind), tmp_path / name)
        for _ in training.events():
            pass
        model = load(tmp_path / name, "cpu", ForecasterPredictor)
        assert model.columns == ("sales", "visits") and model.horizon == 6 and model.season == 12
        first, second = model.forecast(seed=1), load(tmp_path / name, "cpu").forecast(seed=1)
        assert np.array_equal(first.mean, second.mean) and first.labels[0] == "2010-01"
        assert first.exact == (name == "ar")
    sales(tmp_path / "sales.csv", steps=119)
    with pytest.raises(DataError, match="has changed since it was trained"):
        load(tmp_path / "ar").evaluate()
