//! Requests that no client of ours sends, made from any bytes, against a model of what a node may
//! answer. `fuzz/src/node.rs` lets a fuzzer choose the bytes.

use outlive_backend::Location;
use outlive_dir::DirectoryLocation;
use outlive_node::protocol::{
    AbandonRequest, BeginRequest, FileRequest, FinishRequest, HeldLock, HelloRequest, ListPart,
    ListRequest, LockRequest, Range, ReadPart, ReadRequest, RecordRequest, RenewRequest, Shard,
    ShardRequest, VERSION, WritePart,
};
use outlive_node_server::in_process::{InProcessNode, Reply, framed};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::runtime::Runtime;

const PAGE: u64 = 4096;
const PREFIXES: [&str; 5] = ["", "a", "a/b", "../out", "a//b"];
const METHODS: [&str; 12] = [
    "Hello", "Renew", "Begin", "Write", "Finish", "Abandon", "Read", "List", "Shard", "Record",
    "Lock", "File",
];
/// Lengths and offsets, in bytes: usual and odd ones.
const NUMBERS: [u64; 12] = [
    0,
    PAGE,
    2 * PAGE,
    3 * PAGE,
    1,
    PAGE - 1,
    4 << 20,
    (4 << 20) + PAGE,
    1 << 40,
    u64::MAX,
    1 << 63,
    64 << 10,
];
/// Bytes of all writes of one sequence, at most.
const WRITTEN_MAX: u64 = 32 << 20;

/// Bytes that choose what is sent next; zeros at the end.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::from(self.byte()) % all.len()]
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length.min(self.0.len())).map(|_| self.byte()).collect()
    }

    /// Returns the number of a session or writer: mostly one of three, sometimes none.
    fn number(&mut self) -> Vec<u8> {
        match self.byte() % 16 {
            15 => vec![1; usize::from(self.byte() % 20)],
            one => vec![one % 3; 16],
        }
    }

    fn shard(&mut self) -> Option<Shard> {
        let choice = self.byte();
        let pack = vec![choice / 16 % 2; if choice % 16 == 15 { 19 } else { 20 }];
        let shard = if choice % 16 == 14 { 256 } else { u32::from(choice % 2) };
        (choice % 16 != 13).then(|| Shard { pack: pack.into(), shard })
    }

    fn shards(&mut self) -> Vec<Shard> {
        (0..self.byte() % 3).filter_map(|_| self.shard()).collect()
    }

    fn enumeration(&mut self, count: u8) -> i32 {
        let choice = self.byte();
        if choice == 255 { -1 } else { i32::from(choice % (count + 1)) }
    }
}

/// A shard: the prefix, the pack, the number.
type Name = (String, Vec<u8>, u32);

/// A shard that is being written.
struct Begun {
    session: Vec<u8>,
    name: Name,
    /// Pages with their bytes; `None` if the model cannot know them.
    pages: BTreeMap<u64, Option<u8>>,
    is_over: bool,
}

/// The shards that the node must have.
#[derive(Default)]
struct Model {
    begun: BTreeMap<Vec<u8>, Begun>,
    /// Pages of finished shards; `None` if they cannot be known.
    finished: BTreeMap<Name, Option<Vec<Option<u8>>>>,
    written_bytes: u64,
    fill: u8,
    /// Whether requests were sent that the model does not understand.
    is_blurred: bool,
}

/// Sends the requests that `data` says. Panics if a reply is wrong.
pub fn run(runtime: &Arc<Runtime>, data: &[u8]) {
    let shm = std::path::Path::new("/dev/shm");
    let dir = if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() };
    let dir = dir.expect("a directory can be made");
    let inner = dir.path().join("data");
    std::fs::create_dir(&inner).expect("a directory can be made");
    let at = Location::new(DirectoryLocation::at(&inner));
    let node = InProcessNode::open(runtime, at).expect("the directory is free");
    make_folders(&node);
    let (mut choices, mut model) = (Choices(data), Model::default());
    while !choices.0.is_empty() {
        model.step(&node, &mut choices);
    }
    model.check(&node);
    assert_eq!(node.in_use().0, 0, "staging memory is kept");
    let outside = std::fs::read_dir(dir.path()).expect("it is there").count();
    assert_eq!(outside, 1, "something was written outside of the node's data");
}

