"""A base in 4 bits: what is said where bitsandbytes is not; where it is, merging and saving against the live model."""

import importlib.util

import pytest
import torch

from lydian.errors import MissingExtraError
from lydian.models import quantised
from lydian.models.adapters import AdapterSettings
from lydian.models.load import load_model
from lydian.models.merge import merged_tensors
from lydian.models.parameters import count_parameters
from lydian.models.quantised import QUANTISED_BASE
from lydian.models.save import check_adapter_base, save_model
from tests.models.adapted import logprobs, trained
from tests.models.families import make
from tests.models.test_save import tokenizer

SETTINGS = AdapterSettings(rank=2, alpha=2.0, is_quantised=True)


@pytest.fixture
def base(tmp_path):
    save_model(make("llama_tied"), tokenizer(), tmp_path / "base", merge=False)
    return tmp_path / "base"


def test_without_bitsandbytes_it_is_refused_and_the_way_out_is_named(base, monkeypatch):
    monkeypatch.setattr(quantised.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="no package bitsandbytes") as refused:
        load_model(base, adapter=SETTINGS)
    assert "lydian[quantised]" in refused.value.fix and "is_quantised = false" in refused.value.fix


needs_bitsandbytes = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed"
)


@needs_bitsandbytes
def test_merged_tensors_are_the_base_as_it_is_read_from_4_bits(base):
    wrapped = trained(load_model(base, adapter=SETTINGS).model)
    plain = make("llama_tied")
    result = plain.load_state_dict(merged_tensors(wrapped), strict=False)
    assert not result.unexpected_keys and result.missing_keys == ["lm_head.weight"]
    torch.testing.assert_close(logprobs(plain), logprobs(wrapped), atol=1e-3, rtol=1e-4)
    assert (logprobs(plain) - logprobs(make("llama_tied"))).abs().max() > 0.1


@needs_bitsandbytes
def test_counts_are_of_values_not_of_bytes(base):
    counts = {count.name: count for count in count_parameters(load_model(base, adapter=SETTINGS).model)}
    assert counts["down_proj"].total == 3 * 2048


@needs_bitsandbytes
@pytest.mark.parametrize("merge", [False, True])
def test_what_is_saved_gives_the_live_models_logprobs(base, tmp_path, merge):
    """As an adapter it says that its base is in 4 bits, so that it is not put onto the full one; merged, it is full."""
    loaded = load_model(base, adapter=SETTINGS)
    model = trained(loaded.model)
    check_adapter_base(model)
    save_model(model, loaded.tokenizer, tmp_path / "saved", merge=merge)
    assert (tmp_path / "saved" / QUANTISED_BASE).is_file() != merge
    torch.testing.assert_close(logprobs(load_model(tmp_path / "saved").model), logprobs(model), atol=1e-3, rtol=1e-4)
