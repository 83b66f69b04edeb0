"""Record what seqloom computes and prints, and compare two recordings.

    python tools/recording.py record OUT [--plan tools/recording.yaml] [--data DIR] [--jobs N] [--only WORD…]
    python tools/recording.py compare OLD NEW

A recording shows whether a refactoring has changed any result. `record` runs the seqloom that the current Python
imports. It trains every recipe for a few steps on one thread and stores the losses as hexadecimal floats, a digest of
every weight tensor, the metrics on dev, and the source files that were executed. It then runs every command of the plan
and stores standard output, standard error and the exit code. `compare` lists the differences between two recordings.
Recordings are only exact on the same machine; store them outside the repository.

Names of weights, files and metrics may differ between two commits. Weights are therefore compared by content, and
`renames` in the plan maps the old names of metrics and files to new names. Durations and speeds are replaced by `#`.
"""

import argparse
import difflib
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

PLAN = Path(__file__).with_suffix(".yaml")
TIMEOUT_SECONDS = 900
# Keys whose values differ between runs: durations, speeds, memory, dates.
VARIABLE_KEYS = re.compile(r"seconds|per_second|time$|eta|left|memory|speed|threads|milliseconds|date|sha256|version")
VARIABLE_TEXT = [
    (re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r"), ""),
    (re.compile(r"\d[\d,.]*( ?(ms|s|min|h|KiB|MiB|GiB|[kM]?B)\b)"), r"#\1"),
    (re.compile(r"\d[\d,.]*(?= [a-z]+/s\b)"), "#"),
    (re.compile(r"\b\d+:\d\d(:\d\d)?\b"), "#:#"),
    (re.compile(r"[━╸╺█▏▎▍▌▋▊▉ ]{6,}"), " "),
]
# This line is printed only for slow operations.
SLOW_PROGRESS = re.compile(r"^[\w ]+: ([\d.]+ million|\d+% of [\d,]+) characters")


def read_plan(path: Path) -> dict[str, Any]:
    """Read the plan and expand its training runs to (recipe, overrides, input run) records."""
    plan: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return plan


def selected(names: Mapping[str, Any], words: list[str]) -> list[str]:
    return [name for name in names if not words or any(word in name for word in words)]


# --- running seqloom --------------------------------------------------------------------------------------------------


def run_traced(arguments: list[str], files_path: Path) -> int:
    """Run the command line in this process and record which source files of seqloom are executed."""
    import seqloom
    from seqloom.cli.app import main

    root = str(Path(seqloom.__file__).parent) + os.sep
    executed: set[str] = set()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(root) and frame.f_code.co_name != "<module>":
            executed.add(frame.f_code.co_filename[len(root) :])

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        return main(arguments)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    finally:
        sys.setprofile(None)
        files_path.write_text(json.dumps(sorted(executed)))


def call(arguments: list[str], folder: Path, key: str, data: Path | None, stdin: str = "") -> dict[str, Any]:
    """Run a command of seqloom in `folder`. Return its output and the source files that it executed."""
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "COLUMNS": "110",
        "NO_COLOR": "1",
        "HF_HUB_OFFLINE": "1",
    }
    if data is not None:
        environment["SEQLOOM_DATA"] = str(data.resolve())
    files = folder / "executed" / f"{key}.json"
    files.parent.mkdir(exist_ok=True)
    command = [sys.executable, str(Path(__file__).resolve()), "run", str(files), "--", *arguments]
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, input=stdin.encode(), capture_output=True, timeout=TIMEOUT_SECONDS
        )
        code, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as error:
        code, out, err = -1, error.stdout or b"", error.stderr or b""
    return {
        "command": shlex.join(arguments),
        "exit_code": code,
        "stdout": printed(out.decode(errors="backslashreplace"), folder),
        "stderr": printed(err.decode(errors="backslashreplace"), folder),
        "executed": json.loads(files.read_text()) if files.exists() else [],
    }


def printed(text: str, folder: Path) -> list[str]:
    """Return the lines of an output without values that differ between runs. JSON lines keep all other values."""
    lines = []
    for line in text.replace(str(folder.resolve()), "DIR").splitlines():
        if SLOW_PROGRESS.search(line):
            continue
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if isinstance(value, dict):
            lines.append(json.dumps(without_variable(value), ensure_ascii=False))
            continue
        for pattern, replacement in VARIABLE_TEXT:
            line = pattern.sub(replacement, line)
        lines.append(line.rstrip())
    return lines


def without_variable(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: "#" if VARIABLE_KEYS.search(k) else without_variable(v) for k, v in value.items()}
    if isinstance(value, list):
        return [without_variable(one) for one in value]
    return value


# --- recording --------------------------------------------------------------------------------------------------------


def weight_digests(path: Path) -> list[str]:
    """Return a digest of each tensor: dtype, shape and bytes, without its name."""
    from safetensors import safe_open

    digests = []
    if path.exists():
        with safe_open(path, framework="np") as file:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                array = file.get_tensor(name)
                digest = hashlib.sha256(array.tobytes()).hexdigest()[:16]
                digests.append(f"{array.dtype} {list(array.shape)} {digest}")
    return sorted(digests)


def hexadecimal(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: hexadecimal(v) for k, v in value.items() if not VARIABLE_KEYS.search(k)}
    return value.hex() if isinstance(value, float) else value


