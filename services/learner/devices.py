"""How TensorFlow uses this machine; called once, before anything else touches TensorFlow."""

from __future__ import annotations

import tensorflow as tf

from services.shared.cores import usable_cores


def configure(threads: int | None) -> None:
    """Sets thread pools.

    Args:
      threads: Threads inside one operation; None: one for each usable core.
    """
    usable = usable_cores()
    tf.config.threading.set_intra_op_parallelism_threads(threads or usable)
    # With one inter-op thread, inference would queue behind a whole training step.
    tf.config.threading.set_inter_op_parallelism_threads(max(4, usable))
