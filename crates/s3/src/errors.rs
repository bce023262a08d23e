//! Meaning of a bucket's errors for the caller.

use object_store::Error as StoreError;
use object_store::client::HttpError;
use outlive_types::{Error, ErrorKind};
use std::error::Error as _;

/// Readable parts of an error of `object_store`. That crate shows the status and the server's reply
/// only in the text.
struct ErrorParts {
    status: Option<u16>,
    /// The server's own code, such as "NoSuchBucket".
    code: Option<String>,
    /// Description for the user.
    text: String,
    /// True if there was no reply, or only a part of it.
    is_cut: bool,
}

impl ErrorParts {
    fn of(error: &StoreError) -> ErrorParts {
        let mut chain = vec![];
        let mut next: Option<&dyn std::error::Error> = error.source();
        let mut is_cut = false;
        while let Some(cause) = next {
            is_cut |= cause.is::<HttpError>();
            chain.push(cause.to_string());
            next = cause.source();
        }
        let whole = error.to_string();
        let status = match error {
            StoreError::NotFound { .. } => Some(404),
            StoreError::Unauthenticated { .. } => Some(401),
            StoreError::PermissionDenied { .. } => Some(403),
            // `AlreadyExists` may be any of 304, 409 and 412.
            _ => between(&whole, "status code: ", " ").and_then(|status| status.parse().ok()),
        };
        let code = between(&whole, "<Code>", "</Code>").map(str::to_owned);
        let message = between(&whole, "<Message>", "</Message>");
        let text = match (&code, message, status) {
            (Some(code), Some(message), _) => format!("{code}: {message}"),
            (Some(code), None, _) => code.clone(),
            (None, _, Some(status)) => format!("status {status}"),
            // The last cause names the failure; those before it name the location, which the
            // message has already.
            (None, _, None) => chain.pop().unwrap_or(whole),
        };
        ErrorParts { status, code, text, is_cut }
    }

    /// Returns the error's kind and advice for the user.
    fn kind_and_advice(&self) -> (ErrorKind, &'static str) {
        match (self.code.as_deref().unwrap_or_default(), self.status) {
            ("NoSuchBucket" | "InvalidBucketName", _) => (
                ErrorKind::Invalid,
                ": create the bucket, or correct the location or the endpoint (AWS_ENDPOINT_URL)",
            ),
            ("NotImplemented" | "MethodNotAllowed", _) => {
                (ErrorKind::Invalid, ": this server lacks a part of S3 that outlive needs")
            }
            (
                "AuthorizationHeaderMalformed"
                | "PermanentRedirect"
                | "IllegalLocationConstraintException",
                _,
            )
            | (_, Some(300..=399)) => {
                (ErrorKind::Invalid, ": set AWS_REGION to the region of the bucket")
            }
            ("RequestTimeTooSkewed", _) => (ErrorKind::Invalid, ": set this machine's clock"),
            (
                "ExpiredToken"
                | "InvalidToken"
                | "InvalidAccessKeyId"
                | "SignatureDoesNotMatch"
                | "XAdminUserNotFound",
                _,
            )
            | (_, Some(401)) => (ErrorKind::Invalid, WRONG_KEYS),
            (_, Some(403)) => (ErrorKind::Invalid, DENIED),
            ("QuotaExceeded" | "XMinioStorageFull" | "InsufficientCapacity", _)
            | (_, Some(507)) => (ErrorKind::Full, ": free space there"),
            ("SlowDown" | "InternalError" | "RequestTimeout", _)
            | (_, Some(408 | 409 | 425 | 429 | 500..)) => (ErrorKind::Retry, ": try again later"),
            _ if self.text.contains("certificate") => (
                ErrorKind::Invalid,
                ": have this machine trust the server's certificate (SSL_CERT_FILE)",
            ),
            _ if self.is_cut => {
                (ErrorKind::Retry, ": is the server running, and does this machine reach it?")
            }
            _ => (ErrorKind::Invalid, ""),
        }
    }
}

const WRONG_KEYS: &str = ": correct the credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, \
                          AWS_SESSION_TOKEN, or the profile in AWS_PROFILE)";
const DENIED: &str = ": check the credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or AWS_PROFILE), \
                      and that they may list, read, write and delete in this bucket";

