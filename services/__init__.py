import os

# gRPC's C core reads this once, when grpc is first imported, and every process of ours imports this
# package before. Its older poller hands a message over between fewer threads than its event engine
# does: a stream's server spends a quarter less CPU time on a message (docs/architecture.md).
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener,-event_engine_client")
