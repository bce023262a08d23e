//! Checks of small files.

use super::{Make, run_all};
use crate::SmallFiles;
use std::sync::Arc;
use std::thread;

/// Checks that a backend keeps the guarantees of [`SmallFiles`]. `make` makes a new, empty location
/// each time.
///
/// # Panics
/// With the guarantee that the backend broke.
pub fn check_files(make: impl Fn() -> Arc<dyn SmallFiles> + 'static) {
    run_all(
        &[
            ("a new location has no files", empty),
            ("a new file is there, as it was written, and stays", write_new),
            ("of several new files of a name one is written", race),
            ("a write replaces all of a file", write),
            ("readers find one of two files, whole", readers),
        ],
        &make,
    );
}

/// The names that a pool uses, and their folders.
const NAMES: [&str; 3] = ["pool.toml", "log/.pool.toml", "packs/.pool.toml"];

fn made(make: &Make<dyn SmallFiles>) -> Arc<dyn SmallFiles> {
    let files = make();
    for _ in 0..2 {
        files.make_folders(&["log", "packs"]).expect("folders can be made again");
    }
    files
}

fn read(files: &dyn SmallFiles, name: &str) -> Option<Vec<u8>> {
    let bytes = files.read(name).expect("an answer");
    assert_eq!(files.has(name).expect("an answer"), bytes.is_some(), "{name}");
    bytes
}

fn empty(make: &Make<dyn SmallFiles>) {
    for files in [make(), made(make)] {
        for name in NAMES {
            assert_eq!(read(&*files, name), None, "{name}");
        }
    }
}

fn write_new(make: &Make<dyn SmallFiles>) {
    let files = made(make);
    for name in NAMES {
        assert!(files.write_new(name, name.as_bytes()).expect("writing works"), "{name}");
        assert!(!files.write_new(name, b"another").expect("writing works"), "{name}");
        files.keep(name).expect("the file can be made durable");
    }
    for folder in ["", "log", "packs"] {
        files.sync_folder(folder).expect("its names can be made durable");
    }
    for name in NAMES {
        assert_eq!(read(&*files, name).as_deref(), Some(name.as_bytes()), "{name}");
    }
}

fn race(make: &Make<dyn SmallFiles>) {
    let files = made(make);
    let text = |number: u8| vec![b'a' + number; 300];
    let written: Vec<u8> = thread::scope(|scope| {
        let attempt = |number| {
            let files = &files;
            let write = move || files.write_new(NAMES[1], &text(number)).expect("writing works");
            (number, scope.spawn(write))
        };
        let all: Vec<_> = (0..8).map(attempt).collect();
        let written = |(number, thread): (u8, thread::ScopedJoinHandle<'_, bool>)| {
            thread.join().expect("no panic").then_some(number)
        };
        all.into_iter().filter_map(written).collect()
    });
    let [winner] = written[..] else { panic!("{written:?} have written it") };
    assert_eq!(read(&*files, NAMES[1]), Some(text(winner)));
}

fn write(make: &Make<dyn SmallFiles>) {
    let files = made(make);
    for text in [&b"a longer text"[..], b"short", b"", b"x\0y"] {
        files.write(NAMES[2], text).expect("writing works");
        assert_eq!(read(&*files, NAMES[2]).as_deref(), Some(text));
    }
    assert!(!files.write_new(NAMES[2], b"late").expect("writing works"));
    assert_eq!(read(&*files, NAMES[0]), None, "the others are as they were");
}

fn readers(make: &Make<dyn SmallFiles>) {
    let files = made(make);
    let texts = [vec![b'a'; 300_000], vec![b'b'; 70]];
    files.write(NAMES[0], &texts[0]).expect("writing works");
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 0..20 {
                files.write(NAMES[0], &texts[number % 2]).expect("writing works");
            }
        });
        loop {
            let last = writer.is_finished();
            let there = read(&*files, NAMES[0]).expect("one of the two");
            assert!(texts.contains(&there), "{} bytes", there.len());
            if last {
                break;
            }
        }
    });
}
