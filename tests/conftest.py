"""What holds for every test: no model hub, and shapes that are checked at each call."""

from __future__ import annotations

import os

from jaxtyping import install_import_hook

os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads only wait for each other on models this small
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

# Must run before these packages are first imported. An int may stand for a float, as for the static type checker.
install_import_hook(
    ["lydian.objectives", "lydian.data.forest", "lydian.models"],
    "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))",
)
