"""Answers compared as mathematics: notation, structure, units, numbers, and at the end sympy."""
