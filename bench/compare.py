"""Compares outlive with its peers on this machine; `make bench` runs it. Try `--help`."""

import sys

from peers.main import main

if __name__ == "__main__":
    sys.exit(main())
