"""Verifiers: is a completion right? Every module here and in the folders registers what it defines when imported."""

import importlib
import pkgutil

from lydian.verifiers.verifier import VERIFIERS, Example, Verifier, make_verifier, register, verify_all

for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    importlib.import_module(_module.name)

__all__ = ["VERIFIERS", "Example", "Verifier", "make_verifier", "register", "verify_all"]
