"""A new cell, attention score, corpus, task and recipe need one new file each, as in CONTRIBUTING.md."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.test_readme import ROOT

from seqloom.core.files import tensors_from_file

EXAMPLE = re.compile(r'^```(?:python|yaml) title="(.+?)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
COPIED = ("src", "tests", "docs", "examples", "benchmarks", "tools")
NEW_NAMES = "mgu or distance or romans or reverse"
CONTRACT_TESTS = (
    *("nn/test_cells.py", "nn/test_scores.py", "nn/test_recurrent.py", "nn/test_attention.py", "nn/test_padding.py"),
    *("accel/test_sequences.py", "data/test_corpora.py", "data/test_fingerprints.py", "cli/test_list.py"),
)
DOCUMENTATION_TESTS = ("test_docs.py", "test_architecture.py", "tasks/test_base.py")
TRAIN = ["train", "reverse-romans", "train.epochs=null", "train.evaluate_every=1000", "train.save_every=10"]
# Runs commands of the copy in one process and prints [exit code, output] of each command as a line of JSON.
RUN_COMMANDS = """
import contextlib, io, json, sys
from seqloom.cli.app import main
for command in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        code = main(command)
    print(json.dumps([code, out.getvalue()]))
"""
WALK = """
import sys
from seqloom import load
from seqloom.inspect.tours.tour import walk_through
walk = walk_through(load(sys.argv[1]), sys.argv[2])
print(len(walk.stages), *(stage.title for stage in walk.stages), sep="\\n")
"""


class Copy:
    """A copy of the repository with the new files, and a folder for runs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}", "OMP_NUM_THREADS": "1"}

    def python(self, *arguments: str, timeout: float = 900) -> str:
        result = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.root,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
        return result.stdout

    def commands(self, *commands: list[str]) -> list[str]:
        """Return the outputs of commands. Each command must succeed."""
        results = [json.loads(line) for line in self.python("-c", RUN_COMMANDS, json.dumps(commands)).splitlines()]
        for command, (code, output) in zip(commands, results, strict=True):
            assert code == 0, f"{command}: {output}"
        return [output for _, output in results]

    def digests(self) -> dict[str, str]:
        """Return a digest of every source file and page."""
        files = (path for folder in COPIED for path in (self.root / folder).rglob("*") if path.suffix != ".pyc")
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files if path.is_file()}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    root = tmp_path_factory.mktemp("extended")
    for name in COPIED:
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for path in ROOT.iterdir():
        if path.is_file() and path.name != ".git":  # in a git worktree, .git is a file
            shutil.copy(path, root)
    copied = Copy(root)
    before = copied.digests()
    examples = dict(EXAMPLE.findall((ROOT / "CONTRIBUTING.md").read_text("utf-8")))
    assert len(examples) == 5
    for path, text in examples.items():
        assert not (root / path).exists(), "adding a member must not edit other files"
        (root / path).write_text(text, "utf-8")
    yield copied
    after = copied.digests()
    assert {path: after[path] for path in before} == before
    shutil.rmtree(root)


def test_new_members_are_listed_trained_and_inspected(copy: Copy, tmp_path: Path) -> None:
    runs = {name: str(tmp_path / name) for name in ("reverse", "language-model", "translate")}
    (tmp_path / "a.en").write_text("".join(f"{n} apples\n" for n in range(40)))
    (tmp_path / "a.de").write_text("".join(f"{n} Äpfel\n" for n in range(40)))
    short = ["train.steps=10", "train.epochs=null", "model.cell=mgu", "model.hidden=16"]
    files = f"data.train=[{tmp_path / 'a.en'},{tmp_path / 'a.de'}]"
    translate = ["translate-files", *short, files, "model.attention.score=distance", "tokenizer.size=300"]
    listed, data, trained, _, _, evaluated, predicted, gates, attention = copy.commands(
        ["list"],
        ["data", "show", "romans"],
        [*TRAIN, "train.steps=10", "--out", runs["reverse"]],
        ["train", "lm-char-lstm", *short, "data.corpus=romans", "--out", runs["language-model"]],
        ["train", *translate, "--out", runs["translate"]],
        ["evaluate", runs["reverse"], "--json"],
        ["predict", runs["reverse"], "MCMX", "--json"],
        ["inspect", "gates", runs["language-model"], "MCMX", "--json"],
        ["inspect", "attention", runs["translate"], "7 apples", "--json"],
    )
    for name in ("mgu", "romans", "reverse", "reverse-romans"):
        assert re.search(rf"^ +{name} ", listed, re.MULTILINE), name
    assert "Roman numerals" in data and "the distance score projects" in trained
    assert json.loads(evaluated)["loss"] > 0
    assert set(json.loads(predicted)["reversed"]) <= set("MDCLXVI")
    assert json.loads(gates)["gates"].keys() == {"f"}
    assert attention
    for name, text in (("language-model", "MCMX"), ("translate", "7 apples")):
        assert "\n" in copy.python("-c", WALK, runs[name], text)


def test_killed_training_resumes_to_the_same_weights(copy: Copy, tmp_path: Path) -> None:
    killed, uninterrupted = tmp_path / "killed", tmp_path / "whole"
    command = [sys.executable, "-m", "seqloom", *TRAIN, "train.steps=100000", "--out", str(killed)]
    process = subprocess.Popen(command, cwd=copy.root, env=copy.environment, stdout=subprocess.DEVNULL)
    latest, deadline = killed / "checkpoints" / "latest.json", time.monotonic() + 120
    while not latest.exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.wait()
    steps = max(int(path.name.partition("-")[2]) for path in latest.parent.glob("step-*")) + 20
    copy.commands(
        ["train", "--resume", str(killed), f"train.steps={steps}"],
        [*TRAIN, f"train.steps={steps}", "--out", str(uninterrupted)],
    )
    weights = [tensors_from_file(run / "model.safetensors") for run in (killed, uninterrupted)]
    assert weights[0].keys() == weights[1].keys()
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])


def test_contract_and_documentation_tests_pass(copy: Copy) -> None:
    pytest_command = ["-m", "pytest", "-q", "-p", "no:faker", "-p", "no:cacheprovider", "-m", "not slow"]
    contract = copy.python(*pytest_command, "-k", NEW_NAMES, *(f"tests/{name}" for name in CONTRACT_TESTS))
    assert int(re.findall(r"(\d+) passed", contract)[0]) > 50
    copy.python(*pytest_command, *(f"tests/{name}" for name in DOCUMENTATION_TESTS))


@pytest.mark.slow
def test_complete_test_suite_passes_in_the_extended_copy(copy: Copy) -> None:
    """The tests in this file are excluded, because they would copy the copy."""
    skipped = ("--deselect", "tests/test_extending.py")
    pytest_command = ["-m", "pytest", "-q", "-n", "2", "-p", "no:faker", "-p", "no:cacheprovider", "-m", "not slow"]
    copy.python(*pytest_command, *skipped, timeout=3600)
