"""Google Research Football, stepped directly on its engine.

`environment` is what the actor's workers see; `game` steps the engine, `representation` and
`reward` turn what it shows into observations and rewards, `engine` finds and loads it.
"""

from services.actor.environments.football.environment import FootballEnvironment

__all__ = ["FootballEnvironment"]
