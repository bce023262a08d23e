//! Seeded schedules of the locks of a node: the real sessions, and the real locks of clients. The
//! network delays, repeats and loses messages. Nodes start again, clients pause, and their clocks run
//! at different rates.

use super::*;
use bytes::Bytes;
use outlive_node::HeldLocks;
use outlive_node::protocol::RenewReply;
use outlive_types::SeededRng;

const CLIENTS: u64 = 3;
const STEPS: u64 = 400;
const NODE: [u8; 16] = [9; 16];

/// A message on its way. Each has the number of its client.
#[derive(Clone, Debug)]
enum Message {
    Take { number: u64, kind: LockKind, sent: Duration },
    Taken { number: u64, sent: Duration, reply: Option<(String, u32)> },
    Drop { number: u64 },
    Renew { request: RenewRequest, sent: Duration, serial: u64 },
    Renewed { request: RenewRequest, sent: Duration, serial: u64, reply: RenewReply },
}

/// A process that uses the node.
struct Client {
    locks: HeldLocks,
    /// Locks that it asks for.
    asked: Vec<(u64, LockKind)>,
    /// Locks that it has, as far as it knows, and tokens of leases.
    has: Vec<(u64, LockKind, String)>,
    /// Its clock runs by this many per cent too fast, and began at this time.
    fast: i64,
    began: i64,
    /// Number of renewals so far.
    serial: u64,
    /// Locks of a machine that stood still: no renewal from this one on that names the lock was
    /// answered since.
    stood: BTreeMap<u64, u64>,
}

/// Events without which the schedules prove little.
#[derive(Default, Debug)]
struct Met {
    refused: u64,
    unknown: u64,
    ended: u64,
    starts: u64,
    stood: u64,
}

struct World {
    rng: SeededRng,
    began: Instant,
    /// Milliseconds since then.
    now: i64,
    sessions: Option<Sessions>,
    /// Life of sessions in this run of the node, and the longest one, in seconds.
    life: u64,
    longest: u64,
    clients: Vec<Client>,
    messages: Vec<(u64, Message)>,
    met: Met,
    /// The last steps, for a person.
    told: Vec<String>,
}

impl World {
    fn new(seed: u64) -> World {
        let rng = SeededRng::new(seed);
        let clients = (0..CLIENTS).map(|_| Client {
            locks: HeldLocks::default(),
            asked: Vec::new(),
            has: Vec::new(),
            fast: rng.below(9).cast_signed() - 4,
            began: (1 << 30) + rng.below(1 << 20).cast_signed(),
            serial: 0,
            stood: BTreeMap::new(),
        });
        let clients = clients.collect();
        let (now, longest, met) = Default::default();
        let (messages, sessions) = (Vec::new(), None);
        let began = Instant::now();
        let mut world = World {
            rng,
            began,
            now,
            sessions,
            life: 0,
            longest,
            clients,
            messages,
            met,
            told: Vec::new(),
        };
        world.start();
        world
    }

    fn tell(&mut self, what: impl std::fmt::Display) {
        self.told.push(format!("{:>7} ms: {what}", self.now));
    }

    fn start(&mut self) {
        self.life = [10, 20][self.rng.below(2) as usize];
        let earlier = (self.longest > 0).then(|| Duration::from_secs(self.longest.max(self.life)));
        let knows_from = self.node_time() + earlier.unwrap_or_default();
        self.longest = self.longest.max(self.life);
        let life = Duration::from_secs(self.life);
        self.sessions = Some(Sessions::new(NODE, life, knows_from));
        self.tell(format!("the node starts, with {life:?}, and knows from {:?}", earlier));
    }

    fn node_time(&self) -> Instant {
        self.began + Duration::from_millis(self.now.cast_unsigned())
    }

    fn time_of(&self, client: u64) -> Duration {
        let Client { fast, began, .. } = &self.clients[client as usize];
        Duration::from_millis((began + self.now + self.now * fast / 100).cast_unsigned())
    }

