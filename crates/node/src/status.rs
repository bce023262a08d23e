//! Errors as statuses of gRPC, and back.

use crate::protocol::KIND_HEADER;
use outlive_types::{Error, ErrorKind};
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

/// Most bytes of a message: statuses travel in headers.
const TEXT_MAX: usize = 4096;

/// Returns the status that carries an error.
pub fn status_of(error: &Error) -> Status {
    let code = match error.kind() {
        ErrorKind::Retry => Code::Unavailable,
        ErrorKind::Invalid => Code::InvalidArgument,
        ErrorKind::Damaged => Code::DataLoss,
        ErrorKind::Full => Code::ResourceExhausted,
        ErrorKind::Fenced => Code::FailedPrecondition,
        ErrorKind::Bug => Code::Internal,
    };
    let text: String = error.message().chars().take(TEXT_MAX).collect();
    let mut status = Status::new(code, text);
    status.metadata_mut().insert(KIND_HEADER, MetadataValue::from_static(error.kind().name()));
    status
}

/// Returns the error that a status carries; `None` if a node did not make the status: the request
/// may have been carried out.
pub fn error_of(status: &Status) -> Option<Error> {
    let name = status.metadata().get(KIND_HEADER)?.to_str().ok()?;
    kind_of(name).map(|kind| Error::new(kind, status.message()))
}

/// Returns the kind of this name.
pub(crate) fn kind_of(name: &str) -> Option<ErrorKind> {
    ErrorKind::ALL.into_iter().find(|kind| kind.name() == name)
}

/// Returns the error for a status that no node made.
pub(crate) fn explain(status: &Status, doing: &str, node: &str) -> Error {
    let said = text(status);
    match status.code() {
        Code::Unimplemented => Error::invalid(format!(
            "{doing}: {node} is no storage node, or one of another version ({said}): see whether it is \
             the right address, and use one version of outlive on both sides"
        )),
        Code::Unauthenticated | Code::PermissionDenied => Error::invalid(format!(
            "{doing}: {node} refuses this client ({said}): set OUTLIVE_NODE_TOKEN_FILE to the file with \
             its token"
        )),
        Code::OutOfRange => {
            Error::invalid(format!("{doing}: a message to {node} is too long ({said})"))
        }
        _ if is_about_tls(&said) => Error::invalid(format!(
            "{doing}: there is no safe connection to {node} ({said}): see that both sides use TLS, that \
             the certificates are valid now, and that OUTLIVE_NODE_CA names the one that signed the \
             node's"
        )),
        _ if node.starts_with("nodes://") && is_about_an_end(&said) => Error::retry(format!(
            "{doing}: {node} does not answer ({said}); if it asks clients for certificates, see that it \
             trusts the one that OUTLIVE_NODE_CERT names, and that this is valid now"
        )),
        _ => Error::retry(format!("{doing}: {node} does not answer ({said})")),
    }
}

/// Returns whether a connection ended because the node gave no sign of life.
pub(crate) fn is_silence(status: &Status) -> bool {
    text(status).contains("keep-alive timed out")
}

/// Returns whether the node has ended the connection. Its reason may be lost: it refuses a client's
/// certificate when the client may send its first request.
fn is_about_an_end(said: &str) -> bool {
    ["connection closed", "Connection reset", "Broken pipe", "broken pipe"]
        .iter()
        .any(|word| said.contains(word))
}

fn is_about_tls(said: &str) -> bool {
    [
        "certificate",
        "Certificate",
        "UnknownIssuer",
        "HandshakeFailure",
        "corrupt message",
        "AlertReceived",
    ]
    .iter()
    .any(|word| said.contains(word))
}

/// Returns the message of a status, and of its causes.
fn text(status: &Status) -> String {
    let mut said = status.message().to_owned();
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        let more = error.to_string();
        if !said.contains(&more) {
            said = format!("{said}: {more}");
        }
        cause = error.source();
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_each_kind_arrives_as_it_was() {
        for kind in ErrorKind::ALL {
            let error = Error::new(kind, "shard 7 of \u{e9} is missing");
            assert_eq!(error_of(&status_of(&error)), Some(error));
        }
        assert_eq!(error_of(&Status::unavailable("gone")), None);
    }

    /// The client's side of TLS has ended when the node refuses its certificate.
    #[test]
    fn a_connection_with_tls_that_ends_may_want_a_certificate() {
        let ended = Status::unavailable("operation was canceled: connection closed");
        let told = |node| explain(&ended, "greeting it", node);
        assert!(told("nodes://host/p").message().contains("OUTLIVE_NODE_CERT"));
        assert!(!told("node://host/p").message().contains("CERT"));
        assert_eq!(told("nodes://host/p").kind(), ErrorKind::Retry);
    }
}
