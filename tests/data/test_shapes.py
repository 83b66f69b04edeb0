"""Scenes of shapes: held-out combinations, disjoint splits, and pixels that match the description."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from seqloom.data.corpora import captioned_shapes
from seqloom.data.shapes import (
    COLOURS,
    RADII,
    SHAPES,
    Scene,
    SceneObject,
    caption_scene,
    draw_scenes,
    held_out,
    relation,
    render,
)

SPLITS = ("train", "dev", "test")


def scenes(split: str, count: int = 400, seed: int = 0) -> list[Scene]:
    return list(islice(draw_scenes(split, seed), count))


def combinations(scene: Scene) -> set[tuple[str, str]]:
    return {(part.shape, part.colour) for part in scene.objects}


def test_scenes_depend_only_on_split_and_seed() -> None:
    assert scenes("train", 20) == scenes("train", 20)
    assert scenes("train", 20) != scenes("train", 20, seed=1)


def test_held_out_combinations_occur_only_in_their_split() -> None:
    drawn = {split: [combinations(scene) for scene in scenes(split)] for split in SPLITS}
    for split in ("dev", "test"):
        assert len(held_out(split)) == len(SHAPES)
        assert all(kinds & held_out(split) for kinds in drawn[split])
        for other in set(SPLITS) - {split}:
            assert not any(kinds & held_out(split) for kinds in drawn[other])
    parts = {part for kinds in drawn["train"] for part in kinds}
    assert {shape for shape, _ in parts} == set(SHAPES) and {colour for _, colour in parts} == set(COLOURS)
    assert len(parts) == len(SHAPES) * (len(COLOURS) - 2)


def test_scenes_of_a_split_differ_and_objects_are_in_different_cells() -> None:
    drawn = scenes("train", 2000)
    assert len(set(drawn)) == 2000
    cells = [[(part.row, part.column) for part in scene.objects] for scene in drawn]
    assert all(len(set(each)) == len(each) and each == sorted(each) for each in cells)
    assert {len(each) for each in cells} == {1, 2, 3}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", RADII)
def test_object_is_drawn_with_its_colour_at_its_position(shape: str, size: str) -> None:
    part = SceneObject(shape, "blue", size, 0, 2, 0.82, 0.18)
    pixels = render(Scene((part,), 250), 100).astype(int)
    is_object = np.abs(pixels - COLOURS["blue"]).max(axis=2) == 0
    rows, columns = np.nonzero(is_object)
    assert abs(rows.mean() - 18) < 2.5 and abs(columns.mean() - 82) < 1
    radius = 100 * RADII[size]
    assert np.hypot(rows - 17.5, columns - 81.5).max() < 1.25 * radius
    assert 0.2 * radius**2 < len(rows) < 3.2 * radius**2
    assert is_object[18, 82] == (shape != "ring")
    assert (pixels[70:, :60] == 250).all()


def test_shapes_and_sizes_differ_in_their_pixels() -> None:
    drawn = [
        render(Scene((SceneObject(shape, "red", size, 1, 1, 0.5, 0.5),), 255)) for shape in SHAPES for size in RADII
    ]
    assert len({pixels.tobytes() for pixels in drawn}) == len(SHAPES) * len(RADII)


def test_positions_are_described_in_words() -> None:
    names = [SceneObject("star", "red", "small", row, column, 0, 0).position for row in range(3) for column in range(3)]
    assert names[:6] == ["top left", "top middle", "top right", "middle left", "middle", "middle right"]


def placed(shape: str, colour: str, size: str, row: int, column: int) -> SceneObject:
    return SceneObject(shape, colour, size, row, column, (column + 0.5) / 3, (row + 0.5) / 3)


def test_captions_name_the_position_or_the_relation() -> None:
    circle, square = placed("circle", "red", "small", 0, 0), placed("square", "blue", "large", 2, 1)
    assert caption_scene(Scene((circle,), 255)) == ("a small red circle in the top left",)
    assert caption_scene(Scene((placed("ring", "green", "large", 1, 1),), 255)) == ("a large green ring in the middle",)
    assert caption_scene(Scene((circle, square), 255)) == (
        "a small red circle above and left of a large blue square",
        "a large blue square below and right of a small red circle",
    )


def test_relations_agree_with_the_positions() -> None:
    for scene in scenes("train"):
        if len(scene.objects) != 2:
            continue
        first, second = scene.objects
        words = set(relation(first, second).split()) - {"and", "of"}
        assert words == {
            *(["above"] if first.row < second.row else ["below"] if first.row > second.row else []),
            *(["left"] if first.column < second.column else ["right"] if first.column > second.column else []),
        }


def test_corpus_renders_captioned_scenes() -> None:
    config = captioned_shapes.Config(train=30, dev=20, test=20, side=24)
    corpus, again = captioned_shapes.load(config), captioned_shapes.load(config)
    assert corpus.fingerprint() == again.fingerprint() != captioned_shapes.load(replace(config, seed=1)).fingerprint()
    assert corpus.sizes("train")["images"] == 30 < corpus.sizes("train")["captions"] <= 60
    for split in SPLITS:
        for scene, example in zip(islice(draw_scenes(split, objects=(1, 2)), 20), corpus.split(split), strict=False):
            assert example.captions == caption_scene(scene)
            assert np.array_equal(example.image.decode().pixels, render(scene, 24))
