"""Example sentences for the widget and the code of a card."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# Language -> two sentences; the first ones are translations of each other, and so are the second.
EXAMPLES: dict[str, tuple[str, str]] = {
    "en": ("The weather is lovely today.", "She is reading a book in the garden."),
    "ar": ("الطقس جميل اليوم.", "هي تقرأ كتابًا في الحديقة."),
    "bg": ("Днес времето е прекрасно.", "Тя чете книга в градината."),
    "cs": ("Dnes je krásné počasí.", "Čte si knihu na zahradě."),
    "de": ("Das Wetter ist heute sehr schön.", "Sie liest im Garten ein Buch."),
    "el": ("Ο καιρός είναι υπέροχος σήμερα.", "Διαβάζει ένα βιβλίο στον κήπο."),
    "es": ("Hoy hace muy buen tiempo.", "Ella lee un libro en el jardín."),
    "fi": ("Tänään on kaunis sää.", "Hän lukee kirjaa puutarhassa."),
    "fr": ("Il fait très beau aujourd'hui.", "Elle lit un livre dans le jardin."),
    "hi": ("आज मौसम बहुत अच्छा है।", "वह बगीचे में किताब पढ़ रही है।"),
    "it": ("Oggi il tempo è bellissimo.", "Lei legge un libro in giardino."),
    "ja": ("今日はとても良い天気です。", "彼女は庭で本を読んでいます。"),
    "ko": ("오늘은 날씨가 아주 좋습니다.", "그녀는 정원에서 책을 읽고 있습니다."),
    "nl": ("Het is vandaag heel mooi weer.", "Ze leest een boek in de tuin."),
    "pl": ("Dziś jest piękna pogoda.", "Ona czyta książkę w ogrodzie."),
    "pt": ("Hoje o tempo está muito bom.", "Ela está a ler um livro no jardim."),
    "ro": ("Vremea este frumoasă astăzi.", "Ea citește o carte în grădină."),
    "ru": ("Сегодня прекрасная погода.", "Она читает книгу в саду."),
    "sv": ("Vädret är väldigt fint i dag.", "Hon läser en bok i trädgården."),
    "sw": ("Hali ya hewa ni nzuri sana leo.", "Anasoma kitabu bustanini."),
    "th": ("วันนี้อากาศดีมาก", "เธอกำลังอ่านหนังสืออยู่ในสวน"),
    "tr": ("Bugün hava çok güzel.", "Bahçede kitap okuyor."),
    "ur": ("آج موسم بہت اچھا ہے۔", "وہ باغ میں کتاب پڑھ رہی ہے۔"),
    "vi": ("Hôm nay thời tiết rất đẹp.", "Cô ấy đang đọc sách trong vườn."),
    "zh": ("今天天气很好。", "她在花园里看书。"),
}


def translation_pair(languages: Sequence[str]) -> tuple[str, str]:
    """A sentence of the first language and its translation into the second, or one like it in a sole language.

    English stands in for languages that have no example here.

    Example:
        >>> translation_pair(["en", "fr"])
        ('The weather is lovely today.', "Il fait très beau aujourd'hui.")
    """
    first = EXAMPLES.get(languages[0], EXAMPLES["en"])
    return first[0], EXAMPLES.get(languages[1], EXAMPLES["en"])[0] if len(languages) > 1 else first[1]


def widget(pipeline_tag: str, languages: Sequence[str]) -> list[dict[str, Any]] | None:
    """Examples for the widget of a model's page on the Hub; none where its languages have no sentence here.

    Args:
        pipeline_tag: What the widget does.
        languages: Of the model, source first.

    Example:
        >>> widget("translation", ["fr", "de"])
        [{'text': "Il fait très beau aujourd'hui."}]
    """
    known = [language for language in languages if language in EXAMPLES]
    if not known or known[0] != languages[0]:
        return None
    query, other = EXAMPLES[known[0]]
    if pipeline_tag != "sentence-similarity":
        return [{"text": query}]
    others = [sentence for language in known[1:4] for sentence in EXAMPLES[language]]
    return [{"source_sentence": query, "sentences": others or [query, other]}]
