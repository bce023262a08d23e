//! The requests of clients.

use crate::admission::Admission;
use crate::answer::{Answer, answer, blocking};
use crate::buffers::Buffers;
use crate::data::{Data, Part};
use crate::fair::Session;
use crate::refusals::{Refusals, Refused};
use crate::sessions::{Knows, Sessions, kind_of};
use crate::stage::Stage;
use crate::writers::{Next, Writers, wait};
use bytes::Bytes;
use outlive_backend::{ShardName, SmallFiles};
use outlive_log::Put;
use outlive_node::protocol::{
    AbandonRequest, BeginRequest, Done, Fault, FileDo, FileReply, FileRequest, FinishRequest,
    HelloReply, HelloRequest, ListPart, ListRequest, Listed, LockDo, LockKind, LockReply,
    LockRequest, NAMES_MAX, PART_BYTES, RANGES_MAX, ReadPart, ReadRequest, RecordDo, RecordReply,
    RecordRequest, RenewReply, RenewRequest, Shard, ShardDo, ShardReply, ShardRequest, UNIT_BYTES,
    VERSION, WritePart, check_length, job_name, number, shard_name,
};
use outlive_node::stubs::node_server::Node;
use outlive_types::{Error, PAGE_BYTES, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, Streaming};

/// Reads of at most this many bytes take no staging memory.
const SHORT_BYTES: usize = 64 << 10;

/// A node.
pub(crate) struct Service {
    pub data: Data,
    pub sessions: Sessions,
    pub writers: Writers,
    pub admission: Arc<Admission>,
    pub stage: Arc<Stage>,
    pub buffers: Arc<Buffers>,
    /// Random number of this run.
    pub run: [u8; 16],
    /// Longest wait for the next part of a write, and for room in a reply. A client that is slower
    /// does not keep memory of the node.
    pub slow: Duration,
    /// Longest time in which all bytes of a write come.
    pub writing_max: Duration,
    pub written_bytes: AtomicU64,
    pub sent_bytes: AtomicU64,
    pub requests: AtomicU64,
    pub refusals: Arc<Refusals>,
}

impl Service {
    /// Notes a request of a session.
    fn see(&self, session: &Bytes) -> Result<Session> {
        let session = number(session)?;
        self.sessions.see(session, Instant::now());
        Ok(session)
    }

    /// Ends what belongs to silent sessions. Returns the number of sessions and the shards that
    /// were not finished.
    pub(crate) fn tidy(&self) -> (usize, Vec<ShardName>) {
        let now = Instant::now();
        self.stage.forget_old(now);
        if self.admission.taken().0 == 0 {
            self.buffers.give_back();
        }
        let ended = self.sessions.end_silent(now);
        let shards = if ended.is_empty() { Vec::new() } else { self.writers.abandon_all(&ended) };
        (ended.len(), shards)
    }

    async fn do_begin(&self, request: BeginRequest) -> Result<Done> {
        let session = self.see(&request.session)?;
        let shard = shard_of(request.shard.as_ref())?;
        let part = self.data.part(&request.prefix)?;
        let how = (request.bytes_max, request.replaces);
        self.writers.begin(number(&request.writer)?, session, (part, shard), how).await?;
        Ok(Done {})
    }

    async fn do_write(&self, mut parts: Streaming<WritePart>) -> Result<Done> {
        let first = next_part(&mut parts, self.slow).await?;
        let session = self.see(&first.session)?;
        let writer = self.writers.get(number(&first.writer)?, session)?;
        let length = usize::try_from(first.length).unwrap_or(usize::MAX);
        let is_pages = |number: u64| number.is_multiple_of(PAGE_BYTES as u64);
        if !is_pages(first.offset) || !is_pages(first.length) || length > UNIT_BYTES {
            return Err(Error::invalid(format!(
                "a write of {length} bytes at {} is not made of whole pages, or above {UNIT_BYTES} bytes",
                first.offset
            )));
        }
        let pending = match writer.note(first.offset, length)? {
            Next::Known(known) => return wait(known).await.map(|()| Done {}),
            Next::Receive(pending) => pending,
        };
        // The bytes stay with the client until there is room for them.
        let permit = self.admission.take(session, length).await;
        let ends = Instant::now() + self.writing_max;
        let mut buffer = self.buffers.take(length);
        let mut filled = 0;
        let mut bytes = first.bytes;
        loop {
            let Some(room) = buffer.get_mut(filled..).filter(|room| room.len() >= bytes.len())
            else {
                return Err(Error::invalid("a write has more bytes than it said"));
            };
            room[..bytes.len()].copy_from_slice(&bytes);
            filled += bytes.len();
            if filled == length {
                break;
            }
            if Instant::now() > ends {
                return Err(Error::retry("the bytes of a write came too slowly"));
            }
            bytes = next_part(&mut parts, self.slow).await?.bytes;
        }
        self.written_bytes.fetch_add(length as u64, Ordering::Relaxed);
        wait(pending.write(buffer.share(), permit)).await?;
        Ok(Done {})
    }

