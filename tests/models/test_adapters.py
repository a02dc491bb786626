"""Adapters of every kind on small random models: what trains, that nothing changes at first, and what is refused."""

import pytest
import torch

from lydian.errors import ModelError, RecipeError
from lydian.models.adapters import AdapterSettings, add_adapter, is_idle, num_trainable
from lydian.models.policy import Policy
from tests.models.adapted import FAMILIES, KINDS, adapted, logprobs
from tests.models.families import make

EACH = pytest.mark.parametrize("kind", KINDS)


@EACH
@pytest.mark.parametrize("family", FAMILIES)
def test_a_fresh_adapter_changes_nothing_and_freezes_the_base(family, kind):
    """B = 0, m = ‖W‖ and l = 1: exactly, but that DoRA computes (m / ‖W‖ − 1) W x, which is 0 only up to rounding."""
    base, wrapped = make(family), add_adapter(make(family), KINDS[kind])
    torch.testing.assert_close(logprobs(wrapped), logprobs(base), atol=1e-6 if kind == "dora" else 0, rtol=0)
    trainable = [name for name, parameter in wrapped.named_parameters() if parameter.requires_grad]
    assert trainable and all(".lora_" in name or ".ia3_" in name for name in trainable)
    assert not wrapped.training


@EACH
def test_a_trained_adapter_changes_much(kind):
    """So that the comparisons to 1e-5 in these files can fail."""
    gap = (logprobs(adapted("llama", kind)) - logprobs(make("llama"))).abs().max()
    assert gap > 0.1


@EACH
@pytest.mark.parametrize("rows", [(), (5, 6)])
def test_adapters_are_float32_whatever_the_base_is(kind, rows):
    wrapped = add_adapter(make("llama").to(torch.bfloat16), KINDS[kind], token_ids=() if kind == "ia3" else rows)
    assert {p.dtype for p in wrapped.parameters() if p.requires_grad} == {torch.float32}
    assert {p.dtype for p in wrapped.parameters() if not p.requires_grad} == {torch.bfloat16}


@EACH
def test_a_fresh_adapter_is_the_base_in_bfloat16(kind):
    """bf16 keeps 8 bits: with logprobs up to 20 nats and three layers of rounding, 0.3 nats; the base alone differs as
    much from fp32. LoRA and (IA)³ are exact here too; DoRA's norm is rounded to bf16."""
    base = Policy(make("llama"), layout="single", compute_dtype=torch.bfloat16)
    wrapped = Policy(add_adapter(make("llama"), KINDS[kind]), layout="single", compute_dtype=torch.bfloat16)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        gap = (logprobs(wrapped.model) - logprobs(base.model)).abs().max()
    assert gap <= (0.3 if kind == "dora" else 0)


@EACH
def test_num_trainable_by_hand(kind):
    """A layer has q 32→32, k 32→16, v 32→16, o 32→32, gate 32→64, up 32→64, down 64→32; there are three.

    LoRA on i→o has r (i + o): at rank 2 a layer has 2 (64 + 48 + 48 + 64 + 96 + 96 + 96) = 1024, three have 3072.
    DoRA has one number a row more: 32 + 16 + 16 + 32 + 64 + 64 + 32 = 256 a layer. (IA)³ has 16 + 16 for keys and
    values and the 64 inputs of down: 96 a layer.
    """
    expected = {"lora": 3 * 1024, "rslora": 3 * 1024, "dora": 3 * (1024 + 256), "ia3": 3 * 96}[kind]
    settings = KINDS[kind] if kind == "ia3" else AdapterSettings(kind=KINDS[kind].kind, rank=2)
    assert num_trainable(add_adapter(make("llama"), settings)) == expected


def test_targets_by_name():
    """q and v of one layer at rank 2: 2 (64 + 48) = 224; three layers."""
    assert num_trainable(add_adapter(make("llama"), AdapterSettings(rank=2, targets=("q_proj", "v_proj")))) == 672


