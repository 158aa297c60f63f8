from __future__ import annotations

import polib
import pytest
from formats_helpers import fails, read_with_side_file, write

from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.formats.reading import read_rows
from hf_xlsr.data.formats.tmx import DEEPEST


def tmx(body: str, top: str = "") -> str:
    return f'<?xml version="1.0"?>\n{top}<tmx version="1.4"><header srclang="en"/><body>\n{body}\n</body></tmx>'


def unit(*variants: tuple[str, str]) -> str:
    """A translation unit of texts by their languages."""
    content = "".join(f'<tuv xml:lang="{language}"><seg>{text}</seg></tuv>' for language, text in variants)
    return f"<tu>{content}</tu>"


def pair(english: str, french: str) -> str:
    return unit(("en", english), ("fr", french))


def texts_of(rows):
    return [(row["source"], row["target"]) for row in rows]


def test_tmx_languages_and_variants(tmp_path):
    body = [
        unit(("EN", "one"), ("de", "eins"), ("fra", "un")),
        '<tu><note>n</note><tuv lang="fr"><prop type="p">p</prop><seg>deux</seg></tuv>'
        '<tuv lang="en"><seg>two</seg></tuv></tu>',
        unit(("en", "only")),
        unit(("en", "three"), ("fr", "trois"), ("fr_Latn", "trois !")),
        unit(("en-US", "x"), ("fr", "y")),
        pair(" ", "y"),
    ]
    path = write(tmp_path, "a.tmx", tmx("\n".join(body)))

    rows, bad, entries = read_with_side_file(tmp_path, path, languages=("en", "fr"))

    assert texts_of(rows) == [("one", "un"), ("two", "deux"), ("three", "trois"), ("three", "trois !")]
    assert bad == [(5, "no variant in 'fr'"), (7, "no variant in 'en'"), (8, "empty source")]
    assert entries[0]["text"] == "only"


GERMAN = ("de", "deu", "ger", "de-DE", "de_DE", "DE", "deu_Latn", "de-Latn-DE", "DE_de")


@pytest.mark.parametrize("asked", GERMAN)
@pytest.mark.parametrize("written", GERMAN)
def test_tmx_tags_of_a_language_meet(tmp_path, asked, written):
    path = write(tmp_path, "a.tmx", tmx(unit(("en-GB", "one"), (written, "eins"))))
    assert texts_of(read_rows(path, languages=("eng", asked))) == [("one", "eins")]


@pytest.mark.parametrize(
    ("tags", "asked", "texts"),
    [
        ("zh-Hans zh-Hant", "zh-Hant", "zh-Hant"),
        ("zh_CN zh_TW", "zh-Hant", "zh_TW"),
        ("zh-Hans zh-Hant", "zho", "zh-Hans zh-Hant"),
        ("zh-Hans", "zh-Hant", ""),
        ("zh", "zh-Hant", "zh"),
        ("pt pt-BR", "pt", "pt"),
        ("pt PT_br", "pt-BR", "PT_br"),
        ("pt-BR pt-PT", "pt", "pt-BR pt-PT"),
        ("pt-BR", "pt", "pt-BR"),
        ("pt", "pt-BR", "pt"),
        ("en-US", "en-GB", "en-US"),
        ("sr-Latn sr-Cyrl", "sr_Cyrl", "sr-Cyrl"),
        ("de", "nl", ""),
    ],
)
def test_tmx_forms_of_a_language_stay_apart(tmp_path, tags, asked, texts):
    """A unit with all tags, and one for each: what is not asked for is not read where the file has what is."""
    variants = [(tag, tag) for tag in tags.split()]
    units = [unit(("x-key", "all"), *variants), *(unit(("x-key", "one"), variant) for variant in variants)]
    path = write(tmp_path, "a.tmx", tmx("\n".join(units)))
    if not texts:
        fails(path, f"no unit in x-key, {asked}", *tags.split(), languages=("x-key", asked))
        return

    rows = texts_of(read_rows(path, languages=("x-key", asked), quarantine=Quarantine()))
    assert rows == [("all", text) for text in texts.split()] + [("one", text) for text in texts.split()]


def test_tmx_columns_are_languages(tmp_path):
    path = write(tmp_path, "a.tmx", tmx(unit(("en-US", "one"), ("de", "eins"), ("FR_ca", "un"))))
    assert texts_of(read_rows(path, columns="target=de,source=fr")) == [("un", "eins")]
    fails(path, "'source'")


