import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AllowInfNan, Field

from seqloom.config import (
    ABSENT,
    Discriminator,
    apply_overrides,
    build,
    config,
    differences,
    dump_yaml,
    find_nearest,
    load_yaml,
    parse_overrides,
    to_mapping,
)
from seqloom.core.errors import UsageError


@config
class Embedded:
    corpus: Literal["pydocs"] = "pydocs"
    part: float = 1.0


@config
class Files:
    corpus: Literal["text"] = "text"
    path: Path
    columns: tuple[int, ...] = (0, 1)
    betas: tuple[float, float] = (0.9, 0.999)


@config
class Recurrent:
    kind: Literal["recurrent"] = "recurrent"
    cell: Literal["elman", "lstm", "gru"] = "lstm"
    hidden: int = 64
    heads: int = 1
    clip: float | None = None
    threshold: float | Literal["auto"] = "auto"

    def problems(self) -> Iterator[str]:
        if self.hidden % self.heads:
            yield f"hidden must be a multiple of heads; got {self.hidden} and {self.heads}."
        if self.heads > self.hidden:
            yield "heads must be at most hidden"
        if self.heads == 8:
            raise ValueError("there are no 8 heads")  # a rule may raise an error


@config
class Train:
    lr: float = 1e-3
    steps: Annotated[int, Field(gt=0)] = 100
    limit: Annotated[float, AllowInfNan(True)] = float("inf")
    shuffle: bool = True
    names: dict[str, int] = dataclasses.field(default_factory=dict)


@config
class Recipe:
    task: str
    seed: int = 1
    data: Annotated[Embedded | Files, Discriminator("corpus")] = Embedded()
    model: Annotated[Recurrent, Discriminator("kind")] = Recurrent()  # a union with one member
    train: Train = Train()


def problems(text: str) -> list[str]:
    """Return the lines of the error message for `text`, without the heading."""
    with pytest.raises(UsageError) as caught:
        build(Recipe, load_yaml(text), "recipe x.yaml")
    heading, *lines = str(caught.value).splitlines()
    count = "1 problem" if len(lines) == 1 else f"{len(lines)} problems"
    assert heading == f"recipe x.yaml has {count}:"
    assert "pydantic" not in str(caught.value)
    return [line.strip() for line in lines]


def test_omitted_sections_use_defaults() -> None:
    assert build(Recipe, {"task": "lm"}) == Recipe(task="lm")
    assert build(Recipe, load_yaml("task: lm\ntrain:\n  # lr: 1\n")) == Recipe(task="lm")


def test_values_have_the_types_of_their_fields() -> None:
    text = (
        "task: lm\nseed: 1e3\ndata: {corpus: text, path: a.txt, columns: [2]}\n"
        "train: {lr: 2e-3, limit: .inf, names: {a: 1}}"
    )
    recipe = build(Recipe, load_yaml(text))
    assert recipe.data == Files(path=Path("a.txt"), columns=(2,))
    assert recipe.seed == 1000 and recipe.train == Train(lr=0.002, limit=float("inf"), names={"a": 1})
    assert type(recipe.seed) is int
    assert type(build(Recipe, {"task": "lm", "train": {"lr": 1}}).train.lr) is float