def test_ia3_scales_keys_values_and_what_the_mlp_computes():
    """Liu et al. 2022, section 3.3; GPT-2 has no matrix of keys alone, so queries are scaled with them."""
    llama = add_adapter(make("llama"), KINDS["ia3"]).get_base_model()
    scaled = {name.rsplit(".", 1)[-1]: m for name, m in llama.named_modules() if hasattr(m, "is_feedforward")}
    assert {name: m.is_feedforward for name, m in scaled.items()} == {
        "k_proj": False,
        "v_proj": False,
        "down_proj": True,
    }
    gpt2 = add_adapter(make("gpt2"), KINDS["ia3"]).get_base_model()
    scaled = {name[-11:]: m.is_feedforward for name, m in gpt2.named_modules() if hasattr(m, "is_feedforward")}
    assert scaled == {"attn.c_attn": False, ".mlp.c_proj": True}


def test_a_target_that_matches_nothing_is_an_error_although_others_match():
    with pytest.raises(ModelError, match=r"'w_proj'.*down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"):
        add_adapter(make("llama"), AdapterSettings(targets=("q_proj", "w_proj")))


def test_the_output_matrix_is_no_target():
    with pytest.raises(ModelError, match="'lm_head'"):
        add_adapter(make("llama"), AdapterSettings(targets=("lm_head",)))


@EACH
def test_a_second_adapter_is_refused(kind):
    wrapped = add_adapter(make("llama"), KINDS[kind])
    with pytest.raises(ModelError, match="with an adapter"):
        add_adapter(wrapped, AdapterSettings())


def test_rows_of_tokens_need_a_kind_that_can_hold_them():
    with pytest.raises(ModelError, match="lora or dora"):
        add_adapter(make("llama"), KINDS["ia3"], token_ids=(5,))


@pytest.mark.parametrize(
    "settings", [{"rank": 0}, {"alpha": 0.0}, {"alpha": float("nan")}, {"targets": ()}, {"targets": ("",)}]
)
def test_settings_out_of_range(settings):
    with pytest.raises(RecipeError, match=f"adapter.{next(iter(settings))}"):
        AdapterSettings(**settings)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("ia3", "rank", 8),
        ("ia3", "targets", "all-linear"),
        ("prefix", "alpha", 16.0),
        ("prefix", "rslora", False),
        ("lora", "prefix_tokens", 8),
        ("dora", "prefix_tokens", 8),
    ],
)
def test_settings_that_a_kind_does_not_have_are_refused(kind, name, value):
    with pytest.raises(RecipeError, match=f"adapter.{name}.*for the kind {kind}") as refused:
        AdapterSettings(kind=kind, **{name: value})
    assert "Leave it out" in refused.value.fix


def test_defaults_are_explicit_and_can_be_given_back():
    """A run's recipe.json holds the resolved settings, None for those that the kind does not have."""
    for kind in ("lora", "dora", "ia3", "prefix"):
        settings = AdapterSettings(kind=kind)
        names = ("kind", "rank", "alpha", "rslora", "targets", "prefix_tokens", "is_quantised")
        assert AdapterSettings(**{name: getattr(settings, name) for name in names}) == settings
    assert AdapterSettings() == AdapterSettings(rank=16, alpha=32.0, targets="all-linear", rslora=False)
    assert (AdapterSettings(kind="ia3").rank, AdapterSettings(kind="prefix").prefix_tokens) == (None, 16)


def test_what_peft_does_not_offer_is_refused_by_name():
    with pytest.raises(RecipeError, match=r"one of lora, dora, ia3, prefix.*no bottleneck adapters"):
        AdapterSettings(kind="bottleneck")


def test_idle_are_fresh_low_rank_adapters_of_which_all_is_given():
    """Not once B is trained, without part of the values, with others beside them, or with lengths of rows (dora)."""
    model = add_adapter(make("llama"), AdapterSettings(rank=2, alpha=4.0))
    values = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    assert is_idle(model, values)
    first = next(name for name in values if ".lora_B." in name)
    assert not is_idle(model, {name: value for name, value in values.items() if name != first})
    assert not is_idle(model, {**values, "head.weight": torch.zeros(1)})
    assert not is_idle(model, {**values, first: values[first] + 1})
    dora = add_adapter(make("llama"), AdapterSettings(kind="dora", rank=2, alpha=4.0))
    assert not is_idle(dora, {name: p for name, p in dora.named_parameters() if p.requires_grad})
    assert not is_idle(make("llama"), {})
