"""Write docs/reference/licences.md: the licence of every package in requirements.lock. Called by `make licences`.

The licences are read from the metadata of the installed packages, so all packages must be installed, including those in
.venv-docs that only `make docs` uses. If the packages in .venv-docs are missing, as in `make test`, the page keeps
their rows.
"""

import re
import sys
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
PAGE = ROOT / "docs" / "reference" / "licences.md"
BASE, DOCS = "always", "docs"
COPYLEFT = re.compile(r"\b(A?GPL|LGPL|MPL|EPL|CDDL|EUPL)\b")

# Licences that are missing or imprecise in the metadata. They are taken from the licence files of the packages. The
# metadata of torch differ between its builds.
FROM_LICENCE_FILES = {
    "axe-playwright-python": "MIT; contains axe-core, MPL-2.0",
    "docutils": "public domain; contains parts under BSD-2-Clause, BSD-3-Clause, PSF-2.0 and GPL-3.0-or-later",
    "easy-vqa": "MIT",
    "espeakng-loader": "none stated for the loader; contains espeak-ng, GPL-3.0-or-later",
    "kenlm": "LGPL-2.1-or-later",
    "num2words": "LGPL-2.1-or-later",
    "soundfile": "BSD-3-Clause; contains libsndfile, LGPL-2.1-or-later",
    "torch": "BSD-3-Clause; contains parts under Apache-2.0, BSD-2-Clause, BSL-1.0 and MIT",
}
# SPDX identifiers for the names in older metadata.
SPDX = {
    "MIT License": "MIT",
    "Apache 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD 3-Clause License": "BSD-3-Clause",
    "3-Clause BSD License": "BSD-3-Clause",
    "2-clause BSD": "BSD-2-Clause",
    "BSD License": "BSD",
    "ISC License": "ISC",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}

INTRODUCTION = """\
# Licences of the dependencies

seqloom itself is under the Apache License 2.0 and contains no code of other packages. This page lists every package of
`requirements.lock`, the licence that the package states, and whether it is needed `always` or only by an extra of
seqloom, such as `plot` in `pip install "seqloom[plot]"`. `make licences` writes this page.

## Copyleft

- **num2words is under the LGPL and is optional.** Only the extra `corpora` installs it, and only the corpora `cldr` and
  `languages` import it, to spell out numbers. Everything else works without num2words. It is
  imported unchanged, as a separate package.
- **espeakng-loader contains espeak-ng, which is under the GPL, and is optional.** Only the extra `speech` installs it,
  not `all`. Only the corpora of synthetic speech use it: seqloom starts espeak-ng as a separate process
  (`data/espeak_process.py`) and contains neither its code nor its voices.
- soundfile contains the library libsndfile, which is under the LGPL. It is optional (extra `sounds`) and imported
  unchanged, to read FLAC and OGG files.
- gensim and kenlm are also under the LGPL. seqloom never imports them. Only tests and benchmarks use
  them, for comparison.
- The terms of the MPL-2.0 apply to changes in the files of the package itself; seqloom changes no such file.
- `make docs` copies glyphs of the font STIX Two Math, which ziamath contains, into the site; its licence is OFL-1.1.
- Only one part of docutils, a mode for Emacs, is under the GPL; the site does not contain it.
- The wheels of numpy, scipy and scikit-learn contain runtime libraries of GCC, under the GPL with the GCC Runtime
  Library Exception.
- GPU builds of torch also install libraries of NVIDIA (`nvidia-*`, `cuda-*`), which are under NVIDIA's own proprietary
  licences, and triton (MIT). They are not part of `requirements.lock`.

The following packages have a copyleft licence, in whole or in part:

"""


def pinned_packages() -> list[str]:
    """Return the names in requirements.lock, in canonical form."""
    return [canonicalize_name(name) for name in re.findall(r"^([\w.-]+)==", LOCK.read_text(), re.MULTILINE)]


def licence(name: str) -> str:
    """Return the licence of a package from its SPDX expression, licence field or classifiers."""
    if name in FROM_LICENCE_FILES:
        return FROM_LICENCE_FILES[name]
    try:
        fields = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        if row := re.search(rf"^\| {name} \| (.+) \| {DOCS} \|$", PAGE.read_text("utf-8"), re.MULTILINE):
            return row[1]
        raise
    if expression := fields.get("License-Expression"):
        return expression
    text = (fields.get("License") or "").strip()
    if text and "\n" not in text and len(text) < 40:
        return SPDX.get(text, text)
    stated = [
        entry.rpartition(" :: ")[2] for entry in fields.get_all("Classifier") or [] if entry.startswith("License")
    ]
    if not stated:
        raise SystemExit(f"{name} states no licence in its metadata: read its licence file and add it to {__file__}.")
    return " and ".join(SPDX.get(entry, entry) for entry in stated)


def dependencies(names: Iterable[str]) -> set[str]:
    """Return these packages and their pinned direct and indirect requirements."""
    pinned, seen, waiting = set(pinned_packages()), set[str](), list(names)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name not in seen and name in pinned:
            seen.add(name)
            waiting.extend(required(metadata.requires(name) or []))
    return seen


def required(requirements: Iterable[str]) -> list[str]:
    """Return the names of requirements, except those that belong to extras."""
    parsed = [Requirement(text) for text in requirements]
    return [entry.name for entry in parsed if entry.marker is None or "extra" not in str(entry.marker)]


def users() -> dict[str, list[str]]:
    """Return the users of each pin: `always` or extras of seqloom, or `docs` if there are no other users."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {BASE: project["dependencies"], **project["optional-dependencies"]}
    reached = {group: dependencies(required(listed)) for group, listed in groups.items() if group != DOCS}

    def groups_with(name: str) -> list[str]:
        return [BASE] if name in reached[BASE] else [group for group, names in reached.items() if name in names]

    return {name: groups_with(name) or [DOCS] for name in pinned_packages()}


def page() -> str:
    rows = {name: f"| {name} | {licence(name)} | {', '.join(groups)} |\n" for name, groups in users().items()}
    head = "| Package | Licence | Needed by |\n|---|---|---|\n"
    copyleft = "".join(row for name, row in rows.items() if COPYLEFT.search(licence(name)))
    return f"{INTRODUCTION}{head}{copyleft}\n## All packages\n\n{head}{''.join(rows.values())}"


if __name__ == "__main__":
    sys.path.extend(map(str, ROOT.glob(".venv-docs/lib/python*/site-packages")))
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: {len(pinned_packages())} packages")
