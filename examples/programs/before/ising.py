"""The Ising model by Metropolis' rule, with the global generator of NumPy."""

import hashlib

import numpy as np


class Ising:
    """A square of spins, and what was measured."""

    def __init__(self, size):
        """Draws the spins."""
        np.random.seed(1)
        self.spins = np.random.choice([-1, 1], (size, size))
        self.energies = []

    def sweep(self):
        """Tries to flip each spin once."""
        parity = np.add.outer(np.arange(len(self.spins)), np.arange(len(self.spins))) % 2
        for color in (0, 1):
            near = sum(np.roll(self.spins, by, axis) for by in (-1, 1) for axis in (0, 1))
            flips = np.random.random(self.spins.shape) < np.exp(-0.9 * self.spins * near)
            self.spins[flips & (parity == color)] *= -1
        near = np.roll(self.spins, 1, 0) + np.roll(self.spins, 1, 1)
        self.energies.append(float(-(self.spins * near).mean()))


model = Ising(128)
while len(model.energies) < 1000:
    model.sweep()
    if len(model.energies) % 50 == 0:
        print("sweep", len(model.energies), flush=True)
print("result", hashlib.sha256(repr(model.energies).encode()).hexdigest())
