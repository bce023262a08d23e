//! A tree with every kind of item and property that a file system can hold.

use super::{is_root, set_mtime, sparse};
use crate::common::noise;
use rustix::fs::{CWD, FileType, Mode, OFlags, XattrFlags, lsetxattr, mkdirat, mknodat, openat};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

/// Creates the tree.
pub fn everything(dir: &Path) {
    let at = |name: &str| dir.join(name);
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    // Content.
    for length in [0, 1, 511, 512, 513, 1023, 1024, 4096, 16 << 10, (16 << 10) + 1, 64 << 10] {
        fs::write(at(&format!("noise-{length}")), noise(length, length as usize)).unwrap();
        fs::write(at(&format!("zeros-{length}")), vec![0; length as usize]).unwrap();
    }
    fs::write(at("long"), noise(1, 3_000_000)).unwrap();
    let mut holey = noise(2, 200_000);
    holey[50_000..150_000].fill(0);
    fs::write(at("zeros within"), holey).unwrap();
    // Names.
    fs::write(dir.join(OsStr::from_bytes(b"not \xFF\xFE UTF-8")), "x").unwrap();
    fs::write(at("new\nline"), "x").unwrap();
    fs::write(at(&"n".repeat(255)), "x").unwrap();
    fs::write(at(" "), "x").unwrap();
    fs::create_dir_all(at("empty/emptier")).unwrap();
    // `.` and `-` sort before `/`.
    for path in ["order", "order.d", "order-d"] {
        fs::create_dir_all(at(path)).unwrap();
        fs::write(at(path).join("file"), path).unwrap();
    }
    let mut deep = openat(CWD, dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..30 {
        let name = "d".repeat(200);
        mkdirat(&deep, name.as_str(), Mode::RWXU).unwrap();
        deep = openat(&deep, name.as_str(), OFlags::RDONLY, Mode::empty()).unwrap();
    }
    let flags = OFlags::CREATE | OFlags::WRONLY;
    let file = openat(&deep, "far down", flags, Mode::RWXU).unwrap();
    rustix::io::write(&file, &noise(3, 1000)).unwrap();
    // Links.
    symlink("long", at("link")).unwrap();
    symlink("/nowhere/at/all", at("dangling")).unwrap();
    symlink("/etc", at("absolute")).unwrap();
    symlink("order/../order", at("order/up")).unwrap();
    symlink(OsStr::from_bytes(&[0xFE; 1000]), at("odd link")).unwrap();
    fs::hard_link(at("long"), at("also long")).unwrap();
    fs::hard_link(at("long"), at("order/long too")).unwrap();
    fs::hard_link(at("noise-0"), at("empty/nothing")).unwrap();
    fs::hard_link(at("link"), at("link again")).unwrap();
    // Special files.
    let owner = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, at("fifo"), FileType::Fifo, owner, 0).unwrap();
    mknodat(CWD, at("socket"), FileType::Socket, owner, 0).unwrap();
    fs::hard_link(at("fifo"), at("fifo too")).unwrap();
    if is_root() {
        let device = rustix::fs::makedev(1, 3);
        mknodat(CWD, at("null"), FileType::CharacterDevice, owner, device).unwrap();
        mknodat(CWD, at("disk"), FileType::BlockDevice, owner, 0x1234_5678).unwrap();
        std::os::unix::fs::lchown(at("link"), Some(12), Some(34)).unwrap();
        std::os::unix::fs::lchown(at("fifo"), Some(1), Some(2)).unwrap();
        std::os::unix::fs::lchown(at("zeros-1"), Some(1234), Some(5678)).unwrap();
    }
    // Attributes, before modes that forbid to set them.
    let set = |path: &Path, name: &str, value: &[u8]| {
        lsetxattr(path, name, value, XattrFlags::empty()).unwrap();
    };
    set(&at("noise-1"), "user.comment", b"\x00\xFFbinary\x00");
    set(&at("noise-1"), "user.empty", b"");
    set(&at("noise-512"), "user.long", &noise(4, 3000));
    set(&at("empty"), "user.of a directory", b"yes");
    if is_root() {
        set(&at("link"), "trusted.of a link", b"1");
        set(&at("zeros-1"), "security.capability", &{
            let mut capability = [0; 20];
            capability[..8].copy_from_slice(&[1, 0, 0, 2, 0, 4, 0, 0]);
            capability
        });
    }
    // Modes.
    for bits in [0o4755, 0o2755, 0o6711, 0o1644, 0o600, 0o777, 0o400] {
        let path = at(&format!("mode-{bits:o}"));
        fs::write(&path, "x").unwrap();
        mode(&path, bits);
        let path = at(&format!("dir-{bits:o}"));
        fs::create_dir(&path).unwrap();
        fs::write(path.join("inside"), "x").unwrap();
        mode(&path, bits | if is_root() { 0 } else { 0o700 });
    }
    if is_root() {
        fs::write(at("mode-0"), "x").unwrap();
        mode(&at("mode-0"), 0);
        mode(&at("empty/emptier"), 0);
    }
    // Holes.
    sparse(&at("all hole"), 1_000_000, &[]);
    sparse(&at("small hole"), 100, &[]);
    sparse(&at("1 TiB"), 1 << 40, &[(1 << 39, b"in the middle"), ((1 << 40) - 1, b"z")]);
    sparse(&at("zeros and holes"), 1 << 20, &[(65536, &[0; 8192]), (500_000, &noise(5, 9000))]);
    sparse(&at("ends in data"), 300_001, &[(299_000, &noise(6, 1001))]);
    // Times, at the very end.
    set_mtime(&at("noise-1"), -1, 999_999_999);
    set_mtime(&at("noise-511"), -2_000_000_000, 1);
    set_mtime(&at("long"), 5_000_000_000, 123_456_789);
    set_mtime(&at("link"), 1000, 1);
    set_mtime(&at("fifo"), 7, 0);
    set_mtime(&at("empty/emptier"), 86400, 5);
    set_mtime(&at("empty"), 0, 0);
    set_mtime(dir, 1_000_000_007, 8);
}
