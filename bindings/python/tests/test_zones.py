"""Time zones of `pytz` and `dateutil`, on this machine and on others."""

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dateutil.tz
import pytest
import pytz
from dateutil.tz import tzstr

import outlive
from outlive._kinds._zones import zone_for

SUMMER, PAST = datetime.datetime(2020, 7, 1, 12), datetime.datetime(1890, 7, 1, 12)
ZONES: dict[str, Any] = {
    "pytz.utc": pytz.utc,
    "a zone of pytz": pytz.timezone("Europe/Berlin"),
    "its summer time": pytz.timezone("Europe/Berlin").localize(SUMMER).tzinfo,
    "its local mean time": pytz.timezone("Europe/Berlin").localize(PAST).tzinfo,
    "a zone of pytz that never changed": pytz.timezone("Etc/GMT+5"),
    "an offset of pytz": pytz.FixedOffset(90),
    "dateutil.tz.UTC": dateutil.tz.UTC,
    "a zone of dateutil": dateutil.tz.gettz("Europe/Berlin"),
    "the local zone": dateutil.tz.tzlocal(),
    "a rule": tzstr("EST5EDT"),
    "a rule to the east": tzstr("UTC+3"),
    "a rule as in POSIX": tzstr("UTC+3", posix_offset=True),
}


@pytest.mark.parametrize("what", ZONES)
def test_a_zone_comes_back(job: outlive.Job, what: str) -> None:
    zone = ZONES[what]
    want = [zone, SUMMER.replace(tzinfo=zone), PAST.replace(tzinfo=zone)]
    job.save(want, wait=True)
    got = job.restore()
    assert got == want
    for mine, its in zip(got[1:], want[1:], strict=True):
        assert mine.utcoffset() == its.utcoffset()
        assert mine.tzname() == its.tzname()
    if what.startswith(("pytz", "a zone of pytz", "its")):
        assert got[0] is zone


def test_each_zone_of_pytz(job: outlive.Job) -> None:
    zones = []
    for name in pytz.all_timezones:
        whole: Any = pytz.timezone(name)
        zones += [whole, *getattr(whole, "_tzinfos", {}).values()]
    job.save(zones, wait=True)
    assert all(got is zone for got, zone in zip(job.restore(), zones, strict=True))


def test_other_data_of_pytz_keep_the_time() -> None:
    # As another version may have had them.
    hour = 3_600_000_000
    known = zone_for(("pytz", "Europe/Berlin", 2 * hour, hour, "CEST"))
    assert known is SUMMER.astimezone(pytz.timezone("Europe/Berlin")).tzinfo
    odd: Any = zone_for(("pytz", "Europe/Berlin", 4 * hour, 0, "ODD"))
    moment = SUMMER.replace(tzinfo=odd)
    assert moment.utcoffset() == datetime.timedelta(hours=4)
    assert odd.normalize(moment).utcoffset() == datetime.timedelta(hours=2)
    assert zone_for(("pytz", "UTC", 0, 0, "UTC")) is pytz.utc
    with pytest.raises(Exception, match=r"no time zone .*'Etc/GMT\+5'"):
        zone_for(("pytz", "Etc/GMT+5", hour, 0, "X"))


SAVES = """
os.environ["TZ"] = "Europe/Berlin"
time.tzset()
import datetime, dateutil.tz
moment = datetime.datetime(2020, 7, 1, tzinfo=dateutil.tz.tzlocal())
outlive.open(sys.argv[1]).job("job").save({"moment": moment}, wait=True)
"""
RESTORES = """
os.environ["TZ"] = sys.argv[2]
time.tzset()
try:
    print(outlive.open(sys.argv[1]).job("job").restore()["moment"].isoformat())
except outlive.InvalidError as error:
    print(error)
"""


def test_the_local_zone_of_another_machine_is_refused(
    folder: Path, run: Callable[..., str]
) -> None:
    run(SAVES, folder)
    assert run(RESTORES, folder, "Europe/Paris") == "2020-07-01T00:00:00+02:00"
    told = run(RESTORES, folder, "America/New_York")
    assert "'moment'" in told
    assert "CET/CEST at 1:00:00 and 2:00:00 from UTC: set the environment variable TZ" in told
