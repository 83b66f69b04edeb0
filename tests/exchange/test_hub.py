"""Import of models from a local server with the same responses as the Hugging Face hub."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from tests.exchange.hub_server import COMMIT, Hub, serve
from tests.exchange.small_decoders import write_by_hand

import seqloom
from seqloom.core.errors import CheckpointError, ResourceError, SeqloomError, UsageError
from seqloom.core.files import parse_json, tensors_from_file
from seqloom.exchange import hub as our_hub
from seqloom.exchange.conversion import import_model
from seqloom.predict.loader import import_run

README = "---\nlanguage: en\nlicense: apache-2.0\n---\n# Tiny\n"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("hub")
    tiny = write_by_hand(folder / "tiny")
    (tiny / "README.md").write_text(README)
    (tiny / "pytorch_model.bin").write_bytes(b"pickle")
    (tiny / "train.py").write_text("raise SystemExit")
    (tiny / "onnx").mkdir()
    (tiny / "onnx" / "config.json").write_text("{}")
    models = {name: folder / name for name in ("pickled", "bare", "t5", "code", "empty")}
    for path in models.values():
        shutil.copytree(tiny, path)
    (models["pickled"] / "model.safetensors").unlink()
    for name in ("model.safetensors", "pytorch_model.bin"):
        (models["bare"] / name).unlink()
    (models["t5"] / "config.json").write_text('{"model_type": "t5"}')
    (models["code"] / "config.json").write_text('{"model_type": "gpt2", "auto_map": {"AutoModel": "model.Model"}}')
    (models["empty"] / "config.json").unlink()
    hub = Hub({"org/tiny": tiny, "org/gated": tiny, **{f"org/{name}": path for name, path in models.items()}})
    hub.gated.add("org/gated")
    with serve(hub):
        yield hub


@pytest.fixture(autouse=True)
def empty_cache(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.requests.clear()
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)


def refused(name: str, *words: str, kind: type[SeqloomError] = CheckpointError, revision: str | None = None) -> None:
    with pytest.raises(kind) as error:
        import_model(name, "run", revision)
    assert type(error.value) is kind
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)
    assert not Path("run").exists()


def test_model_on_the_hub_has_the_files_of_its_directory(hub: Hub, tmp_path: Path) -> None:
    run, found = import_run("org/tiny", tmp_path / "run", "v1")
    local, _ = import_model(write_by_hand(tmp_path / "tiny"), tmp_path / "local")
    ours, theirs = (tensors_from_file(path / "model.safetensors") for path in (run.path, local.path))
    assert ours.keys() == theirs.keys()
    assert all(ours[name].equal(theirs[name]) for name in ours)
    assert found.name == "org/tiny" and found.licence == "apache-2.0"
    data = parse_json((run.path / "data.json").read_bytes())
    assert isinstance(data, dict)
    assert data["licence"] == "apache-2.0"
    assert data["imported"]["revision"] == COMMIT
    assert f"`org/tiny`, revision {COMMIT}" in (run.path / "card.md").read_text()


def test_only_supported_files_are_downloaded_and_only_once(hub: Hub, tmp_path: Path) -> None:
    import_model("org/tiny", tmp_path / "run")
    assert hub.downloads() == {"README.md", "config.json", "tokenizer.json", "model.safetensors"}
    assert not any("onnx" in request for request in hub.requests if "/resolve/" in request)
    hub.requests.clear()
    import_model("org/tiny", tmp_path / "again")
    assert hub.downloads() == set()


def test_cached_model_is_imported_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_model("org/tiny", tmp_path / "first")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert import_model("org/tiny", tmp_path / "again")[1].name == "org/tiny"
    refused("org/t5", "cannot be downloaded from http://127.0.0.1:9", "Connection refused", kind=ResourceError)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    refused("org/t5", "(HF_HUB_OFFLINE is set)", kind=ResourceError)


def test_missing_models_and_revisions_are_explained(hub: Hub) -> None:
    refused("org/none", f"org/none is neither a folder nor a public model on {hub.url}", "set HF_TOKEN")
    refused("org/tiny", "org/tiny has no revision v2", revision="v2")
    refused("tiny", "tiny does not exist", "as ORGANIZATION/NAME")
    refused("../tiny", "../tiny does not exist")
    refused("org/empty", "has no config.json")
    with pytest.raises(UsageError, match="A revision requires the name of a model"):
        import_model(hub.models["org/tiny"], "run", "v1")


def test_gated_model_requires_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused("org/gated", "Accept its conditions on http", "/org/gated, then set HF_TOKEN", kind=ResourceError)
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert import_model("org/gated", tmp_path / "run")[1].name == "org/gated"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("org/pickled", "org/pickled has only pickled weights (pytorch_model.bin)"),
        ("org/bare", "org/bare has no weights: model.safetensors and"),
        ("org/t5", "org/t5/config.json has the unsupported model_type 't5'"),
        ("org/code", "org/code is a model with custom code (auto_map in config.json)"),
    ],
)
def test_unsupported_models_are_rejected_before_weights_are_downloaded(hub: Hub, name: str, words: str) -> None:
    refused(name, words)
    assert not any(file.endswith((".bin", ".safetensors", ".py")) for file in hub.downloads())


def test_full_disk_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(our_hub, "snapshot_download", fail)
    refused("org/tiny", "The disk is full", kind=ResourceError)


@pytest.mark.parametrize(
    ("text", "licence"),
    [
        (README, "apache-2.0"),
        ("---\nlicense: 'mit'\n---\n", "mit"),
        ("---\nlicense: other\n---\n", None),
        ("---\nlicense: <b>x</b>\n---\n", None),
        ("---\ntags: a\n---\nlicense: mit\n", None),
        ("# Title\n---\nlicense: mit\n---\n", None),
        ("", None),
    ],
)
def test_licence_is_read_from_the_metadata(hub: Hub, tmp_path: Path, text: str, licence: str | None) -> None:
    folder = shutil.copytree(hub.models["org/tiny"], tmp_path / "tiny")
    (folder / "train.py").unlink()
    (folder / "README.md").write_text(text)
    assert our_hub.open_source(folder).licence == licence


def test_command_reads_the_environment_variables(hub: Hub, tmp_path: Path) -> None:
    variables = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-m", "seqloom", "import-hf", "org/tiny", "run", "--revision", "main"]
    result = subprocess.run(words, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    assert result.stderr == ""
    assert "Created run: GPT-2, 1,976 parameters" in result.stdout
    assert (tmp_path / "home" / "hub" / "models--org--tiny").is_dir()
    assert seqloom.load("run", device="cpu").score("the dog barks")[0].log_prob < 0


def test_init_imports_the_model_to_fine_tune(tmp_path: Path) -> None:
    from seqloom.cli.init import find_run

    assert find_run("org/tiny") == Path("runs/tiny")
    assert (tmp_path / "runs" / "tiny" / "model.safetensors").is_file()
    assert find_run("org/tiny") == Path("runs/tiny")  # the model is imported only once
    with pytest.raises(UsageError, match="there is no such run or directory"):
        find_run("runs/none")
    assert seqloom.import_hf("org/tiny", tmp_path / "other", device="cpu", revision="v1").run.path.name == "other"