    async fn do_finish(&self, request: FinishRequest) -> Result<Done> {
        let session = self.see(&request.session)?;
        let writer = self.writers.get(number(&request.writer)?, session)?;
        writer.check_length(request.length)?;
        let finished = writer.finish(request.length).await;
        // It may have replaced another one.
        self.stage.forget(writer.shard);
        finished.map(|()| Done {})
    }

    async fn do_read(
        &self,
        request: ReadRequest,
    ) -> Result<ReceiverStream<std::result::Result<ReadPart, Status>>> {
        let session = self.see(&request.session)?;
        let shard = shard_of(request.shard.as_ref())?;
        let bytes: u64 = request.ranges.iter().fold(0, |sum, it| it.length.saturating_add(sum));
        let is_pages = |number: u64| number.is_multiple_of(PAGE_BYTES as u64);
        let is_whole = |it: &outlive_node::protocol::Range| {
            is_pages(it.offset) && is_pages(it.length) && it.offset.checked_add(it.length).is_some()
        };
        if request.ranges.len() > RANGES_MAX
            || bytes > UNIT_BYTES as u64
            || !request.ranges.iter().all(is_whole)
        {
            return Err(Error::invalid(format!(
                "a read has at most {RANGES_MAX} ranges of whole pages, and at most {UNIT_BYTES} bytes"
            )));
        }
        let part = self.data.part(&request.prefix)?;
        let opened = part.clone();
        let target = blocking(move || opened.target()).await?;
        let place = (request.prefix.as_str().into(), shard);
        // For the bytes of the reply. A few pages, which a program may stand still for, do not wait.
        let permit = match usize::try_from(bytes).unwrap_or(usize::MAX) {
            ..=SHORT_BYTES => None,
            bytes => Some(self.admission.take(session, bytes).await),
        };
        let (tell, parts) = mpsc::channel(2);
        let (give, mut pieces) = mpsc::unbounded_channel();
        for (at, range) in (0..).zip(&request.ranges) {
            let length = usize::try_from(range.length).unwrap_or(usize::MAX);
            let range = (range.offset, length, range.mode());
            self.stage.read(session, (&target, &place), range, (at, give.clone()));
        }
        drop(give);
        self.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
        let (slow, refusals) = (self.slow, self.refusals.clone());
        tokio::spawn(async move {
            let _held = (permit, part);
            loop {
                let piece = tokio::select! {
                    () = tell.closed() => return,
                    piece = pieces.recv() => piece,
                };
                let Some((range, read)) = piece else { return };
                if let Err(error) = &read {
                    let refused = Refused { kind: error.kind().name(), call: "Read" };
                    refusals.note(refused, error.message(), None);
                }
                if send_range(&tell, (range, slow), read).await.is_err() {
                    return;
                }
            }
        });
        Ok(ReceiverStream::new(parts))
    }

    async fn do_list(&self, request: ListRequest) -> Result<Vec<ListPart>> {
        self.see(&request.session)?;
        let part = self.data.part(&request.prefix)?;
        let listed = known(Listed::try_from(request.listed))?;
        blocking(move || {
            Ok(match listed {
                Listed::Shards => of_shards(&part.target()?.list()?),
                Listed::Unfinished => of_shards(&part.target()?.unfinished()?),
                Listed::Jobs => part
                    .medium()?
                    .jobs()?
                    .chunks(NAMES_MAX / 16)
                    .map(|jobs| ListPart {
                        jobs: jobs.iter().map(|job| job.escaped()).collect(),
                        ..ListPart::default()
                    })
                    .collect(),
                Listed::Records => part
                    .medium()?
                    .list(&job_name(&request.job)?)?
                    .chunks(NAMES_MAX)
                    .map(|records| ListPart { records: records.to_vec(), ..ListPart::default() })
                    .collect(),
            })
        })
        .await
    }

