"""The recipe that `seqloom init --task forecast` writes for one's own series."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from seqloom.core.errors import DataError
from seqloom.core.lags import Difference
from seqloom.core.words import counted

if TYPE_CHECKING:
    from seqloom.data.series import Series

SHORT = 150  # training steps: fewer are for a model with few parameters
LONG = 60  # steps of a season: more are too many for a state that holds each of them

TEMPLATE = """\
# Forecasts of {name}: made by `seqloom init`, yours to change. Train it with: seqloom train {recipe}
task: forecast
seed: 1                     # the same seed gives the same model, to the bit

data:
  corpus: series-file
  file: {path:<19} # a .csv, .tsv or .jsonl file; may be .gz. Its first line names the columns
  time: {time:<19} # the column of the times, by its name, or its number, from 1
  columns: {columns:<16} # those of the values
  season: {season:<17} # steps after which things repeat themselves; 1 for never
  fill: mask                # missing values are left out; or previous, season: models see made-up ones
  dev_fraction: 0.15        # of the steps: what comes before test, to choose by
  test_fraction: 0.15       # of the steps: what comes last, to report

model:
{model}

forecast:
  horizon: {horizon:<16} # steps ahead
  paths: 200                # futures that are drawn, where a model has no exact answer
  transform: none           # or log, for values above 0 whose swings grow with them

goal: crps                  # the figure of dev that chooses the best model; or mase, loss

train:
{train}
"""

LINEAR = """\
  kind: ar                  # solved at once, with exact intervals; or kalman; ffn, lstm, transformer want more data
  difference: {difference:<13} # predict the difference from a season ago; or step, none"""
HIDDEN = """\
  kind: kalman              # copes with gaps and few rows, with exact intervals; ar and lstm want more
  structure: {structure:<14} # what moves unseen: level, trend (a level and its slope), seasonal (a season besides)"""
NEURAL = """\
  kind: lstm                # or ffn, transformer; ar and kalman, which are estimated and want no epochs
  hidden: 32
  difference: {difference:<13} # predict the difference from a season ago; or step, none
  dropout: 0.1              # higher if dev gets worse while train gets better"""
ESTIMATED = "  keep: 1                   # checkpoints"
LEARNT = """\
  epochs: {epochs:<17} # passes over all windows of the series
  optimizer: adamw          # or sgd, adam
  lr: 3.0e-3
  schedule: cosine          # or constant, inverse-sqrt, plateau
  evaluate_every: {every:<9} # steps
  device: auto              # or cpu, cuda, mps"""


def write_forecaster(path: Path, shown: tuple[str, str], yaml: Callable[[str], str]) -> tuple[str, list[str]]:
    """The recipe, and what to say about the series."""
    from seqloom.data.corpora import series_file
    from seqloom.data.series import columns_of, season_of
    from seqloom.data.tables import column_names

    corpus = series_file.load(series_file.Config(file=str(path)))
    train, season = corpus.split("train")[0], season_of(corpus)
    difference: Difference = "season" if season > 1 else "step"
    neural = len(train) >= max(SHORT, 6 * season)
    model = NEURAL if neural else LINEAR if _solvable(train, difference) else HIDDEN
    structure = "seasonal" if 1 < season <= LONG else "trend"
    per_epoch = max(1, (len(train) - 3 * season) // 32)
    epochs = min(60, max(5, 600 // per_epoch))
    recipe = TEMPLATE.format(
        name=shown[0],
        recipe=shown[1],
        path=yaml(str(path)),
        time=yaml(column_names(path)[0]),
        columns="[" + ", ".join(map(yaml, columns_of(corpus))) + "]",
        season=season,
        horizon=min(max(season, 8), 48, max(1, len(train) // 4)),
        model=model.format(difference=difference, structure=structure),
        train=LEARNT.format(epochs=epochs, every=max(1, epochs * per_epoch // 10)) if neural else ESTIMATED,
    )
    columns = counted(len(columns_of(corpus)), "variable", "variables")
    said = f"{len(train):,} steps of {columns} to train on, {train.clock.said()} each"
    return recipe, [said, *corpus.notes]


def _solvable(train: "Series", difference: Difference) -> bool:
    """Whether there are enough rows without a gap for an autoregressive model."""
    import torch

    from seqloom.classical.autoregressive import AutoregressiveConfig

    model = AutoregressiveConfig(difference=difference).build(len(train.columns), train.season)
    values, mask = map(torch.from_numpy, train.visible())
    try:
        model.solve([(values, mask)])
    except DataError:
        return False
    return True
