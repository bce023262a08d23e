//! Numbers of things in messages.

/// Returns "1 job", "2 jobs".
pub fn counted(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}
