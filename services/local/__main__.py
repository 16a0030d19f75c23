"""`python -m services.local` is `seedpod train`."""

import sys

from services.local.cli import main

sys.exit(main(["train", *sys.argv[1:]]))
