"""The reward of the GRPO comparison: cheap, the same for all systems, and not constant within a group."""


def parity(text: str) -> float:
    """1 if the text's bytes sum to an even number, else 0."""
    return float(sum(text.encode()) % 2 == 0)
