//! Names of records on media that name them by text: `log/JOB/NUMBER.record`.

use outlive_types::JobName;

/// Returns the folder of a job's records, such as `log/heat`.
pub fn job_folder(job: &JobName) -> String {
    format!("log/{}", job.escaped())
}

/// Returns the name of a record in its folder: 16 hexadecimal digits and `.record`.
pub fn record_name(number: u64) -> String {
    format!("{number:016x}.record")
}

/// Returns the number in such a name; `None` for any other name, which is no record.
pub fn record_number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".record")?;
    let number = u64::from_str_radix(digits, 16).ok()?;
    (number > 0 && record_name(number) == name).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_names_have_numbers() {
        assert_eq!(record_number(&record_name(0x2a)), Some(0x2a));
        assert_eq!(record_name(0x2a), "000000000000002a.record");
        for other in [
            "000000000000002A.record",
            "2a.record",
            "0000000000000000.record",
            "+00000000000002a.record",
            "000000000000002a",
            "000000000000002a.recor",
            "0000000000000002a.record",
        ] {
            assert_eq!(record_number(other), None, "{other}");
        }
    }
}