    async fn do_shard(&self, request: ShardRequest) -> Result<ShardReply> {
        self.see(&request.session)?;
        let part = self.data.part(&request.prefix)?;
        let work = known(ShardDo::try_from(request.work))?;
        let shards: Result<Vec<ShardName>> = request.shards.iter().map(shard_name).collect();
        let shards = shards?;
        let stage = self.stage.clone();
        blocking(move || {
            let done = shard_work(&part, work, &shards, request.bytes);
            if work == ShardDo::Delete {
                shards.into_iter().for_each(|shard| stage.forget(shard));
            }
            done
        })
        .await
    }

    async fn do_record(&self, request: RecordRequest) -> Result<RecordReply> {
        self.see(&request.session)?;
        let part = self.data.part(&request.prefix)?;
        let work = known(RecordDo::try_from(request.work))?;
        check_length(&request.bytes)?;
        blocking(move || record_work(&part, work, &request)).await
    }

    fn do_lock(&self, request: &LockRequest) -> Result<LockReply> {
        let session = self.see(&request.session)?;
        let now = Instant::now();
        let work = known(LockDo::try_from(request.work))?;
        let session_s = self.sessions.life_s();
        let is = |is: bool| LockReply { is, session_s, ..LockReply::default() };
        let of = |knows: Knows| LockReply {
            is_unknown: knows == Knows::NotYet,
            known_in_s: self.sessions.known_in_s(now),
            ..is(knows == Knows::Yes)
        };
        Ok(match work {
            LockDo::Take => {
                let kind = kind_of(request.kind)?;
                let taken = self.sessions.take(session, &request.prefix, kind, request.number, now);
                let token = match kind {
                    LockKind::Lease if taken == Knows::Yes => {
                        self.sessions.token(session, request.number)
                    }
                    _ => String::new(),
                };
                LockReply { token, ..of(taken) }
            }
            LockDo::Drop => {
                self.sessions.let_go(session, request.number);
                is(true)
            }
            LockDo::IsHeld => {
                of(self.sessions.is_held(&request.prefix, kind_of(request.kind)?, now))
            }
            LockDo::HasEnded => of(self.sessions.has_ended(&request.token, now)),
        })
    }

    async fn do_file(&self, request: FileRequest) -> Result<FileReply> {
        self.see(&request.session)?;
        let part = self.data.part(&request.prefix)?;
        let work = known(FileDo::try_from(request.work))?;
        request.names.iter().try_for_each(|name| check_file(name, work))?;
        check_length(&request.bytes)?;
        blocking(move || file_work(&part, work, &request)).await
    }
}

#[tonic::async_trait]
impl Node for Service {
    type ReadStream = ReceiverStream<std::result::Result<ReadPart, Status>>;
    type ListStream = tokio_stream::Iter<std::vec::IntoIter<std::result::Result<ListPart, Status>>>;

    async fn hello(&self, request: Request<HelloRequest>) -> Answer<HelloReply> {
        let request = request.into_inner();
        let greeted = self.see(&request.session).and_then(|_| match request.version {
            VERSION => Ok(()),
            other => Err(Error::invalid(format!(
                "this node speaks version {VERSION} of the protocol, and the client version {other} \
                 (outlive {}): use one version of outlive on both sides",
                shown_build(&request.build)
            ))),
        });
        answer(greeted.map(|()| HelloReply {
            version: VERSION,
            node: Bytes::copy_from_slice(&self.data.id),
            run: Bytes::copy_from_slice(&self.run),
            session_s: self.sessions.life_s(),
        }))
    }

    async fn renew(&self, request: Request<RenewRequest>) -> Answer<RenewReply> {
        let request = request.into_inner();
        let renewed = self
            .see(&request.session)
            .and_then(|session| self.sessions.renew(session, &request, Instant::now()));
        answer(renewed.map(|lost| RenewReply {
            run: Bytes::copy_from_slice(&self.run),
            session_s: self.sessions.life_s(),
            lost,
        }))
    }

