"""seqloom: train, compare, understand and use sequence models, from the n-gram to the Transformer."""

from typing import TYPE_CHECKING, Any

from seqloom.core.version import VERSION as __version__

if TYPE_CHECKING:
    from seqloom.api import (
        average,
        ensemble,
        export_hf,
        import_hf,
        import_minilm,
        interpolate,
        load,
        train_recipe,
    )

__all__ = [
    "__version__",
    "average",
    "ensemble",
    "export_hf",
    "import_hf",
    "import_minilm",
    "interpolate",
    "load",
    "train_recipe",
]


def __getattr__(name: str) -> Any:
    """`seqloom.train_recipe` and the others on first use, so that importing the package stays instant."""
    if name in __all__:
        from seqloom import api

        return getattr(api, name)
    raise AttributeError(f"module 'seqloom' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
