"""Loading a causal language model, ready for training and for sampling.

    load_model("tiny")                     the model bundled with the package
    load_model("tiny-untrained")           the same before training: random weights by torch's seed
    load_model("smollm2-135m")             the model that `lydian fetch smollm2-135m` put into the cache
    load_model("runs/x/models/01_sft")     a transformers checkpoint, or a folder with only a PEFT adapter
    load_model("model.gguf")               a GGUF file, dequantised
    load_model("Qwen/Qwen2.5-0.5B")        a hub id, if no such folder exists

Everything comes as a LoadedModel: model and tokenizer, with digest, licence and stop tokens.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from huggingface_hub import metadata_load, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from peft import PeftModel
from safetensors import SafetensorError
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from lydian.errors import MissingExtraError, ModelError
from lydian.models.adapters import AdapterSettings, add_adapter, check_mergeable
from lydian.models.fresh import tiny_untrained
from lydian.models.weights import tensors_digest

transformers_logging.disable_progress_bar()  # a bar for every load and save would drown a run's own progress

BUNDLED = ("tiny",)
UNTRAINED = "tiny-untrained"
FETCHED = ("smollm2-135m",)

Dtype = Literal["auto", "float32", "bfloat16"]
DTYPES = {"auto": torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16}
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "README.md"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model with what must be known about it.

    model        in eval mode, without dropout; wrapped by PEFT when it has an adapter
    tokenizer    the checkpoint's own
    source       what was asked for
    digest       sha256 over the weight files (for an adapter, over its base's too), see `weights_digest`
    licence      as the checkpoint's config, card or GGUF metadata states it; None when it states none
    stop_tokens  ids that end a generation, by the generation config and the tokenizer
    """

    model: PreTrainedModel | PeftModel
    tokenizer: PreTrainedTokenizerBase
    source: str
    digest: str
    licence: str | None
    stop_tokens: frozenset[int]


def load_model(
    source: str | Path,
    *,
    dtype: Dtype = "auto",
    adapter: AdapterSettings | Literal["continue"] | None = None,
) -> LoadedModel:
    """Load a model and its tokenizer.

    source   a folder, a .gguf file, `tiny`, `smollm2-135m`, or a hub id. A name wins over a folder of that name
             (write `./tiny` for the folder); a folder wins over a hub id.
    dtype    of the parameters. `auto` is float32, the precision master weights need; what precision to compute in is
             another matter, see `is_bfloat16_fast`.
    adapter  AdapterSettings adds a fresh LoRA adapter to the loaded weights. For a folder with only an adapter,
             `"continue"` keeps that adapter trainable on its frozen base; otherwise it is merged into the base.

    Every dropout rate (attention's too) is set to 0 in the modules and in the config, hence in checkpoints saved
    later: with dropout, the learner's logprobs would not be those of the policy that sampled. Attention is `sdpa`
    where the architecture has it, else `eager`. Tied weights stay tied.

    Raises ModelError when the source cannot be found or read, when its weights do not fill the model, or when
    `"continue"` has no adapter to continue; MissingExtraError for a GGUF file without the `gguf` package.
    """
    if dtype not in DTYPES:
        raise ModelError(
            where="load_model(dtype=…)", given=repr(dtype), expected=" or ".join(map(repr, DTYPES)), fix="Use auto."
        )
    if str(source) == UNTRAINED:
        model, tokenizer = tiny_untrained(torch.initial_seed())
        digest = tensors_digest(dict(model.named_parameters()))
        return _loaded(model, tokenizer, source=UNTRAINED, digest=digest, licence="apache-2.0", adapter=adapter)
    place = locate(source)
    if is_adapter_folder(place):
        return _load_adapter_folder(place, str(source), dtype, adapter)
    if adapter == "continue":
        raise ModelError(
            where=str(place),
            given="adapter='continue', but a checkpoint without adapter",
            expected="a folder with adapter_config.json",
            fix="Pass AdapterSettings to begin a new adapter, or None to train all weights.",
        )
    if place.is_dir():
        model, tokenizer = read_folder(place, DTYPES[dtype]), read_tokenizer(place)
    else:
        model, tokenizer = read_gguf(place, DTYPES[dtype])
    licence = getattr(model.config, "license", None) or _card_licence(place)
    is_hub_id = str(source) not in BUNDLED + FETCHED and not Path(source).expanduser().exists()
    _name(model, str(source) if is_hub_id else str(place.resolve()))
    if licence:
        model.config.license = licence  # so that checkpoints saved from this model state it as well
    return _loaded(model, tokenizer, source=str(source), digest=weights_digest(place), licence=licence, adapter=adapter)


def locate(source: str | Path) -> Path:
    """The folder or .gguf file behind a source; hub ids are downloaded into the hub's own cache. Raises ModelError."""
    name = str(source)
    if name in BUNDLED + FETCHED:
        folder = named_folder(name)
        if not folder.is_dir():
            raise ModelError(
                where=f"model {name!r}",
                given=f"no folder {folder}",
                expected="the converted checkpoint there",
                fix=f"Run `lydian fetch {name}`." if name in FETCHED else "Reinstall the package; it ships this model.",
            )
        return folder
    path = Path(source).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    if path.exists() or path.suffix == ".gguf" or not HUB_ID.fullmatch(name):
        raise ModelError(
            where=f"model {name!r}",
            given="a file that is no model" if path.exists() else "no such folder or file",
            expected=f"a checkpoint folder, a .gguf file, a hub id, or one of {', '.join(BUNDLED + FETCHED)}",
            fix="Check the path; a relative path is taken from the current folder.",
        )
    try:
        return Path(snapshot_download(name, allow_patterns=HUB_FILES))
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ModelError(
            where=f"model {name!r}",
            given=f"no such folder here, and the hub did not give it ({type(error).__name__})",
            expected="a folder, or a hub id that is reachable or already in the hub's cache",
            fix="Check the spelling and the network, or copy the checkpoint here and pass its folder.",
        ) from error


