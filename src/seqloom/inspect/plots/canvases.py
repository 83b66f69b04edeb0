"""Pictures of generated images as arrays of pixels: a grid, the steps of each image, and an animation."""

import io
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from seqloom.data.images import Pixels, as_pillow

Canvases = NDArray[np.float32]  # (N, T, H, W, C), from 0 to 1
Frames = NDArray[np.float32]  # (N, T, 4): first and last row, first and last column
SHOWN_SIDE = 56  # minimum side of an image in a picture, in pixels
GAP = 2  # pixels between images
BACKGROUND = 128  # grey value between images
FRAME_COLOUR = (220, 50, 40)
MAX_SHOWN_STEPS = 10  # columns in a picture of the steps
FRAME_MILLISECONDS, LAST_MILLISECONDS = 80, 2000  # duration of the frames of an animation, and of the last frame


def to_pixels(canvases: Canvases) -> Pixels:
    """Convert values from 0 to 1 to bytes."""
    pixels: Pixels = (canvases * 255).round().clip(0, 255).astype(np.uint8)
    return pixels


def enlarge(images: Pixels) -> Pixels:
    """Enlarge small images (N, H, W, C) by a whole factor, so that a side has at least `SHOWN_SIDE` pixels."""
    factor = max(1, -(-SHOWN_SIDE // min(images.shape[1:3])))
    return images.repeat(factor, axis=1).repeat(factor, axis=2)


def tile(images: Pixels, columns: int) -> Pixels:
    """Arrange images (N, H, W, C) row by row, with gaps between them."""
    N, H, W, C = images.shape
    rows = -(-N // columns)
    picture = np.full((rows * (H + GAP) + GAP, columns * (W + GAP) + GAP, C), BACKGROUND, dtype=np.uint8)
    for number, image in enumerate(images):
        row, column = divmod(number, columns)
        top, left = GAP + row * (H + GAP), GAP + column * (W + GAP)
        picture[top : top + H, left : left + W] = image
    return picture


def draw_grid(canvases: Canvases) -> Pixels:
    """Draw the final images in a square grid."""
    return tile(enlarge(to_pixels(canvases[:, -1])), grid_columns(len(canvases)))


def grid_columns(count: int) -> int:
    return int(np.ceil(np.sqrt(count)))


def draw_steps(canvases: Canvases, frames: Frames | None) -> Pixels:
    """Draw each image in a row of selected steps, with a frame around the region that the step writes."""
    steps = shown_steps(canvases.shape[1])
    panels = [draw_step(canvases, frames, step) for step in steps]
    return tile(np.stack(panels, axis=1).reshape(-1, *panels[0].shape[1:]), len(steps))


def shown_steps(count: int) -> list[int]:
    """Return evenly spaced steps, including the first and the last."""
    return sorted({round(step) for step in np.linspace(0, count - 1, min(count, MAX_SHOWN_STEPS))})


def draw_step(canvases: Canvases, frames: Frames | None, step: int) -> Pixels:
    """Draw one step of each image (N, H', W', C'), enlarged."""
    images = enlarge(to_pixels(canvases[:, step]))
    if frames is None:
        return images
    factor = images.shape[1] // canvases.shape[2]
    coloured = images.repeat(3, axis=3) if images.shape[3] == 1 else images
    for image, frame in zip(coloured, frames[:, step], strict=True):
        draw_frame(image, ((frame + 0.5) * factor).round().astype(int).tolist())
    return coloured


def draw_frame(image: Pixels, frame: list[int]) -> None:
    """Draw a rectangle with these first and last rows and columns on an image; parts outside the image are left out."""
    H, W, _ = image.shape
    top, bottom, left, right = frame
    rows = slice(max(top, 0), max(min(bottom + 1, H), 0))
    columns = slice(max(left, 0), max(min(right + 1, W), 0))
    for row in {top, bottom} & set(range(H)):
        image[row, columns] = FRAME_COLOUR
    for column in {left, right} & set(range(W)):
        image[rows, column] = FRAME_COLOUR


def encode_animation(canvases: Canvases, frames: Frames | None) -> bytes:
    """Encode the steps of all images as a GIF file, which repeats forever."""
    columns, last = grid_columns(len(canvases)), canvases.shape[1] - 1

    def pictures() -> Iterator[Pixels]:
        for step in range(last + 1):
            yield tile(draw_step(canvases, frames, step), columns)
        if frames is not None:
            yield tile(draw_step(canvases, None, last).repeat(3 // canvases.shape[4], axis=3), columns)

    first, *others = map(as_pillow, pictures())
    output, durations = io.BytesIO(), [FRAME_MILLISECONDS] * len(others) + [LAST_MILLISECONDS]
    first.save(output, format="GIF", save_all=True, append_images=others, duration=durations, loop=0)
    return output.getvalue()
