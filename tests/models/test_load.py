"""Loading: what is found where, what is refused, and that the model is ready for training."""

import hashlib
import inspect
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from lydian.errors import MissingExtraError, ModelError
from lydian.models import load, read
from lydian.models.adapters import AdapterSettings, num_trainable
from lydian.models.load import (
    base_of,
    compute_dtype,
    disable_dropout,
    is_bfloat16_fast,
    load_model,
    locate,
    named_folder,
    weights_digest,
)
from lydian.models.read import read_gguf
from lydian.models.save import save_model

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
TOKENS = torch.arange(20).reshape(2, 10)


def tokenizer():
    backend = Tokenizer(models.WordLevel({f"w{i}": i for i in range(64)}, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="w3", unk_token="w0")


def llama(**changes):
    return LlamaForCausalLM(LlamaConfig(**SHAPE | {"tie_word_embeddings": True, "eos_token_id": [5, 6]} | changes))


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    save_model(llama(attention_dropout=0.3), tokenizer(), tmp_path / "base", merge=False)
    return tmp_path / "base"


def logits(model):
    with torch.no_grad():
        return model(TOKENS).logits


def adapter_folder(base: Path, **settings):
    """An adapter written by PEFT itself, with its base named, and the logits it gives."""
    config = LoraConfig(task_type="CAUSAL_LM", target_modules=["v_proj"], lora_dropout=0.5, **settings)
    wrapped = get_peft_model(LlamaForCausalLM.from_pretrained(base), config)
    for name, parameter in wrapped.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=1.0)
    wrapped.save_pretrained(base.parent / "adapter")
    return base.parent / "adapter", logits(wrapped.eval())


def test_a_folder(folder):
    loaded = load_model(folder)
    assert torch.equal(logits(loaded.model), logits(LlamaForCausalLM.from_pretrained(folder).eval()))
    assert not loaded.model.training
    assert num_trainable(loaded.model) == sum(parameter.numel() for parameter in loaded.model.parameters())
    assert loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight
    assert loaded.model.config._attn_implementation == "sdpa"
    assert loaded.tokenizer("w7 w9").input_ids == [7, 9]
    assert loaded.source == str(folder)
    assert loaded.stop_tokens == {3, 5, 6}  # the tokenizer's and the generation config's
    assert loaded.licence is None


def test_dtype(tmp_path):
    save_model(llama().to(torch.bfloat16), tokenizer(), tmp_path / "half", merge=False)
    assert {parameter.dtype for parameter in load_model(tmp_path / "half").model.parameters()} == {torch.float32}
    loaded = load_model(tmp_path / "half", dtype="bfloat16")
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.bfloat16}
    with pytest.raises(ModelError, match="'fp32'"):
        inspect.unwrap(load_model)(tmp_path / "half", dtype="fp32")


def test_dropout_is_off_even_in_training_mode(folder):
    model = load_model(folder).model.train()
    assert torch.equal(logits(model), logits(model))
    assert model.config.attention_dropout == 0.0
    plain = LlamaForCausalLM.from_pretrained(folder).train()
    plain.config.attention_dropout = plain.model.layers[0].self_attn.attention_dropout = 0.3
    assert not torch.equal(logits(plain), logits(plain))  # the comparison above can fail


def test_disable_dropout_finds_modules_and_config():
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4)).train()
    assert not torch.equal(logits(model), logits(model))  # GPT-2's default rates are 0.1
    disable_dropout(model)
    assert torch.equal(logits(model), logits(model))
    config = model.config
    assert (config.attn_pdrop, config.embd_pdrop, config.resid_pdrop, config.summary_first_dropout) == (0, 0, 0, 0)


