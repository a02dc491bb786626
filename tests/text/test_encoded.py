from __future__ import annotations

import pytest

from lydian.errors import TemplateError
from lydian.text.template import Encoded


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": (1, 2, 3)},
        {"trained": (True, True)},
        {"roles": ("user",)},
        {"roles": ("user", "bot")},
    ],
)
def test_what_does_not_fit_together_is_refused(change):
    fields = {"tokens": (1, 2), "trained": (False, True), "roles": ("user", "assistant")}
    Encoded(**fields)
    with pytest.raises(TemplateError, match="Encoded: got lengths"):
        Encoded(**(fields | change))
