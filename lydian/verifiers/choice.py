"""`choice`: the letter of the chosen option."""

from __future__ import annotations

import re

from lydian.data.problems import Problem
from lydian.data.trajectory import Finish
from lydian.data.verdict import Outcome, Verdict
from lydian.errors import RecipeError
from lydian.verifiers.reading import NoAnswer, answer_part, marked_answer
from lydian.verifiers.verifier import Example, fingerprint, gold_of, judged, not_found, register, unreadable_gold

_LETTERS = "ABCDEFGHIJ"
_WORD = r"[0-9A-Za-z_\u00c0-\u024f\u0370-\u052f'\u2019]"  # of scripts that put blanks between words
_EDGE = r"[\s*$({\[\"'\\]{0,12}"  # bounded, or a run of them would cost its length cubed
_OPENING = rf"{_EDGE}(?:option|choice)?{_EDGE}(?:(?:text(?:bf|rm|it)?|mathrm|mathbf|mbox)\s{{0,4}}\{{)?[\s(]{{0,12}}"


class Choice:
    """The letter that the completion chooses is the gold letter, in either case.

    The letter is the one that opens the marked answer (`lydian.verifiers.reading` says where answers are marked);
    without a mark, the one that opens a completion (`B.`, `(B)`, `B) because …`) or the only one that stands alone in
    it. Letters in words (the D of "Don't") and the words "a" and "I" are none. Several letters are an answer only where
    the gold has several.

    num_choices  the letters are the first this many of A to J

    Outcomes: UNPARSED, no letter or too many; TRUNCATED, cut off without a marked letter; else CORRECT or WRONG.
    """

    name = "choice"

    def __init__(self, *, num_choices: int = 10) -> None:
        if not 2 <= num_choices <= len(_LETTERS):
            raise RecipeError(
                where="choice.num_choices", given=repr(num_choices), expected="2 to 10", fix="Correct the setting."
            )
        self.num_choices = num_choices
        self.fingerprint = fingerprint(self.name, {"num_choices": num_choices})
        letters = _LETTERS[:num_choices]
        letter = rf"(?<!{_WORD})[{letters}{letters.lower()}](?!{_WORD})"
        self._opening = re.compile(rf"{_OPENING}({letter}(?:(?:\s*[,;&/]\s*|\s+)(?:(?:and|or)\s+)?{letter})*)")
        self._letter = re.compile(letter)
        self._compact = re.compile(rf"{_OPENING}([{letters}]{{2,{num_choices}}})(?!{_WORD})")
        article = r"(?<=[AI])\s+(?!(?:or|and)\b)[a-z]"  # "A dog", "I think"
        self._alone = re.compile(rf"(?<!{_WORD})[{letters}](?!{_WORD}|{article})")

    def check(self, problem: Problem) -> None:
        self._gold(problem)

    def verify(self, problem: Problem, text: str, finish: Finish) -> Verdict:
        gold = self._gold(problem)
        try:
            letters = self._chosen(text, finish)
            if len(letters) > 1 and len(gold) == 1:
                raise NoAnswer(f"several options: {', '.join(letters)}")
        except NoAnswer as error:
            return not_found(self, finish, str(error))
        chosen = ",".join(letters)
        is_right = set(letters) == set(gold)
        reason = f"{chosen} {'=' if is_right else '≠'} {','.join(gold)}"
        return judged(self, Outcome.CORRECT if is_right else Outcome.WRONG, chosen, reason)

    def _gold(self, problem: Problem) -> list[str]:
        letters = re.sub(r"[\s,;()]+", "", gold_of(problem, self)).upper()
        if not letters or set(letters) - set(_LETTERS[: self.num_choices]):
            raise unreadable_gold(problem, self, expected=f"letters from A to {_LETTERS[self.num_choices - 1]}")
        return sorted(set(letters))

    def _chosen(self, text: str, finish: Finish) -> list[str]:
        part = answer_part(text)
        marked = marked_answer(part)
        if marked is not None:
            opening = self._opening.match(marked.text)
            compact = self._compact.match(marked.text)
            if compact is not None:
                return sorted(set(compact[1]))
            if opening is None:
                raise NoAnswer("no letter where the answer is marked")
            rest = marked.text[opening.end() :]
            hedge = re.match(r"[\s,*$)}\]]*\bor\b(.*)", rest, re.DOTALL)
            return self._letters(opening[1] + (hedge[1] if hedge else ""))
        if finish is not Finish.STOP:
            raise NoAnswer("no marked answer")
        opening = re.match(rf"{_OPENING}({self._letter.pattern})\s*(?:[.):\]}}*$]|$)", part)
        letters = [opening[1].upper()] if opening else list(dict.fromkeys(self._alone.findall(part)))
        if len(letters) != 1:
            raise NoAnswer(f"several options: {', '.join(letters)}" if letters else "no letter")
        return letters

    def _letters(self, text: str) -> list[str]:
        """The distinct letters; "or" between them offers alternatives, which is no choice at all."""
        if re.search(r"\bor\b", text):
            raise NoAnswer(f"alternatives: {text.strip():.40}")
        return sorted({match[0].upper() for match in self._letter.finditer(text)})


register(
    "choice",
    Choice,
    examples=(
        Example(gold="B", text="The correct answer is B.", outcome=Outcome.CORRECT, extracted="B"),
        Example(gold="A", text="**Answer: (A) She refuses the offer.**", outcome=Outcome.CORRECT, extracted="A"),
        Example(gold="C", text="b) because it is red", outcome=Outcome.WRONG, extracted="B"),
        Example(gold="A", text="A dog barks, so it is C", outcome=Outcome.WRONG, extracted="C"),
        Example(gold="D", text="ANSWER: Don't know", outcome=Outcome.UNPARSED),
        Example(gold="A", text="It is A or B.", outcome=Outcome.UNPARSED),
        Example(gold="A", text="Answer: A, B, C, D", outcome=Outcome.UNPARSED),
        Example(gold="ABC", text="ANSWER: A, B, and C", outcome=Outcome.CORRECT, extracted="A,B,C"),
        Example(gold="B", text="The B option looks", finish=Finish.LENGTH, outcome=Outcome.TRUNCATED),
        Example(gold="E", text="Answer: E", settings={"num_choices": 5}, outcome=Outcome.CORRECT, extracted="E"),
    ),
)
