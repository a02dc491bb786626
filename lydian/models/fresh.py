"""The tiny model before any training: its tokenizer and its random weights, both functions of a seed."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from lydian.data.arithmetic import arithmetic_text

CHAT_TEMPLATE = """\
{% for message in messages %}{{ message.role }}:
{{ message.content }}{{ eos_token }}
{% endfor %}{% if add_generation_prompt %}assistant:
{% endif %}"""
"""So that recipes for chat models can be tried on the tiny model, which has never seen it."""

VOCABULARY = 320
"""256 bytes, two special tokens, and merges for the words of the generated problems; digits never merge."""


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE trained on generated text: any string can be encoded, every digit is a token of its own."""
    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<pad>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (document.messages[0].content for document in arithmetic_text(num=3000, seed=1))
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")
    fast.chat_template = CHAT_TEMPLATE
    return fast


def tiny_untrained(seed: int = 0) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """A Llama of 0.9 million parameters with random weights, and its tokenizer; the caller's random state is kept."""
    tokenizer = tiny_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        license="apache-2.0",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config), tokenizer