def training_result(run: Path) -> dict[str, Any]:
    """Return the losses, weights and metrics of a run."""
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()] if run.exists() else []
    steps = [entry for entry in log if entry["event"] == "progress"]
    metrics = run / "metrics" / "dev.json"
    return {
        "losses": [hexadecimal(entry.get("values", {})) for entry in steps],
        "weights": weight_digests(run / "model.safetensors"),
        "metrics": hexadecimal(json.loads(metrics.read_text())) if metrics.exists() else None,
        "events": [entry["event"] for entry in log if entry["event"] != "prepared"],
    }


def record_training(plan: Mapping[str, Any], name: str, folder: Path, data: Path | None) -> dict[str, Any]:
    entry = plan["trainings"][name] or {}
    overrides = [*plan["shortened"][entry.get("shortened", "gradient")], *entry.get("overrides", [])]
    out = f"runs/{name}"
    arguments = ["train", entry.get("recipe", name), *overrides, "--out", out]
    result = call(arguments, folder, f"train-{name}", data)
    return result | training_result(folder / out)


def record(plan: Mapping[str, Any], folder: Path, data: Path | None, jobs: int, words: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in plan["inputs"].items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(text, encoding="utf-8")
    results = folder / "results"
    results.mkdir(exist_ok=True)

    def train(name: str) -> None:
        save(results / f"train-{name}.json", record_training(plan, name, folder, data))

    def execute(key: str) -> None:
        entry = plan["commands"][key]
        entry = {"run": entry} if isinstance(entry, str) else entry
        stdin = (folder / entry["stdin"]).read_text(encoding="utf-8") if "stdin" in entry else ""
        save(results / f"command-{key}.json", call(shlex.split(entry["run"]), folder, key, data, stdin))

    names = selected(plan["trainings"], words)
    # Other training runs start from these
    first = [name for name in names if (plan["trainings"][name] or {}).get("first")]
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(train, first))
        list(pool.map(train, [name for name in names if name not in first]))
        list(pool.map(execute, selected(plan["commands"], words)))


def save(path: Path, result: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(result, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(f"{path.stem}: exit code {result['exit_code']}", flush=True)


# --- comparing --------------------------------------------------------------------------------------------------------


def renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {names.get(k, k): renamed(v, names) for k, v in value.items()}
    if isinstance(value, list):
        return [renamed(one, names) for one in value]
    return names.get(value, value) if isinstance(value, str) else value


def fast_paths(executed: list[str], names: Mapping[str, str]) -> set[str]:
    """Return the executed files that implement fast paths, by their new names."""
    return {new for old, new in names.items() if old in executed or new in executed}


def differences(old: Mapping[str, Any], new: Mapping[str, Any], plan: Mapping[str, Any]) -> Iterator[str]:
    renames = plan["renames"]
    for key in ("exit_code", "losses", "weights", "metrics", "events"):
        before, after = renamed(old.get(key), renames["names"] or {}), new.get(key)
        if before != after:
            yield f"{key}: {shorten(before)} -> {shorten(after)}"
    files = renames["fast_paths"] or {}
    before_files, after_files = fast_paths(old["executed"], files), fast_paths(new["executed"], files)
    if before_files != after_files:
        yield f"fast paths: {sorted(before_files - after_files)} -> {sorted(after_files - before_files)}"
    for stream in ("stdout", "stderr"):
        before, after = (printed("\n".join(recorded[stream]), Path("DIR")) for recorded in (old, new))
        if before != after:
            yield f"{stream}:"
            yield from (f"    {line}" for line in difflib.unified_diff(before, after, lineterm="", n=0))


def shorten(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:150]} … ({len(text)} characters)"


def compare(plan: Mapping[str, Any], old: Path, new: Path, texts: bool) -> int:
    names = {folder: {path.name for path in (folder / "results").glob("*.json")} for folder in (old, new)}
    for folder, other in ((old, new), (new, old)):
        if missing := names[folder] - names[other]:
            print(f"{len(missing)} results only in {folder}, such as {min(missing)}")
    common = sorted(names[old] & names[new])
    different = 0
    for name in common:
        before, after = (json.loads((folder / "results" / name).read_text()) for folder in (old, new))
        lines = list(differences(before, after, plan))
        if not texts:
            lines = [line for line in lines if not line.startswith(("stdout", "stderr", "    "))]
        different += bool(lines)
        if lines:
            print(name, *lines, sep="\n  ")
    print(f"{len(common)} results compared, {different} differ")
    return int(different > 0)


def main() -> int:
    if sys.argv[1:2] == ["run"]:
        return run_traced(sys.argv[4:], Path(sys.argv[2]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="action", required=True)
    recorder = commands.add_parser("record", help="train every recipe briefly, run every command, keep the results")
    recorder.add_argument("out", type=Path)
    recorder.add_argument("--data", type=Path, help="folder with the real data sets; without it those recipes fail")
    recorder.add_argument("--jobs", type=int, default=1)
    recorder.add_argument("--only", nargs="*", default=[], help="only results with one of these words in their names")
    comparer = commands.add_parser("compare", help="list the differences between two recordings")
    comparer.add_argument("old", type=Path)
    comparer.add_argument("new", type=Path)
    comparer.add_argument("--numbers", action="store_true", help="compare results, not the printed text")
    for one in (recorder, comparer):
        one.add_argument("--plan", type=Path, default=PLAN)
    options = parser.parse_args()
    plan = read_plan(options.plan)
    if options.action == "compare":
        return compare(plan, options.old, options.new, texts=not options.numbers)
    record(plan, options.out.resolve(), options.data, options.jobs, options.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
