"""Each classic mistake is caught by its guard, and the guard is silent when nothing is wrong."""

from __future__ import annotations

import pytest
import torch
from typer.testing import CliRunner, Result

from lydian.cli.main import app
from lydian.drills.fault import Fault, Finding, substituted
from lydian.drills.faults import FAULTS
from lydian.drills.run import drilled
from lydian.models.load import named_folder

CLASSICS = """
prompt_trained shift_off_by_one advantage_sign_flipped chosen_and_rejected_swapped adapter_not_zero_at_start
merge_without_scale base_not_frozen reference_not_frozen reference_with_dropout temperature_ignored stale_logprobs
mean_of_means pad_trained stop_token_not_trained std_over_the_batch kl_counted_twice
"""

needs_tiny = pytest.mark.skipif(not named_folder("tiny").is_dir(), reason="the bundled tiny model is absent")


def drill(*names: str) -> Result:
    return CliRunner().invoke(app, ["drill", *names])


def toy(*, healthy: bool, broken: bool) -> Fault:
    """A fault whose guard gives alarm as told: broken, `textwrap.dedent` answers None."""

    def toys_are_whole() -> Finding:
        import textwrap

        is_broken = textwrap.dedent("") is None
        return Finding(measured="none", is_caught=broken if is_broken else healthy)

    return Fault(
        name="toy",
        mistake="It breaks.",
        signal="Tears.",
        place="textwrap:dedent",
        wrong=lambda original: lambda text: None,
        guard=toys_are_whole,
    )


def test_every_classic_is_there() -> None:
    assert set(CLASSICS.split()) <= FAULTS.keys()


@needs_tiny
@pytest.mark.parametrize("name", FAULTS)
def test_the_guard_is_silent_until_the_fault_is_switched_on(name: str) -> None:
    """Faults follow each other in one process, so this also says that none leaves anything behind."""
    healthy, broken = (FAULTS[name].check(is_broken) for is_broken in (False, True))
    assert not healthy.is_caught, healthy
    assert broken.is_caught, broken


@needs_tiny
def test_the_command_prints_what_was_broken_and_what_caught_it() -> None:
    """One fault of text and one of the model; a terminal of 80 columns shows every name whole."""
    result = drill("prompt_trained", "adapter_not_zero_at_start")
    assert result.exit_code == 0, result.output
    for said in ("prompt_trained", "adapter_not_zero_at_start", "a new adapter", "102 sites", "2 of 2 faults caught"):
        assert said in result.output


def test_without_names_all_are_drilled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fault, "check", lambda fault, is_broken: Finding(measured="0", is_caught=is_broken))
    result = drill()
    assert result.exit_code == 0, result.output
    assert any(line.endswith("┘") for line in result.output.splitlines())  # the right edge: nothing is cut off
    assert [name for name in FAULTS if name not in result.output] == []


@pytest.mark.parametrize(
    ("healthy", "broken", "said"), [(False, False, "unnoticed"), (True, True, "false alarm"), (False, True, "1 of 1")]
)
def test_the_exit_code_tells_silence_and_false_alarms(
    monkeypatch: pytest.MonkeyPatch, healthy: bool, broken: bool, said: str
) -> None:
    monkeypatch.setitem(FAULTS, "toy", toy(healthy=healthy, broken=broken))
    result = drill("toy")
    assert result.exit_code == (0 if broken and not healthy else 1)
    assert said in result.output


def test_an_unknown_name_is_refused() -> None:
    result = drill("shift_of_by_one")
    assert result.exit_code == 2 and "Did you mean shift_off_by_one?" in result.stderr


def test_what_was_substituted_comes_back_after_a_failure() -> None:
    import textwrap

    original = textwrap.dedent
    with pytest.raises(ZeroDivisionError), substituted("textwrap:dedent", lambda right: lambda text: 1 / 0):
        textwrap.dedent("")
    assert textwrap.dedent is original


def test_a_drill_keeps_the_callers_random_state() -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    list(drilled([toy(healthy=False, broken=True)]))
    assert torch.equal(torch.random.get_rng_state(), before)
