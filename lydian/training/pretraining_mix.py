"""PTX: the likelihood of given text beside any objective, so that what the base model knew is not trained away."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import Any

from lydian.data.forest import Item
from lydian.models.policy import Policy
from lydian.models.weights import Weights
from lydian.objectives.likelihood import nll
from lydian.training.collect import permutation
from lydian.training.learner import Batching, Learner
from lydian.training.mixture import mixture
from lydian.training.optim import OptimiserSettings
from lydian.training.terms import PretrainingLoss


class PretrainingMix:
    """A learner whose every step also has a batch of given text, loss + coef · mean NLL of the text's trained tokens.

    learner   that of the objective; its optimiser makes the step
    texts     sequences of given text, gone through in one seeded order after another
    settings  weight and size of a batch of text
    seed      of the orders
    batching  token budgets of forward passes

    Statistics: ptx_loss, the text's mean NLL in nats a token, before its weight. A step without text has no meaning:
    raises ValueError for no texts.
    """

    def __init__(
        self, learner: Learner, texts: Seq[Item], settings: PretrainingLoss, *, seed: int, batching: Batching
    ) -> None:
        if not texts:
            raise ValueError("PretrainingMix: no texts")
        self.learner = learner
        self._texts = texts
        self._settings = settings
        self._seed = seed
        self._num_batches = 0
        self._reader = Learner(  # adds gradients to the same parameters, and never steps
            learner.policy,
            objective=mixture({nll: settings.coef}),
            normaliser="token_mean",
            optimiser=OptimiserSettings(learning_rate=0.0),
            batching=batching,
        )

    @property
    def policy(self) -> Policy:
        """The policy that is trained and sampled from."""
        return self.learner.policy

    @property
    def version(self) -> int:
        """The weight version last minted."""
        return self.learner.version

    def with_fixed_policies(self, items: Seq[Item], *, num_steps: int) -> list[Item]:
        """As the learner's; text needs no fixed policy."""
        return self.learner.with_fixed_policies(items, num_steps=num_steps)

    def accumulate(self, items: Seq[Item]) -> dict[str, float]:
        """Adds the gradient of the step's items and of the next batch of text."""
        statistics = self.learner.accumulate(items)
        read = self._reader.accumulate(self.batch(self._num_batches))
        self._num_batches += 1
        return statistics | {"ptx_loss": read["nll_loss"]}

    def batch(self, index: int) -> list[Item]:
        """The texts of a step, fewer at the end of an order: a text stands once in it."""
        size = min(self._settings.batch_size, len(self._texts))
        per_order = -(-len(self._texts) // size)
        order = permutation(len(self._texts), self._seed, "ptx", index // per_order)
        start = index % per_order * size
        return [self._texts[int(i)] for i in order[start : start + size]]

    def step(self, progress: float) -> dict[str, float]:
        """Applies and clears both gradients."""
        return self.learner.step(progress)

    def publish(self) -> Weights:
        """Mints the next version of the weights."""
        return self.learner.publish()

    def weights(self) -> Weights:
        """The current weights under the version last minted."""
        return self.learner.weights()

    def restart(self) -> None:
        """Restarts the learner; the text goes on."""
        self.learner.restart()

    def reset_reference(self) -> None:
        """Resets the learner's reference."""
        self.learner.reset_reference()

    def state(self) -> dict[str, Any]:
        """The learner's state, and how much text was read."""
        return {"learner": self.learner.state(), "num_batches": self._num_batches}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` gave."""
        self.learner.load_state(state["learner"])
        self._num_batches = state["num_batches"]
