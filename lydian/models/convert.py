"""From an adapter to a full checkpoint and back, each verified before it takes its place.

write_full  any model, adapter merged in, as a checkpoint that transformers reads alone
unmerge     the base again, from a checkpoint into which an adapter was merged
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lydian.errors import LydianError, ModelError
from lydian.models.heads import HEAD_FILE
from lydian.models.load import base_of, is_adapter_folder, load_model, locate, wrap_with
from lydian.models.merge import merged_tensors, unmerged_tensors
from lydian.models.read import read_folder
from lydian.models.save import PROBE, staged_folder, write_model

Stored = Literal["auto", "float32", "bfloat16"]
TOLERANCE = 1e-3
"""Nats by which log-probabilities may move when an adapter is merged in float32, and by no rounding of float32 do."""

ROUNDINGS = 4
"""Units of rounding, of a matrix's largest entry, that taking an adapter back may cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A checkpoint that was written and verified.

    folder     where it lies
    dtype      the number format it is stored in
    gap        the largest difference that was found: for `write_full` of float32 weights, in nats; for `unmerge` of
               stored ones, as a share of a matrix's largest entry
    tolerance  what `gap` had to stay within
    against    what it was compared with
    rounded    the same difference in nats after rounding to `dtype`, which is as the format has it; None for `unmerge`
    """

    folder: Path
    dtype: torch.dtype
    gap: float
    tolerance: float
    against: str
    rounded: float | None


def write_full(source: str | Path, out: Path, *, dtype: Stored = "auto") -> Written:
    """Write any model as a full checkpoint: an adapter is merged into its base, a head goes along.

    source  what `load_model` takes
    out     a folder that is not there yet
    dtype   the stored format; `auto` is that of the model, or of the adapter's base

    Merging is done in float32, and compared with base and adapter side by side; what was written is read by
    transformers alone, and compared with what was to be written. Raises ModelError if log-probabilities differ by more
    than TOLERANCE, or the adapter cannot be merged; nothing is written then.
    """
    _require_free(out)
    place = locate(source)
    is_adapter = is_adapter_folder(place)
    unmerged = load_model(source, adapter="continue" if is_adapter else None)
    expected = probe_logprobs(unmerged.model, unmerged.tokenizer)
    del unmerged  # room first
    loaded = load_model(source)
    stored = stored_dtype(locate(base_of(place)) if is_adapter else place) if dtype == "auto" else getattr(torch, dtype)
    gap = _distance(probe_logprobs(loaded.model, loaded.tokenizer), expected)
    against = "base and adapter side by side" if is_adapter else "the model itself"
    _require_close(out, gap, TOLERANCE, against)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.copy_(parameter.to(stored))  # rounded, and still float32
    wanted = probe_logprobs(loaded.model, loaded.tokenizer)
    with staged_folder(out) as staging:
        write_model(loaded.model.to(stored), loaded.tokenizer, staging, merge=True)
        if (place / HEAD_FILE).is_file():
            shutil.copyfile(place / HEAD_FILE, staging / HEAD_FILE)
        found = probe_logprobs(read_folder(staging), loaded.tokenizer)
        _require_close(out, _distance(found, wanted), TOLERANCE, "what was to be written")
    rounded = _distance(found, expected)
    return Written(folder=out, dtype=stored, gap=gap, tolerance=TOLERANCE, against=against, rounded=rounded)


def unmerge(merged: str | Path, adapter: Path, out: Path) -> Written:
    """Write the base that gives the checkpoint `merged` when `adapter` is merged into it.

    Computed in float32 and stored in the checkpoint's own format. Compared with the base that the adapter names where
    that can be read, else merged again and compared with `merged`: every entry within ROUNDINGS units of rounding of
    the format, relative to its matrix's largest. Raises ModelError if it is not, or if the adapter's kind cannot be
    taken back (see `unmerged_tensors`); nothing is written then.
    """
    _require_free(out)
    loaded = load_model(merged)
    stored = stored_dtype(locate(merged))
    before = {name: tensor.clone() for name, tensor in merged_tensors(loaded.model).items()}
    wrapped = wrap_with(adapter, loaded.model)
    recovered = {name: tensor.to(stored).float() for name, tensor in unmerged_tensors(wrapped).items()}
    expected, against = _expected_base(adapter), "the base that the adapter names"
    if expected is None:
        expected, against = before, "the merged checkpoint, merged again"
    found = _merged_again(wrapped, recovered) if expected is before else recovered
    tolerance = ROUNDINGS * torch.finfo(stored).eps
    gap = max(_share(found[name], expected.get(name), before[name]) for name in found)
    _require_close(out, gap, tolerance, against)
    base: PreTrainedModel = wrapped.unload()
    base.load_state_dict(recovered, strict=False)  # tied names appear once
    with staged_folder(out) as staging:
        write_model(base.to(stored), loaded.tokenizer, staging, merge=True)
    return Written(folder=out, dtype=stored, gap=gap, tolerance=tolerance, against=against, rounded=None)


@torch.no_grad()
def probe_logprobs(model: PreTrainedModel | PeftModel, tokenizer: PreTrainedTokenizerBase) -> Tensor:
    """log π of the tokens of a text of numbers, blanks, words and signs, in float32, each after those before it."""
    tokens = torch.tensor([tokenizer.encode(PROBE)])
    logprobs = model.eval()(input_ids=tokens).logits.float().log_softmax(-1)[0, :-1]
    return logprobs.gather(1, tokens[0, 1:, None])[:, 0]


def stored_dtype(place: Path) -> torch.dtype:
    """The format of a checkpoint's numbers as its config states it; float32 where it states none, as for a GGUF file.

    Raises ModelError for a format other than float32, float16 and bfloat16.
    """
    config = place / "config.json"
    facts = json.loads(config.read_text()) if config.is_file() else {}
    name = facts.get("dtype") or facts.get("torch_dtype") or "float32"
    if name not in ("float32", "float16", "bfloat16"):
        raise ModelError(
            where=str(config),
            given=f"dtype {name!r}",
            expected="float32, float16 or bfloat16",
            fix="Pass --dtype float32.",
        )
    return getattr(torch, name)


def _expected_base(adapter: Path) -> dict[str, Tensor] | None:
    try:
        return merged_tensors(load_model(base_of(adapter)).model)
    except LydianError:  # it names none, or that is not here: the other comparison remains
        return None


def _merged_again(wrapped: PeftModel, recovered: dict[str, Tensor]) -> dict[str, Tensor]:
    for name, parameter in wrapped.get_base_model().named_parameters():
        if name.replace(".base_layer", "") in recovered:
            parameter.data.copy_(recovered[name.replace(".base_layer", "")])
    return merged_tensors(wrapped)


def _share(found: Tensor, expected: Tensor | None, before: Tensor) -> float:
    """The largest difference, as a share of the largest entry before or after; infinite where shapes differ."""
    if expected is None or expected.shape != found.shape:
        return float("inf")
    largest = max(expected.abs().max().item(), before.abs().max().item())
    return (found - expected).abs().max().item() / largest if largest else 0.0


def _distance(found: Tensor, expected: Tensor) -> float:
    return (found - expected).abs().max().item()


def _require_close(out: Path, gap: float, tolerance: float, against: str) -> None:
    if not gap <= tolerance:
        raise ModelError(
            where=str(out),
            given=f"weights that differ by {gap:.3g} from {against}",
            expected=f"at most {tolerance:.3g}",
            fix="Nothing was written. Check that adapter and checkpoint belong together.",
        )


def _require_free(out: Path) -> None:
    if out.exists():
        raise ModelError(
            where=str(out), given="a folder or file that is there", expected="a new name", fix="Choose another --out."
        )
