"""Bases in 4 bits, by bitsandbytes: NF4, its constants quantised as well. Products are computed in full precision."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedModel

from lydian.errors import MissingExtraError, ModelError

QUANTISED_BASE = "base_in_4_bits"
"""An empty file beside an adapter that was trained on a base in 4 bits: it fits no other."""


def read_quantised(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """The model of a transformers checkpoint with its matrices in 4 bits; embedding and output matrix stay in `dtype`.

    Raises MissingExtraError without the packages, ModelError where they do not support this machine.

    Source: Dettmers et al. 2023, arXiv 2305.14314, section 3.
    """
    require_bitsandbytes(folder)
    settings = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )
    try:
        return AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, quantization_config=settings, trust_remote_code=False, local_files_only=True
        )
    except (ImportError, RuntimeError) as error:  # a version too old, or no kernels for this machine
        raise ModelError(
            where=f"{folder} in 4 bits",
            given=f"{type(error).__name__}: {error}",
            expected="a bitsandbytes that supports this machine",
            fix="Update it (pip install -U bitsandbytes), or set adapter.is_quantised = false.",
        ) from error


def require_bitsandbytes(where: object) -> None:
    """Raise MissingExtraError unless the packages that 4-bit matrices need are installed."""
    missing = [name for name in ("bitsandbytes", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            where=f"{where} in 4 bits",
            given=f"no package {' and no '.join(missing)}",
            expected="it, to hold a base in 4 bits (adapter.is_quantised = true)",
            fix="pip install 'lydian[quantised]', or set adapter.is_quantised = false: LoRA on the base as it is.",
        )
