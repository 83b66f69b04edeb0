"""Clips: moving digits, reading of animated images and folders, bounds, and padding."""

from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow

from seqloom.core.errors import DataError
from seqloom.data import clips as clips_module
from seqloom.data.clips import ClipOptions, ClipTable, PixelClip, StoredClip, choose_frames, natural_key
from seqloom.data.corpora import video_digits
from seqloom.data.images import ImageShape, encode_png
from seqloom.data.moving_digits import (
    DIGITS,
    FRAMES,
    MOTIONS,
    STEPS,
    MovingDigit,
    draw_clips,
    embedded_glyphs,
    held_out,
    render_clip,
)

SPLITS = ("train", "dev", "test")
RNG = np.random.default_rng(1)


def draw(split: str, count: int = 600, seed: int = 0) -> list[MovingDigit]:
    return list(islice(draw_clips(split, seed), count))


def write_gif(path: Path, frames: np.ndarray) -> Path:
    first, *others = [Pillow.fromarray(frame) for frame in frames]
    first.save(path, save_all=True, append_images=others, duration=100, loop=0)
    return path


# --- moving digits ----------------------------------------------------------------------------------------------------


def test_clips_depend_only_on_split_and_seed() -> None:
    assert draw("train", 20) == draw("train", 20) != draw("train", 20, seed=1)


def test_held_out_combinations_occur_only_in_their_split() -> None:
    kinds = {split: {(clip.digit, clip.parts) for clip in draw(split, 3000)} for split in SPLITS}
    assert len(MOTIONS) == len(set(MOTIONS)) == 20
    for split in ("dev", "test"):
        assert kinds[split] == held_out(split) and len(held_out(split)) == len(MOTIONS)
    assert not kinds["train"] & (kinds["dev"] | kinds["test"]) and not kinds["dev"] & kinds["test"]
    assert len(kinds["train"]) == len(DIGITS) * len(MOTIONS) - 2 * len(MOTIONS)
    assert Counter(digit for digit, _ in held_out("dev")) == dict.fromkeys(range(10), 2)


def test_frame_labels_are_the_directions_in_which_the_pixels_move() -> None:
    """The centre of brightness, measured in the frames, moves in the direction of each frame label."""
    glyphs = embedded_glyphs()
    seen = set()
    for clip in draw("train", 150):
        frames = render_clip(clip, glyphs[clip.digit][0]).astype(float)[..., 0]
        assert FRAMES[0] <= len(frames) == len(clip.steps) <= FRAMES[1]
        grid = np.arange(frames.shape[1]) + 0.5
        mass = frames.sum(axis=(1, 2))
        x, y = (frames.sum(axis=axis) @ grid / mass for axis in (1, 2))
        for t in range(1, len(frames)):
            expected = clip.speed * 32 * np.array(STEPS[clip.steps[t]])
            np.testing.assert_allclose([x[t] - x[t - 1], y[t] - y[t - 1]], expected, atol=0.1)
            seen.add(clip.steps[t])
        assert clip.steps[0] == clip.steps[1]
        assert mass.max() < 1.01 * mass.min(), "no part of the digit leaves the frame"
    assert seen == set(STEPS)


def test_labels_and_caption_describe_the_moves() -> None:
    clip = MovingDigit(8, ("left", "left", "left", "still", "still", "still"), 0.5, 0.5, 0.3, 0.05, 255)
    assert clip.caption == "an eight moves left, then stops"
    turned = MovingDigit(3, ("up",) * 3 + ("right",) * 3, 0.5, 0.5, 0.3, 0.05, 255)
    assert turned.motion == "up, then right" and turned.caption == "a three moves up, then right"
    np.testing.assert_allclose(turned.centres()[2:4], [(0.5, 0.4), (0.55, 0.4)])


def test_glyphs_differ() -> None:
    glyphs = [glyphs[0] for glyphs in embedded_glyphs().values()]
    assert len({glyph.tobytes() for glyph in glyphs}) == 10 and {glyph.shape for glyph in glyphs} == {(7, 5)}


def test_corpus_has_labels_for_frames_and_clips() -> None:
    corpus = video_digits.load(video_digits.Config(train=12, dev=5, test=5))
    for clip, example in zip(draw("train", 12), corpus.split("train"), strict=True):
        assert (example.label, example.frame_labels, example.captions) == (clip.motion, clip.steps, (clip.caption,))
    assert corpus.sizes("train")["frames"] == sum(len(clip.steps) for clip in draw("train", 12))
    digits = video_digits.load(video_digits.Config(train=12, dev=5, test=5, label="digit"))
    assert [example.label for example in digits.split("dev")] == [DIGITS[clip.digit] for clip in draw("dev", 5)]


# --- files ------------------------------------------------------------------------------------------------------------


