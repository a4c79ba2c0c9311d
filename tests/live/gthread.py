"""gunicorn's own gthread worker, for the tests that run the relay's blocking driver.

It gives the data plane a thread per request and no way to let a stream go, as any plain WSGI server does.
"""

import os

bind = os.environ["ANVIL_BIND"]
workers = 1
worker_class = "gthread"
threads = 64
graceful_timeout = 2
control_socket_disable = True
