//! Numbers on command lines.

/// Parses a size: a number, perhaps followed by KiB, MiB, GiB or their first letters, or by kB, MB or
/// GB, which are powers of 1000.
pub fn size(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        _ => return Err("give a number of bytes, or a number with KiB, MiB or GiB".to_owned()),
    };
    let number: u64 =
        number.parse().map_err(|_| "a size must begin with a whole number".to_owned())?;
    number.checked_mul(factor).ok_or_else(|| "the size is too large".to_owned())
}

/// Parses a number from `least` to `most`.
pub fn between(text: &str, least: f64, most: f64) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(format!("give a number from {least} to {most}")),
    }
}

/// Parses a part of 100, above 0.
pub fn percent(text: &str) -> Result<f64, String> {
    between(text.trim_end_matches('%'), 0.001, 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [
            ("4096", 4096),
            ("64KiB", 65_536),
            ("4MiB", 4 << 20),
            ("1g", 1 << 30),
            ("2 M", 2 << 20),
            ("5GB", 5_000_000_000),
            ("200 kB", 200_000),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "MiB", "-1", "4TB", "1.5MiB", "99999999999GiB"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
