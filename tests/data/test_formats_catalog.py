from __future__ import annotations

import polib
import pytest
from formats_helpers import read_with_side_file, write

from hf_xlsr.data.formats.reading import read_rows

PO = r"""
# A comment.
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: {rule}\n"

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
    "nplurals=1; plural=0;": [("%d files", "form 0")],
    "nplurals=2; plural=(n > 1);": [("%d file", "form 0"), ("%d files", "form 1")],
    "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2);": [
        ("%d file", "form 0"),
        ("%d files", "form 2"),
    ],
    "nplurals=3; plural=(n==0 ? 2 : n==1 ? 1 : 0);": [("%d file", "form 1"), ("%d files", "form 0")],
    "nplurals=2; plural=os.system(1);": [("%d file", "form 0"), ("%d files", "form 1")],  # no rule: first and last
}


@pytest.mark.parametrize("rule", PLURALS)
def test_catalogues(tmp_path, rule):
    forms = "\n".join(f'msgstr[{i}] "form {i}"' for i in range(int(rule[9])))
    path = write(tmp_path, "a.po", PO.replace("{rule}", rule).replace("{forms}", forms))
    rows, bad, entries = read_with_side_file(tmp_path, path)
    assert [(row["source"], row["target"]) for row in rows] == [("Open file", "Ouvrir\n"), *PLURALS[rule]]
    assert bad == [(18, "empty target")] and entries[0]["text"].startswith("Not yet")
    polib.pofile(str(path)).save_as_mofile(str(tmp_path / "a.mo"))
    compiled, bad, _ = read_with_side_file(tmp_path, tmp_path / "a.mo")
    assert sorted(map(str, compiled)) == sorted(map(str, rows)) and not bad
    assert next(read_rows(path, columns="source=msgstr,target=msgid")) == {
        "source": "Ouvrir\n",
        "target": "Open file",
    }
