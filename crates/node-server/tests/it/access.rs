//! Tokens and certificates, and requests that no client of ours would send.

use crate::certificates::certificates;
use crate::support::{any_port, directory, name, options, put, serve, whole};
use bytes::Bytes;
use outlive_backend::{BackendLocation, Location, SmallFiles};
use outlive_node::NodeUrl;
use outlive_node::protocol::{
    BYTES_MAX, BeginRequest, FileDo, FileRequest, FinishRequest, HelloRequest, ListRequest,
    LockRequest, Range, ReadRequest, RecordDo, RecordRequest, RenewRequest, Shard, ShardRequest,
    VERSION, WritePart,
};
use outlive_node::stubs::node_client::NodeClient;
use outlive_node_server::{NodeOptions, NodeTls, check_exposure};
use outlive_types::ErrorKind;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;
use tokio::runtime::Builder;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

fn refused(url: NodeUrl, told: &str) {
    let error = url.check().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.message().contains(told), "{error}");
}

#[test]
fn a_node_with_tokens_lets_in_those_that_have_one() {
    let served = serve(1, |options| options.tokens = vec!["first".into(), "second".into()]);
    let url = |variables: &[(&'static str, &'static str)]| {
        served.url("p").with_variables(variables.iter().copied())
    };
    refused(url(&[]), "OUTLIVE_NODE_TOKEN_FILE");
    refused(url(&[("OUTLIVE_NODE_TOKEN", "third")]), "does not know the token");
    refused(url(&[("OUTLIVE_NODE_TOKEN", "firs")]), "does not know the token");
    for token in ["first", "second"] {
        let location = Location::new(url(&[("OUTLIVE_NODE_TOKEN", token)]));
        location.check().unwrap();
        location.make_folders(&["packs"]).unwrap();
    }
    // The standard health service asks for none.
    run(async {
        let address = format!("http://{}", served.server.address());
        let endpoint = Endpoint::from_shared(address).unwrap();
        let mut health = HealthClient::new(endpoint.connect().await.unwrap());
        let service = "outlive.node.v1.Node".to_owned();
        let asked = || HealthCheckRequest { service: service.clone() };
        let answer = health.check(asked()).await.unwrap();
        assert_eq!(answer.into_inner().status(), ServingStatus::Serving);
        // As a balancer watches it.
        let mut watched = health.watch(asked()).await.unwrap().into_inner();
        let first = watched.message().await.unwrap().unwrap();
        assert_eq!(first.status(), ServingStatus::Serving);
        served.server.stop().stop();
        let last = watched.message().await.unwrap().unwrap();
        assert_eq!(last.status(), ServingStatus::NotServing);
    });
}

pub fn tls(dir: &Path, node: &str, clients: bool) -> NodeTls {
    let read = |name: &str| fs::read(dir.join(name)).unwrap();
    NodeTls {
        certificate: read(&format!("{node}.pem")),
        key: read(&format!("{node}.key")),
        clients: clients.then(|| read("ca.pem")),
    }
}

