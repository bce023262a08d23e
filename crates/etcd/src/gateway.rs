//! The requests of etcd's JSON gateway that we make, and its answers.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

/// A request: what is asked for, and whether that may be asked for twice.
pub(crate) struct Request {
    /// Behind "/v3/".
    pub path: &'static str,
    pub body: Vec<u8>,
    /// Whether it does no harm to do it again after somebody else may have done something.
    pub repeats: bool,
    /// Whether answers come as a stream, each wrapped once more.
    pub streams: bool,
}

/// One answer of a stream.
#[derive(Deserialize)]
pub(crate) struct Streamed {
    pub result: Reply,
}

/// The parts of answers that we look at. Fields that are zero, empty or false are left out.
#[derive(Deserialize)]
pub(crate) struct Reply {
    /// Never left out: what has no header is no answer of etcd's.
    pub header: Header,
    #[serde(default)]
    pub kvs: Vec<KeyValue>,
    /// There are more keys than the limit.
    #[serde(default)]
    pub more: bool,
    /// The condition of a transaction held.
    #[serde(default)]
    pub succeeded: bool,
    /// Seconds that a lease still has; negative if there is no such lease.
    #[serde(default, rename = "TTL")]
    pub ttl: String,
}

/// Numbers of 64 bits are texts in JSON.
#[derive(Deserialize)]
pub(crate) struct Header {
    pub cluster_id: String,
    /// The state of the keys that was answered from.
    pub revision: String,
}

#[derive(Deserialize)]
pub(crate) struct KeyValue {
    pub key: String,
    #[serde(default)]
    pub value: String,
}

/// The answer to a user's name and password.
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

    /// The first `limit` keys from `first` to below `end`, in order, as they were at `revision`.
    ///
    /// With an order of its own, even its usual one, etcd would read all keys before it counts. It reads
    /// the values in any case, and leaves them out.
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

    /// Whether a member is there and reads below a prefix; it need not belong to a majority.
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

    /// Puts in place of what is there.
    pub(crate) fn put(key: &str, value: &[u8]) -> Request {
        Request::new("kv/put", &json!({ "key": encode(key), "value": encode(value) }), false)
    }

    /// Puts on condition that there is no such key: it was made at no revision.
    pub(crate) fn put_new(key: &str, value: &[u8]) -> Request {
        let put = json!({ "key": encode(key), "value": encode(value) });
        Request::transaction(key, "EQUAL", json!([{ "request_put": put }]), false)
    }

    /// A put on a condition that never holds: it does nothing, but has to be allowed, and takes a
    /// majority.
    pub(crate) fn would_put(key: &str) -> Request {
        let put = json!([{ "request_put": { "key": encode(key) } }]);
        Request::transaction(key, "LESS", put, true)
    }

    /// Does `success` if the revision at which `key` was made compares so with zero.
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

    /// Not repeated: another may have put the key again meanwhile.
    pub(crate) fn delete(key: &str) -> Request {
        Request::new("kv/deleterange", &json!({ "key": encode(key) }), false)
    }

    /// Makes a lease of this number. Not repeated: the number is taken then.
    pub(crate) fn grant(id: u64, seconds: u32) -> Request {
        let body = json!({ "ID": id.to_string(), "TTL": seconds.to_string() });
        Request::new("lease/grant", &body, false)
    }

    /// Gives a lease its whole time again.
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

/// Reads a key or a value; `None` if it is none.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}
