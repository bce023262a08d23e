"""Measures useful work while a killer kills a program: `python bench/useful_work.py --help`."""

from useful.main import main

if __name__ == "__main__":
    main()
