"""Which language a text is in: by its script, its telling letters and its commonest words.

Scripts with one language here (Thai, Korean, Greek, …) decide alone. Languages that share a script are told apart by
the share of words that are among each one's commonest, and by letters that only some of them write. Limits: a Latin
text of few words may be unknown; languages not listed are taken for unknown or for a near relative; quotations in
another language count as what they are.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

_LATIN = {  # the commonest words of each
    "en": "the of and to is that it for you was with this are have be not his they at from hello what your can we",
    "es": "el la los las que en un una por con para es del se lo como más pero sus este está hola muy también su al y",
    "pt": "o os que em um uma por com para é do da dos das não se mais como foi ao ele tem seu sua você olá",
    "fr": "le la les des et est un une dans que qui pour pas sur avec plus ce il elle je vous nous sont au bonjour du",
    "de": "der die das und ist nicht ein eine zu den mit von auf für im dem sich des auch es ich sie wir hallo aber",
    "it": "il lo gli che di è un una per con non sono del della dei le nel si più come ma anche questo ciao io alla e",
    "nl": "de het een en van is dat niet op te zijn voor met die er aan ook als bij maar om ik je wij hallo deze",
    "pl": "w i na się nie z jest do to że o jak po co ale za od są dla jego czy tak przez być oraz cześć który",
    "fi": "ja on ei se että oli hän mutta ovat kun niin kuin myös sen tai minä sinä mitä joka ole hei olen tämä voi",
    "vi": "và của là có không các một những được cho trong với này đã người để như khi tôi bạn về từ xin chào rất",
    "sw": "na ya wa kwa ni katika la za cha kuwa hii yake huo kama wake hiyo watu sana mimi wewe habari ambayo hata",
    "tr": "ve bir bu için ile da de ne çok gibi daha ama olan var ben sen olarak kadar merhaba değil mi sonra",
    "sv": "och att det är en som på av för med till inte den har jag de ett om vi hej var men från kan",
    "id": "yang dan di untuk dengan ini itu tidak dari dalam pada adalah akan ke saya kamu juga mereka halo atau bisa",
    "ro": "și în de la cu este nu pe un o să din că mai care pentru sunt au lui fi bună dar ce",
    "cs": "a v na se je že to s z do o jako ale by za pro jsem jsou byl po který tak ahoj jeho není",
}
_CYRILLIC = {
    "ru": "и в не на что он с как это но его по из у за от так же все она был я мы вы привет для",
    "uk": "і в не на що він з як це але його по із у за від так та усі вона був я ми ви привіт для є до",
    "bg": "и в не на че той с като това но по от за е са се да ще си аз ние вие здравей тя към беше",
}
_DEVANAGARI = {
    "hi": "है के में की और का को से हैं पर यह नहीं कि एक ने था हो मैं भी लिए आप नमस्ते तो",
    "mr": "आहे आणि च्या ची चा या तो ते मी नाही हे होते आहेत व तर ही केले साठी आपण नमस्कार एक मध्ये",
    "ne": "छ र को मा लाई छन् हो यो पनि गर्न भएको थियो म तिमी नमस्ते गरेको तर हुन्छ छैन एक",
}
_ARABIC = {
    "ar": "في من على إلى أن هذا التي الذي هو هي لا ما كان مع عن كل قد أو مرحبا أنا هذه",
    "fa": "و در به از که این را است با آن برای می من تو شما سلام یک هم خود تا ها کرد شد",
    "ur": "ہے کے میں کی اور کا کو سے ہیں پر یہ نہیں کہ ایک نے تھا ہو بھی لیے آپ تو",
}
_SHARED = {"Latin": _LATIN, "Cyrillic": _CYRILLIC, "Devanagari": _DEVANAGARI, "Arabic": _ARABIC}
_COMMON = {
    script: {language: frozenset(words.split()) for language, words in table.items()}
    for script, table in _SHARED.items()
}
_LETTERS = {
    "es": "ñ¿¡", "pt": "ãõ", "de": "ß", "pl": "łąęśźż", "vi": "ơưđạảấầậếềệộ", "tr": "ğış", "sv": "å", "ro": "șță",
    "cs": "řěů", "ru": "ыэё", "uk": "іїєґ", "fa": "پچژگ", "ur": "ٹڈڑںےھہ", "fi": "", "fr": "œ",
}  # fmt: skip
_ALONE = {
    "THAI": "th", "HANGUL": "ko", "BENGALI": "bn", "TAMIL": "ta", "TELUGU": "te", "KANNADA": "kn", "GUJARATI": "gu",
    "GURMUKHI": "pa", "MALAYALAM": "ml", "HEBREW": "he", "GREEK": "el", "HIRAGANA": "ja", "KATAKANA": "ja",
    "CJK": "zh", "GEORGIAN": "ka", "ARMENIAN": "hy",
}  # fmt: skip
_MIXED = {"LATIN": "Latin", "CYRILLIC": "Cyrillic", "DEVANAGARI": "Devanagari", "ARABIC": "Arabic"}
_TOKEN = re.compile(r"[^\W\d_][\w\u0900-\u097f\u0300-\u036f]*")
_MAX_CHARACTERS = 20_000
_LETTER_WEIGHT = 0.5  # a telling letter counts as half a common word

LANGUAGES = frozenset({*_ALONE.values(), *(code for table in _SHARED.values() for code in table)})
"""The codes (ISO 639-1) that can be told."""

COMMON_ENGLISH = _COMMON["Latin"]["en"] | frozenset(
    word
    for group in (
        "a about after all also am an any as because been before being both but by did do does doing down during each",
        "few further had has having he her here hers him how i if in into its just me more most my no nor now off on",
        "once only or other our out over own same she should so some such than their them then there these those",
        "through too under until up very we were when where which while who why would yours",
    )
    for word in group.split()
)
"""English stop words."""


def language_of(text: str) -> str | None:
    """The language's ISO 639-1 code, or None if the text does not show it.

    >>> language_of("The cat sat on the mat and looked at it."), language_of("Eine Katze ist kein Hund, aber schön.")
    ('en', 'de')
    >>> language_of("これは日本語です"), language_of("12 + 3") is None
    ('ja', True)
    """
    scripts = Counter(_script(char) for char in text[:_MAX_CHARACTERS] if char.isalpha())
    scripts.pop("", None)
    if not scripts:
        return None
    kana = scripts["HIRAGANA"] + scripts["KATAKANA"]
    if kana and kana + scripts["CJK"] > 0.5 * scripts.total() and kana > 0.1 * scripts["CJK"]:
        return "ja"
    script, count = scripts.most_common(1)[0]
    if 3 * count <= 2 * scripts.total():  # a reply in two scripts is in neither's language
        return None
    return _ALONE.get(script) or _by_words(text[:_MAX_CHARACTERS].lower(), _MIXED[script])


def _script(char: str) -> str:
    if char.isascii():
        return "LATIN"
    first = unicodedata.name(char, "").replace("-", " ").split(" ")[0]
    return first if first in _ALONE or first in _MIXED else ""


def _by_words(text: str, script: str) -> str | None:
    """The language whose common words and own letters weigh most; None without evidence or on a tie."""
    tokens = Counter(_TOKEN.findall(unicodedata.normalize("NFC", text)))
    scores = {
        language: sum(count for token, count in tokens.items() if token in common)
        + _LETTER_WEIGHT * sum(text.count(letter) for letter in _LETTERS.get(language, ""))
        for language, common in _COMMON[script].items()
    }
    ranked = sorted(scores.items(), key=lambda item: -item[1])
    if ranked[0][1] == 0 or ranked[0][1] == ranked[1][1]:
        return None
    return ranked[0][0]