def test_tmx_inline_elements(tmp_path):
    seg = 'a <hi>b <hi type="x">c</hi></hi> <bpt i="1">&lt;b&gt;</bpt>d<ept i="1">&lt;/b&gt;</ept> <ph>{0}</ph>&amp; e'
    path = write(tmp_path, "a.tmx", tmx(pair(seg, "<![CDATA[<x>]]>é&#233;<!-- no -->")))
    assert texts_of(read_rows(path, languages=("en", "fr"))) == [("a b c d & e", "<x>éé")]


def tmx_of_depth(depth: int) -> str:
    num_outer = 5  # tmx, body, tu, tuv, seg
    num_inner = depth - num_outer
    return tmx(pair("<hi>" * num_inner + "a" + "</hi>" * num_inner, "b"))


def test_tmx_elements_are_nested_to_a_depth(tmp_path):
    deepest = write(tmp_path, "a.tmx", tmx_of_depth(DEEPEST))
    assert texts_of(read_rows(deepest, languages=("en", "fr"))) == [("a", "b")]

    deeper = write(tmp_path, "b.tmx", tmx_of_depth(DEEPEST + 1))
    fails(deeper, "deep", languages=("en", "fr"))


@pytest.mark.parametrize(
    "document_type",
    [
        '[<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;">]',
        '[<!ENTITY c SYSTEM "{secret}">]',
        '[<!ENTITY % c SYSTEM "{secret}"> %c;]',
        "[<!ELEMENT tmx ANY>]",
    ],
    ids=["laughs", "outside", "parameter", "harmless"],
)
def test_tmx_entities_are_an_error(tmp_path, document_type):
    secret = write(tmp_path, "secret.txt", "hidden words").as_uri()
    top = f"<!DOCTYPE tmx {document_type}>\n".replace("{secret}", secret)
    path = write(tmp_path, "a.tmx", tmx(pair("&c;", "y"), top))
    assert "hidden" not in fails(path, "a.tmx", languages=("en", "fr"))


def test_tmx_that_names_the_public_document_type(tmp_path):
    content = tmx(pair("a", "b"), '<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n')
    content = content.replace("<tmx ", '<tmx xmlns="http://www.lisa.org/tmx14" ')
    path = write(tmp_path, "a.tmx", content)
    assert texts_of(read_rows(path, languages=("en", "fr"))) == [("a", "b")]


# Gettext.

PO = r"""
# A comment.
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
{header}

#: menu.c:1
msgctxt "menu"
msgid "Open "
"file"
msgstr "Ouvrir\n"

#, fuzzy
msgid "Guess"
msgstr "Devinette"

#,fuzzy,c-format
msgid "Guess again"
msgstr "Encore"

msgid "Not yet"
msgstr ""

msgid "%d file"
msgid_plural "%d files"
{forms}

#~ msgid "Gone"
#~ msgstr "Parti"
"""
ARABIC = "n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 ? 4 : 5"
SLOVENIAN = "n%100==1 ? 1 : n%100==2 ? 2 : n%100==3 || n%100==4 ? 3 : 0"
WELSH = "(n==0) ? 0 : (n==1) ? 1 : (n==2) ? 2 : (n==3) ? 3 :(n==6) ? 4 : 5"
PLURALS = {
    "arabic": (6, f"nplurals=6; plural=({ARABIC});", (1, 4)),
    "french": (2, "nplurals=2; plural=(n > 1);", (0, 1)),
    "japanese": (1, "nplurals=1; plural=0;", (None, 0)),
    "latvian": (3, "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n != 0 ? 1 : 2);", (0, 1)),
    "slovenian": (4, f"nplurals=4; plural=({SLOVENIAN});", (1, 0)),
    "spanish": (3, "nplurals=3; plural=n == 1 ? 0 : n != 0 && n % 1000000 == 0 ? 1 : 2;", (0, 2)),
    "welsh": (6, f"nplurals=6; plural={WELSH}", (1, 5)),
    "no header": (2, "", (0, 1)),
    "template": (2, "nplurals=INTEGER; plural=EXPRESSION;", (0, 1)),
    "one form, no header": (1, "", None),
    "three forms, no header": (3, "", None),
    "fewer forms": (2, "nplurals=3; plural=n==1 ? 0 : n<5 ? 1 : 2;", None),
    "no expression": (2, "nplurals=2; plural=n?;", None),
    "form that does not exist": (2, "nplurals=2; plural=n;", None),
    "division by zero": (2, "nplurals=2; plural=n/0;", None),
    "no number": (2, "plural=n != 1;", None),
}
"""Number of forms, `Plural-Forms`, and the forms of singular and plural; None where the entry is skipped."""