def test_configs_are_frozen_and_keyword_only() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Train().lr = 1.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        Train(0.1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("task: lm\nmodel: {hiden: 3}", "model.hiden: no such key; did you mean model.hidden?"),
        ("task: lm\nlr: 3", "lr: no such key; did you mean train.lr?"),
        ("task: lm\nmodel: {steps: 3}", "model.steps: no such key; did you mean train.steps?"),
        ("task: lm\ndata: {corpus: pydocs, zzz: 1}", "data.zzz: no such key; choose from corpus, part"),
        (
            "task: lm\ndata: {corpus: pydocs, betas: a}",
            "data.betas: is a key of corpus text, not of pydocs; leave it out",
        ),
        (
            "task: lm\ndata: {corpus: text, path: a, part: 1}",
            "data.part: is a key of corpus pydocs, not of text; did you mean data.path?",
        ),
        ("task: lm\ndata: text", "data: must be a section; got 'text'; did you mean data.corpus=text?"),
        ("task: lm\ndata: txt", "data: must be a section; got 'txt'"),
        ("task: lm\nmodel: recurrent", "model: must be a section; got 'recurrent'; did you mean model.kind=recurrent?"),
        ("task: lm\ntrain: {lr: fast}", "train.lr: must be a number; got 'fast'"),
        ("task: lm\ntrain: {lr: '1e-3'}", "train.lr: must be a number; got '1e-3'"),
        ("task: lm\ntrain: {lr: true}", "train.lr: must be a number; got true"),
        ("task: lm\ntrain: {lr: .nan}", "train.lr: must be a finite number; got nan"),
        ("task: lm\ntrain: {lr: -.inf}", "train.lr: must be a finite number; got -inf"),
        ("task: lm\nseed: true", "seed: must be a whole number; got true"),
        ("task: lm\nseed: 1.5", "seed: must be a whole number; got 1.5"),
        ("task: lm\nseed: '1.5'", "seed: must be a whole number; got '1.5'"),
        ("task: lm\nseed:", "seed: must be a whole number; got null"),
        ("task: lm\ntrain: {shuffle: 1}", "train.shuffle: must be true or false; got 1"),
        ("task: lm\ntrain: {shuffle: yes}", "train.shuffle: must be true or false; got 'yes'"),
        ("task: lm\ntrain: {steps: 0}", "train.steps: must be greater than 0; got 0"),
        ("task: lm\ntrain: {names: {a: x}}", "train.names.a: must be a whole number; got 'x'"),
        ("task: 3", "task: must be a string; got 3; put it in quotes"),
        ("seed: 1", "task: missing; it must be a string"),
        ("task: lm\ndata: {corpus: text}", "data.path: missing; it must be a path"),
        ("task: lm\ndata: {corpus: txt}", "data.corpus: must be one of pydocs, text; got 'txt'; did you mean text?"),
        ("task: lm\ndata: {corpus: 7}", "data.corpus: must be one of pydocs, text; got 7"),
        ("task: lm\ndata: {seed: 1}", "data.corpus: missing; it must be one of pydocs, text"),
        ("task: lm\ndata: {corpsu: text}", "data.corpsu: no such key; did you mean data.corpus?"),
        ("task: lm\ndata: 5", "data: must be a section; got 5"),
        ("task: lm\ntrain: [1]", "train: must be a section; got [1]"),
        ("task: lm\nmodel: {kind: recurent}", "model.kind: must be recurrent; got 'recurent'; did you mean recurrent?"),
        (
            "task: lm\nmodel: {cell: gruu}",
            "model.cell: must be one of elman, lstm, gru; got 'gruu'; did you mean gru?",
        ),
        ("task: lm\nmodel: {clip: none}", "model.clip: must be a number or null; got 'none'"),
        (
            "task: lm\nmodel: {threshold: atuo}",
            "model.threshold: must be a number or auto; got 'atuo'; did you mean auto?",
        ),
        ("task: lm\nmodel: {hidden: 5, heads: 2}", "model: hidden must be a multiple of heads; got 5 and 2"),
        ("task: lm\ndata: {corpus: text, path: a, columns: 3}", "data.columns: must be a list; got 3"),
        (
            "task: lm\ndata: {corpus: text, path: a, columns: [3, x]}",
            "data.columns[1]: must be a whole number; got 'x'",
        ),
        ("task: lm\ndata: {corpus: text, path: a, betas: [1]}", "data.betas: must be a list of 2; got [1]"),
        (
            "task: lm\ndata: {corpus: text, path: a, betas: [1, 2, 3]}",
            "data.betas: must have at most 2 entries; got [1, 2, 3]",
        ),
    ],
)
def test_each_problem_has_its_message(text: str, line: str) -> None:
    assert problems(text) == [line]


def test_all_problems_are_reported_together() -> None:
    lines = problems("tsk: lm\nseed: x\nmodel: {hiden: 1, cell: lstn}\ntrain: {lr: fast}")
    assert {line.split(":")[0] for line in lines} == {"task", "tsk", "seed", "model.hiden", "model.cell", "train.lr"}


def test_all_broken_rules_of_a_section_are_reported_with_problems_of_others() -> None:
    lines = problems("task: lm\ndata: {corpus: pydoc}\nmodel: {hidden: 7, heads: 8}\ntrain: {lr: fast}")
    assert {line.split(":")[0] for line in lines} == {"data.corpus", "model", "train.lr"}
    assert [line for line in lines if line.startswith("model")] == [
        "model: hidden must be a multiple of heads; got 7 and 8",
        "model: heads must be at most hidden",
        "model: there are no 8 heads",
    ]
    with pytest.raises(ValueError, match=r"^hidden must .*\nheads must be at most hidden$"):
        Recurrent(hidden=7, heads=9)


def test_missing_kind_is_suggested_from_its_keys() -> None:
    assert problems("task: lm\ndata: {path: x, betas: [0, 0]}") == [
        "data.corpus: missing; path, betas belong to text: set data.corpus=text too"
    ]


def test_missing_kind_is_the_default_kind() -> None:
    for section in ({}, {"part": 2}):
        recipe = build(Recipe, {"task": "lm", "data": section})
        assert recipe == build(Recipe, {"task": "lm", "data": {"corpus": "pydocs", **section}})


