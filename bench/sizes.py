"""Sizes on the command lines of the benches."""

PAGE_BYTES = 4096
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def size(text: str) -> int:
    """Returns a number of bytes from a text such as ``1GiB``."""
    for unit, factor in UNITS.items():
        if text.endswith(unit):
            return int(float(text.removesuffix(unit)) * factor)
    return int(text)