/// Returns the error for a failure while `doing` at `url`.
pub(crate) fn explain(doing: &str, url: &str, error: &StoreError) -> Error {
    let answer = ErrorParts::of(error);
    let (kind, advice) = answer.kind_and_advice();
    Error::new(kind, format!("{doing} {url}: {}{advice}", answer.text))
}

/// Returns whether the object does not exist, although the bucket does.
pub(crate) fn is_missing(error: &StoreError) -> bool {
    // Servers also send 404 for a missing bucket, and some of them for an unknown access key. A
    // reply to HEAD has no code.
    matches!(error, StoreError::NotFound { .. })
        && matches!(
            ErrorParts::of(error).code.as_deref(),
            None | Some("NoSuchKey" | "NotFound" | "NoSuchUpload" | "NoSuchVersion")
        )
}

/// Returns whether a put was refused because its object exists.
pub(crate) fn is_taken(error: &StoreError) -> bool {
    matches!(error, StoreError::AlreadyExists { .. })
}

/// Returns whether a put was refused because it met another change of its object (409).
pub(crate) fn is_conflict(error: &StoreError) -> bool {
    is_taken(error) && ErrorParts::of(error).status == Some(409)
}

/// Returns whether the object may lack the requested range. Servers respond to that in three ways:
/// with an error, with fewer bytes, or with the whole object.
pub(crate) fn may_be_past_the_end(error: &StoreError) -> bool {
    let answer = ErrorParts::of(error);
    answer.status == Some(416) || answer.status.is_none() && !answer.is_cut
}

fn between<'a>(text: &'a str, before: &str, behind: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(before)?;
    rest.split_once(behind).map(|(found, _)| found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Formats a reply as `object_store` does.
    fn told(status: &str, code: &str) -> StoreError {
        let text = format!(
            "Error performing PUT http://h/b/k in 1ms - Server returned non-2xx status code: \
             {status}: <Error><Code>{code}</Code><Message>no.</Message></Error>"
        );
        match status.get(..3) {
            Some("404") => StoreError::NotFound { path: "k".into(), source: text.into() },
            Some("403") => StoreError::PermissionDenied { path: "k".into(), source: text.into() },
            _ => StoreError::Generic { store: "S3", source: text.into() },
        }
    }

    #[test]
    fn errors_of_a_server_have_a_meaning() {
        for (status, code, kind, advice) in [
            ("404 Not Found", "NoSuchBucket", ErrorKind::Invalid, "create the bucket"),
            ("403 Forbidden", "InvalidAccessKeyId", ErrorKind::Invalid, "correct the credentials"),
            ("403 Forbidden", "AccessDenied", ErrorKind::Invalid, "may list, read"),
            ("404 Not Found", "XAdminUserNotFound", ErrorKind::Invalid, "correct the credentials"),
            ("403 Forbidden", "RequestTimeTooSkewed", ErrorKind::Invalid, "clock"),
            ("400 Bad Request", "AuthorizationHeaderMalformed", ErrorKind::Invalid, "AWS_REGION"),
            ("400 Bad Request", "EntityTooSmall", ErrorKind::Invalid, ""),
            ("501 Not Implemented", "NotImplemented", ErrorKind::Invalid, "lacks"),
            ("503 Slow Down", "SlowDown", ErrorKind::Retry, "later"),
            ("429 Too Many Requests", "TooManyRequests", ErrorKind::Retry, "later"),
            ("500 Internal Server Error", "X", ErrorKind::Retry, "later"),
            ("507 Insufficient Storage", "XMinioStorageFull", ErrorKind::Full, "free space"),
        ] {
            let error = explain("writing", "s3://b/k", &told(status, code));
            assert_eq!(error.kind(), kind, "{error}");
            let start = format!("writing s3://b/k: {code}: no.");
            assert!(
                error.message().starts_with(&start) && error.message().contains(advice),
                "{error}"
            );
        }
        assert!(is_missing(&told("404 Not Found", "NoSuchKey")));
        assert!(!is_missing(&told("404 Not Found", "NoSuchBucket")));
        assert!(!is_missing(&told("404 Not Found", "XAdminUserNotFound")));
        assert!(may_be_past_the_end(&told("416 Range Not Satisfiable", "InvalidRange")));
        assert!(!may_be_past_the_end(&told("403 Forbidden", "AccessDenied")));
    }
}
