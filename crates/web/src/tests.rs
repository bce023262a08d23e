//! The page and the server, over real connections.

use crate::page::{in_script, served};
use crate::request::{HEAD_BYTES_MAX, Refusal, Resource, parse};
use crate::{Content, Part, REPORT_START, Server, report};
use outlive_types::sync::plain::{Condvar, Mutex};
use outlive_types::{Error, Result};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const HOSTILE: &str = "</script><script>alert(1)</script><!-- \u{2028}\u{2029} ]]> {{nonce}} & \"";

/// A server that ends with the test.
struct Running {
    url: String,
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<Result<()>>>,
}

impl Running {
    fn new(source: impl Fn(Part) -> Result<Value> + Send + Sync + 'static) -> Running {
        Running::with(Content::page(Box::new(source)))
    }

    fn with(content: Content) -> Running {
        let server = Server::bind(0, content).unwrap();
        assert!(server.url().ends_with(&format!(":{}/", server.port())));
        let (url, stop) = (server.url(), Arc::new(AtomicBool::new(false)));
        let asked = stop.clone();
        let thread = Some(thread::spawn(move || server.serve(&asked)));
        Running { url, stop, thread }
    }

    fn address(&self) -> &str {
        self.url.strip_prefix("http://").unwrap().strip_suffix('/').unwrap()
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address()).unwrap()
    }

    /// Sends bytes, and returns all that comes back.
    fn send(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(bytes).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    }

    fn get(&self, path: &str) -> String {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address()).as_bytes())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap().unwrap();
    }
}

fn body(reply: &str) -> &str {
    reply.split_once("\r\n\r\n").unwrap().1
}

fn status(reply: &str) -> &str {
    reply.split(' ').nth(1).unwrap_or("none")
}

#[test]
fn the_page_and_both_parts_are_served_and_nothing_else() {
    let running = Running::new(|part| match part {
        Part::Data => Ok(json!({ "name": HOSTILE })),
        Part::Space => Err(Error::damaged("a pack is gone")),
    });
    let page = running.get("/");
    assert_eq!(status(&page), "200");
    for header in [
        "Content-Security-Policy: default-src 'none'; style-src 'nonce-",
        "X-Content-Type-Options: nosniff\r\n",
        "Cache-Control: no-store\r\n",
        "Content-Type: text/html; charset=utf-8\r\n",
    ] {
        assert!(page.contains(header), "{header}");
    }
    assert!(!body(&page).contains("{{"), "all places of page.html are filled");
    let data = running.get("/data.json");
    assert_eq!(status(&data), "200");
    assert!(data.contains("Content-Type: application/json\r\n") && data.contains("nosniff"));
    let value: Value = serde_json::from_str(body(&data)).unwrap();
    assert_eq!(value["name"], HOSTILE);
    let space = running.get("/space.json");
    assert_eq!(status(&space), "503");
    let value: Value = serde_json::from_str(body(&space)).unwrap();
    assert_eq!(value["error"]["message"], "a pack is gone");
    for other in ["/data.json?x", "/../etc/passwd", "//", "/index.html", "http://a/"] {
        assert_eq!(status(&running.get(other)), "404", "{other}");
    }
}

