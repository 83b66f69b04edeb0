"""The view "Images": why an image has its label, the frames of a clip, and the steps of generated images.

The page sends a picture with each request, as for the view "Alignment"; see `seqloom.studio.views.pictures`.
"""

from fastapi import Response
from pydantic import Field

from seqloom.core.errors import UsageError
from seqloom.data.clips import EncodedClip
from seqloom.data.images import EncodedImage
from seqloom.inspect.plots.canvases import to_pixels
from seqloom.inspect.views.images import ImageReasons
from seqloom.predict.classify_images import ImageClassifierPredictor
from seqloom.predict.generate_images import ImageGeneratorPredictor
from seqloom.predict.video import VideoClassifierPredictor, VideoTaggerPredictor
from seqloom.studio.endpoints import RunRequest, View, pack_arrays, pack_float16, pack_float32
from seqloom.studio.run_folder import OpenRun
from seqloom.studio.views.pictures import MAX_REQUEST_BYTES, PictureRequest, pack_pixels

view = View("images", "Images")
MAX_VALUES = 1 << 24  # maximum number of values of all steps of the generated images
MAX_LABELS = 10  # maximum number of labels with their probabilities


@view.post("/classify", max_bytes=MAX_REQUEST_BYTES)
def classify_image(body: PictureRequest, run: OpenRun) -> Response:
    """Return the labels of an image, the maps of its parts that support the label, and the path of glimpses."""
    trained = run.require(ImageClassifierPredictor, "a classifier of images")
    if isinstance(trained, VideoClassifierPredictor):
        raise UsageError(f"{run.name} is {trained.description}. Choose a classifier of images.")
    image = EncodedImage(body.name, body.picture)
    (prediction,) = trained.classify(image, why=True)
    assert isinstance(prediction.why, ImageReasons)
    meta = {
        "labels": prediction.candidates[:MAX_LABELS],
        "label": prediction.why.label,
        "notes": prediction.notes,
        "maps": list(prediction.why.maps),
        "glimpses": prediction.why.glimpses,
    }
    maps = {name: pack_float16(values) for name, values in prediction.why.maps.items()}
    return pack_arrays(meta, pixels=pack_pixels(trained.decode(image).pixels), **maps)


@view.post("/clip", max_bytes=MAX_REQUEST_BYTES)
def read_clip(body: PictureRequest, run: OpenRun) -> Response:
    """Return the frames of a clip with their labels, or with their weights for the label of the clip."""
    clip = EncodedClip(body.name, body.picture)
    if isinstance(run.trained, VideoClassifierPredictor):
        (prediction,) = run.trained.classify(clip, why=True)
        assert prediction.why is not None
        meta = {
            "labels": prediction.candidates[:MAX_LABELS],
            "label": prediction.why.label,
            "notes": prediction.notes,
            "weights": {name: values.tolist() for name, values in prediction.why.maps.items()},
        }
        return pack_arrays(meta, pixels=pack_pixels(run.trained.decode(clip).pixels))
    trained = run.require(VideoTaggerPredictor, "a model of clips")
    (tagged,) = trained.tag(clip)
    meta = {"frames": tagged.frames, "notes": tagged.notes}
    return pack_arrays(meta, pixels=pack_pixels(trained.decode(clip).pixels))


class GenerateRequest(RunRequest):
    """The number of images to generate, and the seed of their latent vectors."""

    samples: int = Field(9, ge=1, le=36)
    seed: int = Field(0, ge=0, lt=1 << 31)


@view.post("/generate")
def generate_images(body: GenerateRequest, run: OpenRun) -> Response:
    """Return the canvas after every step of each image, and the regions that the steps write."""
    trained = run.require(ImageGeneratorPredictor, "a model that generates images")
    sizes = trained.run.sizes
    most = MAX_VALUES // (trained.model.steps * sizes["height"] * sizes["width"] * 3)
    if body.samples > most:
        raise UsageError(f"The studio shows at most {most} images of this model at the same time. Choose fewer images.")
    images = trained.generate(body.samples, seed=body.seed)
    arrays = {"canvases": pack_pixels(to_pixels(images.canvases))}
    if images.frames is not None:
        arrays["frames"] = pack_float32(images.frames)
    return pack_arrays({}, **arrays)
