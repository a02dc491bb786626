"""New tokens: rows for them, tied matrices that stay tied while these rows train, and what PEFT alone reads again."""

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM, AutoTokenizer

from lydian.errors import ModelError, RecipeError
from lydian.models.adapters import AdapterSettings, add_adapter
from lydian.models.load import load_model
from lydian.models.merge import merged_tensors
from lydian.models.policy import Policy
from lydian.models.save import check_adapter_base, save_model
from lydian.models.vocabulary import add_tokens, fit_vocabulary
from tests.models.adapted import adapted, trained
from tests.models.adapted import plain as unadapted
from tests.models.families import make
from tests.models.test_save import tokenizer

NEW = ("<think>", "</think>")
SETTINGS = AdapterSettings(rank=2, alpha=2.0)
TIES = pytest.mark.parametrize("family", ["llama_tied", "llama"])


def logits(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits


@pytest.fixture
def base(tmp_path):
    """A checkpoint of 97 rows with a tokenizer of 97 words."""
    words = tokenizer()
    words.add_tokens([f"w{i}" for i in range(len(words), 97)])
    save_model(make("llama_tied"), words, tmp_path / "base", merge=False)
    return tmp_path / "base"


def test_a_text_becomes_one_token_and_keeps_its_id():
    words = tokenizer()
    assert add_tokens(words, NEW) == (64, 65)
    assert words("w7 <think> w9</think>").input_ids == [7, 64, 9, 65]
    assert add_tokens(words, ("w7", *NEW)) == (7, 64, 65)
    assert len(words) == 66
    for wrong in (("<a>", "<a>"), ("",)):
        with pytest.raises(RecipeError, match="new_tokens"):
            add_tokens(words, wrong)


@TIES
def test_new_rows_are_the_mean_of_the_old_ones(family):
    words, model = tokenizer(), make(family)
    old = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    words.add_tokens([f"x{i}" for i in range(64, 97)])
    fit_vocabulary(model, words)
    assert model.get_input_embeddings().weight.shape[0] == 97  # there are rows for all
    add_tokens(words, NEW)
    fit_vocabulary(model, words)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        rows = model.state_dict()[name]
        assert torch.equal(rows[:97], old[name])
        torch.testing.assert_close(rows[97:], old[name].mean(dim=0).expand(2, -1))
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == (family == "llama_tied")


@TIES
def test_the_rows_train_beside_lora_and_tied_ones_stay_tied(family):
    """A loss on a sequence with the tokens moves their rows alone; where embedding and output matrix are one, so are
    the trained rows, and the policy's logprobs are those of the wrapped model's own forward pass."""
    model = add_adapter(make(family), AdapterSettings(rank=2, targets=("q_proj",)), token_ids=(11, 12))
    rows = {name: p for name, p in model.named_parameters() if p.requires_grad and "lora" not in name}
    assert [tuple(p.shape) for p in rows.values()] == ([(2, 32)] if family == "llama_tied" else [(2, 32)] * 2)
    policy = Policy(model, layout="single")
    tokens = torch.tensor([[5, 11, 12, 7]])
    model(tokens).logits.log_softmax(-1)[0, :3].gather(1, tokens[0, 1:, None]).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in rows.values())
    trained(model)
    body = model.get_base_model()
    embedding, output = body.get_input_embeddings().weight, policy.output.weight
    assert torch.equal(embedding, output) == (family == "llama_tied")
    untouched = [i for i in range(97) if i not in (11, 12)]
    assert torch.equal(embedding[untouched], make(family).get_input_embeddings().weight[untouched])
    assert not torch.equal(embedding[11], make(family).get_input_embeddings().weight[11])
    states = policy._body(input_ids=tokens, use_cache=False).last_hidden_state
    torch.testing.assert_close(states @ output.T, model(tokens).logits)


@TIES
@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_merged_rows_give_the_same_logprobs(family, kind):
    model = adapted(family, kind, token_ids=(11, 12))
    plain = unadapted(family)
    result = plain.load_state_dict(merged_tensors(model), strict=False)
    assert not result.unexpected_keys and result.missing_keys in ([], ["lm_head.weight"])
    tokens = [5, 11, 12, 7, 11]
    torch.testing.assert_close(logits(plain, tokens), logits(model, tokens), atol=1e-4, rtol=1e-5)


def test_an_adapter_with_new_tokens_is_read_by_peft_alone(base, tmp_path):
    """PEFT adds rows for the tokenizer in the adapter's folder and puts the trained ones there."""
    loaded = load_model(base, adapter=SETTINGS, new_tokens=NEW)
    model = trained(loaded.model)
    check_adapter_base(model)
    save_model(model, loaded.tokenizer, tmp_path / "adapter", merge=False)
    tokens = loaded.tokenizer("w5 <think> w7 </think> w6").input_ids
    assert tokens == [5, 97, 7, 98, 6]
    by_peft = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter").eval()
    torch.testing.assert_close(logits(by_peft, tokens), logits(model, tokens), atol=1e-6, rtol=0)
    output, embedding = by_peft.get_base_model().get_output_embeddings(), by_peft.get_input_embeddings()
    assert torch.equal(output.weight, embedding.weight)
    assert AutoTokenizer.from_pretrained(tmp_path / "adapter")("<think>").input_ids == [97]


@pytest.mark.parametrize("adapter", [None, "continue"])
def test_and_by_load_model(base, tmp_path, adapter):
    loaded = load_model(base, adapter=SETTINGS, new_tokens=NEW)
    model = trained(loaded.model)
    save_model(model, loaded.tokenizer, tmp_path / "adapter", merge=False)
    again = load_model(tmp_path / "adapter", adapter=adapter)
    tokens = [5, 97, 7, 98, 6]
    torch.testing.assert_close(logits(again.model, tokens), logits(model, tokens), atol=1e-4, rtol=1e-5)


def test_a_merged_checkpoint_with_new_tokens_is_read_by_transformers_alone(base, tmp_path):
    loaded = load_model(base, adapter=SETTINGS, new_tokens=NEW)
    model = trained(loaded.model)
    save_model(model, loaded.tokenizer, tmp_path / "merged", merge=True)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    assert plain.config.vocab_size == 99
    assert plain.lm_head.weight is plain.model.embed_tokens.weight
    tokens = [5, 97, 7, 98, 6]
    torch.testing.assert_close(logits(plain, tokens), logits(model, tokens), atol=1e-4, rtol=1e-5)


def test_without_an_adapter_all_rows_train(base):
    loaded = load_model(base, new_tokens=NEW)
    assert loaded.model.get_input_embeddings().weight.shape == (99, 32)
    assert loaded.model.get_input_embeddings().weight.requires_grad
    assert loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight


def test_rows_that_no_adapter_holds_are_refused(base, tmp_path):
    """PEFT would fill them with other numbers."""
    loaded = load_model(base, new_tokens=NEW)
    wrapped = add_adapter(loaded.model, SETTINGS, token_ids=(97,))
    with pytest.raises(ModelError, match="more rows"):
        check_adapter_base(wrapped)
