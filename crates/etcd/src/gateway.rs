//! Our requests to etcd's JSON gateway, and its replies.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

/// A request, and whether it may be repeated.
pub(crate) struct Request {
    /// Path after "/v3/".
    pub path: &'static str,
    pub body: Vec<u8>,
    /// True if a repetition is harmless, even after a change by another client.
    pub repeats: bool,
    /// True if replies arrive as a stream, each wrapped once more.
    pub streams: bool,
}

/// One reply of a stream.
#[derive(Deserialize)]
pub(crate) struct Streamed {
    pub result: Reply,
}

/// The parts of replies that we use. The gateway omits fields that are zero, empty or false.
#[derive(Deserialize)]
pub(crate) struct Reply {
    /// Never omitted: a reply without a header is not etcd's.
    pub header: Header,
    #[serde(default)]
    pub kvs: Vec<KeyValue>,
    /// True if there are more keys than the limit.
    #[serde(default)]
    pub more: bool,
    /// True if the condition of a transaction held.
    #[serde(default)]
    pub succeeded: bool,
    /// Seconds until a lease ends; negative if there is no such lease.
    #[serde(default, rename = "TTL")]
    pub ttl: String,
}

/// JSON has 64-bit numbers as texts.
#[derive(Deserialize)]
pub(crate) struct Header {
    pub cluster_id: String,
    /// Revision of the keys that the reply shows.
    pub revision: String,
}

#[derive(Deserialize)]
pub(crate) struct KeyValue {
    pub key: String,
    #[serde(default)]
    pub value: String,
}

/// The reply to a user's name and password.
#[derive(Deserialize)]
pub(crate) struct AuthToken {
    pub token: String,
}

impl Request {
    fn new(path: &'static str, body: &Value, repeats: bool) -> Request {
        Request { path, body: body.to_string().into_bytes(), repeats, streams: false }
    }

    pub(crate) fn get(key: &str) -> Request {
        Request::new("kv/range", &json!({ "key": encode(key) }), true)
    }

    pub(crate) fn has(key: &str) -> Request {
        Request::new("kv/range", &json!({ "key": encode(key), "keys_only": true }), true)
    }

    /// Lists the first `limit` keys from `first` to below `end`, in order, as they were at
    /// `revision`.
    ///
    /// The request names no order: with any, even the usual one, etcd would read all keys before it
    /// counts. etcd reads the values in any case, and omits them.
    pub(crate) fn list(first: &str, end: &str, limit: u32, revision: Option<&str>) -> Request {
        let mut body = json!({
            "key": encode(first),
            "range_end": encode(end),
            "keys_only": true,
            "limit": limit.to_string(),
        });
        if let Some(revision) = revision {
            body["revision"] = revision.into();
        }
        Request::new("kv/range", &body, true)
    }

    /// Asks whether a member responds and may read below a prefix; it need not belong to a
    /// majority.
    pub(crate) fn greet(first: &str, end: &str) -> Request {
        let body = json!({
            "key": encode(first),
            "range_end": encode(end),
            "keys_only": true,
            "limit": "1",
            "serializable": true,
        });
        Request::new("kv/range", &body, true)
    }

    /// Puts a value, and replaces an existing one.
    pub(crate) fn put(key: &str, value: &[u8]) -> Request {
        Request::new("kv/put", &json!({ "key": encode(key), "value": encode(value) }), false)
    }

    /// Puts a value if the key does not exist: it was created at no revision.
    pub(crate) fn put_new(key: &str, value: &[u8]) -> Request {
        let put = json!({ "key": encode(key), "value": encode(value) });
        Request::transaction(key, "EQUAL", json!([{ "request_put": put }]), false)
    }

    /// Puts on a condition that never holds: it does nothing, but needs permission and a majority.
    pub(crate) fn would_put(key: &str) -> Request {
        let put = json!([{ "request_put": { "key": encode(key) } }]);
        Request::transaction(key, "LESS", put, true)
    }

    /// Does `success` if the revision at which `key` was created compares with zero as `result`
    /// requires.
    fn transaction(key: &str, result: &str, success: Value, repeats: bool) -> Request {
        let made = json!({
            "key": encode(key),
            "target": "CREATE",
            "result": result,
            "create_revision": "0",
        });
        let body = json!({ "compare": [made], "success": success });
        Request::new("kv/txn", &body, repeats)
    }

    /// Deletes a key. Not repeated: another client may have put the key again meanwhile.
    pub(crate) fn delete(key: &str) -> Request {
        Request::new("kv/deleterange", &json!({ "key": encode(key) }), false)
    }

    /// Creates a lease with this number. Not repeated: the number would be taken.
    pub(crate) fn grant(id: u64, seconds: u32) -> Request {
        let body = json!({ "ID": id.to_string(), "TTL": seconds.to_string() });
        Request::new("lease/grant", &body, false)
    }

    /// Renews a lease for its whole time.
    pub(crate) fn keep_alive(id: u64) -> Request {
        let request = Request::new("lease/keepalive", &json!({ "ID": id.to_string() }), true);
        Request { streams: true, ..request }
    }

    /// Ends a lease.
    pub(crate) fn revoke(id: u64) -> Request {
        Request::new("lease/revoke", &json!({ "ID": id.to_string() }), false)
    }

    pub(crate) fn time_to_live(id: u64) -> Request {
        Request::new("lease/timetolive", &json!({ "ID": id.to_string() }), true)
    }

    pub(crate) fn authenticate(name: &str, password: &str) -> Request {
        Request::new("auth/authenticate", &json!({ "name": name, "password": password }), true)
    }
}

fn encode(bytes: impl AsRef<[u8]>) -> String {
    STANDARD.encode(bytes)
}

/// Decodes a key or a value; `None` if it is not Base64.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}
