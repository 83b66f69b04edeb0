"""Write the reference of the Python API with one Markdown page per package. Called by `make docs`.

The source is parsed, not imported. The pages are built together with the site and are not committed.
"""

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "seqloom"
TO_ROOT = "../../.."  # path from the pages to the root of the repository
LINE_LENGTH = 100
EQUATION = re.compile(r"\S.{0,40}? [=←≈] ")
INTRODUCTION = """\
# Python API

`import seqloom` provides a class for each task, such as `Classifier`, and the functions `load`, `train_recipe`,
`tune_recipe`, `average`, `ensemble`, `interpolate`, `import_hf`,
`export_hf` and `import_minilm`; [Python](../../how-to/python.md) shows how to use them. These pages list the public
classes and functions of every package. Each heading links to the source.

"""


def write(folder: Path) -> None:
    """Write a page for each package and a page that lists them. Pages that have not changed keep their time stamps."""
    packages = sorted(path for path in SOURCE.iterdir() if (path / "__init__.py").exists())
    pages = {f"{package.name}.md": package_page(package) for package in packages}
    summaries = {path.name: docstring_of(path / "__init__.py").partition("\n")[0] for path in packages}
    contents = [f"- [seqloom.{name}]({name}.md): {summary}\n" for name, summary in summaries.items()]
    modules = [text for path in sorted(SOURCE.glob("[a-z]*.py")) for text in module_text(path)]
    pages["index.md"] = "".join([INTRODUCTION, *contents, "\n", "\n".join(modules)])
    folder.mkdir(exist_ok=True)
    for path in folder.glob("*.md"):
        if path.name not in pages:
            path.unlink()
    for name, text in pages.items():
        if not (folder / name).exists() or (folder / name).read_text("utf-8") != text:
            (folder / name).write_text(text, "utf-8")


def package_page(package: Path) -> str:
    """Return the page of a package. It describes the modules of the package and of its subpackages."""
    public_files = (path for path in package.rglob("*.py") if not re.match(r"_[a-z]", path.name))
    modules = sorted(public_files, key=lambda path: path.with_name(path.name.replace("__init__", "")))
    texts = (text for path in modules for text in module_text(path))
    return "\n".join([f"# seqloom.{package.name}\n", docstring_of(modules[0]), *texts])


def docstring_of(module: Path) -> str:
    """Return the docstring of a module as Markdown."""
    return markdown(ast.get_docstring(ast.parse(module.read_text("utf-8"))) or "")


def module_text(path: Path) -> Iterator[str]:
    """Yield blocks of Markdown that describe a module. A package without definitions yields no blocks."""
    relative = path.relative_to(SOURCE.parent)
    file = f"{TO_ROOT}/src/{relative.as_posix()}"
    definitions = list(public(ast.parse(path.read_text("utf-8"))))
    if path.name != "__init__.py" or definitions:
        name = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
        yield f"## [{name}]({file})\n"
        yield docstring_of(path)
    for node in definitions:
        yield definition(node, "### [{}]({})", node.name, file)
        if isinstance(node, ast.ClassDef):
            for method in public(node):
                yield definition(method, "**[{}]({})**", f"{node.name}.{method.name}", file)


def public(parent: ast.Module | ast.ClassDef) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    """Yield the public classes and functions that are defined directly in a module or class."""
    for node in parent.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node


def definition(node: ast.FunctionDef | ast.ClassDef, heading: str, name: str, file: str) -> str:
    """Return the heading of a class or function with a link to its source, and its signature and docstring."""
    docstring = markdown(ast.get_docstring(node) or "")
    return f"{heading.format(name, f'{file}#L{node.lineno}')}\n\n```python\n{signature(node)}\n```\n\n{docstring}"


def signature(node: ast.FunctionDef | ast.ClassDef) -> str:
    """Return a definition without its body. The definition of a class includes its fields and `__init__`."""
    decorators = "".join(f"@{ast.unparse(entry)}\n" for entry in node.decorator_list)
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        members = [ast.unparse(entry) for entry in node.body if isinstance(entry, ast.AnnAssign)]
        members += [
            signature(entry) for entry in node.body if isinstance(entry, ast.FunctionDef) and entry.name == "__init__"
        ]
        head = f"{decorators}class {node.name}({bases})" if bases else f"{decorators}class {node.name}"
        return textwrap.indent("\n".join(members), "    ").join([f"{head}:\n", ""]) if members else head
    arguments, returns = ast.unparse(node.args), f" -> {ast.unparse(node.returns)}" if node.returns else ""
    if len(node.name + arguments + returns) > LINE_LENGTH:
        arguments = "".join(f"\n    {entry}," for entry in split_arguments(arguments)) + "\n"
    return f"{decorators}def {node.name}({arguments}){returns}"


def split_arguments(text: str) -> list[str]:
    """Split a text at commas outside brackets."""
    depth, parts = 0, [""]
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def markdown(docstring: str) -> str:
    """Return a docstring as Markdown. Equations and indented lines become code; other text is unchanged."""
    paragraphs = []
    for paragraph in re.sub(r"(?m)^(?! {4})(.+)\n(?= {4})", r"\1\n\n", docstring).split("\n\n"):
        lines = paragraph.split("\n")
        if all(map(EQUATION.match, lines)) and len(lines) > 1:
            paragraph = textwrap.indent(paragraph, "    ")
        elif not lines[0].startswith("    "):
            pieces = re.split(r"(`[^`]*`)", paragraph)
            pieces[::2] = (re.sub(r"([<*$\[])", r"\\\1", piece) for piece in pieces[::2])
            paragraph = "".join(pieces)
        paragraphs.append(paragraph)
    return "\n\n".join(paragraphs) + "\n"
