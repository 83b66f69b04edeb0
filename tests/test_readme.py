"""Every block of the README and the docs can be run, as commands on the command line or as Python.

Training runs by gradient descent are shortened to a few steps, and generated or embedded corpora are smaller.
Everything else is as for a reader. The rules in `NOT_RUN` skip other programs (make, pip, …). A command that no rule
covers fails.
"""

import dataclasses
import glob
import io
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.exchange import small_decoders

from seqloom import ladder, recipes, training
from seqloom.cli.app import main
from seqloom.data.corpora import pydocs
from seqloom.data.files import DATA_VARIABLE
from seqloom.data.images import as_pillow, encode_png
from seqloom.data.moving_digits import draw_clips, embedded_glyphs, render_clip
from seqloom.data.shapes import caption_scene, draw_scenes, scene_image
from seqloom.data.sound import SampledSound, encode_wav
from seqloom.exchange import conversion
from seqloom.inspect import doctor
from seqloom.inspect.rehearsal import Rehearsal
from seqloom.inspect.views import layers, memory
from seqloom.nn.cells import CELLS
from seqloom.recipes import read_recipe, recipe_names
from seqloom.runs import image_weights
from seqloom.tasks import task_info
from seqloom.train.config import FitConfig
from seqloom.training import begin

ROOT = Path(__file__).parents[1]
BUILT = ROOT / "docs/reference/python"  # written by `make docs` and not committed
PAGES = [ROOT / "README.md", *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path.parent != BUILT)]
FAST_PAGES = {"README", "docs/index", "docs/how-to/language-models", "docs/how-to/translation", "docs/how-to/python"}
FAST_PAGES |= {"docs/reference/data", *(f"docs/learn/{path.stem}" for path in ROOT.glob("docs/learn/*.md"))}
STEPS = 3
BATCH_SIZE = 4
HELD_OUT = 0.02  # fraction of the Python documentation that is held out for dev and test
CHECKPOINTS = (
    # A short training run has only one checkpoint; see test_training_runs_keep_enough_checkpoints_to_average
    r"(--last |last=)\d+"
)

NOT_RUN = {
    r"make (setup|demo|test)\b": "it creates an environment; `make test` runs this suite",
    r"pip install ": "it needs a network and changes the environment",
    r"python -m venv ": "it creates an environment",
    r"python benchmarks/": "it takes minutes, and peers need separate environments",
    r"seqloom .*\bDATA/": "it reads data that a benchmark writes",
    r"seqloom studio\b": "it serves until it is stopped; tests/cli/test_studio_command.py runs it",
    r"source .*/activate$": "it belongs to the shell",
    r"export \w+=": "it belongs to the shell",
}
NEED_DATA = (
    "shakespeare",
    "ptb",
    "wikitext2",
    "multi30k",
    "tatoeba",
    "sst2",
    "cola",
    "ewt",
    "wnut17",
    "names-18",
    "lm-reviews",
    "gpt-reviews",
    "bert-reviews",
    "electra-reviews",
    "elmo-reviews",
    "translate-finetune",
    "pair-rte",
    "similarity-flickr8k",
    "caption-flickr8k",
    "choice-endings",
    "answer-squad",
    "mnist",
    "digits-speech",
)
# A training whose options replace the data of the recipe: the name of the recipe does not determine the data
OTHER_DATA = (
    r"^seqloom train \S+"
    r"(?=.* .?data(?:\.corpus=|=\{corpus: )(?:shapes|glyph-digits)\b"
    r"|.* data\.corpus=.* init\.from=|.* init\.from=.* data\.corpus=)"
)
PRINT_COMMAND = r"(?:echo|printf) [^|>]*"
SMALL_CORPORA = {  # sizes of generated corpora
    "cldr": {"train": 400, "dev": 20, "test": 20},
    "people": {"train": 200, "dev": 20, "test": 20},
    "names": {"train": 240, "dev": 48, "test": 48},
    "languages": {"train": 136, "dev": 68, "test": 68},
    "shapes": {"train": 24, "dev": 6, "test": 6},
    "glyph-digits": {"train": 24, "dev": 6, "test": 6},
    "captioned-shapes": {"train": 24, "dev": 6, "test": 6},
    "video-digits": {"train": 64, "dev": 6, "test": 6},
    "spoken-numbers": {"train": 24, "dev": 3, "test": 3},
    "spoken-phonemes": {"train": 24, "dev": 3, "test": 3},
    "toy-pairs": {"train": 200, "dev": 20, "test": 20},
    "track": {"train": 3, "dev": 2, "test": 2, "steps": 40},
}
TICKETS = [("the printer smokes", "it"), ("my invoice is wrong", "billing")]
SIDES = [("apples", "Äpfel", "pears", "Birnen"), ("pears", "Birnen", "apples", "Äpfel")]


