//! Reads a request: its first line and its headers, within limits.

use crate::Part;

/// Longest first line with all headers.
pub const HEAD_BYTES_MAX: usize = 8 << 10;

/// A resource of the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resource {
    /// The page.
    Page,
    /// A part of the data.
    Part(Part),
    /// Metrics in the text format of Prometheus.
    Metrics,
}

/// The reason for which a request is refused: its status, and a sentence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal(pub u16, pub &'static str);

/// Returns the length of the head in the bytes that have come, once it is whole.
pub fn head_length(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4)
}

/// Parses a head.
///
/// # Errors
/// The refusal, for anything but a GET of a resource from this machine.
pub fn parse(head: &[u8]) -> Result<Resource, Refusal> {
    let bad = Refusal(400, "The request cannot be read.");
    let text = str::from_utf8(head).map_err(|_| bad)?;
    let text = text.strip_suffix("\r\n\r\n").ok_or(bad)?;
    let mut lines = text.split("\r\n");
    let words: Vec<&str> = lines.next().unwrap_or("").split(' ').collect();
    let &[method, target, version] = &words[..] else { return Err(bad) };
    if !matches!(version, "HTTP/1.0" | "HTTP/1.1") {
        return Err(bad);
    }
    let mut hosts = Vec::new();
    for line in lines {
        let (name, value) = line.split_once(':').ok_or(bad)?;
        let is_name = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        if name.is_empty() || !name.bytes().all(is_name) {
            return Err(bad);
        }
        if name.eq_ignore_ascii_case("host") {
            hosts.push(value.trim());
        }
    }
    // A page of another site may reach this port under a name of its own, and then read the answers.
    match hosts[..] {
        [host] if is_loopback(host) => {}
        [_] => return Err(Refusal(403, "The Host header names another machine.")),
        _ => return Err(Refusal(400, "The request needs one Host header.")),
    }
    if method != "GET" {
        return Err(Refusal(405, "This server only knows GET."));
    }
    match target {
        "/" => Ok(Resource::Page),
        "/data.json" => Ok(Resource::Part(Part::Data)),
        "/space.json" => Ok(Resource::Part(Part::Space)),
        "/metrics" => Ok(Resource::Metrics),
        _ => Err(Refusal(404, "There is no such page.")),
    }
}

/// Returns whether a Host header names loopback. Any port fits: an SSH tunnel has one of its own.
fn is_loopback(host: &str) -> bool {
    let (name, port) = match host.strip_prefix("[::1]") {
        Some("") => ("[::1]", None),
        Some(rest) => ("[::1]", Some(rest.strip_prefix(':').unwrap_or("none"))),
        None => host.split_once(':').map_or((host, None), |(name, port)| (name, Some(port))),
    };
    let fits = |name: &str| {
        matches!(name, "127.0.0.1" | "[::1]") || name.eq_ignore_ascii_case("localhost")
    };
    fits(name) && port.is_none_or(|port| port.parse::<u16>().is_ok() && !port.starts_with('+'))
}
