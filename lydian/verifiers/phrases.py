"""The words by which completions mark their reasoning and their answer, in several languages."""

from __future__ import annotations

import re

REASONING_STARTS = re.compile(
    r"<\s*(?:think|thinking|thought|reasoning|reflection)\s*>|<\|begin_of_thought\|>|\[THINK\]"
    r"|\N{WHITE LEFT-POINTING TRIANGLE}think\N{WHITE RIGHT-POINTING TRIANGLE}|<\|channel\|>\s*analysis",
    re.IGNORECASE,
)
REASONING_ENDS = re.compile(
    r"<\s*/\s*(?:think|thinking|thought|reasoning|reflection)\s*>|<\|end_of_thought\|>|\[/THINK\]"
    r"|\N{WHITE LEFT-POINTING TRIANGLE}/think\N{WHITE RIGHT-POINTING TRIANGLE}|<\|channel\|>\s*final\s*<\|message\|>",
    re.IGNORECASE,
)
CONTROL_TOKEN = re.compile(r"<\|[a-z_]{2,30}\|>|</s>|<end_of_turn>|<eos>")
"""What ends a message of some models, where it was not taken off."""

_EUROPEAN = (
    r"(?:(?:respuesta|resposta|risposta|r\u00e9ponse|antwort|antwoord|odpowied\u017a|odpov\u011b\u010f|cevap|svar|jawaban|"
    r"\u0111\u00e1p \u00e1n|\u043e\u0442\u0432\u0435\u0442)"
    r"(?:\s+(?:correcta|correta|corretta|correcte|final|finale))?)"
    r"\**\s*(?:\b(?:es|\u00e9|\u00e8|est|ist|lautet|is|to|je|\u00e4r|adalah|l\u00e0|\u2014)(?!\w)\s*:?|:|=|\u2014)\**\s*:?"
)
_CHINESE = r"\u7b54\u6848?\**\s*(?:[\u662f\u4e3a\u70ba]\s*:?|:)\**"  # answer is
_JAPANESE = r"(?:\u7b54\u3048|\u7b54|\u6b63\u89e3)\**\s*(?:\u306f|:)\**\s*:?"
_KOREAN = r"(?:\uc815\ub2f5|\ub2f5)\**\s*(?:[\uc740\ub294]|:)\**\s*:?"
_ARABIC = (
    r"(?:\u0627\u0644\u062c\u0648\u0627\u0628|\u0627\u0644\u0625\u062c\u0627\u0628\u0629)"
    r"\s*(?:\u0647\u0648|\u0647\u064a|:)\s*:?"
)
_HINDI = r"\u0909\u0924\u094d\u0924\u0930\s*(?::|\u0939\u0948)"
ANSWER = re.compile(
    r"####|\banswers?\**\s*(?:\b(?:is|are)\b|\bwould be\b|\bwill be\b|\bshould be\b|\bmust be\b|:|=)\**\s*:?"
    rf"|(?<!\w){_EUROPEAN}|{_CHINESE}|{_JAPANESE}|{_KOREAN}|{_ARABIC}|{_HINDI}",
    re.IGNORECASE,
)
"""What stands before an answer."""