fn send(node: &InProcessNode, method: &str, message: &impl Message) -> Reply {
    judged(method, node.call(method, framed(&message.encode_to_vec())))
}

/// Makes the folders of the usual prefixes, as a client does before anything else.
fn make_folders(node: &InProcessNode) {
    for prefix in &PREFIXES[..3] {
        let request = FileRequest {
            session: vec![0; 16].into(),
            prefix: (*prefix).to_owned(),
            work: 5,
            names: vec!["packs".to_owned(), "log".to_owned()],
            bytes: Vec::new().into(),
        };
        assert_eq!(send(node, "File", &request).code, 0);
    }
}

/// Checks a reply: a node has no bugs, and says the kind of each error that it makes.
fn judged(method: &str, reply: Reply) -> Reply {
    assert_ne!(reply.kind.as_deref(), Some("Bug"), "{method}: {reply:?}");
    assert!(reply.code >= 0 && reply.code != 2, "{method}: {reply:?}");
    // 13: a message that cannot be decoded; 12: no such method; 11: a message that is too long.
    assert!(
        reply.code == 0 || reply.kind.is_some() || [11, 12, 13].contains(&reply.code),
        "{method}: {reply:?}"
    );
    reply
}

impl Model {
    fn step(&mut self, node: &InProcessNode, choices: &mut Choices<'_>) {
        match choices.byte() % 20 {
            0 => {
                // Any bytes at all.
                let method = choices.of(&METHODS);
                let length = usize::from(choices.byte());
                let bytes = choices.bytes(length);
                let body = if choices.byte().is_multiple_of(2) { framed(&bytes) } else { bytes };
                judged(method, node.call(method, body));
                // It may have changed anything that the model knows.
                self.is_blurred = true;
                self.finished.values_mut().for_each(|pages| *pages = None);
                self.begun.values_mut().for_each(|begun| begun.is_over = true);
            }
            1 => {
                let version = if choices.byte().is_multiple_of(4) { 9 } else { VERSION };
                let hello = HelloRequest {
                    version,
                    session: choices.number().into(),
                    prefix: choices.of(&PREFIXES).to_owned(),
                    build: "fuzz".to_owned(),
                };
                send(node, "Hello", &hello);
            }
            2 => {
                let complete_below = u64::from(choices.byte());
                let session = choices.number().into();
                let count = choices.byte() % 4;
                let held = (0..count).map(|_| HeldLock {
                    prefix: choices.of(&PREFIXES).to_owned(),
                    kind: choices.enumeration(3),
                    number: u64::from(choices.byte() % 4),
                });
                let held = held.collect();
                send(node, "Renew", &RenewRequest { session, held, complete_below });
            }
            3..=5 => self.begin(node, choices),
            6..=10 => self.write(node, choices),
            11 | 12 => self.finish(node, choices),
            13 => self.abandon(node, choices),
            14 => self.shard(node, choices),
            15 => self.check(node),
            16 => {
                let request = ListRequest {
                    session: choices.number().into(),
                    prefix: choices.of(&PREFIXES).to_owned(),
                    listed: choices.enumeration(4),
                    job: choices.of(&["job", "", "..", "a/b"]).to_owned(),
                };
                send(node, "List", &request);
            }
            17 => {
                let request = RecordRequest {
                    session: choices.number().into(),
                    prefix: choices.of(&PREFIXES).to_owned(),
                    work: choices.enumeration(11),
                    job: choices.of(&["job", "", "..", "a/b"]).to_owned(),
                    number: choices.of(&NUMBERS),
                    bytes: choices.bytes(9).into(),
                };
                send(node, "Record", &request);
            }
            18 => {
                let request = LockRequest {
                    session: choices.number().into(),
                    prefix: choices.of(&PREFIXES).to_owned(),
                    work: choices.enumeration(4),
                    kind: choices.enumeration(3),
                    number: u64::from(choices.byte() % 4),
                    token: choices.of(&["", "x", "0-0"]).to_owned(),
                };
                send(node, "Lock", &request);
            }
            _ => {
                let name = choices.of(&[
                    "pool.toml",
                    "packs/.pool.toml",
                    "../x",
                    "/etc/x",
                    "a/b/c",
                    "packs",
                    "",
                ]);
                let request = FileRequest {
                    session: choices.number().into(),
                    prefix: choices.of(&PREFIXES).to_owned(),
                    work: choices.enumeration(7),
                    names: vec![name.to_owned(); usize::from(choices.byte() % 3)],
                    bytes: choices.bytes(9).into(),
                };
                send(node, "File", &request);
            }
        }
    }

