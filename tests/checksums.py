"""New checksums for a run whose files were changed, to test invalid files with valid checksums."""

import json
from pathlib import Path

from seqloom.config import load_yaml
from seqloom.core.errors import SeqloomError
from seqloom.core.files import tensors_from_file, tensors_to_bytes
from seqloom.runs.layout import DOCUMENTS, Manifest


def update_checksums(run: Path) -> None:
    """Recompute all checksums of a run and the identity in its weights and checkpoints."""
    path = run / "manifest.json"
    names = {*json.loads(path.read_text())["files"], *(name for name in DOCUMENTS if (run / name).exists())}
    files = {name: (run / name).read_bytes() for name in sorted(names) if (run / name).is_file()}
    manifest = Manifest.of((run / "recipe.yaml").read_bytes(), files)
    path.write_text(manifest.to_json())
    try:
        recipe = load_yaml(run / "recipe.yaml")
    except SeqloomError:
        return
    identity = manifest.identity({key: value for key, value in recipe.items() if key not in ("format", "seqloom")})
    weights = run / "model.safetensors"
    if weights.exists():
        weights.write_bytes(tensors_to_bytes(tensors_from_file(weights), identity))
    for manifest_path in run.glob("checkpoints/step-*/manifest.json"):
        manifest_path.write_text(json.dumps({**json.loads(manifest_path.read_text()), "run": identity}))
