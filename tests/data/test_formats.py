"""Formats other than plain text: Parquet, `datasets` folders, TMX, XLIFF, PO, Zstandard and other encodings."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seqloom.core.errors import DataError, ResourceError
from seqloom.data.corpora import choices, conll, instructions, load, parallel, table
from seqloom.data.corpora import text as text_corpus
from seqloom.data.files import guess_encoding, read_text, use_encoding
from seqloom.data.tables import column_names, format_of, read_table

GERMAN = "„Das ist gut“ – sagte er. Die Straße ist größer geworden.\n"
TMX = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4">
  <header srclang="EN-US" datatype="plaintext"/>
  <body>
    <tu><tuv xml:lang="de-DE"><seg>Drück <bpt i="1">&lt;b&gt;</bpt><hi>OK</hi><ept i="1">&lt;/b&gt;</ept>.</seg></tuv>
        <tuv xml:lang="EN-US"><seg>Press <bpt i="1">&lt;b&gt;</bpt><hi>OK</hi><ept i="1">&lt;/b&gt;</ept>.</seg></tuv>
    </tu>
    <tu><tuv xml:lang="EN-US"><seg>A &amp; B</seg></tuv><tuv xml:lang="de-DE"><seg>A
        und B</seg></tuv></tu>
    <tu><tuv xml:lang="EN-US"><seg>Untranslated</seg></tuv></tu>
  </body>
</tmx>
"""
XLIFF_1 = """<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
<file source-language="en" target-language="fr" original="a" datatype="plaintext"><body>
<trans-unit id="1"><source>Save <g id="1">all</g> <x id="2"/>files</source>
<target>Tout <g id="1">enregistrer</g></target>
<alt-trans><source>wrong</source><target>faux</target></alt-trans></trans-unit>
<trans-unit id="2"><source>Open</source></trans-unit></body></file></xliff>
"""
XLIFF_2 = """<xliff version="2.0" xmlns="urn:oasis:names:tc:xliff:document:2.0" srcLang="en" trgLang="fr">
<file id="f"><unit id="1"><segment><source>Hello <pc id="1">world</pc></source><target>Bonjour le monde</target>
</segment></unit></file></xliff>
"""
PO = r"""
msgid ""
msgstr ""
"Language: pt_BR\n"
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=2; plural=(n > 1);\n"

msgid "Open \"file\""
msgstr "Abrir "
"\"arquivo\""

#, fuzzy
msgid "Close"
msgstr "Errado"

msgid "%d file"
msgid_plural "%d files"
msgstr[0] "%d arquivo"
msgstr[1] "%d arquivos"

msgid "Not translated"
msgstr ""

#~ msgid "Old"
#~ msgstr "Velho"
"""


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


# --- encodings and compression ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1252", GERMAN),
        ("cp1252", "“Quoted” text – with a dash… and it’s English"),
        ("cp1251", "Привет, мир! Это простой русский текст для проверки кодировки."),
        ("cp1250", "Dziękuję bardzo, proszę państwa, wszystko było wspaniałe."),
        ("shift_jis", "これは日本語のテキストです。文字コードを確認します。"),
        ("utf-8", GERMAN),
    ],
)
def test_encoding_is_guessed(encoding: str, text: str) -> None:
    assert guess_encoding(text.encode(encoding)) == encoding


def test_windows_1252_is_suggested_for_latin_1() -> None:
    """Latin-1 text is also Windows-1252 text, but not vice versa: quotation marks would become control characters."""
    assert guess_encoding("Die Straße ist größer als früher.".encode("latin-1")) == "cp1252"


def test_wrong_encoding_is_explained_with_a_sample(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", GERMAN, "cp1252")
    with pytest.raises(DataError, match=r"„Das ist gut“ – .*set data.encoding=cp1252"):
        read_text(path)


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "utf-16-le", "utf-32", "utf-8-sig"])
def test_configured_encoding_is_used(tmp_path: Path, encoding: str) -> None:
    path = write(tmp_path / "a.txt", GERMAN.replace("\n", "\r\n"), encoding)
    with use_encoding(encoding):
        assert read_text(path) == GERMAN
    assert guess_encoding("ä".encode()) == "utf-8"


