"""Reading checkpoint files into models and tokenizers: transformers' folders and GGUF."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from lydian.errors import MissingExtraError, ModelError


def weight_files(place: Path) -> list[Path]:
    """The files that hold a checkpoint's weights, sorted by name; the file itself for a GGUF. Raises ModelError."""
    if place.is_file():
        return [place]
    files = sorted(place.glob("*.safetensors")) or sorted(place.glob("pytorch_model*.bin"))
    if not files:
        raise ModelError(
            where=str(place),
            given="no *.safetensors or pytorch_model*.bin",
            expected="a checkpoint folder with weights",
            fix="Check the path, or save the model again.",
        )
    return files


def read_folder(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The model of a transformers checkpoint. Raises ModelError, also when weights are missing or of the wrong shape.

    transformers itself fills such weights with random numbers and warns.
    """
    if not (folder / "config.json").is_file():
        raise ModelError(
            where=str(folder),
            given="no config.json (and no adapter_config.json)",
            expected="a transformers checkpoint or a PEFT adapter",
            fix="Pass the folder that holds config.json itself.",
        )
    weight_files(folder)
    with reading(folder):
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below, by name
            trust_remote_code=False,
            local_files_only=True,
        )
    unfilled = sorted(info["missing_keys"]) + sorted(name for name, *_ in info["mismatched_keys"])
    if unfilled:
        raise ModelError(
            where=str(folder),
            given=f"{len(unfilled)} weights absent or of another shape: {', '.join(unfilled[:3])}",
            expected=f"every weight of a {type(model).__name__} with this config.json",
            fix="The checkpoint is incomplete or belongs to another config; copy or save it again.",
        )
    if info["unexpected_keys"]:
        unused = sorted(info["unexpected_keys"])
        warnings.warn(f"{folder}: {len(unused)} weights have no place in the model ({unused[0]}, …)", stacklevel=2)
    return model


def read_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer saved in a folder. Raises ModelError."""
    with reading(folder):
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)


def read_gguf(path: Path, dtype: torch.dtype = torch.float32) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer of a GGUF file, dequantised into an ordinary model that can be trained and saved.

    Its licence, where the file states one, is put into `config.license`. Raises MissingExtraError without the `gguf`
    package, ModelError when the file cannot be read.
    """
    require_gguf(path)
    from gguf import GGUFReader

    with reading(path):
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=dtype)
        fields = {
            name: field.contents()
            for name, field in GGUFReader(path).fields.items()
            if name in ("general.license", "tokenizer.ggml.pre")
        }
    # transformers still calls the model quantised, and would refuse to save it.
    del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False
    tokenizer.model_max_length = model.config.max_position_embeddings
    model.config.license = fields.get("general.license")
    if fields.get("tokenizer.ggml.pre") == "smollm":
        # transformers reads vocabulary and merges but not this field: without it a run of spaces or line breaks
        # before a digit is split differently from the tokens the model was trained on.
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    return model, tokenizer


def require_gguf(where: object) -> None:
    """Raise MissingExtraError unless the `gguf` package is installed."""
    if importlib.util.find_spec("gguf") is None:
        raise MissingExtraError(
            where=str(where),
            given="no package `gguf`",
            expected="it, to read GGUF files",
            fix="pip install 'lydian[gguf]'",
        )


@contextmanager
def reading(place: Path) -> Iterator[None]:
    """Turns what goes wrong while files are read into a ModelError that names the place."""
    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError, UserWarning) as error:
        raise ModelError(
            where=str(place),
            given=f"{type(error).__name__}: {error}",
            expected="a checkpoint that transformers can read",
            fix="The files may be incomplete or of an unknown architecture; copy or save the checkpoint again.",
        ) from error