#[test]
fn metrics_are_served_alone_or_beside_the_page() {
    let figures = || Box::new(|| Ok("a_total 1\n".to_owned()));
    let alone = Running::with(Content::metrics(figures()));
    let reply = alone.get("/metrics");
    assert_eq!((status(&reply), body(&reply)), ("200", "a_total 1\n"));
    assert!(reply.contains("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
    for nothing in ["/", "/data.json", "/space.json", "/metrics/"] {
        assert_eq!(status(&alone.get(nothing)), "404", "{nothing}");
    }
    let source = |_| Ok(json!({ "a": 1 }));
    let both = Running::with(Content::page(Box::new(source)).and_metrics(figures()));
    assert_eq!(status(&both.get("/data.json")), "200");
    assert_eq!(body(&both.get("/metrics")), "a_total 1\n");
    assert_eq!(status(&Running::new(source).get("/metrics")), "404");
    let fails = || Err(Error::damaged("the log is gone"));
    let failing = Running::with(Content::metrics(Box::new(fails)));
    let reply = failing.get("/metrics");
    assert_eq!((status(&reply), body(&reply)), ("503", "the log is gone\n"));
}

#[test]
fn other_machines_names_and_bad_requests_are_refused() {
    let running = Running::new(|_| panic!("nothing of these may reach the pool"));
    let at = running.address().to_owned();
    for (host, wanted) in [
        ("evil.example", "403"),
        ("127.0.0.1.evil.example", "403"),
        ("localhost.evil.example:80", "403"),
        ("127.0.0.1:80@evil.example", "403"),
        ("0.0.0.0", "403"),
        ("", "403"),
    ] {
        let reply =
            running.send(format!("GET /data.json HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes());
        assert_eq!(status(&reply), wanted, "{host}: {reply}");
    }
    for (request, wanted) in [
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), "400"),
        (format!("GET / HTTP/1.1\r\nHost: {at}\r\nHost: {at}\r\n\r\n"), "400"),
        (format!("POST / HTTP/1.1\r\nHost: {at}\r\nContent-Length: 5\r\n\r\nhello"), "405"),
        (format!("GET / HTTP/2.0\r\nHost: {at}\r\n\r\n"), "400"),
        (format!("GET  / HTTP/1.1\r\nHost: {at}\r\n\r\n"), "400"),
        (format!("GET / HTTP/1.1\r\nHost: {at}\r\nno colon\r\n\r\n"), "400"),
        (format!("GET / HTTP/1.1\r\n Host: {at}\r\n\r\n"), "400"),
        ("\r\n\r\n".to_owned(), "400"),
        (
            format!("GET / HTTP/1.1\r\nHost: {at}\r\nX: {}\r\n\r\n", "a".repeat(HEAD_BYTES_MAX)),
            "431",
        ),
        ("a".repeat(10 * HEAD_BYTES_MAX), "431"),
    ] {
        let reply = running.send(request.as_bytes());
        assert_eq!(status(&reply), wanted, "{}: {reply}", &request[..request.len().min(60)]);
    }
    assert_eq!(status(&running.send(b"GET / HTTP/1.1\r\nHost: \xff\r\n\r\n")), "400");
}

#[test]
fn loopback_has_three_names_with_any_port() {
    let with = |host: &str| parse(format!("GET / HTTP/1.1\r\nhOsT: {host}\r\n\r\n").as_bytes());
    for host in ["127.0.0.1", "127.0.0.1:1", "LocalHost:8080", "localhost", "[::1]", "[::1]:65535"]
    {
        assert_eq!(with(host), Ok(Resource::Page), "{host}");
    }
    for host in
        ["127.0.0.1:", "localhost:+1", "localhost:x", "localhost:65536", "[::1]x", "[::1]:", "::1"]
    {
        let refused = with(host);
        assert!(matches!(refused, Err(Refusal(403, _))), "{host}: {refused:?}");
    }
}

#[test]
fn a_connection_that_closes_early_harms_no_other() {
    let running = Running::new(|_| Ok(json!({ "rows": vec!["x".repeat(1000); 10_000] })));
    for part in ["", "GET", "GET /data.json HTTP/1.1\r\nHost: localhost\r\n\r\n"] {
        let mut stream = running.connect();
        stream.write_all(part.as_bytes()).unwrap();
        drop(stream);
        // Half closed: all that will come has come.
        let mut stream = running.connect();
        stream.write_all(part.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply);
        assert_eq!(reply.is_empty(), !part.ends_with("\r\n\r\n"), "{part:?}");
    }
    let reply = running.get("/data.json");
    assert_eq!(
        serde_json::from_str::<Value>(body(&reply)).unwrap()["rows"][9_999],
        "x".repeat(1000)
    );
}

#[test]
fn two_at_once_are_served_and_a_slow_pool_does_not_hold_up_the_page() {
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let (inside, started) = (gate.clone(), Arc::new(AtomicBool::new(false)));
    let begun = started.clone();
    let running = Running::new(move |_| {
        begun.store(true, Ordering::Relaxed);
        let mut is_open = inside.0.lock();
        while !*is_open {
            is_open = inside.1.wait(is_open);
        }
        Ok(json!({}))
    });
    thread::scope(|scope| {
        let slow = [(); 2].map(|()| scope.spawn(|| running.get("/data.json")));
        while !started.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        assert_eq!(status(&running.get("/")), "200", "the page needs no pool");
        *gate.0.lock() = true;
        gate.1.notify_all();
        for slow in slow {
            assert_eq!(status(&slow.join().unwrap()), "200");
        }
    });
}

#[test]
fn too_many_connections_wait_outside() {
    let running = Running::new(|_| Ok(json!({})));
    let idle: Vec<TcpStream> = (0..16).map(|_| running.connect()).collect();
    // The server takes connections in their order, so all idle ones are inside by now.
    let reply = running.get("/");
    assert_eq!(status(&reply), "503", "{reply}");
    drop(idle);
    // Their threads find the end one after the other.
    while status(&running.get("/")) != "200" {
        thread::yield_now();
    }
}

#[test]
fn a_taken_port_is_refused_with_advice() {
    let running = Running::new(|_| Ok(json!({})));
    let port: u16 = running.address().rsplit_once(':').unwrap().1.parse().unwrap();
    let refused = Server::bind(port, Content::page(Box::new(|_| Ok(json!({}))))).err().unwrap();
    assert!(refused.message().contains("--port"), "{}", refused.message());
}

#[test]
fn hostile_names_cannot_end_the_script_of_a_report() {
    let text = report(&json!({ HOSTILE: HOSTILE }), &Value::Null).unwrap();
    assert!(text.starts_with(REPORT_START));
    assert!(text.contains("connect-src 'none'"));
    // Those of page.html alone: the data, and the program.
    let plain = report(&Value::Null, &Value::Null).unwrap();
    for part in ["<script", "</script", "<!--", "\u{2028}", "\u{2029}", "alert(1)</"] {
        assert_eq!(text.matches(part).count(), plain.matches(part).count(), "{part}");
    }
    let start = text.find("id=\"data\"").unwrap();
    let start = start + text[start..].find('>').unwrap() + 1;
    let end = start + text[start..].find("</script>").unwrap();
    let back: Value = serde_json::from_str(&text[start..end]).unwrap();
    assert_eq!(back["data"][HOSTILE], HOSTILE);
    assert_eq!(in_script(&json!("</a&b>")), "\"\\u003c/a\\u0026b\\u003e\"");
}

#[test]
fn each_page_has_its_own_nonce_in_header_and_page() {
    let ((first, policy), (_, other)) = (served().unwrap(), served().unwrap());
    assert_ne!(policy, other);
    let nonce = policy.split("'nonce-").nth(1).unwrap().split('\'').next().unwrap();
    assert_eq!(nonce.len(), 32);
    assert_eq!(first.matches(&format!("nonce=\"{nonce}\"")).count(), 3, "style, data, program");
    assert!(policy.contains("frame-ancestors 'none'"));
}

#[test]
fn the_page_takes_nothing_from_elsewhere_and_writes_no_html() {
    let (page, _) = served().unwrap();
    for part in [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "@import",
        "url(",
    ] {
        assert!(!page.contains(part), "{part}");
    }
    // The name of SVG is no address that a browser visits.
    let known = page.replace("http://www.w3.org/2000/svg", "");
    assert!(!known.contains("http://") && !known.contains("https://") && !known.contains("src=\""));
}
