"""gunicorn's own gthread worker: a thread a stream, and the relay's blocking driver behind it."""

import os

bind = os.environ["ANVIL_BIND"]
workers = 1
worker_class = "gthread"
threads = int(os.environ["ANVIL_MAX_CONCURRENCY"])
worker_connections = 2 * threads
graceful_timeout = 4
control_socket_disable = True
