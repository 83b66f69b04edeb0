"""Tests that code and documentation use standard terms instead of disallowed phrases.

The check reads docstrings, comments and messages of the code, and the documentation. Code in Markdown is skipped.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/seqloom"
PATTERNS = {  # each pattern, with the text to write instead
    r"\bso many\b": "a number, `count` or `n`",
    r"\bas many as it takes\b": "no limit",
    r"\bnobody\b": "the passive voice, or name who",
    r"\bwhoever\b": "the user, the caller",
    r"\b(is|are|was|were) had (from|by)\b": "download, get",
    r"\bgo(es)? on with\b": "resume, continue",
    r"\bwhat (is|was) told\b": "the label, the target",
    r"\bis told apart\b": "is distinguished",
    r"\bnobody says otherwise\b": "by default",
    r"\bwhat came of it\b": "the result",
    r"\bwhere there is one\b": "if present",
    r"\bby whatever\b": "by any",
    r"\bthe way around\b": "the residual connection",
    r"\bannotations? \((B|…)": "encoder states",
    r"\btwins?\b": "from-scratch baseline",
    r"\brungs?\b": "variant",
    r"\bin the open\b": "explicitly",
    r"\bmachine code\b": "numba kernels",
    r"\bstands? (before|after|first|last|beside|in the place)\b": "precedes, follows, comes first",
    r"\ball there is\b": "everything",
    r"\bno less than\b": "at least",
    r"\bof which there are\b": "a relative clause with a verb",
    r"\bwhat is taken for what\b": "the confusion matrix",
    r"\bone's own\b": "of the user",
    r"\bunless told\b": "by default",
    r"\b(tell|tells|told) apart\b": "distinguish",
    r"\bwhat comes of it\b": "the result",
    r"\bin turns\b": "alternately",
    r"\ba (tenth|fifth) each\b": "name both splits",
    r"\ban? (uninterrupted|resumed|interrupted) training\b(?! (run|step))": "uninterrupted training, a resumed run",
    r"\bis an option of .{0,40} only\b": "applies only to",
    r"\bfrom [\d,]+ \w+ on\b": "for N or more",
    r"\bbest on dev of\b": "best of … on dev",
    r"\b(tokens|steps|vectors) read are counted\b": "and the number of tokens read",
    r"\bof (ours|theirs)\b": "our, their",
    r"\bare those of `": "are fields of, work as in, equal",
    r"\bstays? (together|in one split)\b": "is in the same split, is not separated",
    r"\ba training\b(?! \w)": "training, a training run",
    r"\b(loss|losses|metrics?) of dev\b": "the loss on dev: a split is data, not the owner of a result",
    r"\bmakes? an? (\w+ )?(step|update)\b": "run, perform",
    r"\ba (Marian|Mistral)\b(?! (model|tokenizer))": "a Marian model",
    r"(?<=\. )What (?!to )[^?]*\.$": "a noun as the subject instead of a clause",
    r"\bthe same for all\)": "the same in every model, run or language",
    r"\b(is|are) worth (most|more|less)\b": "help most, matter most",
    r", 20\d\d-\d\d-\d\d[.:]": "on 2026-11-15, or the date in parentheses",
    r"\ba resume\b": "a resumed run, resuming",
    r"(^|B )are free\b": "is free: an amount of memory is singular",
    r"\bencodes? to\b": "is encoded to: the tokenizer encodes, not the text",
    r"` is \d at padding\b": "at padded positions",
    r"!\[[^]]* against the\b": "as a function of",
    r"\bmust be text, got\b": "must be a string",
    r"\bunit of a document\b": "what counts as a document",
    r"\bheads? for (masked tokens|next sentences)\b": "the masked-language-model head, the next-sentence-prediction "
    "head",
    r"\boptionally with \.": "optionally compressed (.gz or .zst)",
    r", got [\[{'\"a-z]": "; got",
    r"; it has ": "name the subject: its columns are; after `must have`: , but has",
    r"\bvalues? (of|for) keys\b": "hyperparameters",
    r"\b(is the|by its) definition\b": "the reference implementation",
    r"\bnon-empty texts\b": "non-empty strings",
    r", \w+ and more\b": "such as, or for example, before the list",
    r"\bnot at all \w+ (up|of|in)\b": "instead of",
    r"\btook \d+ epochs of\b": "was trained for 60 epochs",
    r"\bbeams of \d": "beam sizes",
    r"\bfraction of the remaining\b": "name what remains",
    r"\bor other formats of\b": "or in other formats, such as",
    r"\btests (compare|check) (them|it)\b": "name what the tests compare",
    r"\brows are [a-z ]+ and sum\b": "Each row sums to 1",
    r"^(Return|Yield) [^.]*\b(each|an?) \w+, which\b": "two sentences: the relative clause has two antecedents",
    r"\b(minim|maxim|normal|optim|initial|general|recogn|token|regular|synchron|serial)is(e|es|ed|ing|ation)\b": "-ize",
}
TESTS = {  # patterns of test names, with the name to write instead
    r"_equals?_(the_)?(model|python_api|(\w+_)?(kernel|loop)|torch|scipy|scikit_learn|transformers|babel)$": "matches",
    r"_equals?_(single|one|separate)_": "gives the same results as",
    r"^test_resume_(?!or_start)|_resume_is_": "resuming, resumed training",
    r"_is_out_of_memory": "runs out of memory",
    r"_in_python$|_match(es)?_python$": "the Python API",
}
# Parts that follow the rules. A part is added when it has been rewritten, and never removed.
CHECKED = [
    *(
        SOURCE / name
        for name in (
            "accel",
            "classical",
            "cli",
            "config",
            "core",
            "data",
            "decoding",
            "evaluate",
            "exchange",
            "inspect",
            "ladder",
            "models",
            "nn",
            "predict",
            "recipes",
            "runs",
            "studio",
            "tasks",
            "text",
            "train",
        )
    ),
    *(
        ROOT / name
        for name in (
            "benchmarks",
            "docs",
            "examples",
            "tools",
            "ARCHITECTURE.md",
            "CHANGELOG.md",
            "CONTRIBUTING.md",
            "README.md",
        )
    ),
]
ALLOWED: dict[str, str] = {}  # patterns of sentences that are correct although they contain a phrase, with the reason


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of every comment and string of a Python file, or of every line of a page."""
    content = path.read_text("utf-8")
    if path.suffix == ".md":
        prose = re.sub(r"```.*?```", lambda block: "\n" * block[0].count("\n"), content, flags=re.DOTALL)
        yield from enumerate(re.sub(r"`[^`\n]*`", "", prose).splitlines(), start=1)
        return
    for token in tokenize.generate_tokens(io.StringIO(content).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def problems(path: Path) -> Iterator[str]:
    """Yield a message for each disallowed phrase in a file."""
    for line, text in texts(path):
        flat = " ".join(text.split())
        if any(re.search(allowed, flat) for allowed in ALLOWED):
            continue
        for pattern, instead in PATTERNS.items():
            if match := re.search(pattern, flat, re.IGNORECASE):
                yield f"{path.relative_to(ROOT)}:{line}: {match[0]!r}; write: {instead}"


@pytest.mark.parametrize("part", CHECKED, ids=lambda part: str(part.relative_to(ROOT)))
def test_prose_is_plain(part: Path) -> None:
    files = [part] if part.is_file() else [*part.rglob("*.py"), *part.rglob("*.md")]
    assert files
    messages = [problem for path in sorted(files) for problem in problems(path)]
    assert not messages, "\n".join(messages)


def test_disallowed_phrases_are_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: docstrings, comments, messages and pages are checked, and code is not."""
    monkeypatch.setattr("tests.test_prose.ROOT", tmp_path)
    module, page = tmp_path / "a.py", tmp_path / "b.md"
    module.write_text('"""Nobody asks."""\nso_many = 1  # so many of them\nprint(f"go on with {so_many}")\n')
    page.write_text("# Page\n\nWhoever reads `so many`\n\n```\nrungs\n```\n")
    assert sorted(problem.split(";")[0] for problem in problems(module)) == [
        "a.py:1: 'Nobody'",
        "a.py:2: 'so many'",
        "a.py:3: 'go on with'",
    ]
    assert [problem.split(";")[0] for problem in problems(page)] == ["b.md:3: 'Whoever'"]


def test_test_names_are_statements() -> None:
    names = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"\bdef (test_\w+)", path.read_text("utf-8"))
    }
    assert len(names) > 1000
    assert [
        (name, instead) for name in sorted(names) for pattern, instead in TESTS.items() if re.search(pattern, name)
    ] == []