@dataclasses.dataclass(frozen=True)
class Block:
    language: str
    text: str

    def commands(self) -> Iterator[str]:
        """Yield one command per line. A backslash at the end of a line continues the command."""
        for line in self.text.replace("\\\n", " ").split("\n"):
            if line.strip() and not line.startswith("#"):
                yield line.strip()


def blocks(path: Path) -> list[Block]:
    matches = re.findall(r"^```(bash|sh|python)\n(.*?)^```$", path.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [Block(language, re.sub(CHECKPOINTS, r"\g<1>1", text)) for language, text in matches]


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Prepare a directory with the files of a reader, and shorten training runs to a few steps."""
    read = read_recipe

    def read_short_recipe(*arguments: Any) -> tuple[str, Any]:
        name, recipe = read(*arguments)
        if smaller := SMALL_CORPORA.get(getattr(getattr(recipe, "data", None), "corpus", "")):
            recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, **smaller))
        if recipe.model.kind in ("hmm", "gaussian-hmm"):
            fewer = dataclasses.replace(recipe.train, restarts=1, iterations=STEPS)
            recipe = dataclasses.replace(recipe, train=fewer)
        if recipe.model.kind == "word-vectors":
            recipe = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, epochs=1))
        if recipe.model.kind == "kalman":
            recipe = dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, rounds=STEPS))
        if recipe.model.kind in ("gpt", "bert", "electra") and recipe.model.d_model > 256:  # models for GPUs
            small = dataclasses.replace(recipe.model, d_model=8 * recipe.model.heads, layers=2)
            recipe = dataclasses.replace(recipe, model=small)
        if isinstance(recipe.train, FitConfig):
            train = dataclasses.replace(recipe.train, steps=STEPS, epochs=None, warmup=0)
            recipe = dataclasses.replace(recipe, train=train)
            recipe = dataclasses.replace(recipe, batch=smaller_batch(recipe.batch))
        return name, recipe

    read_ladder, train_ladder = ladder.read_ladder, ladder.train_ladder

    def two_variants(source: str, overrides: Any = (), **options: Any) -> ladder.Ladder:
        small_sizes = ["data.train=400", "data.dev=20", "data.test=20"]
        small_sizes = small_sizes if read_ladder(source).variants[0].recipe.data.corpus == "cldr" else []
        matches = read_ladder(
            source, [*overrides, *small_sizes, f"train.steps={STEPS}", f"train.evaluate_every={STEPS}"], **options
        )
        seeds = dataclasses.replace(matches.config, seeds=matches.config.seeds[:2])
        return dataclasses.replace(matches, config=seeds, variants=matches.variants[:2])

    def train_sequentially(*words: Any, jobs: int = 1, **options: Any) -> Any:
        return train_ladder(*words, **options)  # starting processes takes time

    plan = layers.LayersPlan

    def short_sequences(**options: Any) -> layers.LayersPlan:
        number = len(options.get("lengths", (1, 2)))
        return plan(**{**options, "lengths": tuple(8 * (city + 1) for city in range(number)), "d_model": 16})

    monkeypatch.setattr(pydocs, "HELD_OUT", HELD_OUT)
    monkeypatch.setattr(layers, "LayersPlan", short_sequences)
    for module in (recipes, training):  # used by commands and by Python
        monkeypatch.setattr(module, "read_recipe", read_short_recipe)
    monkeypatch.setattr(ladder, "read_ladder", two_variants)
    monkeypatch.setattr(ladder, "train_ladder", train_sequentially)
    monkeypatch.setattr(doctor, "rehearse", lambda recipe: Rehearsal(12, 0.5, 2.0, memory=1 << 29))
    monkeypatch.setattr(memory, "DEFAULT_STEPS", dict.fromkeys(memory.DEFAULT_STEPS, STEPS))
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "LICENSE", "corpus.txt")
    Path("sentences.txt").write_text("The class is an object.\nAn object is a class.\n", "utf-8")
    for name in ("lines.txt", "whole.txt"):
        shutil.copy("sentences.txt", name)
    Path("gaps.txt").write_text("the [MASK] statement\nan [MASK] of the [MASK]\n", "utf-8")
    shutil.copy("corpus.txt", "book.txt")
    shutil.copy("corpus.txt", "mine.txt")
    numbers = [
        (f"{n} {a} and {m} {b}", f"{n} {A} und {m} {B}") for n in range(20) for m in range(20) for a, A, b, B in SIDES
    ]
    for ending, side in (("en", 0), ("de", 1)):
        Path(f"mine.{ending}").write_text(f"{numbers[7][side]}\n{numbers[70][side]}\n", "utf-8")
        Path(f"corpus.{ending}").write_text("".join(f"{pair[side]}\n" for pair in numbers), "utf-8")
    Path("pairs.tsv").write_text("".join(f"{one}\t{other}\n" for one, other in numbers), "utf-8")
    notes = "".join(f"{one} were sold. The shop is open.\t{one}\n" for one, _ in numbers)
    Path("notes.tsv").write_text(f"body\tsummary\n{notes}", "utf-8")
    rows = [f"{n},a {word} film no {n},{stars}\n" for n in range(60) for word, stars in (("funny", 5), ("dull", 1))]
    Path("reviews.csv").write_text("id,review,stars\n" + "".join(rows), "utf-8")
    tickets = [f'{n},"Hi 👋,\n{text} no ""{n}""!",{queue}\n' for n in range(40) for text, queue in TICKETS]
    Path("tickets.csv").write_text("id,text,queue\n" + "".join(tickets), "utf-8")
    Path("books").mkdir()
    for number in range(3):
        Path(f"books/{number}.txt").write_text("Chapter one.\n\nIt was a dark and stormy night.\n" * 40, "utf-8")
    tagged = [f"Ann{n}\tB-PER\nlives\tO\nin\tO\nRome{n}\tB-LOC\n.\tO\n" for n in range(40)]
    for name in ("mine.conll", "train.conll"):
        Path(name).write_text("\n".join(tagged), "utf-8")
    Path("dev.conll").write_text("\n".join(tagged[:3]), "utf-8")
    parts = [f"1\tHund{n}\t_\tNOUN\t_\t_\t0\troot\t_\t_\n2\tbellt\t_\tVERB\t_\t_\t1\tx\t_\t_\n" for n in range(20)]
    Path("de_gsd-ud-train.conllu").write_text("\n".join(parts), "utf-8")
    write_examples_of_two_texts()
    write_series()
    write_pictures()
    for name in ("seven", "stream", "talk"):
        tone = np.sin(np.arange(20_000) / 9).astype(np.float32)
        Path(f"{name}.wav").write_bytes(encode_wav(SampledSound(name, tone, 16_000)))
    Path("input.txt").write_text("3 apples and 4 pears\n\n5 pears and 1 apples\n", "utf-8")
    Path("nbest.txt").write_text("0 ||| 3 Äpfel ||| -0.5\n0 ||| 4 Birnen ||| -0.7\n2 ||| 5 Birnen ||| -0.1\n", "utf-8")
    Path("ref.txt").write_text("3 Äpfel und 4 Birnen\n\n5 Birnen und 1 Äpfel\n", "utf-8")
    Path("hyp.txt").write_text("3 Äpfel und 4 Birnen\n\n5 Birnen und 1 Birnen\n", "utf-8")
    cells = dict(CELLS)
    yield tmp_path
    CELLS.clear()  # a page adds a cell
    CELLS.update(cells)


def smaller_batch(batch: Any) -> Any:
    rows = {"size": min(batch.size, BATCH_SIZE)} if hasattr(batch, "size") else {}
    eval_size = {"eval_size": 16} if hasattr(batch, "eval_size") else {}
    return dataclasses.replace(batch, **rows, **eval_size)


def write_examples_of_two_texts() -> None:
    """Write files of pairs, choices, questions and instructions."""
    facts = [
        (f"Ann{n} lives in {city}.", f"Is Ann{n} in {city}?", city) for n in range(40) for city in ("Rome", "Oslo")
    ]
    pairs = [(statement, question, n % 2) for n, (statement, question, _) in enumerate(facts)]
    for name, columns in (
        ("mine", "first second label"),
        ("scored", "first second score"),
        ("nli", "premise hypothesis gold"),
    ):
        rows = [columns.split(), *pairs]
        Path(f"{name}.tsv").write_text("".join("\t".join(map(str, row)) + "\n" for row in rows), "utf-8")
    statement = [{"text": statement, "options": ["Oslo", "Rome"], "answer": city} for statement, _, city in facts]
    Path("quiz.jsonl").write_text("".join(json.dumps(row) + "\n" for row in statement), "utf-8")
    endings = "".join(f"Ann{n} opens the,door,sea,moon,sky,0\n" for n in range(40))
    Path("swag.csv").write_text("startphrase,ending0,ending1,ending2,ending3,label\n" + endings, "utf-8")
    tasks = [{"instruction": "Where is she?", "input": statement, "output": city} for statement, _, city in facts]
    Path("mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tasks), "utf-8")
    question = [
        {
            "context": statement,
            "qas": [
                {
                    "id": question,
                    "question": question,
                    "answers": [{"text": city, "answer_start": statement.index(city)}],
                }
            ],
        }
        for statement, question, city in facts
    ]
    Path("mine.json").write_text(json.dumps({"data": [{"title": "Ann", "paragraphs": question}]}), "utf-8")


def write_series() -> None:
    """Write files of series and of series with labels."""
    months = [f"{2000 + n // 12}-{n % 12 + 1:02d}" for n in range(96)]
    for name, column in (("sales", "sales"), ("later", "co2")):
        rows = [f"{month},{370 + n / 8 + 3 * (n % 12 < 6) + n * n % 7 / 5}\n" for n, month in enumerate(months)]
        Path(f"{name}.csv").write_text(f"month,{column}\n" + "".join(rows), "utf-8")
    waves = [f"{n % 2}," + ",".join(str((t + n) % (3 + n % 2) + n / 100) for t in range(12)) + "\n" for n in range(60)]
    Path("rows.csv").write_text("".join(waves), "utf-8")
    Path("digits.csv").write_text(
        "".join(",".join(str((t + n) % 17) for t in range(64)) + "\n" for n in (0, 5)), "utf-8"
    )


def write_pictures() -> None:
    """Write labelled images, a table of their captions, and a photo."""
    captions = ["image\tcaption"]
    for number, scene in zip(range(40), draw_scenes("train", 0, objects=(1, 1)), strict=False):
        name = f"{('cats', 'dogs')[number % 2]}/{number}.png"
        Path("pictures", name).parent.mkdir(parents=True, exist_ok=True)
        Path("pictures", name).write_bytes(encode_png(scene_image(scene, name, 32).pixels))
        captions += [f"{name}\t{caption}" for caption in caption_scene(scene)]
    Path("captions.tsv").write_text("\n".join(captions) + "\n", "utf-8")
    for name in ("photo.jpg", "seven.png"):  # the content of a file determines its format
        shutil.copy("pictures/cats/0.png", name)
    clip = next(draw_clips("test"))
    frames = render_clip(clip, embedded_glyphs()[clip.digit][0])
    Path("frames").mkdir(exist_ok=True)
    for number, frame in enumerate(frames):
        Path(f"frames/{number}.png").write_bytes(encode_png(frame))
    first, *others = map(as_pillow, frames)
    first.save("clip.gif", save_all=True, append_images=others)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for runs that pages use without training them."""
    return tmp_path_factory.mktemp("trained")


def provide_run(name: str, trained: Path) -> None:
    """Provide the run of the shipped recipe `name`, unless the run exists."""
    recipe = "translate-cldr" if name == "quickstart-en-fr" else name
    if recipe not in recipe_names() or Path("runs", name).exists():
        return
    if not (trained / name).exists():
        api_train(recipe, trained / name)
    shutil.copytree(trained / name, Path("runs", name))


def download(name: str) -> bool:
    """Provide a small random model instead of a download. Return False if that is not possible here."""
    folder = Path("downloads", {"opus": "opus-mt-en-de"}.get(name, name))
    if folder.exists():
        return True
    if name == "gpt2":
        small_decoders.write_of_bytes(folder)
        return True
    if find_spec("transformers") is None or find_spec("sentencepiece") is None:
        return False
    from tests.exchange import small_encoder_decoders

    folder.parent.mkdir(exist_ok=True)
    small_encoder_decoders.SHAPES["marian-opus"] = {"layers": (1, 6)}
    small_encoder_decoders.write(folder, "marian-opus")
    del small_encoder_decoders.SHAPES["marian-opus"]
    for ending in ("en", "de"):
        shutil.copy(f"mine.{ending}", f"news.{ending}")
    return True


def api_train(name: str, out: Path) -> None:
    for _ in begin(read_recipe(name)[1], out).events():
        pass


def print_output(words: list[str]) -> bytes:
    """Return the output of `echo` or `printf`."""
    return subprocess.run(words, capture_output=True, check=True).stdout


def words_of(command: str) -> tuple[list[str], bytes | None]:
    """Return the words after `seqloom` with expanded wildcards, and the input from `<` or `|`."""
    words, given = shlex.split(command, comments=True), None
    if "|" in words:
        given = print_output(words[: words.index("|")])
        words = words[words.index("|") + 1 :]
    if "<" in words:
        given = Path(words.pop(words.index("<") + 1)).read_bytes()
    if ">" in words:
        file = words.pop(words.index(">") + 1)  # the output is checked here and not written
        words += ["--out", file] * file.endswith(".npy")  # binary output is written
    words = [word for word in words[1:] if word not in ("<", ">")]
    return [matches for word in words for matches in (sorted(glob.glob(word)) if "*" in word else [word])], given


def run_command(
    command: str, trained: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if any(re.match(rule, command) for rule in NOT_RUN):
        return
    if re.match(rf"{PRINT_COMMAND}> [\w.]+( +#|$)", command):
        *words, _, file = shlex.split(command, comments=True)
        Path(file).write_bytes(print_output(words))
        return
    assert re.match(rf"({PRINT_COMMAND}\| )?seqloom ", command), f"no rule for the command: {command}"
    read = re.sub(OTHER_DATA, "", command)
    if any(name in read for name in NEED_DATA) and not os.environ.get(DATA_VARIABLE):
        return
    if "minilm" in command and find_spec(conversion.MINILM_PACKAGE) is None:  # the package of an extra is not installed
        return
    if not command.startswith("seqloom train ") or "--resume" in command:
        for name in re.findall(r"runs/([\w-]+)", command):
            provide_run(name, trained)
    if re.search(r"efficientnet|photos\.yaml", command) and find_spec(image_weights.PACKAGE) is None:
        return
    if not all(map(download, re.findall(r"(?:downloads|runs)/(gpt2|opus)\b", command))):
        return
    words, given = words_of(command)
    if words[:2] == ["data", "show"]:
        words += [f"{key}={count}" for key, count in SMALL_CORPORA.get(words[2], {}).items()]
    if given is not None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given), "utf-8"))
    capfd.readouterr()
    code = main(words)
    captured = capfd.readouterr()
    assert code == 0, f"{command}\n{captured.err}"
    assert captured.out or captured.err.startswith("Wrote "), f"{command} printed nothing"
    assert "Traceback" not in captured.err


