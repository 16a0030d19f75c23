"""The learner processes of a local run: one, or several that train one network together."""

from __future__ import annotations

import json
import pathlib

from services.local.ports import free_port
from services.local.process import Service
from services.shared import config


class Learners:
    """See the module.

    Attributes:
      addresses: host:port of each, the chief first.
      chief: The one that writes the checkpoints; the run ends with it.
      others: The rest.
    """

    def __init__(
        self,
        experiment: config.Experiment,
        document: pathlib.Path,
        run: pathlib.Path,
        count: int,
        arguments: list[str],
    ) -> None:
        """Starts them.

        Args:
          experiment: What is run.
          document: Its file.
          run: The run's folder, for logs.
          count: How many.
          arguments: Further ones, of all learners.
        """
        ports = [free_port() for _ in range(2 * count)]
        self.addresses = [f"127.0.0.1:{port}" for port in ports[:count]]
        peers = [f"127.0.0.1:{port}" for port in ports[count:]]
        services = []
        for index, address in enumerate(self.addresses):
            settings = ["--set=learner.metrics_port=0"] if index else []
            command = [
                *("-m", "services.learner", "--child", f"--experiment={document}"),
                *(f"--set=learner.address={address}", *arguments, *settings),
            ]
            # Where TensorFlow's collectives look for who else there is.
            task = {"cluster": {"worker": peers}, "task": {"type": "worker", "index": index}}
            environment = {"TF_CONFIG": json.dumps(task)} if count > 1 else {}
            name = f"learner-{index}" if index else "learner"
            services.append(Service(name, command, run / f"{name}.log", environment))
        self.chief, *self.others = services

    def addresses_for(self, actor: int) -> str:
        """What an actor gets as `actor.learner_address`: each actor begins with another one."""
        first = actor % len(self.addresses)
        return ",".join(self.addresses[first:] + self.addresses[:first])