def test_digest_is_that_of_the_weights_alone(folder):
    """sha256 of one line: the file's name, a space, the file's own sha256, a line break."""
    inner = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    expected = hashlib.sha256(f"model.safetensors {inner}\n".encode()).hexdigest()
    assert load_model(folder).digest == weights_digest(folder) == expected
    (folder / "notes.txt").write_text("not a weight")
    assert weights_digest(folder) == expected
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][0] += 1e-3
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert weights_digest(folder) != expected


def test_licence_from_the_card_travels_into_saved_models(folder, tmp_path):
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Card\n")
    loaded = load_model(folder)
    assert loaded.licence == "apache-2.0"
    save_model(loaded.model, loaded.tokenizer, tmp_path / "again", merge=False)
    assert load_model(tmp_path / "again").licence == "apache-2.0"


def test_a_weight_that_is_missing_is_an_error_not_a_random_number(folder):
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"1 weights absent.*model\.layers\.1\.mlp\.up_proj\.weight"):
        load_model(folder)


def test_a_weight_of_another_shape_is_an_error(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(31)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"1 weights .*another shape: model\.norm\.weight"):
        load_model(folder)


def test_a_weight_without_a_place_is_a_warning(folder):
    tensors = load_file(folder / "model.safetensors") | {"model.stray": torch.ones(1)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.warns(UserWarning, match=r"1 weights have no place.*model\.stray"):
        load_model(folder)


def test_a_cut_file_is_an_error(folder):
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match="SafetensorError"):
        load_model(folder)


@pytest.mark.parametrize("absent", ["config.json", "model.safetensors", "tokenizer.json"])
def test_an_absent_file_is_an_error(folder, absent):
    (folder / absent).unlink()
    with pytest.raises(ModelError, match=re.escape(str(folder))):
        load_model(folder)


def test_an_adapter_folder_is_merged_into_its_base(folder):
    place, expected = adapter_folder(folder)
    assert not torch.allclose(logits(load_model(folder).model), expected, atol=1e-2)
    loaded = load_model(place)
    torch.testing.assert_close(logits(loaded.model), expected, atol=1e-5, rtol=1e-5)
    assert not isinstance(loaded.model, PeftModel)
    assert num_trainable(loaded.model) == num_trainable(load_model(folder).model)  # PEFT's freezing is undone
    assert loaded.tokenizer("w7 w9").input_ids == [7, 9]  # the base's: the adapter folder has none
    assert loaded.digest not in (weights_digest(folder), weights_digest(place))


def test_an_adapter_and_its_base_can_be_moved_together(folder, tmp_path):
    """PEFT writes where the base lay. What lies there now counts first; where nothing does, the folder beside it."""
    place, expected = adapter_folder(folder)
    moved = tmp_path / "moved"
    shutil.copytree(place.parent, moved)
    assert base_of(moved / place.name) == str(folder)
    shutil.rmtree(folder)
    assert base_of(moved / place.name) == str(moved / folder.name)
    torch.testing.assert_close(logits(load_model(moved / place.name).model), expected, atol=1e-5, rtol=1e-5)


def test_an_adapter_folder_can_be_continued(folder):
    place, expected = adapter_folder(folder)
    loaded = load_model(place, adapter="continue")
    assert torch.equal(logits(loaded.model), expected)
    trainable = [name for name, parameter in loaded.model.named_parameters() if parameter.requires_grad]
    assert len(trainable) == 4 and all(".lora_" in name for name in trainable)  # A and B in two layers
    loaded.model.train()
    assert torch.equal(logits(loaded.model), logits(loaded.model))  # the adapter's dropout of 0.5 is off
    assert loaded.model.peft_config["default"].lora_dropout == 0.0
    assert loaded.digest == load_model(place).digest


def test_a_dora_can_be_merged_and_continued(folder):
    place, expected = adapter_folder(folder, use_dora=True)
    torch.testing.assert_close(logits(load_model(place).model), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits(load_model(place, adapter="continue").model), expected, atol=1e-6, rtol=0)


