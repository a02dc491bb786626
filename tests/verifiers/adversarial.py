"""Completions that are meant to break a grader. None is right: gold is 7919, and none of them says so."""

# ruff: noqa: E501
from __future__ import annotations

import random

_REPEATED = ("answer ", "The answer is ", r"\boxed{", "<answer>", "</think>", "####", "$", "$$", r"\frac{", "{", "}", "(", "[",
             r"\left(", "-", "^", "_", "1,", "1 ", ".", "!", r"\pm ", r"\cup ", "9^{", r"\sqrt{", "a or ", r"\text{", "%", "±", "3:")  # fmt: skip
_HIDDEN = "\u200b\u200d\u202e\u2066\ufeff\x00\x07\x1b\ud800\udfff\u0301"
_HOMOGLYPHS = ("𝟐", "２", "٢", "२", "②", "Ⅱ", "²", "₂", "ᒿ", "ƻ")


def attacks(count: int) -> list[str]:
    """So many hostile completions, always the same ones."""
    made = [*_towers(), *_factorials(), *_long(), *_hidden(), *_code(), *_malformed()]
    draw = random.Random(5)
    while len(made) < count:
        parts = [draw.choice(made)[:300] for _ in range(3)]
        made.append(
            draw.choice((r"\boxed{%s}", "Answer: %s", "%s", "$%s$", "#### %s")) % draw.choice(" ^+=,").join(parts)
        )
    return made[:count]


def _towers() -> list[str]:
    made = [
        rf"\boxed{{{base}^{{{a}^{{{b}^{{{c}}}}}}}}}"
        for base in (2, 9, 99)
        for a in (9, 999)
        for b in (9, 99)
        for c in (9, 999)
    ]
    made += [
        rf"\boxed{{{base}^{{{power}}}}}" for base in (2, "10", "(2+3)", r"\pi", "x") for power in (10**6, 10**9, 10**30)
    ]
    made += ["9**9**9**9", "2^2^2^2^2^2^2", "(((9^9)^9)^9)^9", r"\exp(\exp(\exp(\exp(100))))", r"10^{10^{10}} \mod 7"]
    return made


def _factorials() -> list[str]:
    made = [rf"\boxed{{{n}!}}" for n in (10**5, 10**7, 10**12)] + ["((5!)!)!", r"(10^8)!", "100!!!", r"\Gamma(10^9)"]
    made += [rf"\binom{{{n}}}{{{n // 2}}}" for n in (10**5, 10**6, 10**9)]
    made += [
        r"\sum_{i=2}^{10^9} i^i",
        r"\prod_{k=2}^{1000000} k",
        r"\int_0^9 x^{x^x}\,dx",
        r"\lim_{x\to 0} \frac{\sin(x^{x^x})}{x}",
    ]
    return made


def _long() -> list[str]:
    made = [piece * times for piece in _REPEATED for times in (50, 2000, 40_000)]
    made += ["7" * n for n in (50, 4301, 100_000, 1_000_000)] + ["0." + "3" * n for n in (4301, 200_000)]
    made += [r"\boxed{" + "7" * n + "}" for n in (900, 1500, 5000)] + ["1e" + "9" * n for n in (2, 9, 400)]
    made += [r"\frac{1}{" * n + "2" + "}" * n for n in (20, 200, 900)] + [
        "(" * n + "2" + ")" * n for n in (30, 500, 5000)
    ]
    made += ["+".join(f"x_{{{i}}}" for i in range(n)) for n in (50, 400)] + [
        "x" * 200_000,
        "\n" * 500_000,
        "a\n" * 200_000,
    ]
    made += [",".join(str(i) for i in range(2, n)) for n in (30, 250, 900)] + [
        r"\{" + ",".join(map(str, range(2, 400))) + r"\}"
    ]
    return made


def _hidden() -> list[str]:
    made = [f"\\boxed{{{char}2{char}}}" for char in _HIDDEN] + [char * 3000 for char in _HIDDEN]
    return (
        made
        + [f"The answer is {digit}." for digit in _HOMOGLYPHS]
        + [f"\\boxed{{{digit * 400}}}" for digit in _HOMOGLYPHS]
    )


def _code() -> list[str]:
    payloads = ("__import__('os')._exit(0)", "open('/etc/passwd').read()", "exec('while 1: pass')", "().__class__.__mro__",
                "lambda: 0", "Symbol('x').__reduce__()", "{{7*7}}", "'; DROP TABLE x; --", "eval(2)")  # fmt: skip
    frames = (r"\boxed{%s}", r"\begin{pmatrix}%s\end{pmatrix}", r"\operatorname{%s}", "$%s$", r"\text{%s}", "%s")
    return [frame % payload for frame in frames for payload in payloads]


def _malformed() -> list[str]:
    return [r"\boxed{\frac{0}{0}}", r"\boxed{\frac{1}{0}}", "nan", "inf", "-inf", r"\boxed{\infty-\infty}", r"\boxed{0^0+1}",
            r"\log 0", r"\tan 90^\circ", r"\boxed{\begin{pmatrix}1&2\\3\end{pmatrix}}", r"\begin{pmatrix}" * 30, r"\end{pmatrix}",
            r"\boxed{x_{x_{x_{x}}}}", r"\boxed{==}", r"\boxed{<<<>>>}", r"\boxed{=2}", r"\boxed{\\}", r"\boxed{\}", "$", "$$", "\\",
            r"\boxed{,}", r"\boxed{;;;}", r"\boxed{:}", r"\boxed{%}", r"\boxed{^}", r"\boxed{_}", r"\boxed{!}", r"\boxed{|x|||}"]  # fmt: skip
