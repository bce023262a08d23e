//! A backend that this build does not have: one type, its scheme, and one call of `register`.

use crate::common;

use common::{Program, noise, small_config};
use outlive_backend::conformance::check_files;
use outlive_backend::{
    BackendLocation, Location, MemoryTarget, Scheme, SmallFiles, Target, TargetOptions,
};
use outlive_log::{LogMedium, MemoryMedium};
use outlive_pool::{Environment, LogConfig, PoolConfig, TargetConfig, create, open};
use outlive_registry::register;
use outlive_store::Select;
use outlive_types::{Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex};

const MEMORY: Scheme = Scheme {
    name: "memory",
    help: "this process, as \"memory:NAME\"",
    parse: |rest| match rest.trim_start_matches('/') {
        "" => Err(Error::invalid("it names nothing")),
        name => Ok(Location::new(InMemory(name.to_owned()))),
    },
};

/// The content of one location.
#[derive(Clone, Debug)]
struct Kept {
    shards: Arc<MemoryTarget>,
    records: Arc<MemoryMedium>,
    files: Arc<Files>,
}

static ALL: LazyLock<Mutex<BTreeMap<String, Kept>>> = LazyLock::new(Mutex::default);

#[derive(Debug)]
struct InMemory(String);

impl InMemory {
    fn kept(&self) -> Kept {
        let new = || Kept {
            shards: Arc::new(MemoryTarget::new()),
            records: Arc::new(MemoryMedium::with_locks()),
            files: Arc::default(),
        };
        ALL.lock().unwrap().entry(self.0.clone()).or_insert_with(new).clone()
    }
}

impl fmt::Display for InMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory://{}", self.0)
    }
}

impl BackendLocation for InMemory {
    fn child(&self, name: &str) -> Result<Location> {
        Ok(Location::new(InMemory(format!("{}/{name}", self.0))))
    }

    fn advice(&self) -> &'static str {
        "look in the right process"
    }

    fn open_target(&self, _how: &TargetOptions) -> Result<Arc<dyn Target>> {
        Ok(self.kept().shards)
    }

    fn open_medium(&self) -> Result<Arc<dyn LogMedium>> {
        Ok(self.kept().records)
    }

    fn open_files(&self) -> Result<Arc<dyn SmallFiles>> {
        Ok(self.kept().files)
    }
}

#[derive(Debug, Default)]
struct Files(Mutex<BTreeMap<String, Vec<u8>>>);

impl SmallFiles for Files {
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.0.lock().unwrap().get(name).cloned())
    }

    fn write_new(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        let mut files = self.0.lock().unwrap();
        let is_new = !files.contains_key(name);
        files.entry(name.to_owned()).or_insert_with(|| bytes.to_vec());
        Ok(is_new)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.0.lock().unwrap().insert(name.to_owned(), bytes.to_vec());
        Ok(())
    }
}

fn state(seed: u64) -> common::State {
    [("a".to_owned(), noise(seed, 50_000))].into()
}

/// Saves, opens the pool again, and restores. Then the log moves, and the program saves on.
fn is_a_pool(named: &Path, config: PoolConfig, moved: &[String]) {
    let env = Environment::system;
    {
        let program = Program::start(&create(named, config, env()).unwrap(), "job");
        program.save(&state(1)).unwrap();
        program.save(&state(2)).unwrap();
        program.job.close().unwrap();
    }
    let pool = open(named, env()).unwrap();
    let program = Program::start(&pool, "job");
    assert_eq!(program.restore(Select::Newest).unwrap().unwrap(), (2, state(2)));
    let now: Vec<_> = pool.move_log(moved).unwrap().replicas;
    assert_eq!(now, [(moved[0].clone(), None)]);
    assert_eq!(program.save(&state(3)).unwrap().epoch, 3);
    program.job.close().unwrap();
    let again = Program::start(&open(named, env()).unwrap(), "job");
    assert_eq!(again.restore(Select::Newest).unwrap().unwrap(), (3, state(3)));
    let error = create(named, small_config(), env()).unwrap_err();
    assert!(error.message().contains("is a pool already"), "{error}");
}

#[test]
fn a_program_may_bring_a_backend() {
    let dir = tempfile::tempdir().unwrap();
    // Before it is registered, its locations are refused with the schemes that there are.
    let with = |target: &str, log: &str| PoolConfig {
        target: vec![TargetConfig::at(target)],
        log: Some(LogConfig { location: Some(log.to_owned()), ..LogConfig::default() }),
        ..small_config()
    };
    let pool = dir.path().join("pool");
    let config = || with("memory:shards", "memory:log");
    let refused = create(&pool, config(), Environment::system()).unwrap_err();
    assert!(refused.message().contains("no scheme \"memory\"; it takes a directory"), "{refused}");
    assert!(!pool.exists());

    register(MEMORY).unwrap();
    register(MEMORY).unwrap();
    check_files(|| Arc::new(Files::default()));
    is_a_pool(&pool, config(), &["memory://log/2".to_owned()]);
    // The shards and the records are there, and nowhere else.
    let kept = |name: &str| InMemory(name.to_owned()).kept();
    assert!(!kept("shards").shards.list().unwrap().is_empty());
    assert_eq!(fs::read_dir(pool.join("packs")).map_or(0, Iterator::count), 0);
    // A pool may be there altogether, also if a path type has made one slash of two.
    is_a_pool(Path::new("memory://whole"), small_config(), &["memory://moved".to_owned()]);
    assert!(open(Path::new("memory:/whole/pool.toml"), Environment::system()).is_ok());
    // A location that is in use is not taken for a new part.
    let error =
        create(&dir.path().join("other"), with("memory:shards", "."), Environment::system());
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().contains("memory://shards"), "{error}");
    // The message lists the scheme now, and names that are none are refused.
    let unknown = create(&pool, with("http://x", "."), Environment::system()).unwrap_err();
    assert!(unknown.message().contains("this process, as \"memory:NAME\""), "{unknown}");
    for name in ["", "Memory", "1st", "a b"] {
        assert!(register(Scheme { name, ..MEMORY }).is_err(), "{name}");
    }
}