def test_utf_16_without_configuration_is_explained(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data.encoding=utf-16"):
        read_text(write(tmp_path / "a.txt", GERMAN, "utf-16"))


def test_encoding_of_a_corpus_applies_only_to_its_files(tmp_path: Path) -> None:
    lines = "".join("text,label\n" if i == 0 else f"„Straße {i}“,{'ab'[i % 2]}\n" for i in range(40))
    path = write(tmp_path / "a.csv", lines, "cp1252")
    corpus = load(table.Config(train=str(path), encoding="cp1252"))
    assert all(example.text.startswith("„Straße ") for example in corpus.split("train"))
    with pytest.raises(DataError, match=r"must be UTF-8"):
        load(table.Config(train=str(path)))


def test_unknown_encoding_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"encoding must be the name of a text encoding.*got 'klingon'"):
        table.Config(train="a.csv", encoding="klingon")


def test_zstandard_is_read(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    path = tmp_path / "a.txt.zst"
    frame = zstandard.ZstdCompressor().compress(GERMAN.encode())
    path.write_bytes(frame + frame)  # two frames, as `cat a.zst b.zst` gives
    assert read_text(path) == GERMAN + GERMAN
    path.write_bytes(frame[:-5])
    with pytest.raises(DataError, match=r"truncated or damaged"):
        read_text(path)
    with pytest.raises(DataError, match=r"compressed with Zstandard. Its name must end in .zst"):
        read_text(write(tmp_path / "a.txt", frame.decode("latin-1"), "latin-1"))


def test_zstandard_bomb_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zstandard = pytest.importorskip("zstandard")
    monkeypatch.setenv("SEQLOOM_MEMORY", "10M")
    (tmp_path / "a.txt.zst").write_bytes(zstandard.ZstdCompressor().compress(b"a" * 20_000_000))
    with pytest.raises((DataError, ResourceError), match=r"must fit into memory|unpacks to more"):
        read_text(tmp_path / "a.txt.zst")


def test_folder_with_all_compression_formats_is_read(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    lines = "A line of a book.\n" * 50
    write(tmp_path / "a.txt", lines)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "c.txt.zst").write_bytes(zstandard.ZstdCompressor().compress(lines.encode()))
    corpus = load(text_corpus.Config(train=str(tmp_path)))
    assert sum(document.count("book") for split in corpus.splits.values() for document in split) == 150


# --- translation memories ---------------------------------------------------------------------------------------------


def test_tmx_units_are_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "memory.tmx", TMX)
    assert column_names(path) == ["EN-US", "de-DE"]  # the source language is first
    rows = read_table(path, {"source": "en", "target": "de"})
    assert [tuple(cells.values()) for _, cells in rows] == [
        ("Press OK.", "Drück OK."),
        ("A & B", "A und B"),
        ("Untranslated", ""),
    ]


def test_xliff_units_are_rows(tmp_path: Path) -> None:
    rows = read_table(write(tmp_path / "a.xlf", XLIFF_1), {"source": "en", "target": "fr"})
    assert [tuple(cells.values()) for _, cells in rows] == [("Save all files", "Tout enregistrer"), ("Open", "")]
    rows = read_table(write(tmp_path / "b.xliff", XLIFF_2), {"source": 1, "target": 2})
    assert [tuple(cells.values()) for _, cells in rows] == [("Hello world", "Bonjour le monde")]


def test_translation_memories_of_a_folder_are_joined(tmp_path: Path) -> None:
    folder = tmp_path / "memories"
    folder.mkdir()
    head = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\nLanguage: de\\n"\n\n'
    (folder / "a.po").write_text(f'{head}msgid "cat"\nmsgstr "Katze"\n')
    (folder / "b.po").write_text(f'{head}msgid "dog"\nmsgstr "Hund"\n')
    (folder / "c.tmx").write_text(
        '<tmx version="1.4"><header srclang="en"/><body><tu><tuv xml:lang="en"><seg>owl</seg></tuv>'
        '<tuv xml:lang="de"><seg>Eule</seg></tuv></tu></body></tmx>'
    )
    (folder / "notes.txt").write_text("not a memory\n")
    assert format_of(folder) == "po" and column_names(folder) == ["en", "de"]
    config = parallel.Config(train=str(folder), dev_fraction=0, test_fraction=0)
    pairs = {(pair.source, pair.target) for pair in load(config, check=False).split("train")}
    assert pairs == {("cat", "Katze"), ("dog", "Hund"), ("owl", "Eule")}
    (folder / "nested" / ".hidden").mkdir(parents=True)
    (folder / "a.po").rename(folder / "nested" / "a.po")
    (folder / "nested" / ".hidden" / "d.po").write_text("not a memory")
    assert format_of(tmp_path) == "po" and column_names(tmp_path) == ["en", "de"]
    assert {pair.source for pair in load(config, check=False).split("train")} == {"cat", "dog", "owl"}
    (folder / "fr.po").write_text('msgid "cat"\nmsgstr "chat"\n')
    assert column_names(folder) == ["en", "de", "fr"]
    chosen = replace(config, columns=("en", "de"))
    corpus = load(chosen, check=False)  # the other language is neither read nor reported
    assert {pair.target for pair in corpus.split("train")} == {"Katze", "Hund", "Eule"} and not corpus.notes


