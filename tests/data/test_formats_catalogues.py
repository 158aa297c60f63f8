from __future__ import annotations

import polib
import pytest
from formats_helpers import fails, read_with_side_file, write

from hf_xlsr.data.formats.catalogues import DEEPEST
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.formats.reading import read_rows


def tmx(body: str, top: str = "") -> str:
    return f'<?xml version="1.0"?>\n{top}<tmx version="1.4"><header srclang="en"/><body>\n{body}\n</body></tmx>'


def unit(*variants: tuple[str, str]) -> str:
    return "<tu>" + "".join(f'<tuv xml:lang="{lang}"><seg>{text}</seg></tuv>' for lang, text in variants) + "</tu>"


def test_tmx_languages_and_variants(tmp_path):
    body = [
        unit(("en-US", "one"), ("de", "eins"), ("FR_ca", "un")),
        '<tu><note>n</note><tuv lang="fr"><prop type="p">p</prop><seg>deux</seg></tuv>'
        '<tuv lang="en"><seg>two</seg></tuv></tu>',
        unit(("en", "only")),
        unit(("en", "three"), ("fr", "trois"), ("fr-FR", "trois !")),
        unit(("eng", "x"), ("fr", "y")),
        unit(("en", " "), ("fr", "y")),
    ]
    path = write(tmp_path, "a.tmx", tmx("\n".join(body)))
    rows, bad, entries = read_with_side_file(tmp_path, path, languages=("en", "fr"))
    expected = [("one", "un"), ("two", "deux"), ("three", "trois"), ("three", "trois !")]
    assert [(row["source"], row["target"]) for row in rows] == expected
    assert bad == [(5, "no variant in 'fr'"), (7, "no variant in 'en'"), (8, "empty source")]
    assert entries[0]["text"] == "only"
    assert list(read_rows(path, columns="target=de,source=fr")) == [{"source": "un", "target": "eins"}]
    fails(path, "'source'")


def test_tmx_inline_elements(tmp_path):
    seg = 'a <hi>b <hi type="x">c</hi></hi> <bpt i="1">&lt;b&gt;</bpt>d<ept i="1">&lt;/b&gt;</ept> <ph>{0}</ph>&amp; e'
    path = write(tmp_path, "a.tmx", tmx(unit(("en", seg), ("fr", "<![CDATA[<x>]]>é&#233;<!-- no -->"))))
    assert list(read_rows(path, languages=("en", "fr"))) == [{"source": "a b c d & e", "target": "<x>éé"}]


def test_tmx_elements_are_nested_to_a_depth(tmp_path):
    num_outer = 5  # tmx, body, tu, tuv, seg
    for depth in (DEEPEST, DEEPEST + 1):
        num_inner = depth - num_outer
        seg = "<hi>" * num_inner + "a" + "</hi>" * num_inner
        write(tmp_path, f"{depth}.tmx", tmx(unit(("en", seg), ("fr", "b"))))
    rows = read_rows(tmp_path / f"{DEEPEST}.tmx", languages=("en", "fr"))
    assert list(rows) == [{"source": "a", "target": "b"}]
    fails(tmp_path / f"{DEEPEST + 1}.tmx", "deep", languages=("en", "fr"))


def test_tmx_entities_are_an_error(tmp_path):
    secret = write(tmp_path, "secret.txt", "hidden words")
    laughs = '<!DOCTYPE tmx [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;">]>\n'
    outside = f'<!DOCTYPE tmx [<!ENTITY c SYSTEM "{secret.as_uri()}">]>\n'
    parameter = f'<!DOCTYPE tmx [<!ENTITY % c SYSTEM "{secret.as_uri()}"> %c;]>\n'
    harmless = "<!DOCTYPE tmx [<!ELEMENT tmx ANY>]>\n"
    for top in (laughs, outside, parameter, harmless):
        path = write(tmp_path, "a.tmx", tmx(unit(("en", "&c;"), ("fr", "y")), top))
        assert "hidden" not in fails(path, "a.tmx", languages=("en", "fr"))


def test_tmx_that_names_the_public_document_type(tmp_path):
    top = '<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n'
    content = tmx(unit(("en", "a"), ("fr", "b")), top).replace("<tmx ", '<tmx xmlns="http://www.lisa.org/tmx14" ')
    path = write(tmp_path, "a.tmx", content)
    assert list(read_rows(path, languages=("en", "fr"))) == [{"source": "a", "target": "b"}]


# Gettext.

PO = r"""
# A comment.
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"

#: menu.c:1
msgctxt "menu"
msgid "Open "
"file"
msgstr "Ouvrir\n"

#, fuzzy
msgid "Guess"
msgstr "Devinette"

msgid "Not yet"
msgstr ""

msgid "%d file"
msgid_plural "%d files"
{forms}

#~ msgid "Gone"
#~ msgstr "Parti"
"""
PLURALS = {
    1: [("%d files", "form 0")],
    2: [("%d file", "form 0"), ("%d files", "form 1")],
    3: [("%d file", "form 0"), ("%d files", "form 2")],
}


@pytest.mark.parametrize("count", PLURALS)
def test_catalogues(tmp_path, count):
    path = write(tmp_path, "a.po", PO.replace("{forms}", "\n".join(f'msgstr[{i}] "form {i}"' for i in range(count))))
    rows, bad, entries = read_with_side_file(tmp_path, path)
    assert [(row["source"], row["target"]) for row in rows] == [("Open file", "Ouvrir\n"), *PLURALS[count]]
    assert bad == [(17, "empty target")] and entries[0]["text"].startswith("Not yet")
    polib.pofile(str(path)).save_as_mofile(str(tmp_path / "a.mo"))
    compiled, bad, _ = read_with_side_file(tmp_path, tmp_path / "a.mo")
    assert sorted(map(str, compiled)) == sorted(map(str, rows)) and not bad
    turned = next(read_rows(path, columns="source=msgstr,target=msgid"))
    assert turned == {"source": "Ouvrir\n", "target": "Open file"}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_tmx_control_characters_are_dropped(tmp_path, encoding):
    faults = ["\x01", "\0", "&#x1;", "&#031;", "&#X1F;"]
    units = [unit(("en", f"a{fault}b é{i}"), ("fr", f"{fault}x&amp;&#9;y")) for i, fault in enumerate(faults * 900)]
    content = tmx("\n".join(units)).replace("?>", f' encoding="{encoding[:6].rstrip("-")}"?>', 1)
    path, quarantine = write(tmp_path, "a.tmx", content.encode(encoding)), Quarantine()
    rows = list(read_rows(path, languages=("en", "fr"), quarantine=quarantine))
    assert rows == [{"source": f"ab é{i}", "target": "x&\ty"} for i in range(4500)]
    assert quarantine.repairs == {"control characters": 9000} and not quarantine.total
    assert "9,000" in quarantine.report()


@pytest.mark.parametrize("encoding", ["Shift_JIS", "UTF-J"])  # the parser has no multi-byte encodings but Unicode's
def test_tmx_in_an_encoding_that_cannot_be_read(tmp_path, encoding):
    content = tmx(unit(("en", "two"), ("fr", "deux"))).replace("?>", f' encoding="{encoding}"?>', 1)
    fails(write(tmp_path, "a.tmx", content), "a.tmx", "encoding", languages=("en", "fr"))
