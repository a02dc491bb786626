"""Tiny tokenizers and chat templates in the style of the common families, made on the spot."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from lydian.data.problems import Message

SENTENCES = (
    "What is two plus three? The answer is five.",
    "system user assistant model tool",
    "Tom has 12 apples and buys 30 more.\n\nHow many apples has he now?",
    "Be brief. You are a helpful assistant.\n\n",
    "café naïve 12.50 €",
)


def byte_level(chat_template=None, *, specials=("<|end|>",), eos="<|end|>", bos=None, pad=None, adds_bos=False):
    """Byte-level BPE, as GPT-2, Llama-3, Qwen and SmolLM2 have it; a line break and one more merge into one token."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(SENTENCES * 4, trainer)
    if adds_bos:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, backend.token_to_id(bos))]
        )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=eos, bos_token=bos, pad_token=pad)
    tokenizer.chat_template = chat_template
    return tokenizer


def sentence_piece(chat_template=None):
    """Llama-2's way: `▁` before every text and for every space, unknown characters as bytes, BOS added."""
    specials = ["<unk>", "<s>", "</s>"]
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # so that no merge is learnt across words
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=specials, show_progress=False)
    trained.train_from_iterator(SENTENCES * 4, trainer)
    model = json.loads(trained.to_str())["model"]
    bytes_after = {f"<0x{byte:02X}>": len(model["vocab"]) + byte for byte in range(256)}
    merges = [tuple(merge) for merge in model["merges"]]
    backend = Tokenizer(
        models.BPE(model["vocab"] | bytes_after, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    backend.normalizer = trained.normalizer
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(specials)
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", bos_token="<s>", unk_token="<unk>")
    tokenizer.chat_template = chat_template
    return tokenizer


def word_level():
    """One token a word, split at spaces and punctuation; no chat template."""
    backend = Tokenizer(models.WordLevel(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(special_tokens=["<unk>", "<eos>"], show_progress=False)
    backend.train_from_iterator(SENTENCES, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", unk_token="<unk>")


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHATML_DEFAULT_SYSTEM = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    + CHATML
)
LLAMA_2 = (
    "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}"
    "{% set head = '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' %}"
    "{% else %}{% set rest = messages %}{% set head = '' %}{% endif %}"
    "{% for m in rest %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}{{ bos_token }}[INST] {{ head if loop.first else '' }}{{ m.content.strip() }} [/INST]"
    "{% else %} {{ m.content.strip() }} {{ eos_token }}{% endif %}{% endfor %}"
)
LLAMA_3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
QWEN_3 = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and not loop.last and '</think>' in m.content %}"
    "{{ m.content.split('</think>')[-1].strip() }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
MARKERS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKERS_WITHOUT_STOP = MARKERS.replace("<|im_end|>{% endgeneration %}", "{% endgeneration %}<|im_end|>")
MISTRAL = (
    "{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content }}{{ eos_token }}"
    "{% else %}[INST] {{ m.content }} [/INST]{% endif %}{% endfor %}"
)

CHATML_TOKENS = {"specials": ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), "pad": "<|endoftext|>"}
LLAMA_3_TOKENS = {
    "specials": ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|end_of_text|>"),
    "bos": "<|begin_of_text|>",
    "eos": "<|end_of_text|>",
    "adds_bos": True,
}
GEMMA_TOKENS = {
    "specials": ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
    "bos": "<bos>",
    "eos": "<eos>",
    "adds_bos": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A tokenizer with a chat template, and what the template prints, worked out by hand.

    stop     the token that ends an assistant's turn
    opening  all of the text before the reply to the user's "What is two"
    closing  all of the text after that reply, the stop token first
    """

    make: object
    stop: str
    opening: str
    closing: str
    takes_system: bool = True
    settings: dict = field(default_factory=dict)

    def tokenizer(self):
        return self.make()


def _chatml(template, eos="<|im_end|>"):
    return lambda: byte_level(template, eos=eos, **CHATML_TOKENS)


_OPENING = "<|im_start|>user\nWhat is two<|im_end|>\n<|im_start|>assistant\n"
FAMILIES = {
    "chatml": Family(make=_chatml(CHATML), stop="<|im_end|>", opening=_OPENING, closing="<|im_end|>\n"),
    "chatml, base eos": Family(
        make=_chatml(CHATML, eos="<|endoftext|>"), stop="<|im_end|>", opening=_OPENING, closing="<|im_end|>\n"
    ),
    "chatml, default system": Family(
        make=_chatml(CHATML_DEFAULT_SYSTEM),
        stop="<|im_end|>",
        opening="<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n" + _OPENING,
        closing="<|im_end|>\n",
    ),
    "llama 2": Family(
        make=lambda: sentence_piece(LLAMA_2), stop="</s>", opening="<s> [INST] What is two [/INST]", closing=" </s>"
    ),
    "llama 3": Family(
        make=lambda: byte_level(LLAMA_3, **LLAMA_3_TOKENS),
        stop="<|eot_id|>",
        opening="<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nWhat is two<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        closing="<|eot_id|>",
    ),
    "llama 3, bos not printed": Family(
        make=lambda: byte_level(LLAMA_3.removeprefix("{{ bos_token }}"), **LLAMA_3_TOKENS),
        stop="<|eot_id|>",
        opening="<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nWhat is two<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        closing="<|eot_id|>",
    ),
    "gemma": Family(
        make=lambda: byte_level(GEMMA, **GEMMA_TOKENS),
        stop="<end_of_turn>",
        opening="<bos><start_of_turn>user\nWhat is two<end_of_turn>\n<start_of_turn>model\n",
        closing="<end_of_turn>\n",
        takes_system=False,
    ),
    "qwen 3": Family(
        make=_chatml(QWEN_3), stop="<|im_end|>", opening=_OPENING, closing="<|im_end|>\n", settings={"train": "last"}
    ),
    "markers": Family(make=_chatml(MARKERS), stop="<|im_end|>", opening=_OPENING, closing="<|im_end|>\n"),
    "markers without stop": Family(
        make=_chatml(MARKERS_WITHOUT_STOP), stop="<|im_end|>", opening=_OPENING, closing="<|im_end|>\n"
    ),
    "mistral": Family(
        make=lambda: byte_level(MISTRAL, specials=("</s>",), eos="</s>"),
        stop="</s>",
        opening="[INST] What is two [/INST]",
        closing="</s>",
    ),
}


def talk(*lines):
    """Messages from lines such as "user: Hello"."""
    pairs = (line.split(":", 1) for line in lines)
    return tuple(Message(role=role, content=content.removeprefix(" ")) for role, content in pairs)