@pytest.fixture(params=PLURALS)
def catalogue(request, tmp_path):
    """A catalogue, and its pairs of an entry with plural forms."""
    count, header, forms = PLURALS[request.param]
    lines = "\n".join(f'msgstr[{number}] "form {number}"' for number in range(count))
    content = PO.replace("{forms}", lines).replace("{header}", f'"Plural-Forms: {header}\\n"' if header else "")
    pairs = []
    for text, form in zip(("%d file", "%d files"), forms or (None, None), strict=True):
        if form is not None:
            pairs.append((text, f"form {form}"))
    return write(tmp_path, "a.po", content), pairs


def test_catalogues(catalogue, tmp_path):
    path, plurals = catalogue
    rows, bad, entries = read_with_side_file(tmp_path, path)
    assert texts_of(rows) == [("Open file", "Ouvrir\n"), *plurals]
    assert bad[0][1] == "empty target"
    assert entries[0]["text"].startswith("Not yet")
    assert len(bad) == (1 if plurals else 2)
    assert plurals or "Plural-Forms" in bad[1][1]

    reverse = next(read_rows(path, columns="source=msgstr,target=msgid"))
    assert reverse == {"source": "Ouvrir\n", "target": "Open file"}


def test_compiled_catalogues(catalogue, tmp_path):
    path, plurals = catalogue
    content = path.read_text("utf-8").replace("#,fuzzy", "#, fuzzy")  # which polib refuses
    polib.pofile(content).save_as_mofile(str(tmp_path / "a.mo"))
    rows, bad, _ = read_with_side_file(tmp_path, tmp_path / "a.mo")
    assert sorted(texts_of(rows)) == sorted([("Open file", "Ouvrir\n"), *plurals])
    assert len(bad) == (0 if plurals else 1)


REPAIRED = {
    "character U+FFFE": ("a\ufffeb", "ab", "control characters"),
    "character U+FFFF": ("a\uffffb", "ab", "control characters"),
    "reference to U+FFFF": ("a&#xFFFF;b", "ab", "control characters"),
    "bare &": ("R&D, a && b&", "R&D, a && b&", "bare &"),
    "unknown entity": ("AT&T; &c-d;", "AT&T; &c-d;", "bare &"),
    "reference outside Unicode": ("&#x110000; &#xg;", "&#x110000; &#xg;", "bare &"),
    "entities of HTML": ("a&nbsp;&eacute;&LT;b", "a\u00a0\u00e9<b", "entities of HTML"),
    "references to surrogates": (
        "&#xD83D;&#xde00; &#55357;&#56832;",
        "\U0001f600 \U0001f600",
        "references to surrogates",
    ),
    "literal text beside it": ("<![CDATA[&nbsp;&]]>&amp;&", "&nbsp;&&&", "bare &"),
}
MALFORMED = {
    "half a pair of surrogates": ("a&#xD800;b", "malformed XML"),
    "bare <": ("a < b", "malformed XML"),
    "unclosed element": ("a<br>b", "malformed XML"),
    "element that is not open": ("a</b>b", "malformed XML"),
    "attribute without quotation marks": ("a<hi x=1>b</hi>", "malformed XML"),
    "prefix without a name": ("a<x:hi>b</x:hi>", "malformed XML"),
    "bad byte": (b"caf\xe9", "invalid UTF-8"),
    "encoded surrogate": (b"a\xed\xa0\x80b", "invalid UTF-8"),
}
NUM_BEFORE = 700  # units; the fault is in the second block
PLACES = {
    "first": 0,
    "in the middle": NUM_BEFORE,
    "last": 2 * NUM_BEFORE,
    "beside another": (NUM_BEFORE, NUM_BEFORE + 1),
}


def tmx_with_faults(fault: str | bytes, place) -> tuple[bytes, list[tuple[str, str]], list[int]]:
    """A file with a fault in some units, the pairs of its other units, and the lines of those."""
    text = fault.encode() if isinstance(fault, str) else fault
    positions = place if isinstance(place, tuple) else (place,)
    good_pairs = [(f"good {number} " + "x" * 50, f"bon &lt; {number}") for number in range(2 * NUM_BEFORE)]
    units = [pair(*texts).encode() for texts in good_pairs]
    for position in positions:
        units.insert(position, pair("FAULT", "y").encode().replace(b"FAULT", text))
    content = tmx("UNITS").encode().replace(b"UNITS", b"\n".join(units))
    return (
        content,
        [(source, target.replace("&lt;", "<")) for source, target in good_pairs],
        [3 + p for p in positions],
    )


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("fault", REPAIRED)
def test_tmx_faults_that_are_repaired(tmp_path, fault, place):
    written, meant, reason = REPAIRED[fault]
    content, pairs, lines = tmx_with_faults(written, PLACES[place])
    for line in lines:
        pairs.insert(line - 3, (meant, "y"))
    quarantine = Quarantine()

    rows = texts_of(read_rows(write(tmp_path, "a.tmx", content), languages=("en", "fr"), quarantine=quarantine))

    assert rows == pairs
    assert list(quarantine.repairs) == [reason]
    assert quarantine.total == 0


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("fault", MALFORMED)
def test_tmx_faults_that_cost_one_unit(tmp_path, fault, place):
    written, reason = MALFORMED[fault]
    content, pairs, lines = tmx_with_faults(written, PLACES[place])
    path = write(tmp_path, "a.tmx", content)

    rows, bad, entries = read_with_side_file(tmp_path, path, languages=("en", "fr"))

    assert texts_of(rows) == pairs
    assert bad == [(line, reason) for line in lines]
    assert entries[0]["text"].startswith("<tu>")