def test_keys_and_texts_that_yaml_cannot_contain_are_rejected() -> None:
    with pytest.raises(UsageError, match="train: keys must be a string; got 1"):
        build(Recipe, {"task": "lm", "train": {1: 2}})
    with pytest.raises(UsageError, match="task: must be valid UTF-8 text"):
        build(Recipe, {"task": "\udc80"})


def test_build_accepts_a_union() -> None:
    corpora = Annotated[Embedded | Files, Discriminator("corpus")]
    assert build(corpora, {"corpus": "text", "path": "x"}) == Files(path=Path("x"))
    with pytest.raises(UsageError, match="part: must be a number; got 'x'"):
        build(corpora, {"corpus": "pydocs", "part": "x"})


texts = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=12) | st.sampled_from(
    ["no", "yes", "null", "1e5", "12:30", "~", "0x1f", "2001-01-01", "=", "<<", "- a", "#", "a: b", " x ", ".5", ""]
)
finite = st.floats(allow_nan=False, allow_infinity=False)
recipes = st.builds(
    Recipe,
    task=texts,
    seed=st.integers(-(2**63), 2**63 - 1),
    data=st.builds(Embedded, part=finite)
    | st.builds(
        Files,
        path=texts.map(Path),
        columns=st.lists(st.integers(-(2**63), 2**63 - 1)).map(tuple),
        betas=st.tuples(finite, finite),
    ),
    model=st.builds(
        Recurrent,
        cell=st.sampled_from(["elman", "gru"]),
        clip=st.none() | finite,
        threshold=st.just("auto") | finite,
    ),
    train=st.builds(
        Train,
        lr=finite,
        limit=st.floats(allow_nan=False),
        shuffle=st.booleans(),
        names=st.dictionaries(texts, st.integers(-(2**63), 2**63 - 1)),
    ),
)


@given(recipes)
def test_recipe_round_trips_through_plain_values_and_yaml(recipe: Recipe) -> None:
    plain = to_mapping(recipe)
    assert build(Recipe, plain) == recipe
    text = dump_yaml(plain)
    assert build(Recipe, load_yaml(text)) == recipe
    assert dump_yaml(load_yaml(text)) == text
    assert differences(plain, load_yaml(text)) == []


def test_dumped_yaml_is_readable() -> None:
    assert dump_yaml({"task": "lm", "train": {"lr": 0.002, "betas": [0.9, 0.99]}, "word": "1e3"}) == (
        "task: lm\ntrain:\n  lr: 0.002\n  betas: [0.9, 0.99]\nword: '1e3'\n"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml, line 3: the key 'a' is repeated."),
        ("a:\n  b: 1\n  b: 1\n", "f.yaml, line 3: the key 'b' is repeated."),
        ("a: &x 1\n", "f.yaml, line 1: anchors (&x) and aliases (*x) are not supported."),
        ("a: *x\n", "f.yaml, line 1: anchors (&x) and aliases (*x) are not supported."),
        ("a: !!python/name:os.system x\n", "tags (tag:yaml.org,2002:python/name:os.system) are not supported."),
        ("1: 2\n", "f.yaml, line 1: keys must be strings."),
        ("? [a]\n: 1\n", "f.yaml, line 1: keys must be strings."),
        ("a:\n\tb: 1\n", "f.yaml, line 2: indentation must be spaces, not tabs."),
        ("a: [1,\n", "f.yaml, line 2: this is not valid YAML"),
        ("a: 1\n---\nb: 1\n", "f.yaml, line 2: this is not valid YAML"),
        ("a: 1\nb: \x01\n", "f.yaml, line 2: contains the control character U+0001."),
        ("- 1\n", "f.yaml: must contain keys and values, such as 'seed: 1', but it is a list."),
        ("word\n", "f.yaml: must contain keys and values, such as 'seed: 1', but it is a single value."),
        ("[" * 5000, "f.yaml: nested too deeply."),
    ],
)
def test_message_for_invalid_yaml_has_the_line(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_yaml(text, "f.yaml")
    assert message in str(caught.value)


def test_unreadable_files_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "lm.yaml"
    with pytest.raises(UsageError, match=r"lm\.yaml: the file does not exist"):
        load_yaml(path)
    path.write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(UsageError, match=r"lm\.yaml, line 2: not UTF-8 text"):
        load_yaml(path)
    with pytest.raises(UsageError, match="is a folder"):
        load_yaml(tmp_path)
    path.write_bytes("\ufeffa: größe\n".encode())
    assert load_yaml(path) == {"a": "größe"}
    path.write_bytes(b"")
    assert load_yaml(path) == {}


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("~", None),
        ("12:30", "12:30"),
        ("2001-01-01", "2001-01-01"),
        ("2e-3", 0.002),
        ("1e6", 1_000_000),
        ("-1e2", -100),
        ("1.0e2", 100.0),
        (".5", 0.5),
        ("0x1f", 31),
        ("-.inf", float("-inf")),
        ("+3", 3),
        ("1_000", "1_000"),
        ("'2e-3'", "2e-3"),
        ("inf", "inf"),
    ],
)
def test_scalars_follow_the_core_schema(scalar: str, value: Any) -> None:
    read = load_yaml(f"a: {scalar}\n")["a"]
    assert (read, type(read)) == (value, type(value))
    assert parse_overrides([f"a={scalar}"]) == [(("a",), value)]


