"""The network of Google Research Football."""

from __future__ import annotations

from collections.abc import Sequence

from services.learner.networks import heads, image, residual
from services.shared import specs


class Football(image.ImageNetwork):
    """Four residual sections and a dense layer; no memory, no previous action, no reward.

    Kurach et al. 2019, Google Research Football (arXiv 1907.11180), section 4.1, as SEED RL
    (Espeholt et al. 2019, arXiv 1910.06591) trains it: IMPALA's deep network with one section
    more. Made for the stacked super mini map, [72, 96, 16].
    """

    def __init__(
        self,
        environment_spec: specs.EnvironmentSpec,
        head: heads.Head,
        mixed_precision: bool = False,
        *,
        channels: Sequence[int] = (16, 32, 32, 32),
        dense_size: int = 256,
        lstm_size: int | None = None,
        layer_norm: bool = False,
    ) -> None:
        """See `image.ImageNetwork`; `channels` has a number for each section.

        The paper's network has no `layer_norm`.
        """
        super().__init__(
            environment_spec,
            head,
            mixed_precision,
            convolutions=residual.Sections(channels),
            dense_size=dense_size,
            lstm_size=lstm_size,
            layer_norm=layer_norm,
        )