@pytest.mark.parametrize(
    "body",
    [
        "<tu>" + pair("a", "b") + pair("c", "d"),
        pair("a", "b") + "<tu>" + pair("c", "d"),
        pair("a", "b") + pair("c", "d") + "<tu>",
        pair("a", "b") + "</tu>" + pair("c", "d"),
        pair("a", "b") + " & <note>" + pair("c", "d"),
    ],
)
def test_tmx_faults_between_units(tmp_path, body):
    rows, bad, _ = read_with_side_file(tmp_path, write(tmp_path, "a.tmx", tmx(body)), languages=("en", "fr"))
    assert texts_of(rows) == [("a", "b"), ("c", "d")]
    assert [reason for _, reason in bad] == ["malformed XML"]


def test_tmx_files_one_after_the_other(tmp_path):
    path = write(tmp_path, "a.tmx", tmx(pair("a", "b")) + "\n" + tmx(pair("c", "d")) + "\0\x1a")
    assert texts_of(read_rows(path, languages=("en", "fr"))) == [("a", "b"), ("c", "d")]


@pytest.mark.parametrize("end", ["", "<tu>", "</body>"])
def test_tmx_that_is_cut(tmp_path, end):
    content = tmx(pair("a", "b")).removesuffix("\n</body></tmx>") + end
    fails(write(tmp_path, "a.tmx", content), "first 1 rows", languages=("en", "fr"))


def test_tmx_that_is_mostly_malformed(tmp_path):
    path = write(tmp_path, "a.tmx", tmx("\n".join([pair("a", "b")] * 700 + [pair("a < b", "c")] * 400)))
    fails(path, "malformed", "TMX", languages=("en", "fr"))


def declared(content: str, encoding: str) -> str:
    return content.replace("?>", f' encoding="{encoding}"?>', 1)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_tmx_control_characters_are_dropped(tmp_path, encoding):
    faults = ["\x01", "\0", "&#x1;", "&#031;", "&#X1F;"] * 900
    units = [pair(f"a{fault}b é{number}", f"{fault}x&amp;&#9;y") for number, fault in enumerate(faults)]
    path = write(tmp_path, "a.tmx", declared(tmx("\n".join(units)), encoding).encode(encoding))
    quarantine = Quarantine()

    rows = list(read_rows(path, languages=("en", "fr"), quarantine=quarantine))

    assert texts_of(rows) == [(f"ab é{number}", "x&\ty") for number in range(4500)]
    assert quarantine.repairs == {"control characters": 9000}
    assert quarantine.total == 0
    assert "9,000" in quarantine.report()


@pytest.mark.parametrize(("name", "encoding"), [("utf-16", "utf-8"), ("us-ascii", "utf-8"), ("iso-8859-1", "latin-1")])
def test_tmx_in_another_encoding(tmp_path, name, encoding):
    """UTF-8 with the declaration of another encoding, and letters of one byte; a fault changes nothing."""
    content = declared(tmx(pair("a & b", "\u00e9") + pair("c", "\u00ea")), name).encode(encoding)
    rows = list(read_rows(write(tmp_path, "a.tmx", content), languages=("en", "fr")))
    assert texts_of(rows) == [("a & b", "\u00e9"), ("c", "\u00ea")]


@pytest.mark.parametrize("encoding", ["Shift_JIS", "UTF-J"])  # the parser has no multi-byte encodings but Unicode's
def test_tmx_in_an_encoding_that_cannot_be_read(tmp_path, encoding):
    path = write(tmp_path, "a.tmx", declared(tmx(pair("two", "deux")), encoding))
    fails(path, "a.tmx", "encoding", languages=("en", "fr"))