    fn begin(&mut self, node: &InProcessNode, choices: &mut Choices<'_>) {
        let (session, writer) = (choices.number(), choices.number());
        let prefix = choices.of(&PREFIXES[..3]).to_owned();
        let shard = choices.shard();
        let (bytes_max, replaces) = (choices.of(&NUMBERS), choices.byte().is_multiple_of(4));
        let request = BeginRequest {
            session: session.clone().into(),
            prefix: prefix.clone(),
            writer: writer.clone().into(),
            shard: shard.clone(),
            bytes_max,
            replaces,
        };
        if send(node, "Begin", &request).code != 0 {
            return;
        }
        let shard = shard.expect("a node begins no shard without a name");
        let name = (prefix, shard.pack.to_vec(), shard.shard);
        if !replaces && !self.begun.contains_key(&writer) {
            assert!(
                !self.finished.contains_key(&name),
                "a finished shard is begun again: {name:?}"
            );
        }
        // A begin replaces the leftover of another one, and the same begin may come twice.
        for (other, begun) in &mut self.begun {
            begun.is_over |= *other != writer && begun.name == name;
        }
        // The node may have forgotten a writer of that number that is over.
        self.begun.retain(|other, begun| {
            *other != writer || begun.session == session && begun.name == name
        });
        self.begun.entry(writer).or_insert_with(|| Begun {
            session,
            name,
            pages: BTreeMap::new(),
            is_over: false,
        });
    }

    fn write(&mut self, node: &InProcessNode, choices: &mut Choices<'_>) {
        let (session, writer) = (choices.number(), choices.number());
        let (offset, said) = (choices.of(&NUMBERS), choices.of(&NUMBERS));
        let parts = 1 + usize::from(choices.byte() % 3);
        // Mostly as many bytes as it says.
        let sent = if choices.byte() % 8 == 7 { choices.of(&NUMBERS[..6]) } else { said };
        if sent > 5 << 20 || self.written_bytes + sent > WRITTEN_MAX {
            return;
        }
        self.written_bytes += sent;
        self.fill = self.fill.wrapping_add(1);
        let bytes = vec![self.fill; sent as usize];
        let mut body = Vec::new();
        for (number, part) in bytes.chunks(bytes.len().div_ceil(parts).max(1)).enumerate() {
            let mut message = WritePart { bytes: part.to_vec().into(), ..WritePart::default() };
            if number == 0 {
                (message.session, message.writer) = (session.clone().into(), writer.clone().into());
                (message.offset, message.length) = (offset, said);
            }
            body.extend(framed(&message.encode_to_vec()));
        }
        let done = judged("Write", node.call("Write", body)).code == 0;
        let Some(begun) = self.begun.get_mut(&writer) else {
            assert!(!done || self.is_blurred, "a write of a shard that was not begun");
            return;
        };
        assert!(!done || begun.session == session, "a write of another session");
        let pages =
            offset / PAGE..(offset / PAGE).saturating_add(said / PAGE).min(offset / PAGE + 2048);
        for page in pages {
            let is_known = done && !begun.pages.contains_key(&page);
            // A failed write may have begun, and a repeated one has the bytes of the first.
            if is_known {
                begun.pages.insert(page, Some(self.fill));
            } else if begun.pages.contains_key(&page) {
                begun.pages.insert(page, None);
            }
        }
    }