def test_overrides_are_yaml_values() -> None:
    assert parse_overrides(
        ["model.cell=gru", "train.lr=2e-3", "data.train=[a.en,b.de]", "x={a: 1}", "y=", "z=a=b"]
    ) == [
        (("model", "cell"), "gru"),
        (("train", "lr"), 0.002),
        (("data", "train"), ["a.en", "b.de"]),
        (("x",), {"a": 1}),
        (("y",), None),
        (("z",), "a=b"),
    ]
    assert parse_overrides(["data.path=*.txt", "prompt=To be: or # not", 'seed="1"']) == [
        (("data", "path"), "*.txt"),
        (("prompt",), "To be: or # not"),
        (("seed",), "1"),
    ]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("train.lr", "must have the form key.path=value; got 'train.lr'"),
        ("=3", "must begin with a key"),
        ("train..lr=3", "must begin with a key"),
        (".lr=3", "must begin with a key"),
        ("a=[1", "the override 'a=[1', line 1: this is not valid YAML"),
        ("a=[*x]", "the override 'a=[*x]', line 1: anchors"),
    ],
)
def test_invalid_overrides_are_rejected(word: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_overrides([word])
    assert message in str(caught.value)


def test_overrides_are_applied_to_a_copy() -> None:
    recipe: dict[str, Any] = {"train": {"lr": 1}, "model": None}
    overridden = apply_overrides(recipe, parse_overrides(["train.lr=2", "train.lr=3", "model.cell=gru", "data.a.b=x"]))
    assert overridden == {"train": {"lr": 3}, "model": {"cell": "gru"}, "data": {"a": {"b": "x"}}}
    assert recipe == {"train": {"lr": 1}, "model": None}
    with pytest.raises(
        UsageError, match=r"train\.lr\.x cannot be set: train\.lr must be a section with keys, but it is 1"
    ):
        apply_overrides(recipe, parse_overrides(["train.lr.x=2"]))


def test_new_kind_clears_its_section_in_any_order() -> None:
    recipe = {"tokenizer": {"kind": "words", "min_count": 2}, "seed": 1}
    fresh = {"tokenizer": {"kind": "byte-pair", "size": 500}, "seed": 1}
    words = ["tokenizer.kind=byte-pair", "tokenizer.size=500"]
    assert apply_overrides(recipe, parse_overrides(words)) == fresh
    assert apply_overrides(recipe, parse_overrides(reversed(words))) == fresh
    same = apply_overrides(recipe, parse_overrides(["tokenizer.kind=words"]))
    assert same == recipe  # the kind is unchanged, so its settings are kept


def test_overridden_recipe_is_independent_of_the_overrides() -> None:
    overrides = parse_overrides(["a={b: 1}"])
    first = apply_overrides({}, overrides)
    first["a"]["b"] = 2
    assert apply_overrides({}, overrides) == {"a": {"b": 1}}


def test_differences_name_every_key_path() -> None:
    a = {"seed": 1, "train": {"lr": 0.1, "on": True, "betas": [1, 2], "nan": float("nan")}, "old": 1}
    b = {"seed": 1.0, "train": {"lr": 0.2, "on": 1, "betas": [1, 3], "nan": float("nan")}, "new": {"x": 1}}
    assert differences(a, b) == [
        ("train.lr", 0.1, 0.2),
        ("train.on", True, 1),
        ("train.betas", [1, 2], [1, 3]),
        ("old", 1, ABSENT),
        ("new", ABSENT, {"x": 1}),
    ]


def test_only_similar_names_are_suggested_and_case_is_ignored() -> None:
    assert find_nearest("hiden", ["hidden", "cell"]) == "hidden"
    assert find_nearest("LSTM", ["lstm"]) == "lstm"
    assert find_nearest("zzz", ["hidden", "cell"]) is None
    assert find_nearest("x", []) is None