    fn step(&mut self) {
        let client = self.rng.below(CLIENTS);
        match self.rng.below(20) {
            0 | 1 => self.take(client),
            2 => self.give_back(client),
            3 => self.give_up(client),
            4..=6 => self.renew(client),
            7 => self.now += self.rng.below(1 + self.life * 400).cast_signed(),
            8 => self.now += self.rng.below(1 + self.life * 100).cast_signed(),
            9 if self.rng.below(8) == 0 => {
                // Everything stands still.
                self.now += self.rng.below(self.life * 2000).cast_signed();
            }
            9 if self.rng.below(4) == 0 => self.stand_still(client),
            10 if self.rng.below(6) == 0 => {
                self.sessions = None;
                self.tell("the node is killed");
                // If it starts again before such a machine renews, nothing tells that the lock ended.
                let stood = self.clients.iter_mut().flat_map(|it| it.stood.values_mut());
                stood.for_each(|since| *since = u64::MAX);
                self.met.starts += 1;
            }
            11 => drop(self.sessions.is_none().then(|| self.start())),
            12 => {
                if let Some(sessions) = &self.sessions {
                    let ended = sessions.end_silent(self.node_time());
                    self.tell(format!("the sessions {ended:?} end"));
                }
            }
            13 if !self.messages.is_empty() => {
                let at = self.rng.below(self.messages.len() as u64) as usize;
                match self.rng.below(2) {
                    0 => {
                        let lost = self.messages.swap_remove(at);
                        self.tell(format!("lost: {lost:?}"));
                    }
                    _ => self.messages.push(self.messages[at].clone()),
                }
            }
            _ => self.deliver(),
        }
        self.check();
    }

    fn take(&mut self, client: u64) {
        use LockKind::{Collecting, Lease, Reading};
        let kind = [Collecting, Collecting, Reading, Lease][self.rng.below(4) as usize];
        let sent = self.time_of(client);
        let it = &mut self.clients[client as usize];
        let number = it.locks.hold("p".to_owned(), kind);
        it.asked.push((number, kind));
        self.messages.push((client, Message::Take { number, kind, sent }));
    }

    fn give_back(&mut self, client: u64) {
        let it = &mut self.clients[client as usize];
        if !it.has.is_empty() {
            let (number, ..) = it.has.swap_remove(self.rng.below(it.has.len() as u64) as usize);
            it.locks.let_go(number);
            self.messages.push((client, Message::Drop { number }));
        }
    }

    /// Gives up waiting for a reply.
    fn give_up(&mut self, client: u64) {
        let it = &mut self.clients[client as usize];
        if let Some((number, _)) = it.asked.pop() {
            it.locks.let_go(number);
            self.messages.push((client, Message::Drop { number }));
        }
    }

    fn renew(&mut self, client: u64) {
        let sent = self.time_of(client);
        let it = &mut self.clients[client as usize];
        let (request, serial) = (it.locks.renewal(Bytes::new(), sent), it.serial);
        it.serial += 1;
        self.messages.push((client, Message::Renew { request, sent, serial }));
    }

    /// A machine stands still with its clock. Until a later renewal is answered, its client cannot
    /// know that its locks have ended.
    fn stand_still(&mut self, client: u64) {
        let before = self.time_of(client).as_millis() as i64;
        self.now += self.rng.below(self.life * 2000).cast_signed();
        let after = self.time_of(client).as_millis() as i64;
        let it = &mut self.clients[client as usize];
        // Its clock shows what it showed before.
        it.began -= after - before;
        let numbers = it.asked.iter().map(|it| it.0).chain(it.has.iter().map(|it| it.0));
        it.stood.extend(numbers.map(|number| (number, it.serial)));
        self.met.stood += 1;
        self.tell(format!("client {client} stood still"));
    }

