"""Lydian: post-training language models with numbers you can trust.

The public names; each is imported from its module when first used, so that `import lydian` costs nothing.

>>> import lydian
>>> lydian.Sampling(temperature=0.5).truncates_support
False
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "lydian.errors": ("LydianError",),
    "lydian.data.problems": ("Message", "Problem", "Conversation", "Preference"),
    "lydian.data.rows": ("load_problems", "load_conversations", "load_preferences"),
    "lydian.data.trajectory": ("Sampling",),
    "lydian.text.template": ("make_template",),
    "lydian.text.encode": ("encode_items",),
    "lydian.models.load": ("load_model",),
    "lydian.models.adapters": ("AdapterSettings",),
    "lydian.models.policy": ("Policy",),
    "lydian.models.save": ("save_model",),
    "lydian.verifiers.verifier": ("make_verifier",),
    "lydian.rollout.local": ("LocalEngine",),
    "lydian.training.algorithms": ("ALGORITHMS",),
    "lydian.training.settings": ("StageSettings",),
    "lydian.training.optim": ("OptimiserSettings",),
    "lydian.training.learner": ("Learner",),
    "lydian.training.collect": ("Corpus", "Rollouts"),
    "lydian.training.loop": ("train",),
    "lydian.evaluation.benchmark": ("Benchmark",),
    "lydian.evaluation.evaluate": ("evaluate",),
    "lydian.evaluation.compare": ("compare",),
    "lydian.recipes.load": ("load_recipe",),
    "lydian.recipes.run": ("run_recipe",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'lydian' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