@pytest.mark.parametrize(
    ("name", "language"),
    [
        ("eu.po", "eu"),
        ("pt_BR.po", "pt-BR"),
        ("gimp-2.10_po-tips_eu.po", "eu"),
        ("app.de.po", "de"),
        ("cy/LC_MESSAGES/app.po", "cy"),
        ("app.po", "target"),  # app is not a language
        ("messages.po", "target"),
    ],
)
def test_language_of_a_po_file_without_header_is_read_from_its_name(tmp_path: Path, name: str, language: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text('msgid "cat"\nmsgstr "x"\n')
    assert column_names(tmp_path / name) == ["en", language]


def test_po_messages_are_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "pt.po", PO)
    assert column_names(path) == ["en", "pt-BR"]
    rows = read_table(path, {"source": 1, "target": 2})
    assert [tuple(cells.values()) for _, cells in rows] == [
        ('Open "file"', 'Abrir "arquivo"'),
        ("%d file", "%d arquivo"),
        ("%d files", "%d arquivos"),
        ("Not translated", ""),
    ]


def test_translation_memory_is_a_parallel_corpus(tmp_path: Path) -> None:
    unit = '<tu><tuv xml:lang="{}"><seg>word {}</seg></tuv><tuv xml:lang="{}"><seg>Wort {}</seg></tuv></tu>'
    body = "".join(unit.format("en", i, "de", i) for i in range(50))
    path = write(tmp_path / "a.tmx", f'<tmx><header srclang="en"/><body>{body}</body></tmx>')
    corpus = load(parallel.Config(train=str(path)))
    assert corpus.languages == ("en", "de")
    assert sum(map(len, corpus.splits.values())) == 50
    backwards = load(parallel.Config(train=str(path), source="de", target="en"))
    assert backwards.split("train")[0].source.startswith("Wort")