    fn finish(&mut self, node: &InProcessNode, choices: &mut Choices<'_>) {
        let (session, writer, length) = (choices.number(), choices.number(), choices.of(&NUMBERS));
        let request = FinishRequest {
            session: session.clone().into(),
            writer: writer.clone().into(),
            length,
        };
        let done = send(node, "Finish", &request).code == 0;
        let Some(begun) = self.begun.get_mut(&writer) else { return };
        if begun.session != session || begun.is_over {
            return;
        }
        begun.is_over = true;
        let name = begun.name.clone();
        if done {
            let pages = (0..length / PAGE).map(|page| begun.pages.get(&page).copied().flatten());
            self.finished.insert(name, Some(pages.collect()));
        } else if let Some(pages) = self.finished.get_mut(&name) {
            *pages = None; // the old one or the new one
        }
    }

    fn abandon(&mut self, node: &InProcessNode, choices: &mut Choices<'_>) {
        let (session, writer) = (choices.number(), choices.number());
        let request =
            AbandonRequest { session: session.clone().into(), writer: writer.clone().into() };
        send(node, "Abandon", &request);
        if let Some(begun) = self.begun.get_mut(&writer).filter(|begun| begun.session == session) {
            begun.is_over = true;
        }
    }

    fn shard(&mut self, node: &InProcessNode, choices: &mut Choices<'_>) {
        let request = ShardRequest {
            session: choices.number().into(),
            prefix: choices.of(&PREFIXES).to_owned(),
            work: choices.enumeration(8),
            shards: choices.shards(),
            bytes: choices.of(&NUMBERS[..4]),
        };
        let done = send(node, "Shard", &request).code == 0;
        let [delete, delete_unfinished] = [2, 3];
        for shard in &request.shards {
            let name = (request.prefix.clone(), shard.pack.to_vec(), shard.shard);
            if request.work == delete && done {
                self.finished.remove(&name);
            } else if request.work == delete {
                self.finished.entry(name.clone()).and_modify(|pages| *pages = None);
            }
            if request.work == delete || request.work == delete_unfinished {
                let of_it = self.begun.values_mut().filter(|begun| begun.name == name);
                of_it.for_each(|begun| begun.is_over = true);
            }
        }
    }

    /// Lists and reads all that must be there.
    fn check(&self, node: &InProcessNode) {
        let session = vec![1_u8; 16];
        for prefix in &PREFIXES[..3] {
            let list = ListRequest {
                session: session.clone().into(),
                prefix: (*prefix).to_owned(),
                listed: 0,
                job: String::new(),
            };
            let listed: BTreeSet<Name> = send(node, "List", &list)
                .messages
                .into_iter()
                .flat_map(|part| {
                    ListPart::decode(part).expect("a node encodes what it sends").shards
                })
                .map(|shard| ((*prefix).to_owned(), shard.pack.to_vec(), shard.shard))
                .collect();
            for (name, pages) in self.finished.iter().filter(|((of, ..), _)| of == prefix) {
                let Some(pages) = pages else { continue };
                assert!(listed.contains(name), "{name:?} is finished, and not listed");
                self.read(node, name, pages);
            }
        }
    }

    fn read(&self, node: &InProcessNode, (prefix, pack, shard): &Name, pages: &[Option<u8>]) {
        let known = pages.iter().enumerate().filter_map(|(at, page)| Some((at as u64, (*page)?)));
        let known: Vec<(u64, u8)> = known.take(64).collect();
        let range = |(page, _): &(u64, u8)| Range {
            offset: page * PAGE,
            length: PAGE,
            may_be_cached: false,
            is_urgent: false,
        };
        let request = ReadRequest {
            session: vec![1_u8; 16].into(),
            prefix: prefix.clone(),
            shard: Some(Shard { pack: pack.clone().into(), shard: *shard }),
            ranges: known.iter().map(range).collect(),
        };
        if known.is_empty() {
            return;
        }
        let reply = send(node, "Read", &request);
        assert_eq!(reply.code, 0, "{prefix} {pack:?} {shard}: {reply:?}");
        let mut read = vec![Vec::new(); known.len()];
        for part in reply.messages {
            let part = ReadPart::decode(part).expect("a node encodes what it sends");
            assert!(part.fault.is_none(), "{:?}", part.fault);
            read[part.range as usize].extend_from_slice(&part.bytes);
        }
        for ((page, fill), bytes) in known.iter().zip(read) {
            assert_eq!(bytes.len() as u64, PAGE);
            assert!(bytes.iter().all(|byte| byte == fill), "page {page}: {fill} and {}", bytes[0]);
        }
    }
}
