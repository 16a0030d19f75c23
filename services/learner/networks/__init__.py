"""Networks: torso, optional memory, policy and baseline; made by name with `registry.create`."""
