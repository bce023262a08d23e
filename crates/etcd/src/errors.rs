//! What the errors of a cluster mean to the caller.

use outlive_types::{Error, ErrorKind};
use serde::Deserialize;
use std::error::Error as _;

/// Why a member did not do what it was asked.
#[derive(Debug)]
pub(crate) struct Fault {
    pub kind: ErrorKind,
    /// What happened.
    pub text: String,
    /// What to do about it.
    pub advice: &'static str,
    pub next: Next,
}

/// Where the request stands, and so what may be done next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// No member would answer otherwise.
    Stop,
    /// This member surely did nothing: another may be asked, for anything.
    Another,
    /// Nobody knows whether it is done: only what may be done twice may be asked for again.
    Unknown,
    /// Nothing was done, as the token of the user is too old.
    Token,
    /// Nothing was done, as the revision that was asked for is no longer there.
    Compacted,
}

/// What etcd's gateway answers besides a status that is no success.
#[derive(Deserialize)]
struct Refusal {
    message: String,
    /// A code of gRPC.
    code: u32,
}

// Codes of gRPC.
const PERMISSION_DENIED: u32 = 7;
const RESOURCE_EXHAUSTED: u32 = 8;
const OUT_OF_RANGE: u32 = 11;
const UNIMPLEMENTED: u32 = 12;
const UNAUTHENTICATED: u32 = 16;
/// Canceled, unknown, deadline exceeded, aborted, internal, unavailable: it may work later.
const TEMPORARY: [u32; 6] = [1, 2, 4, 10, 13, 14];

const NAMELESS: &str = "user name is empty";

const NO_MAJORITY: &str =
    ": do more than half of the cluster's members run, and does this machine reach them?";
/// So etcd treats those who do not speak TLS to it.
const CUT_OFF: &str = ": do more than half of the cluster's members run, and does this machine reach \
                       them? If the cluster uses TLS, write \"etcds://\"";
const NOT_ETCD: &str = ": correct the location; it must name members of an etcd cluster, version 3.4 or \
                        newer, with their gateway (--enable-grpc-gateway) as it is by default";

impl Fault {
    pub(crate) fn new(kind: ErrorKind, next: Next, text: &str, advice: &'static str) -> Fault {
        Fault { kind, text: text.to_owned(), advice, next }
    }

    /// That of an answer which is no success.
    pub(crate) fn of_answer(status: u16, body: &[u8]) -> Fault {
        let Ok(Refusal { message, code }) = serde_json::from_slice(body) else {
            return Fault::of_stranger(status, &String::from_utf8_lossy(body));
        };
        let (kind, next, advice) = meaning(code, &message);
        Fault::new(kind, next, &message, advice)
    }

    /// That of an answer which is not etcd's.
    pub(crate) fn of_stranger(status: u16, body: &str) -> Fault {
        if body.contains("HTTP request to an HTTPS server") {
            let text = "it takes TLS only";
            return Fault::new(ErrorKind::Invalid, Next::Stop, text, ": write \"etcds://\"");
        }
        match status {
            // Of something in between, such as a balancer of load.
            408 | 429 | 500.. => Fault::new(
                ErrorKind::Retry,
                Next::Unknown,
                &format!("status {status}"),
                ": try again later",
            ),
            _ => Fault::new(
                ErrorKind::Invalid,
                Next::Stop,
                &format!("what answers there (status {status}) is not etcd"),
                NOT_ETCD,
            ),
        }
    }

    /// That of a request without an answer.
    pub(crate) fn of_request(error: &reqwest::Error) -> Fault {
        // The last cause says what happened; those before it say where.
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(next) = cause {
            text = next.to_string();
            cause = next.source();
        }
        // A server that refuses our certificate may say so only once it is asked for something.
        let is_tls = ["certificate", "corrupt message", "fatal alert"];
        let is_tls = is_tls.into_iter().any(|mark| text.contains(mark));
        let next = if error.is_connect() { Next::Another } else { Next::Unknown };
        match (error.is_connect(), error.is_timeout()) {
            _ if is_tls => Fault::new(
                ErrorKind::Invalid,
                next,
                &text,
                ": does the cluster use TLS, and do ETCDCTL_CACERT, ETCDCTL_CERT and ETCDCTL_KEY fit it?",
            ),
            (true, true) => {
                Fault::new(ErrorKind::Retry, next, "no connection in time", NO_MAJORITY)
            }
            (false, true) => Fault::new(ErrorKind::Retry, next, "no answer in time", NO_MAJORITY),
            (true, false) => Fault::new(ErrorKind::Retry, next, &text, NO_MAJORITY),
            (false, false) => Fault::new(ErrorKind::Retry, next, &text, CUT_OFF),
        }
    }

    /// Whether the cluster wants a user, and none was told.
    pub(crate) fn is_nameless(&self) -> bool {
        self.text.contains(NAMELESS)
    }

