"""Verifiers: is a completion right? Every module in this package registers what it defines when it is imported."""

import importlib
import pkgutil

from lydian.verifiers.verifier import VERIFIERS, Example, Verifier, make_verifier, register, verify_all

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["VERIFIERS", "Example", "Verifier", "make_verifier", "register", "verify_all"]
