//! Rules that keep the newest checkpoint of each hour, day, week, month or year, in UTC.
//!
//! As in restic: the last N periods that have a checkpoint keep one each, and if fewer than N have
//! one, the oldest checkpoint stays, too. So the oldest waits until its year has a successor.

use std::collections::BTreeSet;

/// A period of the calendar.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Period {
    /// An hour.
    Hour,
    /// A day.
    Day,
    /// A week, from Monday to Sunday.
    Week,
    /// A month.
    Month,
    /// A year.
    Year,
}

impl Period {
    /// All periods, with the words of their rules.
    pub const ALL: [(&'static str, Period); 5] = [
        ("hourly", Period::Hour),
        ("daily", Period::Day),
        ("weekly", Period::Week),
        ("monthly", Period::Month),
        ("yearly", Period::Year),
    ];

    /// Returns the period whose rule begins with a word.
    pub fn of_rule(word: &str) -> Option<Period> {
        Period::ALL.into_iter().find(|(rule, _)| *rule == word).map(|(_, period)| period)
    }

    fn noun(self) -> &'static str {
        match self {
            Period::Hour => "hour",
            Period::Day => "day",
            Period::Week => "week",
            Period::Month => "month",
            Period::Year => "year",
        }
    }

    /// Returns the number of the period with a time; later periods have greater numbers.
    fn number(self, unix_ns: u64) -> u64 {
        let seconds = unix_ns / 1_000_000_000;
        let days = seconds / 86_400;
        match self {
            Period::Hour => seconds / 3600,
            Period::Day => days,
            // 1970 began on a Thursday.
            Period::Week => (days + 3) / 7,
            Period::Month => {
                let (year, month, _) = date_of_days(days);
                year * 12 + month
            }
            Period::Year => date_of_days(days).0,
        }
    }
}

/// Returns the reasons for which a rule keeps checkpoints, by their place in `times_ns`: their
/// times, newest epoch first. Epochs order them, and not times: a wrong time takes the place of one
/// period, and does no other harm.
pub fn kept_by(period: Period, count: u64, times_ns: &[u64]) -> Vec<(usize, String)> {
    let mut kept = Vec::new();
    let mut seen = BTreeSet::new();
    let noun = period.noun();
    for (at, time_ns) in times_ns.iter().enumerate() {
        let found = seen.len() as u64;
        if found == count {
            break;
        }
        if seen.insert(period.number(*time_ns)) {
            kept.push((at, format!("the newest of its {noun}")));
        } else if at + 1 == times_ns.len() {
            let have = if found == 1 { " has" } else { "s have" };
            kept.push((at, format!("the oldest, as only {found} {noun}{have} one")));
        }
    }
    kept
}

/// Returns year, month and day of a number of days since 1970-01-01.
pub fn date_of_days(days: u64) -> (u64, u64, u64) {
    // Converts days to a date by eras of 400 years that begin in March (H. Hinnant,
    // "chrono-Compatible Low-Level Date Algorithms").
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_S: u64 = 3600;
    const DAY_S: u64 = 86_400;

    /// Returns the places that a rule keeps of times in seconds, newest first.
    fn places(period: Period, count: u64, times_s: &[u64]) -> Vec<usize> {
        let times: Vec<u64> = times_s.iter().map(|s| s * 1_000_000_000).collect();
        kept_by(period, count, &times).into_iter().map(|(at, _)| at).collect()
    }

    #[test]
    fn each_period_keeps_its_newest() {
        let times = [10 * HOUR_S + 5, 10 * HOUR_S, 9 * HOUR_S + 3599, 9 * HOUR_S, 2 * HOUR_S, 1];
        assert_eq!(places(Period::Hour, 1, &times), [0]);
        assert_eq!(places(Period::Hour, 2, &times), [0, 2]);
        // Hours without a checkpoint do not count.
        assert_eq!(places(Period::Hour, 3, &times), [0, 2, 4]);
        assert_eq!(places(Period::Hour, 9, &times), [0, 2, 4, 5]);
        assert_eq!(places(Period::Hour, u64::MAX, &times), [0, 2, 4, 5]);
        assert_eq!(places(Period::Hour, 0, &times), [0_usize; 0]);
        assert_eq!(places(Period::Day, 1, &[]), [0_usize; 0]);
    }

    #[test]
    fn the_oldest_stays_until_there_are_enough_periods() {
        let days = [3 * DAY_S + 9, 3 * DAY_S + 1, 3 * DAY_S];
        assert_eq!(places(Period::Day, 1, &days), [0], "one day was asked for, and has one");
        assert_eq!(places(Period::Day, 2, &days), [0, 2]);
        let why = kept_by(Period::Day, 2, &days.map(|s| s * 1_000_000_000));
        assert_eq!(why[1].1, "the oldest, as only 1 day has one");
        let two = [9 * DAY_S, 3 * DAY_S + 1, 3 * DAY_S].map(|s| s * 1_000_000_000);
        assert_eq!(kept_by(Period::Day, 3, &two)[2].1, "the oldest, as only 2 days have one");
        assert_eq!(kept_by(Period::Day, 2, &two).len(), 2);
        // The clock has jumped back and forth: each day has one place.
        assert_eq!(places(Period::Day, 2, &[9 * DAY_S, DAY_S, 9 * DAY_S, DAY_S, 5]), [0, 1]);
    }

    #[test]
    fn periods_begin_as_those_of_the_calendar() {
        let seconds = |days: u64| days * DAY_S;
        for (period, first) in [
            // Monday, 2024-01-01; 1 March and 1 January of a leap year.
            (Period::Week, seconds(19_723)),
            (Period::Month, seconds(19_783)),
            (Period::Year, seconds(19_723)),
            (Period::Day, seconds(19_723)),
        ] {
            let number = |s: u64| period.number(s * 1_000_000_000);
            assert_eq!(number(first), number(first - 1) + 1, "{period:?}");
            assert_eq!(number(first), number(first + DAY_S - 1), "{period:?}");
        }
        let week = |day: u64| Period::Week.number(seconds(day) * 1_000_000_000);
        assert_eq!((week(0), week(3), week(4)), (0, 0, 1), "Thursday, Sunday and Monday");
        // December and the January after it.
        let month = |day: u64| Period::Month.number(seconds(day) * 1_000_000_000);
        assert_eq!(month(365), month(364) + 1);
        for period in Period::ALL.map(|(_, period)| period) {
            assert!(period.number(u64::MAX) > period.number(0), "{period:?}");
        }
        assert_eq!(Period::of_rule("weekly"), Some(Period::Week));
        assert_eq!(Period::of_rule("week"), None);
    }

    #[test]
    fn days_are_dates() {
        for (days, date) in [
            (0, (1970, 1, 1)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (19_723, (2024, 1, 1)),
            (20_778, (2026, 11, 21)),
        ] {
            assert_eq!(date_of_days(days), date);
        }
    }
}
