"""Attention over a picture in the view "Alignment": the weights of each word that a model writes.

The page sends the picture with each request. The picture is decoded in memory by `seqloom.data.images`, and is neither
written to disk nor cached. The response contains the decoded pixels, so the browser does not decode the file.
"""

import base64
import binascii
from typing import Annotated

import numpy as np
from fastapi import Response
from pydantic import BeforeValidator

from seqloom.core.errors import UsageError
from seqloom.data.images import EncodedImage, Pixels
from seqloom.predict.image_to_text import ImageQuery, ImageToTextPredictor
from seqloom.studio.endpoints import (
    Line,
    PackedArray,
    RunRequest,
    TextRequest,
    pack_arrays,
    pack_float16,
    pack_uint8,
)
from seqloom.studio.run_folder import OpenRun
from seqloom.studio.views.attention import alignment_view

MAX_PICTURE_BYTES = 12_000_000  # maximum size of a picture file; a request contains it in base64
MAX_REQUEST_BYTES = 4 * MAX_PICTURE_BYTES // 3 + 100_000
MAX_NEW_TOKENS = 100  # maximum number of tokens to write


def decode_base64(text: object) -> bytes:
    """Return the bytes of a base64 text."""
    try:
        return base64.b64decode(text if isinstance(text, str) else "?", validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("must be base64") from None


class PictureRequest(RunRequest):
    """A picture or an animated image."""

    name: Line = "the picture"  # name of the file for messages
    picture: Annotated[bytes, BeforeValidator(decode_base64)]  # content of the file


class PictureTextRequest(TextRequest, PictureRequest):
    """A picture, with a text if the model reads one, such as a question."""

    text: Line = ""


@alignment_view.post("/picture", max_bytes=MAX_REQUEST_BYTES)
def alignment_on_picture(body: PictureTextRequest, run: OpenRun) -> Response:
    """Return the text that a model writes for a picture, and the attention weights of each word."""
    trained = run.require(ImageToTextPredictor, "a model that describes images")
    if trained.inputs[0] != "image":
        raise UsageError(f"{run.name} is {trained.description}. Choose a model that describes images.")
    query, target = ImageQuery(EncodedImage(body.name, body.picture), body.text.strip()), body.forced_target
    if trained.reads_queries and not query.text:
        raise UsageError("Enter a question about the picture.")
    if target is None:
        limit = trained.decode.max_length or MAX_NEW_TOKENS
        (prediction,) = trained.write([query], attention=True, n_best=1, max_length=min(limit, MAX_NEW_TOKENS))
    else:
        prediction = trained.force(query, target)
    assert prediction.pixels is not None and prediction.words is not None
    words, grid = prediction.words, trained.grid
    maps = np.array([word.weights for word in words]).reshape(len(words), *grid)
    on_query = np.array([word.source_weights for word in words]).reshape(len(words), -1)
    meta = {
        "text": prediction.text,
        "given": target is not None,
        "finished": prediction.best.finished,
        "logProb": prediction.log_prob,
        "notes": prediction.notes,
        "words": [word.text for word in words],
        "query": [word.text for word in trained.query_words(query)],
    }
    return pack_arrays(
        meta, maps=pack_float16(maps), onQuery=pack_float16(on_query), pixels=pack_pixels(prediction.pixels)
    )


def pack_pixels(pixels: Pixels) -> PackedArray:
    """Encode pixels (…, C) as bytes with three channels."""
    return pack_uint8(np.broadcast_to(pixels, (*pixels.shape[:-1], 3)), low=0.0, high=255.0)
