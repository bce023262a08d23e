//! Numbers of tables and pictures.

/// Returns a time in the unit that suits it.
pub fn time(ms: f64) -> String {
    match ms {
        ms if !ms.is_finite() => "–".to_owned(),
        ms if ms < 1.0 => format!("{} us", (ms * 1000.0).round()),
        ms if ms < 10.0 => format!("{} ms", (ms * 100.0).round() / 100.0),
        ms if ms < 1000.0 => format!("{} ms", (ms * 10.0).round() / 10.0),
        ms if ms < 600_000.0 => format!("{} s", (ms / 10.0).round() / 100.0),
        ms if ms < 36_000_000.0 => format!("{:.0} min", ms / 60_000.0),
        ms => format!("{:.0} h", ms / 3_600_000.0),
    }
}

/// Returns a slowdown, with fewer digits if it is large.
pub fn factor(slowdown: f64) -> String {
    match slowdown {
        small if small < 100.0 => format!("{small:.2}"),
        large => format!("{large:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let times = [0.04, 1.0, 3.515, 151.04, 3511.0, 1e6, 1e8, f64::NAN].map(time);
        assert_eq!(times, ["40 us", "1 ms", "3.52 ms", "151 ms", "3.51 s", "17 min", "28 h", "–"]);
        assert_eq!([1.0, 99.4, 1234.5].map(factor), ["1.00", "99.40", "1234"]);
    }
}
