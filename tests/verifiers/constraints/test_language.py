import pytest

from lydian.verifiers.constraints.language import LANGUAGES, language_of

SAMPLES = {
    "en": "The weather is lovely today and we should go for a walk in the park.",
    "es": "El tiempo es muy bueno hoy y deberíamos dar un paseo por el parque con los niños.",
    "pt": "O tempo está muito bom hoje e não devemos ficar em casa com as crianças.",
    "fr": "Le temps est très beau aujourd'hui et nous devrions faire une promenade dans le parc.",
    "de": "Das Wetter ist heute sehr schön und wir sollten im Park einen Spaziergang machen.",
    "it": "Il tempo è molto bello oggi e dovremmo fare una passeggiata nel parco con gli amici.",
    "nl": "Het weer is vandaag erg mooi en we zouden een wandeling in het park moeten maken.",
    "pl": "Pogoda jest dziś bardzo ładna i powinniśmy iść na spacer do parku.",
    "fi": "Sää on tänään kaunis ja meidän pitäisi mennä kävelylle, mutta hän ei tule.",
    "vi": "Thời tiết hôm nay rất đẹp và chúng ta nên đi dạo trong công viên.",
    "sw": "Hali ya hewa ni nzuri sana leo na tunapaswa kwenda kwa matembezi katika bustani.",
    "tr": "Hava bugün çok güzel ve parkta bir yürüyüş için çıkmalıyız.",
    "sv": "Vädret är fint i dag och vi borde ta en promenad, men det är inte varmt.",
    "id": "Cuaca hari ini sangat bagus dan kita tidak boleh tinggal di rumah dengan anak itu.",
    "ro": "Vremea este foarte frumoasă și ar trebui să mergem la o plimbare în parc.",
    "cs": "Počasí je dnes krásné a měli bychom jít na procházku do parku, protože není zima.",
    "ru": "Погода сегодня прекрасная, и мы должны пойти на прогулку в парк.",
    "uk": "Погода сьогодні чудова, і ми повинні піти на прогулянку до парку.",
    "bg": "Времето днес е чудесно и трябва да се разходим в парка с децата.",
    "hi": "आज मौसम बहुत अच्छा है और हमें पार्क में टहलने के लिए जाना चाहिए।",
    "mr": "आज हवामान खूप छान आहे आणि आपण बागेत फिरायला गेले पाहिजे.",
    "ne": "आज मौसम धेरै राम्रो छ र हामी पार्कमा हिँड्न जानु पर्छ।",
    "ar": "الطقس جميل اليوم ويجب أن نذهب في نزهة إلى الحديقة مع الأطفال.",
    "fa": "هوا امروز بسیار خوب است و باید برای پیاده روی به پارک برویم.",
    "ur": "آج موسم بہت اچھا ہے اور ہمیں پارک میں سیر کے لیے جانا چاہیے۔",
    "th": "วันนี้อากาศดีมาก",
    "ko": "오늘은 날씨가 아주 좋습니다.",
    "ja": "今日は天気がとても良いです。",
    "zh": "今天天气很好，我们应该去公园散步。",
    "bn": "আজ আবহাওয়া খুব সুন্দর।",
    "ta": "இன்று வானிலை மிகவும் அழகாக உள்ளது.",
    "te": "ఈ రోజు వాతావరణం చాలా బాగుంది.",
    "kn": "ಇಂದು ಹವಾಮಾನ ತುಂಬಾ ಚೆನ್ನಾಗಿದೆ.",
    "gu": "આજે હવામાન ખૂબ સરસ છે.",
    "pa": "ਅੱਜ ਮੌਸਮ ਬਹੁਤ ਵਧੀਆ ਹੈ।",
    "ml": "ഇന്ന് കാലാവസ്ഥ വളരെ നല്ലതാണ്.",
    "he": "מזג האוויר היום נפלא.",
    "el": "Ο καιρός είναι πολύ ωραίος σήμερα.",
}


@pytest.mark.parametrize("code", SAMPLES)
def test_one_sentence_about_the_weather_in_each_language(code: str) -> None:
    assert language_of(SAMPLES[code]) == code
    assert language_of(SAMPLES[code].upper()) == code


def test_the_languages_of_ifeval_can_all_be_told() -> None:
    """LANGUAGE_CODES of google-research/instruction_following_eval."""
    codes = "en es pt ar hi fr ru de ja it bn uk th ur ta te bg ko pl he fa vi ne sw kn mr gu pa ml fi"
    assert set(codes.split()) <= LANGUAGES


@pytest.mark.parametrize("text", ["", "123 + 4", "🙂", "Xyzzy plugh", "\ud800", "Привет, hello there"])
def test_what_does_not_show_its_language_is_unknown(text: str) -> None:
    assert language_of(text) is None
