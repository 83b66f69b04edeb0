"""The documentation site: Sphinx reads the Markdown pages through MyST. `make docs` builds it.

The source directory is the root of the repository, so that a relative link means the same on the site and in a
checkout. The pages are plain Markdown. This file derives what the site needs in addition:

- the navigation, from the lists of links in the index pages,
- pages that show source files with an anchor for each line, for links such as `nn/cells/standard.py#L90`,
- equations as MathML, which browsers draw without JavaScript, and the glyphs of STIX Two Math that they need.
"""

import html
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from docutils import nodes
from fontTools import subset
from math_core import LatexError, LatexToMathML
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer, TextLexer
from sphinx.application import Sphinx
from sphinx.util import logging

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tools import api_reference, lessons  # noqa: E402

project = html_title = "seqloom"
root_doc = "docs/index"
include_patterns = ["docs/**", "*.md"]
exclude_patterns = [
    ".*",
    "*.egg-info",
    "build",
    "dist",
    "runs",
    "site",
    "src",
    "tests",
    "tools",
    "benchmarks",
    "examples",
]
extensions = ["myst_parser", "sphinx_copybutton"]
myst_enable_extensions = ["attrs_inline", "dollarmath"]
myst_heading_anchors = 6  # as GitHub makes them
highlight_language = "none"
smartquotes = False  # it would turn the hyphens of --option into a dash
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_search_scorer = str(ROOT / "docs/static/scorer.js")
html_math_renderer = "mathml"
html_copy_source = html_show_sourcelink = html_show_sphinx = html_show_copyright = False
pygments_style, pygments_dark_style = "friendly", "github-dark"

LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)\s#]+)(?:#L(\d+)(?:-L\d+)?)?\)")
SOURCE_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{name}</title>
<link rel="stylesheet" href="{root}/_static/source.css">
<script>document.documentElement.dataset.theme = localStorage.getItem("theme") || "auto"</script>
</head>
<body><header><a href="{root}/docs/index.html">seqloom</a> / {name}</header>{body}</body>
</html>
"""
LATEX = LatexToMathML()
# Letters, their italic forms, and the root: MathML names the last two by elements, not by characters.
LETTERS = [*range(0x20, 0x7F), 0x210E, *range(0x1D434, 0x1D468), *range(0x1D6E2, 0x1D71C), 0x221A]
LOG = logging.getLogger(__name__)


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", lambda _: api_reference.write(ROOT / "docs/reference/python"))
    app.connect("source-read", prepare_page)
    app.connect("build-finished", write_other_files)
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))


# --- Markdown ---------------------------------------------------------------------------------------------------------


def prepare_page(app: Sphinx, docname: str, content: list[str]) -> None:
    """Add the navigation to an index page, and let links to source files lead to their pages on the site."""
    folder = (ROOT / docname).parent

    def to_source_page(link: re.Match[str]) -> str:
        if (file := source_file(folder, link[1])) is None:
            return link[0]
        lines = 1 if file.is_dir() else file.read_text("utf-8").count("\n")
        if int(link[2] or 1) > lines:
            LOG.warning("%s has %d lines", link[0], lines, location=docname)
        return f"{link[1].rstrip('/')}.html{f'#L-{link[2]}' if link[2] else ''}){{.external}}"

    text = lessons.link_quotes(content[0]) if folder == lessons.FOLDER else content[0]
    text = LINK.sub(to_source_page, link_file_names(text, folder))
    text = re.sub(r'(?<!`)<a id="([^"]+)"></a>', r"[]{#\1}", text)  # an anchor that MyST knows, too
    text = text.replace("- Python API:", "- [Python API](python/index.md):")  # its pages exist on the site only
    if docname == "README":  # the front page of the repository is no part of the navigation
        text = f"---\norphan: true\n---\n{text}"
    content[0] = text + "".join(toctrees(text)) if docname.endswith("/index") else text


def link_file_names(text: str, folder: Path) -> str:
    """Make links of the names of source files, such as `src/seqloom/training.py`."""

    def link(name: re.Match[str]) -> str:
        exists = (ROOT / name[1]).is_file()
        return f"[{name[0]}]({os.path.relpath(ROOT / name[1], folder)})" if exists else name[0]

    return re.sub(r"(?<!\[)`((?:src|tests|tools|benchmarks|examples)/[\w/]+\.py)`(?!\])", link, text)


def source_file(folder: Path, target: str) -> Path | None:
    """Return the file or folder that a link leads to, unless it is a page or a picture."""
    path = Path(os.path.normpath(folder / target))
    return path if path.is_dir() or (path.is_file() and path.suffix not in (".md", ".png", ".svg")) else None


def toctrees(text: str) -> Iterator[str]:
    """Yield a hidden table of contents for each list of links in an index page."""
    for part in re.split(r"^## ", text, flags=re.MULTILINE):
        if pages := re.findall(r"^(?:-|\d+\.) \[.+?\]\(([^)#]+\.md)\)", part, re.MULTILINE):
            yield "\n".join(["", "```{toctree}", ":hidden:", *pages, "```", ""])


# --- HTML -------------------------------------------------------------------------------------------------------------


def visit_math(translator: Any, node: nodes.math | nodes.math_block) -> None:
    """Write an equation as MathML."""
    try:
        is_block = isinstance(node, nodes.math_block)
        mathml = LATEX.convert_with_local_state(node.astext(), displaystyle=is_block)
        translator.body.append(f'<div class="math">{mathml}</div>' if is_block else mathml)
    except LatexError as error:
        LOG.warning("%s: %s", node.astext(), error, location=node)
    raise nodes.SkipNode


def write_math_font(pages: Iterable[Path], file: Path) -> None:
    """Write the part of STIX Two Math that the equations on these pages need."""
    equations = (
        equation for page in pages for equation in re.findall(r"<math.*?</math>", page.read_text("utf-8"), re.DOTALL)
    )
    options = subset.Options(flavor="woff")
    package = Path(str(find_spec("ziamath").origin)).parent
    font = subset.load_font(package / "fonts/STIXTwoMath-Regular.ttf", options)
    subsetter = subset.Subsetter(options)
    subsetter.populate(unicodes=LETTERS, text="".join(map(html.unescape, equations)))
    subsetter.subset(font)
    subset.save_font(font, file, options)


def write_other_files(app: Sphinx, error: Exception | None) -> None:
    """Write what is no page: the math font, source files that are linked, pictures that HTML names, the redirection."""
    if error is not None:
        return
    out = Path(app.outdir)
    write_math_font((out / f"{name}.html" for name in app.env.found_docs), out / "_static/math.woff")
    shutil.copytree(ROOT / "docs/pictures", out / "docs/pictures", dirs_exist_ok=True)
    (out / "index.html").write_text('<!doctype html><meta http-equiv="refresh" content="0; url=docs/index.html">\n')
    formatter = HtmlFormatter(linenos="inline", linespans="L", anchorlinenos=True, lineanchors="L", wrapcode=True)
    dark = HtmlFormatter(style=pygments_dark_style)
    css = [
        (ROOT / "docs/static/source.css").read_text(),
        HtmlFormatter(style=pygments_style).get_style_defs(".highlight"),
        dark.get_style_defs("[data-theme=dark] .highlight"),
        f"@media (prefers-color-scheme: dark) {{ {dark.get_style_defs('[data-theme=auto] .highlight')} }}",
    ]
    (out / "_static/source.css").write_text("\n".join(css))
    for docname in app.env.found_docs:
        page = app.env.doc2path(docname)
        for target, _ in LINK.findall(link_file_names(page.read_text("utf-8"), page.parent)):
            if (file := source_file(page.parent, target)) is not None:
                write_source_page(out, file, formatter)


def write_source_page(out: Path, file: Path, formatter: HtmlFormatter[str]) -> None:
    name = file.relative_to(ROOT).as_posix()
    page = out / f"{name}.html"
    if page.exists() and page.stat().st_mtime > file.stat().st_mtime:
        return
    page.parent.mkdir(parents=True, exist_ok=True)
    if file.is_dir():
        files = sorted(entry for entry in file.iterdir() if entry.suffix == ".py")
        for entry in files:
            write_source_page(out, entry, formatter)
        body = "".join(f'<p><a href="{file.name}/{entry.name}.html">{entry.name}</a></p>' for entry in files)
    else:
        body = highlight(file.read_text("utf-8"), PythonLexer() if file.suffix == ".py" else TextLexer(), formatter)
    page.write_text(SOURCE_PAGE.format(name=name, root="/".join([".."] * name.count("/")) or ".", body=body), "utf-8")
