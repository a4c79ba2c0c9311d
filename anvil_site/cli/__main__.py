"""``python -m anvil_site.cli``: the same as the ``anvil`` script."""

import sys

from anvil_site.cli import main

sys.exit(main())
