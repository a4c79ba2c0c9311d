"""The WSGI entry: the data plane straight from here, everything else through Django.

Loading this module in a server process starts the runtime: it takes the ledger lock, or stands by for it,
reads the active snapshot and starts its threads.
"""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "anvil_site.settings")
django_application = get_wsgi_application()

from anvil_site.runtime import get_runtime  # noqa: E402  # models need Django to be set up

get_runtime().start()
application = get_runtime().data_plane(fallback=django_application)