def page_parameter(path: Path) -> Any:
    """Return the parameter of a page; all pages except `FAST_PAGES` are slow tests."""
    name = path.relative_to(ROOT).with_suffix("").as_posix()
    return pytest.param(path, id=name, marks=() if name in FAST_PAGES else pytest.mark.slow)


@pytest.mark.parametrize("path", [page_parameter(path) for path in PAGES if blocks(path)])
def test_code_blocks_run_without_errors(
    path: Path, workplace: Path, trained: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(path):
        if block.language == "python":
            for name in re.findall(r'(?:load|show)\("runs/([\w-]+)"', block.text):
                provide_run(name, trained)
            for name in re.findall(r"downloads/(gpt2)\b", block.text):
                download(name)
            exec(compile(block.text, f"{path.name}, a block", "exec"), namespace)
            continue
        for command in block.commands():
            run_command(command, trained, monkeypatch, capfd)


AVERAGE = r"""(?:seqloom average |average\(")runs/([\w-]+)"?,? [^\n]*?(?:--last |last=)(\d+)"""


def test_training_runs_keep_enough_checkpoints_to_average() -> None:
    """The test above averages a single checkpoint. This test compares the numbers on the pages."""
    compared = 0
    for path in PAGES:
        page = path.read_text("utf-8")
        commands = re.findall(r"^seqloom train (?!--resume)[^#\n]*--out [^#\n]*", page, re.MULTILINE)
        trainings = {words[words.index("--out") + 1]: words[2:] for words in map(shlex.split, commands)}
        for name, last in re.findall(AVERAGE, page):
            recipe, *overrides = trainings.get(f"runs/{name}", [name])
            available = checkpoints_of(recipe, [word for word in overrides if "=" in word])
            assert int(last) <= available, f"{path.name}: {name} has only {available} checkpoints"
            compared += 1
    assert compared


def checkpoints_of(name: str, overrides: list[str]) -> int:
    """Return the minimum number of checkpoints of a training run."""
    _, recipe = read_recipe(name, overrides)
    if recipe.data.corpus in NEED_DATA and not os.environ.get(DATA_VARIABLE):
        return int(recipe.train.keep_checkpoints)
    data_overrides = tuple(word for word in overrides if not word.startswith("train."))
    steps = recipe.train.steps or recipe.train.epochs * epoch_of(name, data_overrides)
    return min(recipe.train.keep_checkpoints, int(steps) // (recipe.train.save_every or recipe.train.evaluate_every))


@cache
def epoch_of(name: str, overrides: tuple[str, ...]) -> int:
    """Return the minimum number of steps per epoch, computed from a part of generated corpora."""
    _, recipe = read_recipe(name, overrides)
    if recipe.data.corpus == "cldr":
        small_sizes = dataclasses.replace(recipe.data, train=min(10_000, recipe.data.train), dev=50, test=50)
        recipe = dataclasses.replace(recipe, data=small_sizes)
    return int(task_info(recipe.task).task.prepare(recipe).steps_per_epoch())


def test_readme_shows_main_commands() -> None:
    commands = [command for block in blocks(ROOT / "README.md") for command in block.commands()]
    for beginning in (
        "make demo",
        "make test",
        "seqloom translate",
        "pip install",
        "seqloom init",
        "seqloom train --resume",
        "seqloom studio",
        "seqloom import-hf",
    ):
        assert any(command.startswith(beginning) for command in commands), beginning
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 120


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("rm -rf runs", "no rule for the command"),
        ("printf 'a' > ../a.txt", "no rule for the command"),
        ("seqloom train pair-rte init.from=runs/no data.corpus=sentence-pairs data.train=mine.tsv", "there is no run"),
        ("seqloom train lm-char-lstm model.cel=gru", "did you mean model.cell"),
        ("seqloom generate runs/nothing", "is not a run"),
    ],
)
def test_invalid_block_is_detected(
    command: str,
    words: str,
    workplace: Path,
    trained: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(AssertionError, match=words):
        run_command(command, trained, monkeypatch, capfd)
