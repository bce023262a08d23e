//! Writes replies: a status, headers that keep browsers careful, a body.

use std::fmt::Write as _;

/// A reply, before it is sent.
pub struct Reply {
    status: u16,
    kind: &'static str,
    policy: String,
    body: String,
}

/// Policy of replies that are no pages.
const NOTHING: &str = "default-src 'none'; frame-ancestors 'none'";

impl Reply {
    /// The page, with its own policy.
    pub fn page(body: String, policy: String) -> Reply {
        Reply { status: 200, kind: "text/html; charset=utf-8", policy, body }
    }

    /// A JSON value.
    pub fn json(status: u16, body: &serde_json::Value) -> Reply {
        let (kind, policy) = ("application/json", NOTHING.to_owned());
        Reply { status, kind, policy, body: body.to_string() }
    }

    /// Metrics in the text format of Prometheus.
    pub fn metrics(body: String) -> Reply {
        let (kind, policy) = ("text/plain; version=0.0.4; charset=utf-8", NOTHING.to_owned());
        Reply { status: 200, kind, policy, body }
    }

    /// A sentence.
    pub fn text(status: u16, sentence: &str) -> Reply {
        let (kind, policy) = ("text/plain; charset=utf-8", NOTHING.to_owned());
        Reply { status, kind, policy, body: format!("{sentence}\n") }
    }

    /// Returns the bytes to send.
    pub fn bytes(&self) -> Vec<u8> {
        let Reply { status, kind, policy, body } = self;
        let reason = match status {
            200 => "OK",
            403 => "Forbidden",
            404 => "Not Found",
            405 => "Method Not Allowed",
            408 => "Request Timeout",
            431 => "Request Header Fields Too Large",
            503 => "Service Unavailable",
            _ => "Bad Request",
        };
        let mut head = format!("HTTP/1.1 {status} {reason}\r\n");
        let length = body.len();
        // A write to a string cannot fail.
        let _ = write!(
            head,
            "Content-Type: {kind}\r\nContent-Length: {length}\r\nContent-Security-Policy: {policy}\r\n\
             X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\n\
             Referrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n\
             Cross-Origin-Opener-Policy: same-origin\r\n"
        );
        if *status == 405 {
            head.push_str("Allow: GET\r\n");
        }
        head.push_str("Connection: close\r\n\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body.as_bytes());
        bytes
    }
}