    /// Whether the cluster does not know users.
    pub(crate) fn says_no_users(&self) -> bool {
        self.text.contains("authentication is not enabled")
    }

    /// The error for what failed while `doing` it.
    pub(crate) fn explain(self, doing: &str) -> Error {
        Error::new(self.kind, format!("{doing}: {}{}", self.text, self.advice))
    }
}

/// What an answer of etcd's means. Its texts are part of its interface: clients tell errors by them.
fn meaning(code: u32, message: &str) -> (ErrorKind, Next, &'static str) {
    let says = |part: &str| message.contains(part);
    let invalid = |advice| (ErrorKind::Invalid, Next::Stop, advice);
    match code {
        _ if says("request is too large") || says("message larger than max") => invalid(
            ": it is longer than this cluster lets a request be; raise --max-request-bytes on every \
             member, which is 1.5 MiB by default, or keep the log elsewhere",
        ),
        _ if says("database space exceeded") => (
            ErrorKind::Full,
            Next::Stop,
            ": compact and defragment the cluster's database, or raise --quota-backend-bytes on every \
             member; then run `etcdctl alarm disarm`",
        ),
        _ if says("corrupt cluster") => {
            invalid(": members of the cluster differ; whoever runs it must repair it")
        }
        _ if says("authentication failed") => {
            invalid(": correct the user and the password (ETCDCTL_USER, ETCDCTL_PASSWORD)")
        }
        _ if says(NAMELESS) => {
            invalid(": this cluster asks for a user; set ETCDCTL_USER to \"NAME:PASSWORD\"")
        }
        _ if says("invalid auth token") || says("revision of auth store is old") => {
            (ErrorKind::Retry, Next::Token, ": try again")
        }
        UNAUTHENTICATED => (ErrorKind::Retry, Next::Token, ": try again"),
        PERMISSION_DENIED => invalid(
            ": the user (ETCDCTL_USER) needs a role that may read and write the keys below the prefix",
        ),
        OUT_OF_RANGE if says("compacted") => (ErrorKind::Retry, Next::Compacted, ": try again"),
        // A new member that only listens yet, and one that has too much to do.
        _ if says("not supported for learner") || code == RESOURCE_EXHAUSTED => {
            (ErrorKind::Retry, Next::Another, ": try again later")
        }
        UNIMPLEMENTED => invalid(NOT_ETCD),
        _ if TEMPORARY.contains(&code) => (ErrorKind::Retry, Next::Unknown, NO_MAJORITY),
        _ => invalid(""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_etcd_answers_has_a_meaning() {
        for (status, code, message, kind, next, advice) in [
            (
                400,
                3,
                "etcdserver: request is too large",
                "Invalid",
                Next::Stop,
                "--max-request-bytes",
            ),
            (
                429,
                8,
                "grpc: received message larger than max (9 vs. 8)",
                "Invalid",
                Next::Stop,
                "1.5",
            ),
            (429, 8, "etcdserver: mvcc: database space exceeded", "Full", Next::Stop, "--quota"),
            (429, 8, "etcdserver: too many requests", "Retry", Next::Another, "later"),
            (403, 7, "etcdserver: permission denied", "Invalid", Next::Stop, "a role"),
            (401, 16, "etcdserver: invalid auth token", "Retry", Next::Token, "again"),
            (503, 14, "etcdserver: request timed out", "Retry", Next::Unknown, "more than half"),
            (
                400,
                11,
                "etcdserver: mvcc: required revision has been compacted",
                "Retry",
                Next::Compacted,
                "",
            ),
            (500, 15, "etcdserver: corrupt cluster", "Invalid", Next::Stop, "repair"),
            (400, 3, "etcdserver: key is not provided", "Invalid", Next::Stop, ""),
        ] {
            let body = format!(r#"{{"error":"{message}","message":"{message}","code":{code}}}"#);
            let fault = Fault::of_answer(status, body.as_bytes());
            assert_eq!((fault.kind.name(), fault.next), (kind, next), "{message}");
            let error = fault.explain("writing x").to_string();
            assert!(error.starts_with(&format!("writing x: {message}")), "{error}");
            assert!(error.contains(advice), "{error}");
        }
    }

    #[test]
    fn what_is_not_etcd_is_told_as_such() {
        for (status, body, kind, told) in [
            (404, "Not Found\n", ErrorKind::Invalid, "--enable-grpc-gateway"),
            (200, "<html>", ErrorKind::Invalid, "is not etcd"),
            (
                400,
                "Client sent an HTTP request to an HTTPS server.\n",
                ErrorKind::Invalid,
                "etcds://",
            ),
            (502, "<html>", ErrorKind::Retry, "status 502"),
        ] {
            let fault = Fault::of_answer(status, body.as_bytes());
            assert_eq!(fault.kind, kind);
            let error = fault.explain("reading").to_string();
            assert!(error.contains(told), "{error}");
        }
    }
}
