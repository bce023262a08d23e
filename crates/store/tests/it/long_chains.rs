//! Reads after many saves: those that should be short look for segments that list what they need, the
//! newest first.

use crate::common::{Program, State, noise, tuned_on};
use crate::stepped::{SteppedTarget, Steps};
use outlive_backend::MemoryTarget;
use outlive_store::Select;
use std::sync::Arc;

const PAGES: usize = 30;
const INDEX_BYTES: [u64; 2] = [64 << 20, 1];

/// Returns the bytes that a reader of parts reads in all, after some saves, of which each changes all
/// but the first `kept` pages. `index_bytes_max` decides how many segments are loaded as a whole.
fn read_after(saves: u64, kept: usize, index_bytes_max: u64) -> u64 {
    let steps = Steps::default();
    let target = Arc::new(SteppedTarget(Arc::new(MemoryTarget::new()), steps.clone()));
    let pool = tuned_on(target, |tuning| tuning.index_bytes_max = index_bytes_max);
    let program = Program::start(&pool, "a");
    let mut bytes = noise(0, PAGES * 4096);
    for save in 1..=saves {
        bytes[kept * 4096..].copy_from_slice(&noise(save, (PAGES - kept) * 4096));
        program.save(&State::from([("a".to_owned(), bytes.clone())])).unwrap();
    }
    drop(program);
    let program = Program::start(&pool, "a");
    let before = steps.read_bytes();
    let (reader, _) = program.job.ranges(Select::Newest, 0).unwrap().unwrap();
    let mut into = vec![0; bytes.len()];
    reader.read("a", 0, &mut into).unwrap();
    let read = steps.read_bytes() - before;
    assert!(into == bytes, "{saves} saves, {kept} pages kept");
    let (_, restored) = program.restore(Select::Newest).unwrap().unwrap();
    assert!(restored["a"] == bytes);
    read
}

#[test]
fn no_segments_are_read_that_list_only_what_is_gone() {
    for index_bytes_max in INDEX_BYTES {
        let [few, many] = [20, 300].map(|saves| read_after(saves, 0, index_bytes_max));
        assert!(many < few + few / 2, "{few} bytes after 20 saves, {many} after 300");
    }
}

#[test]
fn what_only_the_first_save_has_written_is_found() {
    for index_bytes_max in INDEX_BYTES {
        for saves in [2, 9, 70, 75] {
            read_after(saves, 1, index_bytes_max);
            read_after(saves, PAGES - 1, index_bytes_max);
        }
    }
}
