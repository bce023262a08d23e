"""Compares schedules for the writes of ranks: `python bench/schedules.py --help`."""

from striped.main import main

if __name__ == "__main__":
    main()
