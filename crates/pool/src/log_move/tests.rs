//! Movers, and threads of one process that follow a move, at the same time.

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

/// Who has looked where the log is, and then another moves it to places that he wants as well: they hold records by
/// then, and that is no fault of theirs.
#[test]
fn a_mover_that_another_overtakes_is_told_so() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("pool");
    let [first, late] = [(); 2].map(|()| open_or_create(&root, Environment::system()).unwrap());
    let places = |names: [&str; 3]| names.map(|name| dir.path().join(name).display().to_string());
    let (home, format) = (late.home().unwrap(), &late.config().format);
    let old = home.log().clone();
    let new = new_set(home, &old, &places(["a", "b", "d"])).unwrap();
    let look = || {
        prepare(home, format, &old, || {
            let mut places = new.named.iter().zip(&new.at);
            places.try_for_each(|(named, at)| prepare_place(home, format, named, at))
        })
    };
    // Records of nobody's move are another matter.
    let strange = new.at[2].as_directory().unwrap().join("log");
    fs::create_dir_all(strange.join("job")).unwrap();
    assert_eq!(look().unwrap_err().kind(), ErrorKind::Invalid);
    fs::remove_dir_all(strange.parent().unwrap()).unwrap();
    look().unwrap();

    first.move_log(&places(["a", "b", "c"])).unwrap();
    let told = look().unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Retry, "{told}");
    assert!(told.message().contains("another command has moved the log to"), "{told}");
    assert_eq!(late.home().unwrap().log().number, 2);
}
