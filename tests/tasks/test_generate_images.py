"""Image generation: binarization, batches, bounds, generation from a seed, commands and pictures."""

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from PIL import ImageSequence

from seqloom import load, train_recipe
from seqloom.cli.app import main
from seqloom.core.files import tensors_from_file
from seqloom.data.binarize import binarize_fixed, binarize_training
from seqloom.data.images import decode
from seqloom.inspect.plots.canvases import draw_frame, draw_steps, shown_steps, tile
from seqloom.train.events import Saved

SMALL = ["data.corpus=shapes", "data.train=64", "data.dev=20", "data.test=20", "data.side=16", "images.channels=1"]
STEPS = ["train.epochs=null", "train.steps=8", "train.evaluate_every=4", "train.warmup=2", "batch.size=16"]
DRAW = ["draw-mnist", *SMALL, *STEPS, "model.steps=3", "model.hidden=12", "model.latent=4", "batch.eval_samples=3"]
VAE = ["vae-mnist", *SMALL, *STEPS, "model.hidden=12", "model.latent=4"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("draw") / "run"
    train_recipe(*DRAW, out=path)
    return path


# --- binarization and batches -----------------------------------------------------------------------------------------


def test_random_binary_pixels_have_the_grey_value_as_their_mean() -> None:
    grey = np.array([0, 1, 64, 128, 254, 255], dtype=np.uint8)
    images, members = np.broadcast_to(grey[:, None, None], (2000, 6, 1, 1)).copy(), np.arange(2000)
    for found in (
        binarize_training(images, members, "stochastic", 1, 1),
        binarize_fixed(images, members, "fixed", "x"),
    ):
        assert set(np.unique(found)) == {0, 255}
        mean = (found == 255).mean(axis=(0, 2, 3))
        error = np.sqrt(grey / 255 * (1 - grey / 255) / 2000)
        assert (np.abs(mean - grey / 255) <= 4 * error + 1e-12).all()
        assert mean[0] == 0 and mean[-1] == 1
    threshold = binarize_fixed(images[:1], members[:1], "threshold", "x")[0, :, 0, 0]
    assert threshold.tolist() == [0, 0, 0, 255, 255, 255]
    assert np.array_equal(binarize_fixed(images, members, "none", "x"), images)


def test_binary_pixels_depend_on_the_step_or_on_the_example() -> None:
    images, members = np.full((6, 5, 5, 1), 128, dtype=np.uint8), np.arange(6)
    first = binarize_training(images, members, "stochastic", 1, 1)
    assert np.array_equal(first, binarize_training(images, members, "stochastic", 1, 1))
    assert not np.array_equal(first, binarize_training(images, members, "stochastic", 1, 2))
    fixed = binarize_training(images, members, "fixed", 1, 1)
    assert np.array_equal(fixed, binarize_training(images, members, "fixed", 2, 9))
    assert np.array_equal(fixed[[4, 2]], binarize_fixed(images[:2], np.array([4, 2]), "stochastic", "train"))
    assert not np.array_equal(fixed, binarize_fixed(images, members, "fixed", "test"))


def test_batch_depends_only_on_seed_and_step(run: Path) -> None:
    task = load(run).task()
    first = task.batch(1, 2)["images"]
    assert set(first.unique().tolist()) == {0, 255} and torch.equal(first, task.batch(1, 2)["images"])
    assert not torch.equal(first, task.batch(1, 3)["images"])


@pytest.mark.parametrize("recipe", [DRAW, VAE], ids=["draw", "vae"])
def test_resumed_training_gives_the_same_weights(tmp_path: Path, recipe: list[str]) -> None:
    def stop(event: Any) -> None:
        if isinstance(event, Saved):
            raise KeyboardInterrupt

    train_recipe(*recipe, out=tmp_path / "a")
    with pytest.raises(KeyboardInterrupt):
        train_recipe(*recipe, out=tmp_path / "b", on_event=stop)
    train_recipe(*recipe, out=tmp_path / "b", resume=True)
    a, b = (tensors_from_file(tmp_path / name / "model.safetensors") for name in "ab")
    assert all(torch.equal(a[name], b[name]) for name in a)


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_evaluation_reports_bounds_that_do_not_depend_on_other_random_numbers(run: Path) -> None:
    model = load(run, "cpu")
    first = model.evaluate("test")
    torch.manual_seed(5)
    assert model.evaluate("test") == first
    assert first["loss"] == pytest.approx(first["reconstruction_loss"] + first["kl"])
    assert first["importance_loss"] < first["loss"]
    assert model.task().validate(model.model).keys() == {"loss", "reconstruction_loss", "kl"}


def test_bound_is_the_mean_over_images_and_samples(run: Path) -> None:
    """The noise is drawn for each batch of evaluation, in the order of the samples."""
    model = load(run, "cpu")
    task = model.task()
    (bounds,) = list(task.bounds(model.model, "test", 2))
    total = torch.stack([bound.total for bound in bounds])
    metrics = task.measure(model.model, "test", 2)
    assert total.shape == (2, 20) and metrics["loss"] == pytest.approx(total.mean().item())
    weights = torch.stack([bound.log_weight for bound in bounds]).double().exp().mean(dim=0)
    assert metrics["importance_loss"] == pytest.approx(-weights.log().mean().item())


def test_training_lowers_the_bound(tmp_path: Path) -> None:
    longer = ["train.steps=150", "train.evaluate_every=150", "train.warmup=5", "train.lr=0.01"]
    model = train_recipe(*VAE, *longer, "binarize=threshold", out=tmp_path / "run")
    uniform = 16 * 16 * math.log(2)
    assert model.evaluate("dev")["loss"] < 0.7 * uniform


# --- generation -------------------------------------------------------------------------------------------------------


def test_generated_images_depend_only_on_the_seed(run: Path) -> None:
    model = load(run, "cpu")
    first, again, other = model.generate(5, seed=1), model.generate(5, seed=1), model.generate(5, seed=2)
    assert first.canvases.shape == (5, 3, 16, 16, 1) and first.frames.shape == (5, 3, 4)
    assert np.array_equal(first.canvases, again.canvases) and not np.array_equal(first.canvases, other.canvases)
    assert repr(first) == "<5 images of 16 × 16 pixels, 3 steps>" and first.pixels.dtype == np.uint8
    assert first._repr_png_() is not None


def test_generate_writes_pictures(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {"--grid": "grid.png", "--steps-grid": "steps.png", "--animation": "x.gif"}
    words = [word for option, name in names.items() for word in (option, str(tmp_path / name))]
    assert main(["generate", str(run), "--samples", "6", "--seed", "3", *words]) == 0
    assert capsys.readouterr().err.count("Wrote ") == 3
    first = (tmp_path / "grid.png").read_bytes()
    side = 16 * 4 + 2
    assert decode(first, "x").pixels.shape == (2 * side + 2, 3 * side + 2, 1)
    assert decode((tmp_path / "steps.png").read_bytes(), "x").pixels.shape == (6 * side + 2, 3 * side + 2, 3)
    with Pillow.open(io.BytesIO((tmp_path / "x.gif").read_bytes())) as animation:
        assert len(list(ImageSequence.Iterator(animation))) == 4 and animation.info["loop"] == 0
    assert main(["generate", str(run), "--samples", "6", "--seed", "3", "--grid", str(tmp_path / "grid.png")]) == 0
    assert (tmp_path / "grid.png").read_bytes() == first


def test_images_of_a_vae_and_colour_images_are_drawn(tmp_path: Path) -> None:
    colours = [word for word in VAE if word != "images.channels=1"]
    train_recipe(*colours, out=tmp_path / "run")
    words = ["--steps-grid", str(tmp_path / "steps.png"), "--animation", str(tmp_path / "x.gif"), "--samples", "2"]
    assert main(["generate", str(tmp_path / "run"), *words]) == 0
    assert decode((tmp_path / "steps.png").read_bytes(), "x").pixels.shape[2] == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Name the file of the images: --grid images.png"),
        (["--grid", "x.gif"], "--grid must be a file that ends in .png; got x.gif"),
        (["--animation", "x.png"], "--animation must be a file that ends in .gif; got x.png"),
        (["--grid", "no/x.png"], "the folder no does not exist"),
        (["--grid", "x.png", "--prompt", "a"], "only --samples, --seed and the names of image files apply"),
        (["--grid", "x.png", "--temperature", "0.5"], "only --samples, --seed and the names of image files apply"),
        (["--grid", "x.png", "--samples", "1000000"], "samples must be at least 1 and at most"),
    ],
)
def test_wrong_options_are_reported(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["generate", str(run), *words]) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_pictures_are_never_written_through_links(run: Path, tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("kept")
    (tmp_path / "grid.png").symlink_to(tmp_path / "kept.txt")
    assert main(["generate", str(run), "--samples", "1", "--grid", str(tmp_path / "grid.png")]) == 0
    assert (tmp_path / "kept.txt").read_text() == "kept" and not (tmp_path / "grid.png").is_symlink()


def test_other_commands_describe_a_model_of_images(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run), "--split", "test"]) == 0
    output = capsys.readouterr().out
    assert "reconstruction loss" in output and "KL divergence" in output and "importance-weighted loss" in output
    for command in ("classify", "score", "predict", "translate"):
        assert main([command, str(run), "x"]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    card = (run / "card.md").read_text()
    assert f"seqloom generate {run.name} --grid images.png" in card and "print(model.generate())" in card
    assert "curl" not in card


# --- pictures ---------------------------------------------------------------------------------------------------------


def test_tiles_are_in_order_with_gaps() -> None:
    images = np.stack([np.full((3, 4, 1), value, dtype=np.uint8) for value in (10, 20, 30)])
    picture = tile(images, 2)[:, :, 0]
    assert picture.shape == (12, 14)
    assert (picture[2:5, 2:6] == 10).all() and (picture[2:5, 8:12] == 20).all() and (picture[7:10, 2:6] == 30).all()
    assert (picture[7:10, 8:12] == 128).all() and (picture[:2] == 128).all()


def test_frames_are_cut_at_the_border() -> None:
    image = np.zeros((6, 6, 3), dtype=np.uint8)
    draw_frame(image, [1, 9, -3, 4])
    changed = image.any(axis=2)
    expected = np.zeros((6, 6), dtype=bool)
    expected[1, :5] = True
    expected[1:, 4] = True
    assert np.array_equal(changed, expected)
    untouched = np.zeros((6, 6, 3), dtype=np.uint8)
    draw_frame(untouched, [-9, -4, 8, 12])
    assert not untouched.any()


def test_steps_include_the_first_and_the_last() -> None:
    assert shown_steps(3) == [0, 1, 2] and shown_steps(1) == [0]
    assert shown_steps(64)[0] == 0 and shown_steps(64)[-1] == 63 and len(shown_steps(64)) == 10
    canvases = np.zeros((2, 64, 8, 8, 1), dtype=np.float32)
    assert draw_steps(canvases, None).shape == (2 * 58 + 2, 10 * 58 + 2, 1)
