//! A forked child has its own threads and connections, and does not touch its parent's.

use crate::support;

use outlive_backend::Target;
use outlive_testkit::succeeds_in_a_child;
use outlive_types::ErrorKind;
use support::{PAGE, Server, buffer_of, content, get, name, put, write_all};

const PART: usize = 8 << 20;

#[test]
fn parent_and_child_use_one_target() {
    let Some(server) = Server::versitygw() else { return };
    let target = server.pool_url().target().unwrap();
    let bytes = content(1, 3 * PART);
    put(&target, name(1), &bytes).unwrap();
    let mut writer = target.create(name(2), bytes.len() as u64).unwrap();
    let (first, rest) = bytes.split_at(PART + PAGE);
    writer.write(0, buffer_of(first)).wait().unwrap();
    let mut inherited = Some(writer);
    let done = succeeds_in_a_child(|| {
        assert!(get(&target, name(1), 0, bytes.len())? == bytes);
        put(&target, name(3), &bytes)?;
        // The child cannot use a writer that the parent has begun.
        let mut writer = inherited.take().expect("it was inherited");
        let fault = writer.write(first.len() as u64, buffer_of(rest)).wait().unwrap_err();
        assert_eq!(fault.error.kind(), ErrorKind::Invalid);
        assert!(fault.error.message().contains("before a fork"));
        drop(writer);
        let mut writer = target.create(name(4), bytes.len() as u64)?;
        write_all(&mut *writer, &bytes, PART)?;
        writer.finish(bytes.len() as u64).wait()
    });
    assert!(done);
    let mut writer = inherited.take().expect("the child took its own");
    writer.write(first.len() as u64, buffer_of(rest)).wait().unwrap();
    writer.finish(bytes.len() as u64).wait().unwrap();
    for pack in 1..=4 {
        assert!(get(&target, name(pack), 0, bytes.len()).unwrap() == bytes, "{pack}");
    }
    assert_eq!(target.unfinished().unwrap(), []);
}