def named_folder(name: str, cache: Path | None = None) -> Path:
    """Where the checkpoint of a named model lies: in the package, or under `cache` ($LYDIAN_CACHE, ~/.cache/lydian)."""
    if name in BUNDLED:
        return Path(__file__).parent / name
    root = cache or Path(os.environ.get("LYDIAN_CACHE") or Path.home() / ".cache" / "lydian")
    return root / "models" / name


def is_adapter_folder(place: Path) -> bool:
    """Whether a folder holds a PEFT adapter and no model of its own."""
    return (place / "adapter_config.json").is_file() and not (place / "config.json").is_file()


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


def weights_digest(place: Path) -> str:
    """sha256 of the lines `name sha256-of-the-file`, one a weight file, in hexadecimal. Raises ModelError.

    Other files (tokenizer, configs) do not enter.
    """
    total = hashlib.sha256()
    for path in weight_files(place):
        with path.open("rb") as file:
            total.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return total.hexdigest()


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
    with _reading(folder):
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
    with _reading(folder):
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)


def read_gguf(path: Path, dtype: torch.dtype = torch.float32) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer of a GGUF file, dequantised into an ordinary model that can be trained and saved.

    Its licence, where the file states one, is put into `config.license`. Raises MissingExtraError without the `gguf`
    package, ModelError when the file cannot be read.
    """
    require_gguf(path)
    from gguf import GGUFReader

    with _reading(path):
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


def disable_dropout(model: PreTrainedModel | PeftModel) -> None:
    """Set every dropout rate to 0: dropout modules, rates that modules keep as numbers (attention's), and configs."""
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
        _zero_rates(module)
        for config in _configs(module):
            _zero_rates(config)


def is_bfloat16_fast() -> bool:
    """Whether this machine multiplies bfloat16 matrices faster than float32 ones.

    True with a CUDA device that has them in hardware, or a processor with AMX or AVX-512 bfloat16 instructions;
    elsewhere bfloat16 is emulated and several times slower.
    """
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.is_file() and _has_bfloat16_flag(cpuinfo.read_text())


def _load_adapter_folder(folder: Path, source: str, dtype: Dtype, adapter: object) -> LoadedModel:
    base_source = json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]
    if not base_source:
        raise ModelError(
            where=str(folder / "adapter_config.json"),
            given="no base_model_name_or_path",
            expected="the folder or hub id of the adapter's base model",
            fix="Write it into the file.",
        )
    base = load_model(base_source, dtype=dtype)
    weight_files(folder)
    with _reading(folder), warnings.catch_warnings():
        warnings.filterwarnings("error", message="Found missing adapter keys")  # those would stay random
        wrapped = PeftModel.from_pretrained(base.model, folder, is_trainable=adapter == "continue")
    has_tokenizer = (folder / "tokenizer_config.json").is_file()
    tokenizer = read_tokenizer(folder) if has_tokenizer else base.tokenizer
    digest = hashlib.sha256(f"{base.digest} {weights_digest(folder)}".encode()).hexdigest()
    if adapter == "continue":
        check_mergeable(wrapped)
        model: PreTrainedModel | PeftModel = wrapped
    else:
        model = wrapped.merge_and_unload().requires_grad_(True)  # PEFT froze it
        _name(model, str(folder.resolve()))
    return _loaded(model, tokenizer, source=source, digest=digest, licence=base.licence, adapter=adapter)


def _loaded(
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    source: str,
    digest: str,
    licence: str | None,
    adapter: object,
) -> LoadedModel:
    disable_dropout(model)
    model.eval()
    if isinstance(adapter, AdapterSettings):
        model = add_adapter(model, adapter)
    eos = model.generation_config.eos_token_id
    stops = {eos} if isinstance(eos, int) else set(eos or ())
    if tokenizer.eos_token_id is not None:
        stops.add(tokenizer.eos_token_id)
    return LoadedModel(
        model=model, tokenizer=tokenizer, source=source, digest=digest, licence=licence, stop_tokens=frozenset(stops)
    )


def _name(model: PreTrainedModel, name: str) -> None:
    # PEFT writes name_or_path into adapter_config.json as the adapter's base.
    model.name_or_path = name
    model.config._name_or_path = name


def _zero_rates(owner: object) -> None:
    for name, value in list(vars(owner).items()):
        if "drop" in name and isinstance(value, float):
            setattr(owner, name, 0.0)


def _configs(module: torch.nn.Module) -> list[object]:
    """The config of a transformers module with the parts it is made of, and the configs of PEFT adapters."""
    configs = [config for config in (getattr(module, "config", None),) if isinstance(config, PreTrainedConfig)]
    parts = [getattr(config, name, None) for config in configs for name in config.sub_configs]
    adapters = list(getattr(module, "peft_config", {}).values())
    return [config for config in (*configs, *parts, *adapters) if config is not None]


def _has_bfloat16_flag(cpuinfo: str) -> bool:
    return any(re.search(rf"^flags\s*:.*\b{flag}\b", cpuinfo, re.MULTILINE) for flag in ("amx_bf16", "avx512_bf16"))


def _card_licence(folder: Path) -> str | None:
    card = folder / "README.md"
    return (metadata_load(card) or {}).get("license") if card.is_file() else None


@contextmanager
def _reading(place: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError, UserWarning) as error:
        raise ModelError(
            where=str(place),
            given=f"{type(error).__name__}: {error}",
            expected="a checkpoint that transformers can read",
            fix="The files may be incomplete or of an unknown architecture; copy or save the checkpoint again.",
        ) from error