#[test]
fn certificates_decide_which_clients_and_nodes_meet() {
    let (dir, strange) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    certificates(dir.path(), &[("node", "2"), ("client", "2"), ("expired", "-1")]);
    certificates(strange.path(), &[("client", "2")]);
    let path = |of: &TempDir, name: &str| of.path().join(name).to_str().unwrap().to_owned();
    let served = serve(1, |options| options.tls = Some(tls(dir.path(), "node", true)));
    let address = served.server.address();
    let url = |scheme: &str, variables: &[(&str, String)]| {
        let url = NodeUrl::parse(&format!("{scheme}://{address}/p")).unwrap();
        let given: Vec<(&str, &str)> =
            variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
        url.with_variables(given)
    };
    let ca = ("OUTLIVE_NODE_CA", path(&dir, "ca.pem"));
    let identity = |of: &TempDir, name: &str| {
        [
            ("OUTLIVE_NODE_CERT", path(of, &format!("{name}.pem"))),
            ("OUTLIVE_NODE_KEY", path(of, &format!("{name}.key"))),
        ]
    };
    let with = |of: &TempDir, name: &str| {
        let [certificate, key] = identity(of, name);
        vec![ca.clone(), certificate, key]
    };
    let location = Location::new(url("nodes", &with(&dir, "client")));
    location.make_folders(&["packs"]).unwrap();
    let target = location.open_target(&options()).unwrap();
    put(&*target, name(1), 7, 1 << 20).unwrap();
    assert!(whole(&*target, name(1)) == vec![7; 1 << 20]);
    // The client trusts another authority; then the node does.
    refused(url("nodes", &[("OUTLIVE_NODE_CA", path(&strange, "ca.pem"))]), "OUTLIVE_NODE_CA");
    for variables in [vec![ca.clone()], with(&strange, "client"), with(&dir, "expired")] {
        let error = url("nodes", &variables).check().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Retry), "{error}");
    }
    // Without TLS there is no answer that a client could understand.
    assert_eq!(url("node", &[]).check().unwrap_err().kind(), ErrorKind::Retry);
    let expired = serve(1, |options| options.tls = Some(tls(dir.path(), "expired", false)));
    let url = NodeUrl::parse(&format!("nodes://{}/p", expired.server.address())).unwrap();
    refused(url.with_variables([("OUTLIVE_NODE_CA", ca.1.as_str())]), "valid now");
}

#[test]
fn other_machines_are_let_in_only_on_purpose() {
    let dir = TempDir::new().unwrap();
    certificates(dir.path(), &[("node", "2")]);
    let options =
        |listen: &str| NodeOptions::new(vec![directory(dir.path())], listen.parse().unwrap());
    check_exposure(&options("127.0.0.1:1")).unwrap();
    check_exposure(&options("[::1]:1")).unwrap();
    let told = |options: &NodeOptions| check_exposure(options).unwrap_err().message().to_owned();
    assert!(told(&options("0.0.0.0:1")).contains("--tls-cert"));
    let mut safe = options("0.0.0.0:1");
    safe.tls = Some(tls(dir.path(), "node", false));
    assert!(told(&safe).contains("--token-file"));
    safe.tokens = vec!["x".to_owned()];
    check_exposure(&safe).unwrap();
}

/// Sends requests that no client of ours sends.
pub async fn client(address: std::net::SocketAddr) -> NodeClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    NodeClient::new(endpoint.connect().await.unwrap())
}

pub fn run(work: impl Future<Output = ()>) {
    Builder::new_multi_thread().enable_all().build().unwrap().block_on(work);
}

pub fn session() -> Bytes {
    Bytes::from_static(&[5; 16])
}

#[test]
fn names_lead_nowhere_outside_of_the_data() {
    let served = serve(1, |_| ());
    let own = format!("outlive-outside-{}", std::process::id());
    let outside: PathBuf = served.dir().parent().unwrap().join(&own);
    run(async {
        let mut client = client(served.server.address()).await;
        let file = |prefix: &str, name: &str, work: FileDo| FileRequest {
            session: session(),
            prefix: prefix.to_owned(),
            work: work.into(),
            names: vec![name.to_owned()],
            bytes: Bytes::from_static(b"x"),
        };
        for (prefix, name) in [
            ("", "../OWN"),
            ("", "/tmp/OWN"),
            ("..", "OWN"),
            ("a/../..", "OWN"),
            ("/tmp", "OWN"),
            ("a", "b/../../../OWN"),
            ("", ".node"),
            ("", ".node.lock"),
            ("", "a\0b"),
            ("", ""),
            (".node", "x"),
        ] {
            let name = &name.replace("OWN", &own);
            for work in [FileDo::Write, FileDo::WriteNew, FileDo::Read] {
                let answer = client.file(file(prefix, name, work)).await;
                assert_eq!(
                    answer.unwrap_err().code(),
                    Code::InvalidArgument,
                    "{prefix:?} {name:?}"
                );
            }
        }
    });
    assert!(!outside.exists());
}

