"""Measures storage nodes on slow disks: `python bench/nodes.py --help`."""

from staging.main import main

if __name__ == "__main__":
    main()