    async fn begin(&self, request: Request<BeginRequest>) -> Answer<Done> {
        answer(self.do_begin(request.into_inner()).await)
    }

    async fn write(&self, request: Request<Streaming<WritePart>>) -> Answer<Done> {
        answer(self.do_write(request.into_inner()).await)
    }

    async fn finish(&self, request: Request<FinishRequest>) -> Answer<Done> {
        answer(self.do_finish(request.into_inner()).await)
    }

    async fn abandon(&self, request: Request<AbandonRequest>) -> Answer<Done> {
        let request = request.into_inner();
        let named = self.see(&request.session).and_then(|it| Ok((number(&request.writer)?, it)));
        let abandoned = match named {
            Ok((writer, session)) => self.writers.abandon(writer, session).await,
            Err(error) => Err(error),
        };
        answer(abandoned.map(|()| Done {}))
    }

    async fn read(&self, request: Request<ReadRequest>) -> Answer<Self::ReadStream> {
        answer(self.do_read(request.into_inner()).await)
    }

    async fn list(&self, request: Request<ListRequest>) -> Answer<Self::ListStream> {
        let listed = self.do_list(request.into_inner()).await;
        answer(listed.map(|parts| {
            let parts: Vec<_> = parts.into_iter().map(Ok).collect();
            tokio_stream::iter(parts)
        }))
    }

    async fn shard(&self, request: Request<ShardRequest>) -> Answer<ShardReply> {
        answer(self.do_shard(request.into_inner()).await)
    }

    async fn record(&self, request: Request<RecordRequest>) -> Answer<RecordReply> {
        answer(self.do_record(request.into_inner()).await)
    }

    async fn lock(&self, request: Request<LockRequest>) -> Answer<LockReply> {
        answer(self.do_lock(&request.into_inner()))
    }

    async fn file(&self, request: Request<FileRequest>) -> Answer<FileReply> {
        answer(self.do_file(request.into_inner()).await)
    }
}

/// Receives the next part of a write.
async fn next_part(parts: &mut Streaming<WritePart>, slow: Duration) -> Result<WritePart> {
    match tokio::time::timeout(slow, parts.message()).await {
        Ok(Ok(Some(part))) => Ok(part),
        Ok(Ok(None)) => Err(Error::retry("a write ended before its last byte")),
        Ok(Err(status)) => Err(Error::retry(format!("a write was cut off ({})", status.message()))),
        Err(_) => Err(Error::retry(format!("no byte of a write came for {} s", slow.as_secs()))),
    }
}

/// Sends the bytes of a range in parts. Fails if the client does not take them.
async fn send_range(
    tell: &mpsc::Sender<std::result::Result<ReadPart, Status>>,
    (range, slow): (u32, Duration),
    read: Result<Bytes>,
) -> std::result::Result<(), ()> {
    let send = |part| async move {
        let sent = tokio::time::timeout(slow, tell.send(Ok(part))).await;
        sent.ok().and_then(std::result::Result::ok).ok_or(())
    };
    match read {
        Err(error) => {
            let (kind, message) = (error.kind().name().to_owned(), error.message().to_owned());
            let fault = Some(Fault { kind, message });
            send(ReadPart { range, fault, ..ReadPart::default() }).await
        }
        Ok(mut bytes) => {
            while !bytes.is_empty() {
                let part = bytes.split_to(bytes.len().min(PART_BYTES));
                send(ReadPart { range, bytes: part, fault: None }).await?;
            }
            Ok(())
        }
    }
}

/// Returns the version that a client says it has, for a message.
fn shown_build(build: &str) -> String {
    let shown: String = build.chars().filter(|it| it.is_ascii_graphic()).take(32).collect();
    if shown.is_empty() { "of an unknown version".to_owned() } else { shown }
}

fn shard_of(shard: Option<&Shard>) -> Result<ShardName> {
    shard_name(shard.ok_or_else(|| Error::invalid("the request names no shard"))?)
}

fn known<T, E>(value: std::result::Result<T, E>) -> Result<T> {
    value.map_err(|_| {
        Error::invalid("this node does not know such a request: it is older than the client")
    })
}

