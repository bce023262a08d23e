//! Meaning of a cluster's errors for the caller.

use outlive_types::{Error, ErrorKind};
use serde::Deserialize;
use std::error::Error as _;

/// Failure of a request to a member.
#[derive(Debug)]
pub(crate) struct Fault {
    pub kind: ErrorKind,
    /// Description of the failure.
    pub text: String,
    /// Advice for the user.
    pub advice: &'static str,
    pub next: Next,
}

/// State of the request, which determines the next step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// No member would reply differently.
    Stop,
    /// This member certainly did nothing: any request may go to another.
    Another,
    /// The member may have done it: only a request that may be repeated may be sent again.
    Unknown,
    /// Nothing was done, since the user's token is too old.
    Token,
    /// Nothing was done, since the requested revision no longer exists.
    Compacted,
}

/// Body of a reply of etcd's gateway that is no success.
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
/// Canceled, unknown, deadline exceeded, aborted, internal, unavailable: a later try may succeed.
const TEMPORARY: [u32; 6] = [1, 2, 4, 10, 13, 14];

const NAMELESS: &str = "user name is empty";

const NO_MAJORITY: &str =
    ": do more than half of the cluster's members run, and does this machine reach them?";
/// For connections that end early: etcd also cuts off clients that do not use TLS.
const CUT_OFF: &str = ": do more than half of the cluster's members run, and does this machine reach \
                       them? If the cluster uses TLS, write \"etcds://\"";
const NOT_ETCD: &str = ": correct the location; it must name members of an etcd cluster, version 3.4 or \
                        newer, with their gateway (--enable-grpc-gateway) as it is by default";

impl Fault {
    pub(crate) fn new(kind: ErrorKind, next: Next, text: &str, advice: &'static str) -> Fault {
        Fault { kind, text: text.to_owned(), advice, next }
    }

    /// Returns the fault for a reply that is no success.
    pub(crate) fn of_answer(status: u16, body: &[u8]) -> Fault {
        let Ok(Refusal { message, code }) = serde_json::from_slice(body) else {
            return Fault::of_stranger(status, &String::from_utf8_lossy(body));
        };
        let (kind, next, advice) = meaning(code, &message);
        Fault::new(kind, next, &message, advice)
    }

    /// Returns the fault for a reply that is not etcd's.
    pub(crate) fn of_stranger(status: u16, body: &str) -> Fault {
        if body.contains("HTTP request to an HTTPS server") {
            let text = "it takes TLS only";
            return Fault::new(ErrorKind::Invalid, Next::Stop, text, ": write \"etcds://\"");
        }
        match status {
            // From a host in between, such as a load balancer.
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

    /// Returns the fault for a request without a reply.
    pub(crate) fn of_request(error: &reqwest::Error) -> Fault {
        // The last cause names the failure; those before it name the location.
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(next) = cause {
            text = next.to_string();
            cause = next.source();
        }
        // A server may report that it refuses our certificate only after the first request.
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

    /// Returns whether the cluster requires a user, and none was given.
    pub(crate) fn is_nameless(&self) -> bool {
        self.text.contains(NAMELESS)
    }

    /// Returns whether the cluster has no users.
    pub(crate) fn says_no_users(&self) -> bool {
        self.text.contains("authentication is not enabled")
    }

    /// Returns the error for a failure while `doing` it.
    pub(crate) fn explain(self, doing: &str) -> Error {
        Error::new(self.kind, format!("{doing}: {}{}", self.text, self.advice))
    }
}

/// Maps an error of etcd. Its texts are part of its interface: clients distinguish errors by them.
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
            invalid(": members of the cluster differ; repair the cluster")
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
        // A new member that only listens yet, or one that is overloaded.
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
    fn errors_of_etcd_have_a_meaning() {
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
    fn answers_of_other_servers_are_explained() {
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