#[test]
fn requests_that_make_no_sense_are_refused_and_the_node_goes_on() {
    let served = serve(1, |_| ());
    let location = served.new_location();
    run(async {
        let mut client = client(served.server.address()).await;
        let prefix = || "p/0".to_owned();
        let shard = || Some(Shard::from(name(1)));
        let invalid = |code: Code| assert_eq!(code, Code::InvalidArgument);
        for version in [0, VERSION + 1, u32::MAX] {
            let hello = HelloRequest { version, session: session(), ..Default::default() };
            let refused = client.hello(hello).await.unwrap_err();
            assert!(refused.message().contains("use one version"), "{refused}");
            invalid(refused.code());
        }
        let short = HelloRequest { version: VERSION, session: Bytes::new(), ..Default::default() };
        invalid(client.hello(short).await.unwrap_err().code());
        let begin = |shard: Option<Shard>, writer: &'static [u8]| BeginRequest {
            session: session(),
            prefix: "p/0".to_owned(),
            writer: Bytes::from_static(writer),
            shard,
            bytes_max: 8192,
            replaces: false,
        };
        invalid(client.begin(begin(None, &[1; 16])).await.unwrap_err().code());
        invalid(client.begin(begin(shard(), &[1; 15])).await.unwrap_err().code());
        let broken = Shard { pack: Bytes::from_static(&[1; 19]), shard: 0 };
        invalid(client.begin(begin(Some(broken), &[1; 16])).await.unwrap_err().code());
        client.begin(begin(shard(), &[1; 16])).await.unwrap();
        client.begin(begin(shard(), &[1; 16])).await.expect("a repetition changes nothing");
        let other = Some(Shard::from(name(2)));
        invalid(client.begin(begin(other, &[1; 16])).await.unwrap_err().code());
        let write = |offset: u64, length: u64, bytes: Vec<u8>| WritePart {
            session: session(),
            writer: Bytes::from_static(&[1; 16]),
            offset,
            length,
            bytes: bytes.into(),
        };
        for part in [
            write(1, 4096, vec![0; 4096]),
            write(0, 4095, vec![0; 4095]),
            write(8192, 4096, vec![0; 4096]),
            write(u64::MAX - 4095, 4096, vec![0; 4096]),
            write(0, u64::MAX - 4095, vec![0; 4096]),
            write(0, 4096, vec![0; 8192]),
        ] {
            invalid(client.write(tokio_stream::iter([part])).await.unwrap_err().code());
        }
        // A write that ends early is as if it never began, and one of another session is unknown.
        let early = client.write(tokio_stream::iter([write(0, 8192, vec![1; 4096])])).await;
        assert_eq!(early.unwrap_err().code(), Code::Unavailable);
        let mut foreign = write(0, 4096, vec![1; 4096]);
        foreign.session = Bytes::from_static(&[6; 16]);
        let foreign = client.write(tokio_stream::iter([foreign])).await.unwrap_err();
        assert_eq!(foreign.code(), Code::Unavailable);
        for _ in 0..2 {
            client.write(tokio_stream::iter([write(0, 4096, vec![1; 4096])])).await.unwrap();
        }
        let finish = |length: u64| FinishRequest {
            session: session(),
            writer: Bytes::from_static(&[1; 16]),
            length,
        };
        client.finish(finish(4096)).await.unwrap();
        client.finish(finish(4096)).await.expect("a repetition gets the same answer");
        let read = |ranges: Vec<(u64, u64)>| ReadRequest {
            session: session(),
            prefix: "p/0".to_owned(),
            shard: shard(),
            ranges: ranges
                .into_iter()
                .map(|(offset, length)| Range { offset, length, ..Range::default() })
                .collect(),
        };
        for ranges in [
            vec![(1, 4096)],
            vec![(0, 1)],
            vec![(u64::MAX - 4095, 8192)],
            vec![(0, u64::MAX - 4095)],
            vec![(0, 4 << 20), (0, 4096)],
            vec![(0, 4096); 1025],
        ] {
            invalid(client.read(read(ranges)).await.unwrap_err().code());
        }
        let mut parts =
            client.read(read(vec![(0, 4096), (4096, 4096)])).await.unwrap().into_inner();
        // In any order.
        let one = parts.message().await.unwrap().unwrap();
        let other = parts.message().await.unwrap().unwrap();
        let (first, second) = if one.range == 0 { (one, other) } else { (other, one) };
        assert!(first.fault.is_none() && first.bytes == vec![1; 4096]);
        assert_eq!(second.fault.unwrap().kind, "Damaged");
        let list =
            ListRequest { session: session(), prefix: prefix(), listed: 99, job: String::new() };
        invalid(client.list(list).await.unwrap_err().code());
        let ask =
            ShardRequest { session: session(), prefix: prefix(), work: 99, ..Default::default() };
        invalid(client.shard(ask).await.unwrap_err().code());
        let ask =
            RecordRequest { session: session(), prefix: prefix(), work: 99, ..Default::default() };
        invalid(client.record(ask).await.unwrap_err().code());
        let ask =
            RecordRequest { session: session(), job: "../x".to_owned(), ..Default::default() };
        invalid(client.record(ask).await.unwrap_err().code());
        let long = Bytes::from(vec![1; BYTES_MAX + 1]);
        let ask = RecordRequest {
            session: session(),
            prefix: prefix(),
            work: RecordDo::PutNew.into(),
            job: "x".to_owned(),
            number: 1,
            bytes: long.clone(),
        };
        invalid(client.record(ask).await.unwrap_err().code());
        let ask = FileRequest {
            session: session(),
            prefix: prefix(),
            work: FileDo::Write.into(),
            names: vec!["long".to_owned()],
            bytes: long,
        };
        invalid(client.file(ask).await.unwrap_err().code());
        let ask = LockRequest { session: session(), kind: 99, ..Default::default() };
        invalid(client.lock(ask).await.unwrap_err().code());
        let renew = RenewRequest { session: Bytes::from_static(&[1; 3]), ..Default::default() };
        invalid(client.renew(renew).await.unwrap_err().code());
    });
    let target = location.open_target(&options()).unwrap();
    assert_eq!(target.list().unwrap(), [name(1)]);
    assert_eq!(location.open_medium().unwrap().jobs().unwrap(), []);
}

