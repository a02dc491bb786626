"""What every objective returns."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Loss(NamedTuple):
    """A loss per site, before weighting; the learner minimises Σ weight · loss, and no other reduction exists.

    loss        [n] one number a site. A loss of a whole sequence or pair is repeated at each of its sites; the
                normaliser's weights (1 / (units · sites of the unit)) then make the sum the mean over units.
    statistics  name → [n], detached; reported as plain means over sites
    """

    loss: Tensor
    statistics: dict[str, Tensor]
