"""A genetic algorithm in plain Python: the shortest tour through towns."""

import hashlib
import math
import random

import outlive


def length(tour):
    """Returns the length of a closed tour."""
    return sum(
        math.dist(TOWNS[a], TOWNS[b]) for a, b in zip(tour, tour[1:] + tour[:1], strict=True)
    )


def child(tour):
    """Returns a tour in which one part is turned around."""
    begin, end = sorted(random.sample(range(len(tour)), 2))
    return tour[:begin] + tour[begin:end][::-1] + tour[end:]


random.seed(1)
TOWNS = [(random.random(), random.random()) for _ in range(60)]
world = {"tours": [random.sample(range(60), 60) for _ in range(40)], "generation": 0}
world["rng"] = outlive.rng()
job = outlive.open("ckpt").job("evolve", every_s=0.1)
job.restore(into=world)
while world["generation"] < 1500:
    world["tours"] += [child(random.choice(world["tours"])) for _ in range(40)]
    world["tours"] = sorted(world["tours"], key=length)[:40]
    world["generation"] += 1
    job.save(world)
    if world["generation"] % 50 == 0:
        print("generation", world["generation"], flush=True)
print("result", hashlib.sha256(repr(world["tours"]).encode()).hexdigest())