    /// Delivers any message; requests to a node that does not run are lost.
    fn deliver(&mut self) {
        if self.messages.is_empty() {
            return;
        }
        let at = self.rng.below(self.messages.len() as u64) as usize;
        let (client, message) = self.messages.swap_remove(at);
        self.tell(format!("{} of client {client}: {message:?}", self.time_of(client).as_millis()));
        let (now, here) = (self.node_time(), self.time_of(client));
        let session = [client as u8; 16];
        if let Message::Take { .. } | Message::Drop { .. } | Message::Renew { .. } = message {
            let Some(sessions) = &self.sessions else { return };
            sessions.see(session, now);
            let life = sessions.life_s();
            match message {
                Message::Take { number, kind, sent } => {
                    let taken = sessions.take(session, "p", kind, number, now);
                    self.met.refused += u64::from(taken == Knows::No);
                    self.met.unknown += u64::from(taken == Knows::NotYet);
                    let reply =
                        (taken == Knows::Yes).then(|| (sessions.token(session, number), life));
                    self.messages.push((client, Message::Taken { number, sent, reply }));
                }
                Message::Drop { number } => sessions.let_go(session, number),
                Message::Renew { request, sent, serial } => {
                    let lost = sessions.renew(session, &request, now).unwrap();
                    let reply = RenewReply { run: Bytes::new(), session_s: life, lost };
                    self.messages.push((client, Message::Renewed { request, sent, serial, reply }));
                }
                _ => unreachable!("replies are below"),
            }
            return;
        }
        let it = &mut self.clients[client as usize];
        match message {
            Message::Taken { number, sent, reply } => {
                let Some(at) = it.asked.iter().position(|(asked, _)| *asked == number) else {
                    return;
                };
                let (_, kind) = it.asked.swap_remove(at);
                match reply {
                    Some((token, life)) => {
                        it.locks.taken(number, sent, Duration::from_secs(life.into()));
                        it.has.push((number, kind, token));
                    }
                    None => {
                        it.locks.let_go(number);
                        self.messages.push((client, Message::Drop { number }));
                    }
                }
            }
            Message::Renewed { request, sent, serial, reply } => {
                it.locks.renewed(&request, &reply, sent, here);
                for HeldLock { number, .. } in &request.held {
                    if it.stood.get(number).is_some_and(|since| serial >= *since) {
                        it.stood.remove(number);
                    }
                }
            }
            _ => unreachable!("requests are above"),
        }
    }

    fn check(&mut self) {
        let (mut collectors, now) = (Vec::new(), self.node_time());
        for (number, client) in (0..CLIENTS).zip(&self.clients) {
            let here = self.time_of(number);
            for (lock, kind, token) in &client.has {
                if client.locks.check(*lock, here).is_err() {
                    self.met.ended += 1;
                    continue;
                }
                if client.stood.contains_key(lock) {
                    continue;
                }
                let sessions = self.sessions.as_ref();
                match kind {
                    LockKind::Collecting => collectors.push((number, *lock)),
                    LockKind::Reading => {
                        let held = sessions.map(|it| it.is_held("p", *kind, now));
                        assert_ne!(held, Some(Knows::No), "client {number} reads, lock {lock}");
                    }
                    LockKind::Lease => {
                        let ended = sessions.map(|it| it.has_ended(token, now));
                        assert_ne!(ended, Some(Knows::Yes), "client {number} lives, lock {lock}");
                    }
                }
            }
        }
        assert!(collectors.len() < 2, "clients and their locks: {collectors:?}");
    }

    /// Once all clients are silent, their locks are free.
    fn end(mut self) -> Met {
        if self.sessions.is_none() {
            self.start();
        }
        self.now += (3000 * self.longest).cast_signed();
        let now = self.node_time();
        let Some(sessions) = &self.sessions else { unreachable!("it was started") };
        sessions.end_silent(now);
        assert_eq!(sessions.count(), 0);
        let last = [CLIENTS as u8; 16];
        sessions.see(last, now);
        assert_eq!(sessions.take(last, "p", LockKind::Collecting, 0, now), Knows::Yes);
        self.met
    }
}

/// At most one client believes that it collects, and no lock that its client counts on is free for
/// others.
#[test]
fn no_client_counts_on_a_lock_that_another_one_may_get() {
    let mut all = Met::default();
    for seed in 0..3000 {
        let mut world = World::new(seed);
        for step in 0..STEPS {
            let before = format!("seed {seed}, step {step}");
            let stepped = std::panic::AssertUnwindSafe(|| world.step());
            if let Err(panic) = std::panic::catch_unwind(stepped) {
                let told: Vec<_> = world.told.iter().rev().take(60).rev().collect();
                eprintln!("{before}: {told:#?}");
                std::panic::resume_unwind(panic);
            }
        }
        let met = world.end();
        all.refused += met.refused;
        all.unknown += met.unknown;
        all.ended += met.ended;
        all.starts += met.starts;
        all.stood += met.stood;
    }
    let Met { refused, unknown, ended, starts, stood } = all;
    assert!(refused.min(unknown).min(ended).min(starts).min(stood) > 1000, "{all:?}");
}
