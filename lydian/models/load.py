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
import json
import os
import re
import warnings
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub import metadata_load, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from peft import PeftModel
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from lydian.errors import ModelError
from lydian.models.adapters import AdapterSettings, add_adapter
from lydian.models.allocator import keep_freed_memory
from lydian.models.fresh import tiny_untrained
from lydian.models.merge import check_mergeable, merged_tensors
from lydian.models.prefix import is_prefix
from lydian.models.quantised import QUANTISED_BASE, read_quantised
from lydian.models.read import read_folder, read_gguf, read_tokenizer, reading, weight_files
from lydian.models.vocabulary import add_tokens, fit_vocabulary
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
    new_tokens: Seq[str] = (),
) -> LoadedModel:
    """Load a model and its tokenizer.

    source   a folder, a .gguf file, `tiny`, `smollm2-135m`, or a hub id. A name wins over a folder of that name
             (write `./tiny` for the folder); a folder wins over a hub id.
    dtype    of the parameters. `auto` is float32, the precision master weights need; what precision to compute in is
             another matter, see `compute_dtype`.
    adapter  AdapterSettings adds a fresh adapter to the loaded weights. For a folder with only an adapter,
             `"continue"` keeps that adapter trainable on its frozen base; otherwise it is merged into the base.
    new_tokens  texts that are to be single tokens; those that the tokenizer lacks are added (see `fit_vocabulary`).
             A fresh adapter trains the rows of all of them.

    Every dropout rate (attention's too) is set to 0 in the modules and in the config, hence in checkpoints saved
    later: with dropout, the learner's logprobs would not be those of the policy that sampled. Attention is `sdpa`
    where the architecture has it, else `eager`. Tied weights stay tied. The process keeps freed memory from now on.

    Raises ModelError when the source cannot be found or read, when its weights do not fill the model, when an adapter
    cannot be merged (a prefix), or when `"continue"` has no adapter to continue; MissingExtraError for a GGUF file
    without the `gguf` package, or for a base in 4 bits without bitsandbytes.
    """
    keep_freed_memory()
    if dtype not in DTYPES:
        raise ModelError(
            where="load_model(dtype=…)", given=repr(dtype), expected=" or ".join(map(repr, DTYPES)), fix="Use auto."
        )
    is_quantised = isinstance(adapter, AdapterSettings) and adapter.is_quantised
    if is_quantised and (str(source) == UNTRAINED or not (locate(source) / "config.json").is_file()):
        raise ModelError(
            where=f"model {str(source)!r} in 4 bits",
            given="no checkpoint folder of its own",
            expected="a transformers checkpoint, which bitsandbytes reads matrix by matrix",
            fix="Write one with `lydian merge` or save_model, or set adapter.is_quantised = false.",
        )
    if str(source) == UNTRAINED:
        model, tokenizer = tiny_untrained(torch.initial_seed())
        digest = tensors_digest(dict(model.named_parameters()))
        facts: dict[str, Any] = {"source": UNTRAINED, "digest": digest, "licence": "apache-2.0"}
        return _loaded(model, tokenizer, **facts, adapter=adapter, new_tokens=new_tokens)
    place = locate(source)
    if is_adapter_folder(place):
        return _load_adapter_folder(place, str(source), dtype, adapter, new_tokens)
    if adapter == "continue":
        raise ModelError(
            where=str(place),
            given="adapter='continue', but a checkpoint without adapter",
            expected="a folder with adapter_config.json",
            fix="Pass AdapterSettings to begin a new adapter, or None to train all weights.",
        )
    if is_quantised:
        model, tokenizer = read_quantised(place, DTYPES[dtype]), read_tokenizer(place)
    elif place.is_dir():
        model, tokenizer = read_folder(place, DTYPES[dtype]), read_tokenizer(place)
    else:
        model, tokenizer = read_gguf(place, DTYPES[dtype])
    licence = getattr(model.config, "license", None) or _card_licence(place)
    is_hub_id = str(source) not in BUNDLED + FETCHED and not Path(source).expanduser().exists()
    name_model(model, str(source) if is_hub_id else str(place.resolve()))
    if licence:
        model.config.license = licence  # so that checkpoints saved from this model state it as well
    facts = {"source": str(source), "digest": weights_digest(place), "licence": licence}
    return _loaded(model, tokenizer, **facts, adapter=adapter, new_tokens=new_tokens)


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


def weights_digest(place: Path) -> str:
    """sha256 of the lines `name sha256-of-the-file`, one a weight file, in hexadecimal. Raises ModelError.

    Other files (tokenizer, configs) do not enter.
    """
    total = hashlib.sha256()
    for path in weight_files(place):
        with path.open("rb") as file:
            total.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return total.hexdigest()


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