#[test]
fn slow_clients_keep_no_memory_of_the_node() {
    let served = serve(1, |options| {
        options.session = Duration::from_millis(600);
        options.staging_bytes = 16 << 20;
    });
    let _location = served.new_location();
    run(async {
        let mut client = client(served.server.address()).await;
        let begin = BeginRequest {
            session: session(),
            prefix: "p/0".to_owned(),
            writer: Bytes::from_static(&[1; 16]),
            shard: Some(Shard::from(name(1))),
            bytes_max: 4 << 20,
            replaces: false,
        };
        client.begin(begin.clone()).await.unwrap();
        let first = WritePart {
            session: session(),
            writer: begin.writer.clone(),
            offset: 0,
            length: 4 << 20,
            bytes: Bytes::from_static(&[0; 4096]),
        };
        // It sends its first part, and no other one.
        let (_holds, more) = tokio::sync::mpsc::channel(1);
        let parts = tokio_stream::StreamExt::chain(
            tokio_stream::iter([first]),
            tokio_stream::wrappers::ReceiverStream::new(more),
        );
        let refused = client.write(parts).await.unwrap_err();
        assert!(refused.message().contains("no byte of a write came"), "{refused}");
    });
    assert_eq!(served.server.staging_bytes(), 0);
}

#[test]
fn settings_that_cannot_be_used_are_refused() {
    let dir = TempDir::new().unwrap();
    let refused = |change: fn(&mut NodeOptions), told: &str| {
        let mut options = NodeOptions::new(vec![directory(dir.path())], any_port());
        change(&mut options);
        let error = outlive_node_server::NodeServer::start(options).err().expect("refused");
        assert!(error.message().contains(told), "{error}");
    };
    refused(|options| options.data.clear(), "one location or more");
    refused(|options| options.staging_bytes = 1 << 20, "too few");
    refused(|options| options.data = vec![directory(Path::new("/nowhere/at/all"))], "/nowhere");
    refused(|options| options.listen = "203.0.113.1:9".parse().unwrap(), "cannot listen");
    refused(
        |options| {
            let (certificate, key) = (b"x".to_vec(), b"y".to_vec());
            options.tls = Some(NodeTls { certificate, key, clients: None });
        },
        "certificate",
    );
}
