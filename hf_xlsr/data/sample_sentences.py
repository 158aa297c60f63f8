"""The same sentences in many languages."""

from __future__ import annotations

SENTENCES: dict[str, tuple[str, ...]] = {
    "ar": ("يلعب الأطفال في الحديقة.", "يغادر القطار إلى المدينة في الساعة السابعة صباحا.", "الكتاب على الطاولة."),
    "bg": ("Децата играят в градината.", "Влакът за града тръгва в седем часа сутринта.", "Книгата е на масата."),
    "cs": ("Děti si hrají na zahradě.", "Vlak do města odjíždí v sedm hodin ráno.", "Kniha leží na stole."),
    "de": (
        "Die Kinder spielen im Garten.",
        "Der Zug in die Stadt fährt um sieben Uhr morgens ab.",
        "Das Buch liegt auf dem Tisch.",
    ),
    "el": (
        "Τα παιδιά παίζουν στον κήπο.",
        "Το τρένο για την πόλη φεύγει στις επτά το πρωί.",
        "Το βιβλίο είναι πάνω στο τραπέζι.",
    ),
    "en": (
        "The children are playing in the garden.",
        "The train to the city leaves at seven in the morning.",
        "The book is on the table.",
    ),
    "es": (
        "Los niños juegan en el jardín.",
        "El tren a la ciudad sale a las siete de la mañana.",
        "El libro está sobre la mesa.",
    ),
    "fi": ("Lapset leikkivät puutarhassa.", "Juna kaupunkiin lähtee kello seitsemän aamulla.", "Kirja on pöydällä."),
    "fr": (
        "Les enfants jouent dans le jardin.",
        "Le train pour la ville part à sept heures du matin.",
        "Le livre est sur la table.",
    ),
    "he": ("הילדים משחקים בגן.", "הרכבת לעיר יוצאת בשבע בבוקר.", "הספר על השולחן."),
    "hi": ("बच्चे बगीचे में खेल रहे हैं।", "शहर जाने वाली ट्रेन सुबह सात बजे निकलती है।", "किताब मेज पर है।"),
    "hu": ("A gyerekek a kertben játszanak.", "A vonat a városba reggel hétkor indul.", "A könyv az asztalon van."),
    "id": ("Anak-anak bermain di taman.", "Kereta ke kota berangkat pukul tujuh pagi.", "Buku itu ada di atas meja."),
    "it": (
        "I bambini giocano in giardino.",
        "Il treno per la città parte alle sette del mattino.",
        "Il libro è sul tavolo.",
    ),
    "ja": ("子供たちは庭で遊んでいます。", "町へ行く電車は朝七時に出ます。", "本は机の上にあります。"),
    "ko": (
        "아이들이 정원에서 놀고 있습니다.",
        "도시로 가는 기차는 아침 일곱 시에 떠납니다.",
        "책은 책상 위에 있습니다.",
    ),
    "nl": (
        "De kinderen spelen in de tuin.",
        "De trein naar de stad vertrekt om zeven uur 's ochtends.",
        "Het boek ligt op tafel.",
    ),
    "pl": ("Dzieci bawią się w ogrodzie.", "Pociąg do miasta odjeżdża o siódmej rano.", "Książka leży na stole."),
    "pt": (
        "As crianças brincam no jardim.",
        "O trem para a cidade sai às sete da manhã.",
        "O livro está em cima da mesa.",
    ),
    "ro": ("Copiii se joacă în grădină.", "Trenul spre oraș pleacă la ora șapte dimineața.", "Cartea este pe masă."),
    "ru": ("Дети играют в саду.", "Поезд в город отправляется в семь часов утра.", "Книга лежит на столе."),
    "sv": ("Barnen leker i trädgården.", "Tåget till staden går klockan sju på morgonen.", "Boken ligger på bordet."),
    "sw": (
        "Watoto wanacheza bustanini.",
        "Treni ya kwenda mjini inaondoka saa moja asubuhi.",
        "Kitabu kiko juu ya meza.",
    ),
    "th": ("เด็ก ๆ กำลังเล่นอยู่ในสวน", "รถไฟเข้าเมืองออกตอนเจ็ดโมงเช้า", "หนังสืออยู่บนโต๊ะ"),
    "tr": ("Çocuklar bahçede oynuyor.", "Şehre giden tren sabah saat yedide kalkıyor.", "Kitap masanın üzerinde."),
    "uk": ("Діти граються в саду.", "Потяг до міста відправляється о сьомій ранку.", "Книга лежить на столі."),
    "vi": (
        "Bọn trẻ đang chơi trong vườn.",
        "Chuyến tàu vào thành phố khởi hành lúc bảy giờ sáng.",
        "Quyển sách ở trên bàn.",
    ),
    "zh": ("孩子们在花园里玩耍。", "去城里的火车早上七点出发。", "书在桌子上。"),
}
"""Language -> its three sentences."""
