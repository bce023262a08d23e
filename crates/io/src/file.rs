//! Positional reads and writes that repeat partial calls until all bytes are done.

use outlive_types::PAGE_BYTES;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Writes all of `bytes` at `offset`, however few the kernel takes per call.
///
/// # Errors
/// The first error other than an interruption.
pub fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    file.write_all_at(bytes, offset)
}

/// Reads into `bytes` from `offset` until they are full or the file ends, and returns the number of
/// bytes read. Works with O_DIRECT, where a read that stops within a page has met the end.
///
/// # Errors
/// The first error other than an interruption.
pub fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < bytes.len() {
        let at = offset + done as u64;
        // Under O_DIRECT a read that starts within a page fails with EINVAL instead of returning 0.
        if !done.is_multiple_of(PAGE_BYTES) && file.metadata()?.len() <= at {
            break;
        }
        match file.read_at(&mut bytes[done..], at) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_stop_at_the_end_of_the_file() {
        let file = tempfile::tempfile().unwrap();
        write_all_at(&file, &[7; 5000], 0).unwrap();
        let mut bytes = [0; 8192];
        assert_eq!(read_at(&file, &mut bytes, 0).unwrap(), 5000);
        assert_eq!(bytes[4999], 7);
        assert_eq!(read_at(&file, &mut bytes, 4096).unwrap(), 904);
        assert_eq!(read_at(&file, &mut bytes, 8192).unwrap(), 0);
    }
}