def test_an_adapter_that_cannot_be_merged_each_step_cannot_be_continued(folder):
    place, expected = adapter_folder(folder, modules_to_save=["norm"])
    torch.testing.assert_close(logits(load_model(place).model), expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(ModelError, match="modules_to_save"):
        load_model(place, adapter="continue")


def test_random_weights_with_an_adapter():
    torch.manual_seed(3)
    loaded = load_model("tiny-untrained", adapter=AdapterSettings(rank=2))
    assert isinstance(loaded.model, PeftModel)
    assert torch.equal(logits(loaded.model), logits(load_model("tiny-untrained").model))


@pytest.mark.parametrize("source", ["tiny-untrained", "adapter", "x.gguf"])
def test_only_a_checkpoint_folder_can_be_held_in_4_bits(source, folder, tmp_path):
    adapter_folder(folder)
    (tmp_path / "x.gguf").write_bytes(b"")
    place = source if source == "tiny-untrained" else tmp_path / source
    with pytest.raises(ModelError, match="in 4 bits"):
        load_model(place, adapter=AdapterSettings(is_quantised=True))


def test_an_incomplete_adapter_is_an_error(folder):
    place, _ = adapter_folder(folder)
    tensors = load_file(place / "adapter_model.safetensors")
    del tensors[next(name for name in tensors if "lora_B" in name)]
    save_file(tensors, place / "adapter_model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="missing adapter keys"):
        load_model(place)


def test_an_adapter_whose_base_is_gone_is_an_error(folder):
    place, _ = adapter_folder(folder)
    folder.rename(folder.with_name("moved"))
    with pytest.raises(ModelError, match="no such folder"):
        load_model(place)


def test_continue_needs_an_adapter(folder):
    with pytest.raises(ModelError, match="without adapter"):
        load_model(folder, adapter="continue")


def test_a_fresh_adapter_also_on_a_merged_one(folder):
    place, expected = adapter_folder(folder)
    loaded = load_model(place, adapter=AdapterSettings(rank=2, targets=("v_proj",)))
    torch.testing.assert_close(logits(loaded.model), expected, atol=1e-5, rtol=1e-5)
    assert num_trainable(loaded.model) == 2 * 2 * (32 + 16)  # rank (inputs + outputs) in each of two layers


def test_names_come_first_then_folders_then_the_hub(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("LYDIAN_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match="lydian fetch smollm2-135m"):
        locate("smollm2-135m")
    (tmp_path / "models" / "smollm2-135m").mkdir(parents=True)
    (tmp_path / "smollm2-135m").mkdir()
    assert locate("smollm2-135m") == tmp_path / "models" / "smollm2-135m"
    assert locate("./smollm2-135m") == Path("smollm2-135m")
    assert locate("base") == Path("base")
    assert named_folder("tiny") == Path(load.__file__).parent / "tiny"


@pytest.mark.parametrize(
    "source", ["owner/absent", "absent", "/absent/folder", "absent.gguf", "a/b/c", "base/config.json"]
)
def test_what_is_not_there_is_an_error_with_a_way_out(source, folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    with pytest.raises(ModelError, match=re.escape(repr(source))):
        load_model(source)


def test_a_hub_id_is_loaded_from_its_snapshot_and_keeps_its_name(folder, monkeypatch):
    monkeypatch.setattr(load, "snapshot_download", lambda name, allow_patterns: str(folder))
    loaded = load_model("owner/model", adapter=AdapterSettings())
    assert loaded.source == "owner/model"
    assert loaded.model.peft_config["default"].base_model_name_or_path == "owner/model"


def test_bfloat16_flags():
    assert load._has_bfloat16_flag("model name : X\nflags\t\t: fpu avx512f avx512_bf16 sse\n")
    assert load._has_bfloat16_flag("flags : amx_bf16\n")
    assert not load._has_bfloat16_flag("model name : amx_bf16\nflags : fpu avx512f xamx_bf16\n")
    assert isinstance(is_bfloat16_fast(), bool)


@pytest.mark.parametrize("is_fast", [True, False])
def test_auto_computes_in_what_is_fast_here(is_fast: bool, monkeypatch):
    monkeypatch.setattr(load, "is_bfloat16_fast", lambda: is_fast)
    assert compute_dtype("auto") == (torch.bfloat16 if is_fast else torch.float32)
    assert (compute_dtype("float32"), compute_dtype("bfloat16")) == (torch.float32, torch.bfloat16)


def test_gguf_without_the_package(monkeypatch, tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"")
    monkeypatch.setattr(read.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"lydian\[gguf\]"):
        load_model(tmp_path / "x.gguf")


def write_gguf(path: Path, model: LlamaForCausalLM, pre: str) -> None:
    """A tiny llama GGUF: bytes as tokens, two merges; q and k stored with each head's halves interleaved."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_license("mit")
    writer.add_block_count(2)
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(8)
    writer.add_vocab_size(64)
    pieces = ["<unk>", "<s>", "</s>", "Ġ", "Ċ", "a", "b", *"0123456789", "ĠĠ", "ĊĊ"]
    pieces += [f"<{i}>" for i in range(len(pieces), 64)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(pieces)
    writer.add_token_types([3, 3, 3] + [1] * 61)
    writer.add_token_merges(["Ġ Ġ", "Ċ Ċ"])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    names = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.o_proj": "attn_output"}
    names |= {f"self_attn.{x}_proj": f"attn_{x}" for x in "qkv"} | {
        f"mlp.{x}_proj": f"ffn_{x}" for x in ("gate", "up", "down")
    }
    for name, tensor in model.state_dict().items():
        array = tensor.numpy()
        if match := re.fullmatch(r"model\.layers\.(\d)\.(.+)\.weight", name):
            if match[2][-6:] in ("q_proj", "k_proj"):
                array = array.reshape(array.shape[0] // 8, 2, 4, 32).swapaxes(1, 2).reshape(array.shape).copy()
            writer.add_tensor(f"blk.{match[1]}.{names[match[2]]}.weight", array)
        elif name != "lm_head.weight":
            writer.add_tensor({"model.embed_tokens.weight": "token_embd.weight"}.get(name, "output_norm.weight"), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def gguf_model():
    torch.manual_seed(0)
    return llama(eos_token_id=2, max_position_embeddings=128).eval()


def test_a_gguf_file_is_the_model_it_was_written_from(gguf_model, tmp_path):
    write_gguf(tmp_path / "x.gguf", gguf_model, "gpt-2")
    loaded = load_model(tmp_path / "x.gguf")
    torch.testing.assert_close(logits(loaded.model), logits(gguf_model), atol=1e-6, rtol=1e-6)
    assert loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight
    assert (loaded.licence, loaded.stop_tokens) == ("mit", {2})
    save_model(loaded.model, loaded.tokenizer, tmp_path / "saved", merge=False)  # transformers alone would refuse
    assert torch.equal(logits(load_model(tmp_path / "saved").model), logits(loaded.model))
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["license"] == "mit"


@pytest.mark.parametrize(("pre", "expected"), [("smollm", "ĊĊ 1 ĠĠ 2"), ("gpt-2", "Ċ Ċ 1 Ġ Ġ 2")])
def test_smollm_splits_digits_before_spaces(pre, expected, gguf_model, tmp_path):
    r"""GPT-2's rule keeps one blank for the word after a run of blanks; with digits split off, it stays whole."""
    write_gguf(tmp_path / "x.gguf", gguf_model, pre)
    _, tokenizer = read_gguf(tmp_path / "x.gguf")
    assert tokenizer.convert_ids_to_tokens(tokenizer("\n\n1  2").input_ids) == expected.split()
    assert tokenizer.decode(tokenizer("\n\n1  2").input_ids) == "\n\n1  2"
