//! Threads of one process that follow a move at the same time.

use super::*;
use crate::log_places::Found;
use crate::{Environment, open_or_create};
use outlive_types::ErrorKind;

/// One has looked for the new places before they were open; then another brings the move to its end. The first one
/// took the new places for the old ones, and sealed them: the log led back to itself.
#[test]
fn a_thread_that_another_overtakes_seals_no_new_place() {
    let dir = tempfile::tempdir().unwrap();
    let pool = open_or_create(&dir.path().join("pool"), Environment::system()).unwrap();
    let (home, format) = (pool.home().unwrap(), &pool.config().format);
    let old = home.log().clone();
    let places = ["a", "b", "c"].map(|name| dir.path().join(name).display().to_string());
    pool.move_log(&places).unwrap();
    let new = home.log().clone();
    assert_eq!((old.number, new.number), (1, 2));
    // As the first one saw them.
    for place in &new.at[..2] {
        fs::remove_file(place.as_directory().unwrap().join(MARKER)).unwrap();
    }
    let finished = finish(home, format, &old, &new, &old.moved_to(&new), false);
    assert_eq!(finished.unwrap_err().kind(), ErrorKind::Retry);
    match find_set(home, format, &new).pop() {
        Some(Found::There(marker)) => assert_eq!(marker.moved, None),
        _ => panic!("the third place is gone"),
    }
}
