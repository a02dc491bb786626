"""Which token a text is judged at: the stop token, the token that ends a step, the last one of a text.

The tokens are found once more here by another way: the growing text of the first 1, 2, … tokens."""

from __future__ import annotations

import pytest

from lydian.data.labelled import Labelled, Stepwise
from lydian.data.problems import Message, Preference
from lydian.data.sequence import Pair
from lydian.errors import DataError, TemplateError
from lydian.models.fresh import tiny_tokenizer
from lydian.text.encode import encode_items
from lydian.text.label_sites import encode_labelled, encode_stepwise, last_token, step_ends
from lydian.text.template import ChatTemplate, PlainTemplate
from tests.training.toys import STOP, Letters, ids_of

ASK = (Message(role="user", content="Start with 14. Add 9. Times 2."),)
STEPS = (" 14+9=23, ", "23*2=46 #### 46")


@pytest.fixture(scope="module", params=["plain", "chat"])
def template(request):
    tokenizer = tiny_tokenizer()
    return (
        PlainTemplate(tokenizer, prompt="{question}\nSteps:") if request.param == "plain" else ChatTemplate(tokenizer)
    )


def sites(sequence):
    return [t for t, used in enumerate(sequence.trained) if used]


def test_a_reply_is_judged_at_its_stop_token(template):
    sequence = last_token("a", ASK, "".join(STEPS), template)
    assert sites(sequence) == [len(sequence.tokens) - 1]
    assert sequence.tokens[-1] in template.stop_tokens


def test_a_reply_that_was_cut_off_has_none(template):
    whole, cut = (last_token("a", ASK, "14+9=2", template, is_ended=ended) for ended in (True, False))
    assert cut.tokens == whole.tokens[:-1]
    assert sites(cut) == [len(cut.tokens) - 1]


def test_the_site_of_a_score_is_the_last_site_of_a_preferences_reply(template):
    """What is trained on pairs and what is scored later must be one place."""
    reply = "".join(STEPS)
    pair = encode_items([Preference(id="p", messages=ASK, chosen=reply, rejected=" 5")], template)[0]
    assert isinstance(pair, Pair)
    scored = last_token("a", ASK, reply, template)
    assert sites(pair.chosen)[-1] == sites(scored)[0]
    assert pair.chosen.tokens[: len(scored.tokens)] == scored.tokens


def test_steps_end_at_the_token_with_their_last_character(template):
    """ "14+9=23" ends at the first token after which the decoded reply holds "23"; the comma after it ends the step."""
    sequence = step_ends("a", ASK, "".join(STEPS), template, rule="comma")
    start = len(template.encode_prompt(ASK))
    reply = "".join(STEPS)
    for site, end in zip(sites(sequence), ("14+9=23,", reply.strip()), strict=True):
        assert template.decode(sequence.tokens[start : site + 1]).strip().endswith(end[-8:])
        assert len(template.decode(sequence.tokens[start:site]).strip()) < len(
            reply[: reply.index(end) + len(end)].strip()
        )


def test_labels_stand_at_the_ends_of_labelled_steps_only(template):
    item = Stepwise(id="s", messages=ASK, steps=STEPS, labels=(None, 0.25))
    both = step_ends("a", ASK, item.reply, template, rule="comma")
    sequence = encode_stepwise(item, template)
    assert sequence.tokens == both.tokens
    assert sites(sequence) == sites(both)[1:]
    assert [sequence.streams["target_score"][t] for t in sites(sequence)] == [0.25]


def test_letters_by_hand():
    """Prompt q, steps "ab" and "c" without blanks between them: tokens q a b c stop, ends at 2 and 3."""
    item = Stepwise(id="s", messages=(Message(role="user", content="q"),), steps=("ab", "c"), labels=(1.0, 0.0))
    sequence = encode_stepwise(item, Letters())
    assert sequence.tokens == (*ids_of("qabc"), STOP)
    assert sites(sequence) == [2, 3]
    assert sequence.streams["target_score"] == (0.0, 0.0, 1.0, 0.0, 0.0)


def test_two_steps_in_one_token_are_refused():
    class Doubles(Letters):
        """Writes two letters a token."""

        def encode_conversation(self, messages):
            whole = super().encode_conversation(messages)
            return type(whole)(
                tokens=whole.tokens[:2] + whole.tokens[-1:], trained=(False, True, True), roles=whole.roles[-3:]
            )

        def decode(self, tokens):
            return "ab" if len(tokens) and tokens[0] != ids_of("q")[0] else ""

    item = Stepwise(id="s", messages=(Message(role="user", content="q"),), steps=("a", "b"), labels=(1.0, 0.0))
    with pytest.raises(TemplateError, match="one token"):
        encode_stepwise(item, Doubles())


def test_a_reply_without_steps_is_refused(template):
    with pytest.raises(TemplateError, match="without steps"):
        step_ends("a", ASK, " ", template, rule="comma")


def test_a_text_is_classified_at_its_last_token(template):
    item = Labelled(id="l", messages=ASK, label="b")
    sequence = encode_labelled(item, template, ("a", "b"))
    assert sequence.tokens == template.encode_prompt(ASK)
    assert sites(sequence) == [len(sequence.tokens) - 1]
    assert sequence.facts == {"label": 1.0}
    answered = Labelled(id="l", messages=(*ASK, Message(role="assistant", content="46")), label="a")
    assert encode_labelled(answered, template, ("a", "b")).tokens[-1] in template.stop_tokens
    with pytest.raises(DataError, match="one of a, c"):
        encode_labelled(item, template, ("a", "c"))


def test_encode_items_takes_every_kind():
    ask = (Message(role="user", content="qq"),)
    items = [Labelled(id=str(k), messages=ask, label=label) for k, label in enumerate("zxz")]
    assert [s.facts["label"] for s in encode_items(items, Letters())] == [1.0, 0.0, 1.0]
    step = Stepwise(id="s", messages=ask, steps=("ab",), labels=(1.0,))
    assert encode_items([step], Letters()) == [encode_stepwise(step, Letters())]
    graded = Preference(id="p", messages=ask, chosen="a", rejected="b", metadata={"margin": 2})
    pair = encode_items([graded], Letters())[0]
    assert pair.chosen.facts["pair_margin"] == pair.rejected.facts["pair_margin"] == 2.0
