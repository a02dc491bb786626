"""Commands that turn trained models into checkpoints of another form: merge, unmerge, export."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lydian.errors import InputError

if TYPE_CHECKING:
    from lydian.models.convert import Written

Out = Annotated[Path, typer.Option(help="The new folder.")]
Dtype = Annotated[Literal["auto", "float32", "bfloat16"], typer.Option(help="Stored numbers; auto: as the base's are.")]


def merge(
    adapter: Annotated[str, typer.Argument(metavar="ADAPTER", help="A folder with only an adapter, or a hub id.")],
    out: Out,
    dtype: Dtype = "auto",
) -> None:
    """Merge an adapter into its base and write a full checkpoint.

    What was written is read again by transformers alone and compared with base and adapter side by side.
    """
    from lydian.models.convert import write_full
    from lydian.models.load import is_adapter_folder, locate

    if not is_adapter_folder(locate(adapter)):
        _refuse(adapter, "no adapter", "a folder with adapter_config.json and no model", "It is a full model already.")
    _say(write_full(adapter, out, dtype=dtype), "nats")


def unmerge(
    merged: Annotated[str, typer.Argument(metavar="MERGED", help="A checkpoint that an adapter was merged into.")],
    adapter: Annotated[Path, typer.Option(help="The folder of that adapter.")],
    out: Out,
) -> None:
    """Take an adapter out of a merged checkpoint and write the base.

    Compared with the base that the adapter names, where it can be read; else merged again and compared with MERGED.
    """
    from lydian.models.convert import unmerge as take_out

    _say(take_out(merged, adapter, out), "of a matrix's largest entry")


def export(
    name: Annotated[str, typer.Argument(metavar="RUN[:STAGE]", help="A run's last stage, or the stage that is named.")],
    out: Out,
    dtype: Dtype = "auto",
) -> None:
    """Write the model of a stage of a run as a full checkpoint.

    Any adapter is merged; transformers alone can load the folder.
    """
    from lydian.models.convert import write_full

    _say(write_full(stage_model(name), out, dtype=dtype), "nats")


def stage_model(name: str) -> Path:
    """The folder of the model that RUN:STAGE trained, or of RUN's last stage. Raises InputError."""
    folder, _, stage = name.rpartition(":")
    run = Path(folder) if folder and Path(folder).is_dir() else Path(name)
    models = sorted(path for path in (run / "models").glob("[0-9][0-9]_*") if path.is_dir())
    stages = {path.name[3:]: path for path in models}
    if run == Path(name):
        stage = models[-1].name[3:] if models else ""
    if stage not in stages:
        _refuse(
            name,
            f"a run without a model of {stage!r}" if stages else "no run with a trained model",
            f"one of the stages {', '.join(stages)}" if stages else "the folder of a run, with models/01_…",
            "Name a stage as RUN:STAGE.",
        )
    return stages[stage]


def _say(written: Written, unit: str) -> None:
    dtype = str(written.dtype).removeprefix("torch.")
    typer.echo(f"written to  {written.folder} ({dtype})")
    typer.echo(f"verified    {written.gap:.2g} {unit} from {written.against}; allowed {written.tolerance:.2g}")
    if written.rounded is not None:
        typer.echo(f"as stored   {written.rounded:.2g} {unit} from it, rounded to {dtype}")


def _refuse(where: str, given: str, expected: str, fix: str) -> None:
    raise InputError(where=where, given=given, expected=expected, fix=fix)