def compute_dtype(dtype: Dtype) -> torch.dtype:
    """What a setting means for computing on this machine: `auto` is bfloat16 where `is_bfloat16_fast`, else float32."""
    is_bfloat16 = dtype == "bfloat16" or (dtype == "auto" and is_bfloat16_fast())
    return torch.bfloat16 if is_bfloat16 else torch.float32


def base_of(folder: Path) -> str:
    """The model that an adapter in a folder belongs on, as the adapter names it. Raises ModelError if it names none.

    Where there is nothing at the path that it names, a folder of the same name beside the adapter's own, or one above
    (a critic lies within its policy's folder), takes its place: a run that was moved or copied took its base along.
    """
    with reading(folder):
        source = json.loads((folder / "adapter_config.json").read_text()).get("base_model_name_or_path")
    if not source:
        raise ModelError(
            where=str(folder / "adapter_config.json"),
            given="no base_model_name_or_path",
            expected="the folder or hub id of the adapter's base model",
            fix="Write it into the file.",
        )
    named = Path(source)
    around = [parent / named.name for parent in folder.resolve().parents[:2]]
    is_moved = named.is_absolute() and not named.exists()
    return str(next((place for place in around if is_moved and place.is_dir()), source))


def wrap_with(folder: Path, model: PreTrainedModel, *, is_trainable: bool = False) -> PeftModel:
    """A model with the adapter in a folder put on. Raises ModelError, also when the adapter's file is incomplete."""
    weight_files(folder)
    with reading(folder), warnings.catch_warnings():
        warnings.filterwarnings("error", message="Found missing adapter keys")  # those would stay random
        is_of_weights = json.loads((folder / "adapter_config.json").read_text()).get("peft_type") != "PREFIX_TUNING"
        wrapped = PeftModel.from_pretrained(model, folder, is_trainable=is_trainable and is_of_weights)
    if is_trainable and not is_of_weights:  # PEFT would refuse
        wrapped.active_peft_config.inference_mode = False
        wrapped.prompt_encoder.requires_grad_(True)
    return wrapped


def name_model(model: PreTrainedModel, name: str) -> None:
    """Sets where the model's weights are said to lie; PEFT writes it into adapter_config.json as the adapter's base."""
    model.name_or_path = name
    model.config._name_or_path = name


def _load_adapter_folder(folder: Path, source: str, dtype: Dtype, adapter: object, new_tokens: Seq[str]) -> LoadedModel:
    base = load_model(base_of(folder), dtype=dtype)
    is_quantised = (folder / QUANTISED_BASE).is_file()
    body = read_quantised(locate(base_of(folder)), DTYPES[dtype]) if is_quantised else base.model
    has_tokenizer = (folder / "tokenizer_config.json").is_file()
    tokenizer = read_tokenizer(folder) if has_tokenizer else base.tokenizer
    fit_vocabulary(body, tokenizer)
    wrapped = wrap_with(folder, body, is_trainable=adapter == "continue")
    model: PreTrainedModel | PeftModel = wrapped
    if adapter != "continue":
        model = _merged_model(wrapped, base.model if is_quantised else None)
        name_model(model, str(folder.resolve()))
    elif not is_prefix(wrapped):
        check_mergeable(wrapped)  # at every publication
    digest = hashlib.sha256(f"{base.digest} {weights_digest(folder)}".encode()).hexdigest()
    facts: dict[str, Any] = {"source": source, "digest": digest, "licence": base.licence}
    return _loaded(model, tokenizer, **facts, adapter=adapter, new_tokens=new_tokens)


def _merged_model(wrapped: PeftModel, plain: PreTrainedModel | None) -> PreTrainedModel:
    """The base with the adapter merged in, all of it trainable; in `plain` where the base itself is in 4 bits."""
    if is_prefix(wrapped) or plain is not None:
        check_mergeable(wrapped)
    if plain is None:
        return wrapped.merge_and_unload().requires_grad_(True)  # PEFT froze it
    plain.resize_token_embeddings(wrapped.get_input_embeddings().weight.shape[0], mean_resizing=False)
    plain.load_state_dict(merged_tensors(wrapped), strict=False)  # tied names appear once
    return plain


def _loaded(
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    source: str,
    digest: str,
    licence: str | None,
    adapter: object,
    new_tokens: Seq[str],
) -> LoadedModel:
    disable_dropout(model)
    model.eval()
    token_ids = add_tokens(tokenizer, new_tokens)
    if new_tokens:
        fit_vocabulary(model, tokenizer)
    if isinstance(adapter, AdapterSettings):
        model = add_adapter(model, adapter, token_ids=token_ids)
    eos = model.generation_config.eos_token_id
    stops = {eos} if isinstance(eos, int) else set(eos or ())
    if tokenizer.eos_token_id is not None:
        stops.add(tokenizer.eos_token_id)
    return LoadedModel(
        model=model, tokenizer=tokenizer, source=source, digest=digest, licence=licence, stop_tokens=frozenset(stops)
    )


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
