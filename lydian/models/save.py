"""Saving a model so that transformers and PEFT alone can load it again."""

from __future__ import annotations

import copy
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from peft import PeftModel
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from lydian.errors import ModelError
from lydian.models.heads import CRITIC_FOLDER, Head
from lydian.models.load import locate, name_model
from lydian.models.merge import base_tensors, is_quantised, merged_tensors, trained_rows
from lydian.models.policy import Policy
from lydian.models.quantised import QUANTISED_BASE
from lydian.models.read import read_folder, read_tokenizer

PROBE = "Tom has 3 boxes  with 12 pens each.\n\n36 pens: <b>\t3 × 12 = 36</b>\n  é 你好 🙂"


def save_model(
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    path: str | Path,
    *,
    merge: bool,
    head: Head | None = None,
    critic: Policy | None = None,
) -> None:
    """Write model, tokenizer, chat template and generation config into the folder `path`, all or nothing.

    A model with an adapter is written as the adapter alone (PEFT's format) or, with `merge`, as a full checkpoint
    with the adapter merged in (transformers' format); a model without adapter always as a full checkpoint. A head that
    was trained beside it goes into the same folder; a critic, for a later one to go on from, into a folder within: its
    head, and its network where that is not the model itself. The model in memory stays as it is. Everything is first
    written beside `path` and then moved there; what was there before is replaced, and survives a failure.

    Raises ModelError when writing fails, when an adapter's base is not on disk (see `place_base` and
    `check_adapter_base`), or when `merge` is asked of a prefix.
    """
    if isinstance(model, PeftModel) and not merge:
        check_adapter_base(model)
    with staged_folder(Path(path)) as staging:
        write_model(model, tokenizer, staging, merge=merge)
        if head is not None:
            head.save(staging)
        if critic is not None:
            _write_critic(critic, model, tokenizer, staging / CRITIC_FOLDER)


def write_model(
    model: PreTrainedModel | PeftModel, tokenizer: PreTrainedTokenizerBase, folder: Path, *, merge: bool
) -> None:
    """Write the files of `save_model` straight into an existing folder.

    Raises ModelError when transformers would read another tokenizer from it than the one written.
    """
    if not isinstance(model, PeftModel):
        model.save_pretrained(folder)
    elif merge:
        _write_full(model.get_base_model(), merged_tensors(model), folder)
    else:
        model.save_pretrained(folder, save_embedding_layers=False)
        (folder / "README.md").unlink()  # PEFT's empty form
        model.get_base_model().generation_config.save_pretrained(folder)
        if _has_4_bits(model):
            (folder / QUANTISED_BASE).touch()
    tokenizer.save_pretrained(folder)
    _check_tokenizer(tokenizer, folder)


def place_base(model: PreTrainedModel | PeftModel, tokenizer: PreTrainedTokenizerBase, path: Path) -> None:
    """Give the base under an adapter a place on disk, `path`, where it has none that transformers reads; else nothing.

    Random weights and those of a GGUF file have none. A base that lies at `path` already is not written again.
    """
    if not isinstance(model, PeftModel):
        return
    base = model.get_base_model()
    name: str = base.__dict__.get("name_or_path") or ""
    if name and not Path(name).is_file():
        return
    if not path.exists():
        with staged_folder(path) as staging:
            _write_full(base, base_tensors(model), staging)
            tokenizer.save_pretrained(staging)
    name_model(base, str(path.resolve()))
    for config in model.peft_config.values():
        config.base_model_name_or_path = str(path.resolve())


def check_adapter_base(model: PreTrainedModel | PeftModel) -> None:
    """Raise ModelError unless the frozen base under the adapter equals the checkpoint that it is named after.

    An adapter is only worth saving together with the name of a base that others can load; a base that was itself
    trained in memory has none. Call this when a stage with an adapter begins, not only when it ends.
    """
    if not isinstance(model, PeftModel):
        return
    base = model.get_base_model()
    name: str = base.__dict__.get("name_or_path") or ""
    difference = "the base has no name" if not name else _difference(model, locate(name))
    if difference:
        raise ModelError(
            where="saving an adapter",
            given=f"a base that is not the checkpoint {name!r}: {difference}",
            expected="a base that can be loaded from the place it is named after",
            fix="Save with merge=True, or save the base first and load it from there before adding the adapter.",
        )


@contextmanager
def staged_folder(path: Path) -> Iterator[Path]:
    """A new folder beside `path`, moved to `path` when the block ends well and removed when it does not.

    An older folder at `path` is moved aside first and removed last, so that one complete folder exists at any time.
    Raises ModelError when the disk does.
    """
    staging: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent))
        staging.chmod(0o755)  # mkdtemp makes it private
        yield staging
        old = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.old")
        if path.exists():
            path.rename(old)
        try:
            staging.rename(path)
        except OSError:
            if old.exists():
                old.rename(path)
            raise
        shutil.rmtree(old, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        raise ModelError(
            where=str(path),
            given=f"{type(error).__name__}: {error}",
            expected="a folder that can be written",
            fix="Check free space and permissions; what was there before is untouched.",
        ) from error
    finally:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)


def _write_critic(
    critic: Policy, model: PreTrainedModel | PeftModel, tokenizer: PreTrainedTokenizerBase, folder: Path
) -> None:
    assert critic.head is not None  # a critic has one
    folder.mkdir()
    if critic.model is not model:
        write_model(critic.model, tokenizer, folder, merge=False)
    critic.head.save(folder)


def _check_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    # For some architectures transformers loads the tokenizer class it has registered, whatever the folder says.
    reloaded = read_tokenizer(folder)
    if reloaded.encode(PROBE) != tokenizer.encode(PROBE) or reloaded.chat_template != tokenizer.chat_template:
        raise ModelError(
            where=f"saving a {type(tokenizer).__name__}",
            given=f"a {type(reloaded).__name__} with other tokens or another chat template when loaded again",
            expected="the same tokens and template",
            fix="Use a tokenizer of the class that transformers registers for this architecture.",
        )


def _write_full(base: PreTrainedModel, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """A full checkpoint of the base's architecture and number format with these tensors."""
    if _has_4_bits(base):
        config = copy.deepcopy(base.config)
        del config.quantization_config  # the tensors are in full
        with torch.device("meta"):
            base = AutoModelForCausalLM.from_config(config, dtype=base.dtype)
    base.save_pretrained(folder, state_dict={name: tensor.to(base.dtype) for name, tensor in tensors.items()})


def _has_4_bits(model: nn.Module) -> bool:
    return any(is_quantised(module) for module in model.modules())


def _difference(model: PeftModel, place: Path) -> str | None:
    if not (place / "config.json").is_file():
        return "that is no transformers checkpoint"
    if _has_4_bits(model):
        return None  # 4 bits were read from there, and nothing can train them
    saved = merged_tensors(read_folder(place, model.get_base_model().dtype))
    live = base_tensors(model)
    if saved.keys() != live.keys():
        return f"{min(saved.keys() ^ live.keys())} is in only one of them"
    trained = trained_rows(model)
    for name, tensor in live.items():
        num_rows = len(saved[name]) if tensor.ndim else 0
        if not torch.equal((tensor[:num_rows] if tensor.ndim else tensor).cpu(), saved[name]):
            return f"{name} differs"
        if tensor.ndim and not trained.issuperset(range(num_rows, len(tensor))):
            return f"{name} has more rows, which the adapter does not hold"
    return None
