"""A data pipeline with pandas: files of sales become one table of sums."""

import hashlib

import numpy as np
import pandas as pd

import outlive


def read(number):
    """Returns one day's sales, as a file would have them."""
    draw = np.random.default_rng(number)
    shops, goods = draw.integers(0, 50, 20_000), draw.integers(0, 20, 20_000)
    return pd.DataFrame({"shop": shops, "good": goods, "price": draw.random(20_000)})


work = {"sums": pd.DataFrame({"price": []}), "day": 0}
job = outlive.open("ckpt").job("sales", every_s=0.1)
job.restore(into=work)
while work["day"] < 200:
    found = read(work["day"]).groupby(["shop", "good"]).sum()
    work["sums"] = work["sums"].add(found, fill_value=0.0) if work["day"] else found
    work["day"] += 1
    job.save(work)
    if work["day"] % 10 == 0:
        print("day", work["day"], flush=True)
print("result", hashlib.sha256(work["sums"].to_csv().encode()).hexdigest())
