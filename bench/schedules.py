"""When the ranks of a program should write: `python bench/schedules.py --help`."""

from striped.main import main

if __name__ == "__main__":
    main()
