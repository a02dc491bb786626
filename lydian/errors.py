"""The exception tree. Every message says where, what was given, what was expected and what to do.

LydianError
├── InputError          what the user gave cannot be used
│   ├── DataError       a row or file of data
│   ├── RecipeError     a setting of a recipe or of the command line
│   └── TemplateError   a chat template or tokenizer that breaks a law training rests on
├── ModelError          a checkpoint that cannot be loaded, saved or run the way training needs
├── EngineError         a rollout engine that broke its contract
├── VerifierError       a verifier that cannot judge (a gold answer it cannot read, a dead worker pool)
├── RunError            a run directory that cannot be written, resumed or read
└── MissingExtraError   an optional package is needed and absent
"""

from __future__ import annotations


class LydianError(Exception):
    """Base of all errors that Lydian raises on purpose.

    `where` names the place (file:line, recipe key, tensor), `given` what was found there, `expected` what would have
    been right, `fix` what to do about it.
    """

    def __init__(self, *, where: str, given: object, expected: str, fix: str) -> None:
        self.where = where
        self.given = given
        self.expected = expected
        self.fix = fix
        super().__init__(f"{where}: got {given}; expected {expected}. {fix}")

    def __reduce__(
        self,
    ) -> tuple[object, ...]:  # keyword-only arguments do not survive the default pickling between processes
        return (_rebuild, (type(self), self.where, str(self.given), self.expected, self.fix))


def _rebuild(kind: type[LydianError], where: str, given: str, expected: str, fix: str) -> LydianError:
    return kind(where=where, given=given, expected=expected, fix=fix)


class InputError(LydianError):
    """What the user gave cannot be used."""


class DataError(InputError):
    """A row or a file of data is malformed."""


class RecipeError(InputError):
    """A setting of a recipe or of the command line is wrong."""


class TemplateError(InputError):
    """A chat template or tokenizer breaks a law that training rests on."""


class ModelError(LydianError):
    """A checkpoint cannot be loaded, saved, or run the way training needs."""


class EngineError(LydianError):
    """A rollout engine broke its contract."""


class VerifierError(LydianError):
    """A verifier cannot judge."""


class RunError(LydianError):
    """A run directory cannot be written, resumed or read."""


class MissingExtraError(LydianError):
    """An optional package is needed and not installed."""