def test_animated_image_and_folder_have_the_same_frames(tmp_path: Path) -> None:
    frames = RNG.integers(0, 2, size=(12, 9, 7), dtype=np.uint8) * 255
    gif, folder = StoredClip(write_gif(tmp_path / "clip.gif", frames)), tmp_path / "frames"
    folder.mkdir()
    for number, frame in enumerate(frames):
        (folder / f"frame{number}.png").write_bytes(encode_png(frame[..., None]))
    (folder / "notes.txt").write_text("not a frame")
    shape = ImageShape(9, 7, 1)
    for clip in (gif, StoredClip(folder)):
        assert clip.frame_count() == 12
        assert np.array_equal(clip.decode(shape).pixels[..., 0], frames)
    assert gif.decode().pixels.shape == (12, 9, 7, 3)
    few = gif.decode(shape, frames=4)
    assert np.array_equal(few.pixels[..., 0], frames[[0, 4, 7, 11]]) and "evenly spaced" in few.notes[0]
    (folder / "frame11.png").write_bytes(encode_png(np.zeros((9, 7, 1), dtype=np.uint8)))
    assert StoredClip(folder).sha256 != gif.sha256


def test_frames_of_a_folder_are_in_natural_order() -> None:
    names = ["b1.png", "a10.png", "a2.png"]
    assert sorted(names, key=natural_key) == ["a2.png", "a10.png", "b1.png"]


def test_selected_frames_include_the_first_and_the_last() -> None:
    assert choose_frames(5, 8) == [0, 1, 2, 3, 4]
    for count in range(2, 40):
        for most in range(2, 12):
            chosen = choose_frames(count, most)
            assert len(chosen) == min(count, most) == len(set(chosen)) and (chosen[0], chosen[-1]) == (0, count - 1)
            assert max(np.diff(chosen)) - min(np.diff(chosen)) <= 1


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "must contain the frames of a clip as images, but it has no image"),
        ({"1.png": b"no image"}, r"1\.png must be an image"),
        ({"1.png": (4, 4), "2.png": (5, 4)}, r"frames of .* must have the same size; got 4 × 4 × 1 and 5 × 4 × 1"),
    ],
)
def test_unusable_folders_are_reported(tmp_path: Path, files: dict[str, bytes | tuple[int, int]], message: str) -> None:
    for name, content in files.items():
        data = content if isinstance(content, bytes) else encode_png(np.zeros((*content, 1), dtype=np.uint8))
        (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=message):
        StoredClip(tmp_path).decode()


def test_link_out_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "clip").mkdir()
    (tmp_path / "secret.png").write_bytes(encode_png(np.zeros((4, 4, 1), dtype=np.uint8)))
    (tmp_path / "clip" / "1.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(DataError, match="is a link that leads out of"):
        StoredClip(tmp_path / "clip").decode()


def test_long_and_large_clips_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clip = StoredClip(write_gif(tmp_path / "clip.gif", RNG.integers(0, 255, size=(6, 20, 20), dtype=np.uint8)))
    assert clip.decode().pixels.shape == (6, 20, 20, 3)  # control
    monkeypatch.setattr(clips_module, "MAX_CLIP_PIXELS", 6 * 20 * 20 - 1)
    with pytest.raises(DataError, match="at most 2,399 pixels in all frames, but it has 6 frames of 20 × 20"):
        clip.decode()
    assert clip.decode(ImageShape(8, 8, 1)).pixels.shape == (6, 8, 8, 1)
    monkeypatch.setattr(clips_module, "MAX_FRAMES", 5)
    with pytest.raises(DataError, match="must have at most 5 frames, but it has 6"):
        clip.decode()


def test_truncated_animation_is_reported(tmp_path: Path) -> None:
    path = write_gif(tmp_path / "clip.gif", RNG.integers(0, 255, size=(4, 64, 64), dtype=np.uint8))
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(DataError, match=r"clip\.gif is a damaged or truncated image"):
        StoredClip(path).decode(frames=64)


# --- tables -----------------------------------------------------------------------------------------------------------


def test_batch_repeats_the_last_frame_and_masks_it() -> None:
    pixels = [RNG.integers(0, 255, size=(count, 6, 6, 1), dtype=np.uint8) for count in (3, 5, 9)]
    table = ClipTable([PixelClip(str(n), each) for n, each in enumerate(pixels)], ImageShape(6, 6, 1), frames=7)
    assert table.fill() == ["1 of 3 images: longer than 7 frames: evenly spaced frames are used"]
    assert table.lengths.tolist() == [3, 5, 7]
    batch = table.batch(np.array([1, 0]))
    assert batch["frames"].shape == (2, 5, 6, 6, 1) and batch["mask"].tolist() == [[True] * 5, [True] * 3 + [False] * 2]
    assert np.array_equal(batch["frames"][0].numpy(), pixels[1])
    assert np.array_equal(batch["frames"][1].numpy(), pixels[0][[0, 1, 2, 2, 2]])


def test_frames_of_different_sizes_need_a_size() -> None:
    clips = [PixelClip(str(n), np.zeros((2, n, 4, 1), dtype=np.uint8)) for n in (4, 5)]
    with pytest.raises(DataError, match=r"Set images\.size"):
        ClipOptions().shape(clips)
    assert ClipOptions(size=8).shape(clips) == ImageShape(8, 8, 1)