fn of_shards(shards: &[ShardName]) -> Vec<ListPart> {
    let part = |shards: &[ShardName]| ListPart {
        shards: shards.iter().map(|shard| Shard::from(*shard)).collect(),
        ..ListPart::default()
    };
    shards.chunks(NAMES_MAX).map(part).collect()
}

fn shard_work(part: &Part, work: ShardDo, shards: &[ShardName], bytes: u64) -> Result<ShardReply> {
    let target = part.target()?;
    let mut reply = ShardReply::default();
    match work {
        ShardDo::Length => match shards {
            [shard] => reply.bytes = target.length(*shard)?,
            _ => return Err(Error::invalid("a length is one shard's")),
        },
        ShardDo::Sync => target.sync(shards)?,
        ShardDo::Delete => {
            shards.iter().try_for_each(|shard| target.delete(*shard))?;
            target.close_files(false);
        }
        ShardDo::DeleteUnfinished => {
            shards.iter().try_for_each(|shard| target.delete_unfinished(*shard))?;
        }
        ShardDo::Capacity => {
            let space = target.capacity()?;
            reply = ShardReply { bytes: space.total_bytes, free_bytes: space.free_bytes };
        }
        ShardDo::MakeReserve => target.make_reserve(bytes)?,
        ShardDo::DeleteReserve => reply.bytes = target.delete_reserve()?,
        ShardDo::Freshen => target.freshen(shards)?,
    }
    Ok(reply)
}

fn record_work(part: &Part, work: RecordDo, request: &RecordRequest) -> Result<RecordReply> {
    let medium = part.medium()?;
    let job = || job_name(&request.job);
    let bytes = |there: Option<Vec<u8>>| RecordReply {
        is: there.is_some(),
        bytes: there.unwrap_or_default().into(),
    };
    let done = |()| RecordReply::default();
    let number = request.number;
    match work {
        RecordDo::Get => medium.get(&job()?, number).map(bytes),
        RecordDo::Has => {
            let is = medium.has(&job()?, number)?;
            Ok(RecordReply { is, ..RecordReply::default() })
        }
        RecordDo::PutNew => {
            let is = medium.put_new(&job()?, number, &request.bytes)? == Put::Made;
            Ok(RecordReply { is, ..RecordReply::default() })
        }
        RecordDo::Delete => medium.delete(&job()?, number).map(done),
        RecordDo::RemoveBefore => medium.remove_before(&job()?, number).map(done),
        RecordDo::Sync => medium.sync(&job()?).map(done),
        RecordDo::Keep => medium.keep(&job()?, number).map(done),
        RecordDo::Tidy => medium.tidy(&job()?).map(done),
        RecordDo::Freshen => medium.freshen(&job()?).map(done),
    }
}

fn file_work(part: &Part, work: FileDo, request: &FileRequest) -> Result<FileReply> {
    let files = part.files();
    let names: Vec<&str> = request.names.iter().map(String::as_str).collect();
    let name = || match names[..] {
        [name] => Ok(name),
        _ => Err(Error::invalid("the request needs one name of a file")),
    };
    let mut reply = FileReply::default();
    match work {
        FileDo::Read => {
            let there = files.read(name()?)?;
            reply.is = there.is_some();
            reply.bytes = there.unwrap_or_default().into();
        }
        FileDo::Has => reply.is = files.has(name()?)?,
        FileDo::WriteNew => reply.is = files.write_new(name()?, &request.bytes)?,
        FileDo::Write => files.write(name()?, &request.bytes)?,
        FileDo::Keep => files.keep(name()?)?,
        FileDo::MakeFolders => part.make_folders(&names)?,
        FileDo::SyncFolder => files.sync_folder(name()?)?,
    }
    Ok(reply)
}

/// Refuses names that lead out of a location, and those of the node's own files.
fn check_file(name: &str, work: FileDo) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.=+@,%".contains(c);
    let is_part = |part: &str| {
        !matches!(part, "" | "." | ".." | ".node" | ".node.lock") && part.chars().all(plain)
    };
    let is_folder = matches!(work, FileDo::SyncFolder | FileDo::MakeFolders);
    match (is_folder && name.is_empty()) || (name.len() <= 512 && name.split('/').all(is_part)) {
        true => Ok(()),
        false => Err(Error::invalid(format!("{name:?} is no name of a small file"))),
    }
}
