"""A data pipeline in plain Python: counts which words follow which."""

import hashlib
import itertools
import random
from collections import Counter, defaultdict

import outlive


def documents(begin):
    """Yields texts from a number on, as a large collection would."""
    for number in range(begin, 200):
        draw = random.Random(number)
        yield [f"word{int(draw.expovariate(0.02))}" for _ in range(3000)]


index = {"after": defaultdict(Counter), "documents": 0}
job = outlive.open("ckpt").job("words", every_s=0.1)
job.restore(into=index)
for words in documents(index["documents"]):
    for one, next_one in itertools.pairwise(words):
        index["after"][one][next_one] += 1
    index["documents"] += 1
    job.save(index)
    if index["documents"] % 10 == 0:
        print("documents", index["documents"], flush=True)
text = repr(sorted((word, sorted(after.items())) for word, after in index["after"].items()))
print("result", hashlib.sha256(text.encode()).hexdigest())