def test_file_with_three_languages_requires_a_selection(tmp_path: Path) -> None:
    variants = "".join(f'<tuv xml:lang="{name}"><seg>{name}</seg></tuv>' for name in ("en", "de", "fr"))
    path = write(tmp_path / "a.tmx", f"<tmx><body><tu>{variants}</tu></body></tmx>")
    with pytest.raises(DataError, match=r"must have two languages; got en, de, fr. Choose two of them: --column"):
        load(parallel.Config(train=str(path)))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.tmx",
            "<tmx><body><tu>",
            r"Line 1 of .* is not valid XML \(no element found: the end of the file may be missing\)",
        ),
        ("a.tmx", "<tmx><body/></tmx>", "must contain a <tu>"),
        ("a.tmx", '<!DOCTYPE x [<!ENTITY a "b">]><tmx>&a;</tmx>', "must not define XML entities"),
        ("a.xlf", "<xliff/>", "must contain a <trans-unit> or <segment>"),
        ("a.po", 'msgid "a"\nmsgstr\n', "Line 2 of .* is not valid PO"),
        ("a.po", "just text\n", "is not valid PO"),
    ],
)
def test_damaged_translation_memory_is_reported(tmp_path: Path, name: str, content: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        column_names(write(tmp_path / name, content))


ENTITY_TMX = """<?xml version="1.0" encoding="{encoding}"?>
<!DOCTYPE tmx {declaration}>
<tmx><body><tu><tuv xml:lang="en"><seg>{text}</seg></tuv></tu></body></tmx>"""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("entity", ["<!ENTITY a 'b'>", "<!ENTITY % a 'b'>", "<!ENTITY a SYSTEM '/etc/hostname'>"])
def test_xml_entities_are_refused_in_any_encoding(tmp_path: Path, encoding: str, entity: str) -> None:
    path = tmp_path / "a.tmx"
    for padding in ("", f"<!--{' ' * 200_000}-->"):
        text = ENTITY_TMX.format(encoding=encoding, declaration=f"[{padding}{entity}]", text="&a;")
        path.write_bytes(text.encode(encoding))
        with pytest.raises(DataError, match="must not define XML entities"):
            column_names(path)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_text_and_doctype_without_entities_are_read(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.tmx"
    text = ENTITY_TMX.format(encoding=encoding, declaration='SYSTEM "tmx14.dtd"', text="&lt;!ENTITY a&gt; größer")
    path.write_bytes(text.encode(encoding))
    assert read_table(path, {"text": "en"}) == [(1, {"text": "<!ENTITY a> größer"})]


# --- Arrow ------------------------------------------------------------------------------------------------------------


def arrow_table(**columns: list[Any]) -> Any:
    return pytest.importorskip("pyarrow").table(columns)


def test_parquet_is_read_with_class_names(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    features = {
        "text": {"dtype": "string", "_type": "Value"},
        "label": {"names": ["neg", "pos"], "_type": "ClassLabel"},
    }
    data = arrow_table(text=[f"text {i}" for i in range(40)], label=[i % 2 for i in range(40)])
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    path = tmp_path / "a.parquet"
    pq.write_table(data.replace_schema_metadata(metadata), path)
    corpus = load(table.Config(train=str(path)))
    assert corpus.labels == ("neg", "pos")
    pq.write_table(data, path)
    assert load(table.Config(train=str(path))).labels == ("0", "1")


def test_nested_columns_have_dotted_names(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    pairs = [{"en": f"word {i}", "de": f"Wort {i}"} for i in range(40)]
    pq.write_table(arrow_table(id=list(range(40)), translation=pairs), tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"translation": pair}) + "\n" for pair in pairs))
    corpora = [
        load(parallel.Config(train=str(tmp_path / name), columns=("translation.en", "translation.de")))
        for name in ("a.parquet", "a.jsonl")
    ]
    assert corpora[0].fingerprint() == corpora[1].fingerprint()


def test_datasets_folder_is_read(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    for split, start in (("train", 0), ("validation", 100)):
        (tmp_path / split).mkdir()
        for shard in range(2):
            rows = [f"text {start + 20 * shard + i}" for i in range(20)]
            data = arrow_table(text=rows, label=["ab"[i % 2] for i in range(20)])
            path = tmp_path / split / f"data-0000{shard}-of-00002.arrow"
            with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, data.schema) as writer:
                writer.write_table(data)
    config = table.Config(train=str(tmp_path / "train"), dev=str(tmp_path / "validation"), test_fraction=0)
    corpus = load(config)
    assert [len(corpus.split(split)) for split in ("train", "dev")] == [40, 40]
    assert format_of(tmp_path / "train") == "parquet"
    with pytest.raises(DataError, match=r"Name one of its splits: .*train or .*validation"):
        load(table.Config(train=str(tmp_path), format="parquet"))


def test_lists_and_instructions_are_read_from_parquet(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    options = [[f"a{i}", f"b{i}"] for i in range(40)]
    path = tmp_path / "a.parquet"
    pq.write_table(
        arrow_table(text=[f"t{i}" for i in range(40)], options=options, answer=[i % 2 for i in range(40)]), path
    )
    corpus = load(choices.Config(train=str(path)))
    assert {example.options[example.answer][0] for example in corpus.split("train")} == {"a", "b"}
    pq.write_table(arrow_table(instruction=[f"say {i}" for i in range(40)], output=[str(i) for i in range(40)]), path)
    assert all(
        example.instruction == f"say {example.output}"
        for example in load(instructions.Config(train=str(path))).split("train")
    )


def test_damaged_parquet_is_reported(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with pytest.raises(DataError, match=r"damaged or not a Parquet"):
        column_names(write(tmp_path / "a.parquet", "not parquet"))


def test_missing_column_of_parquet_is_suggested(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(arrow_table(texts=["a"], label=["b"]), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"did you mean data.text=texts"):
        load(table.Config(train=str(tmp_path / "a.parquet")))


def test_mixed_separators_of_conll_are_explained(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conll", "A\tO\nB O\n")
    with pytest.raises(DataError, match=r"Use one separator: line 1 uses tabs, and this line uses spaces"):
        load(conll.Config(train=str(path)))
    path = write(tmp_path / "b.conll", "A x O\nB\tO\n")
    with pytest.raises(DataError, match=r"Use one separator: line 1 uses spaces, and this line uses tabs"):
        load(conll.Config(train=str(path)))
