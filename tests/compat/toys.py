"""A word-level tokenizer, a tiny GPT-2 and a model of fixed logits: what the adapters are tried on."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

WORDS = ("[PAD]", "[UNK]", "[BOS]", "[EOS]", *"abcdefgh", "Response", "Instruction", ":")
PAD, UNK, BOS, EOS = range(4)


def ids(text: str) -> list[int]:
    """The ids of words joined by blanks, by hand."""
    return [WORDS.index(word) for word in text.split()]


def tokenizer(*, adds_bos: bool = False, keeps_blanks: bool = False) -> PreTrainedTokenizerFast:
    """One id a word; words and punctuation are split apart, unknown words are [UNK]; so is each blank that is kept."""
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    blanks = pre_tokenizers.Split(Regex(r"\s"), behavior="isolated")
    backend.pre_tokenizer = blanks if keeps_blanks else pre_tokenizers.Whitespace()
    if adds_bos:
        backend.post_processor = processors.TemplateProcessing(single="[BOS] $A", special_tokens=[("[BOS]", BOS)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", bos_token="[BOS]", eos_token="[EOS]"
    )


def gpt2(seed: int = 0, *, width: int = 8) -> GPT2LMHeadModel:
    """Without dropout; weights large enough that probabilities differ."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": len(WORDS), "n_positions": 128, "n_embd": width, "n_layer": 2, "n_head": 2}
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return GPT2LMHeadModel(GPT2Config(**sizes, **dropout, initializer_range=0.5, bos_token_id=BOS, eos_token_id=EOS))


class FixedLogits(torch.nn.Module):
    """Says the same whatever it is asked."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(logits)

    def forward(self, input_ids: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.logits)
