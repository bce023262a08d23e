//! A node keeps the guarantees of each seam.

use crate::support::{options, serve};
use outlive_backend::conformance::{check_files, check_log, check_medium, check_target};
use outlive_log::RecordLog;
use std::sync::Arc;

#[test]
fn it_keeps_the_guarantees_of_a_target() {
    let served = serve(1, |_| ());
    check_target(move || served.new_location().open_target(&options()).unwrap());
}

#[test]
fn several_directories_keep_the_guarantees_of_one_target() {
    let served = serve(3, |_| ());
    check_target(move || served.new_location().open_target(&options()).unwrap());
}

#[test]
fn it_keeps_the_guarantees_of_small_files() {
    let served = serve(1, |_| ());
    check_files(move || served.new_location().open_files().unwrap());
}

#[test]
fn it_keeps_the_guarantees_of_a_medium() {
    let served = serve(1, |_| ());
    check_medium(move || served.new_location().open_medium().unwrap());
}

#[test]
fn it_keeps_the_guarantees_of_a_log() {
    let served = serve(1, |_| ());
    check_log(true, move || {
        Arc::new(RecordLog::over(served.new_location().open_medium().unwrap()))
    });
}
