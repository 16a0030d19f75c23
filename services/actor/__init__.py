"""The actor service: steps environments, and asks the learner for their actions."""
