//! An item of a listing: one file, directory or link, with all its stored properties.

use crate::codec::{Check, Reader, Writer, demand};
use crate::recipe::{PIECE_BYTES, Piece, check_pieces};
use outlive_types::{Error, Fingerprint, Result};
use std::cmp::Ordering;

/// Structure that errors name.
pub(crate) const WHAT: &str = "listing";
/// Length of an item without path, target, attributes and content, but with its length field.
pub(crate) const ITEM_BYTES_MIN: usize = 84;
const ATTRIBUTE_BYTES_MIN: usize = 6;
/// Longest item, in bytes.
pub const ITEM_BYTES_MAX: usize = 16 << 20;
/// Most pieces in an item; a longer content has a recipe.
pub const ITEM_PIECES_MAX: usize = 64;
/// Longest content inside an item, in bytes.
pub const INLINE_BYTES_MAX: usize = 512;

const HOLES: u8 = 1;
const UNSETTLED: u8 = 2;
const INLINE: u8 = 4;
const RECIPE: u8 = 8;

/// Kind of an item.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ItemKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A character device; `bytes` is its number.
    CharDevice,
    /// A block device; `bytes` is its number.
    BlockDevice,
    /// A socket.
    Socket,
    /// A further name of a file that an earlier item lists; only path and target count.
    HardLink,
    /// The bytes that a program wrote to standard input.
    Stream,
}

const KINDS: [ItemKind; 9] = [
    ItemKind::File,
    ItemKind::Directory,
    ItemKind::Symlink,
    ItemKind::Fifo,
    ItemKind::CharDevice,
    ItemKind::BlockDevice,
    ItemKind::Socket,
    ItemKind::HardLink,
    ItemKind::Stream,
];

/// A time as file systems record it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct FileTime {
    /// Seconds since 1970; negative before.
    pub s: i64,
    /// Nanoseconds in that second, below 10^9.
    pub ns: u32,
}

/// Content of a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Content {
    /// No bytes.
    #[default]
    Empty,
    /// These bytes, at most [`INLINE_BYTES_MAX`].
    Inline(Vec<u8>),
    /// These pieces, at most [`ITEM_PIECES_MAX`].
    Pieces(Vec<Piece>),
    /// The stream that this recipe describes.
    Recipe(Fingerprint),
}

/// An extended attribute.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Attribute {
    /// Name with its name space, such as `user.comment`.
    pub name: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
}

/// One file, directory, link or other object with a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Item {
    /// Relative path of any bytes but zero; `.` is the directory itself that was put.
    pub path: Vec<u8>,
    /// Kind of the object.
    pub kind: ItemKind,
    /// True if zeros among its pieces are holes.
    pub holes: bool,
    /// True if it changed so shortly before the read that its times may hide a later change.
    pub unsettled: bool,
    /// Permissions, with the set-id and sticky bits: 12 bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Time of the last change of its content.
    pub mtime: FileTime,
    /// Time of its last change of any kind.
    pub ctime: FileTime,
    /// Device of the file.
    pub device: u64,
    /// Inode number on that device.
    pub inode: u64,
    /// Length of its content; for devices, their number.
    pub bytes: u64,
    /// Target of a link; empty for all other kinds.
    pub target: Vec<u8>,
    /// Extended attributes, sorted by name.
    pub attributes: Vec<Attribute>,
    /// Its content.
    pub content: Content,
}

impl Item {
    /// Returns an item that has only a name.
    pub fn new(path: Vec<u8>, kind: ItemKind) -> Item {
        Item {
            path,
            kind,
            holes: false,
            unsettled: false,
            mode: 0,
            uid: 0,
            gid: 0,
            mtime: FileTime::default(),
            ctime: FileTime::default(),
            device: 0,
            inode: 0,
            bytes: 0,
            target: Vec::new(),
            attributes: Vec::new(),
            content: Content::Empty,
        }
    }

    /// Appends the encoded item to a listing.
    ///
    /// # Errors
    /// `Invalid` for an item that cannot be listed.
    pub fn encode(&self, listing: &mut Vec<u8>) -> Result<()> {
        let name = || self.path.escape_ascii().to_string();
        self.check().map_err(|why| Error::invalid(format!("{}: {why}", name())))?;
        let mut attributes = Writer::with_capacity(0);
        for Attribute { name, value } in &self.attributes {
            attributes.u16(name.len() as u16);
            attributes.u32(value.len() as u32);
            attributes.bytes(name);
            attributes.bytes(value);
        }
        let attributes = attributes.finish();
        let (mut flags, content_length) = match &self.content {
            Content::Empty => (0, 0),
            Content::Inline(bytes) => (INLINE, bytes.len()),
            Content::Pieces(pieces) => (0, pieces.len()),
            Content::Recipe(_) => (RECIPE, 0),
        };
        flags |= (u8::from(self.holes) * HOLES) | (u8::from(self.unsettled) * UNSETTLED);
        let mut out = Writer::with_capacity(ITEM_BYTES_MIN + self.path.len() + PIECE_BYTES);
        let kind = KINDS.iter().position(|kind| *kind == self.kind).unwrap_or_default();
        out.u8(kind as u8);
        out.u8(flags);
        out.reserved(2);
        out.u32(self.mode);
        out.u32(self.uid);
        out.u32(self.gid);
        out.u32(self.mtime.ns);
        out.u64(self.mtime.s.cast_unsigned());
        out.u32(self.ctime.ns);
        out.u64(self.ctime.s.cast_unsigned());
        out.u64(self.device);
        out.u64(self.inode);
        out.u64(self.bytes);
        out.u32(self.path.len() as u32);
        out.u32(self.target.len() as u32);
        out.u32(attributes.len() as u32);
        out.u32(content_length as u32);
        out.bytes(&self.path);
        out.bytes(&self.target);
        out.bytes(&attributes);
        match &self.content {
            Content::Empty => {}
            Content::Inline(bytes) => out.bytes(bytes),
            Content::Pieces(pieces) => pieces.iter().for_each(|piece| piece.write(&mut out)),
            Content::Recipe(fp) => out.bytes(&fp.0),
        }
        let bytes = out.finish();
        if bytes.len() > ITEM_BYTES_MAX - 4 {
            return Err(Error::invalid(format!(
                "{}: its names and attributes are longer than 16 MiB",
                name()
            )));
        }
        listing.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        listing.extend_from_slice(&bytes);
        Ok(())
    }

    /// Decodes an item without the length before it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Item> {
        let mut from = Reader::new(WHAT, bytes);
        let kind = from.u8()?;
        let Some(kind) = KINDS.get(usize::from(kind)).copied() else {
            return Err(from.damaged(format!("an item has kind {kind}")));
        };
        let flags = from.u8()?;
        if flags & !(HOLES | UNSETTLED | INLINE | RECIPE) != 0 {
            return Err(from.damaged(format!("an item has flags {flags}")));
        }
        from.reserved(2)?;
        let (mode, uid, gid) = (from.u32()?, from.u32()?, from.u32()?);
        let mut time = || -> Result<FileTime> {
            let ns = from.u32()?;
            Ok(FileTime { ns, s: from.u64()?.cast_signed() })
        };
        let (mtime, ctime) = (time()?, time()?);
        let (device, inode, length) = (from.u64()?, from.u64()?, from.u64()?);
        let (path_bytes, target_bytes) = (from.u32()?, from.u32()?);
        let (attribute_bytes, content_length) = (from.u32()?, from.u32()?);
        let path = from.take(path_bytes as usize)?.to_vec();
        let target = from.take(target_bytes as usize)?.to_vec();
        let attributes = read_attributes(from.take(attribute_bytes as usize)?)?;
        let content = match flags & (INLINE | RECIPE) {
            0 if content_length == 0 => Content::Empty,
            0 => {
                let count = from.count(content_length.into(), PIECE_BYTES)?;
                let mut pieces = Vec::with_capacity(count);
                for _ in 0..count {
                    pieces.push(Piece::read(&mut from)?);
                }
                Content::Pieces(pieces)
            }
            INLINE => Content::Inline(from.take(content_length as usize)?.to_vec()),
            RECIPE if content_length == 0 => Content::Recipe(from.fingerprint()?),
            _ => return Err(from.damaged("an item has two contents")),
        };
        let item = Item {
            path,
            kind,
            holes: flags & HOLES != 0,
            unsettled: flags & UNSETTLED != 0,
            mode,
            uid,
            gid,
            mtime,
            ctime,
            device,
            inode,
            bytes: length,
            target,
            attributes,
            content,
        };
        from.accept(item.check())?;
        from.end()?;
        Ok(item)
    }

    fn check(&self) -> Check {
        check_path(&self.path)?;
        let is_root = self.path == b".";
        demand!(!is_root || self.kind == ItemKind::Directory, "only a directory is called `.`");
        demand!(self.mode <= 0o7777, "its mode is {:o}", self.mode);
        let in_second = |time: &FileTime| time.ns < 1_000_000_000;
        demand!(in_second(&self.mtime) && in_second(&self.ctime), "its times are none");
        match self.kind {
            ItemKind::Symlink => demand!(
                !self.target.is_empty() && !self.target.contains(&0),
                "a symbolic link leads nowhere"
            ),
            ItemKind::HardLink => check_path(&self.target)?,
            _ => demand!(self.target.is_empty(), "it is no link, yet leads somewhere"),
        }
        if self.kind == ItemKind::HardLink {
            let bare =
                Item { target: self.target.clone(), ..Item::new(self.path.clone(), self.kind) };
            demand!(*self == bare, "a hard link has more than a path and a target");
        }
        let names = || self.attributes.iter().map(|attribute| &attribute.name);
        for name in names() {
            let long = name.len() > usize::from(u16::MAX);
            demand!(!name.is_empty() && !name.contains(&0) && !long, "an attribute has no name");
        }
        demand!(names().is_sorted_by(|a, b| a < b), "its attributes are out of order");
        demand!(
            self.kind == ItemKind::File || !(self.holes || self.unsettled),
            "it is no file, yet has holes or is unsettled"
        );
        self.check_content()
    }

    fn check_content(&self) -> Check {
        let bytes = self.bytes;
        match self.kind {
            ItemKind::File | ItemKind::Stream => {}
            ItemKind::CharDevice | ItemKind::BlockDevice => {
                demand!(self.content == Content::Empty, "a device has a content");
                return Ok(());
            }
            _ => demand!(bytes == 0 && self.content == Content::Empty, "it cannot have a content"),
        }
        let there = match &self.content {
            Content::Empty => 0,
            Content::Inline(inline) => {
                let count = inline.len();
                demand!((1..=INLINE_BYTES_MAX).contains(&count), "it has {count} bytes in itself");
                count as u64
            }
            Content::Pieces(pieces) => {
                let count = pieces.len();
                demand!((1..=ITEM_PIECES_MAX).contains(&count), "it has {count} pieces");
                check_pieces(pieces)?
            }
            Content::Recipe(fp) => {
                demand!(!fp.is_zero() && bytes > 0, "its recipe is zero, or for nothing");
                bytes
            }
        };
        demand!(there == bytes, "its content has {there} bytes instead of {bytes}");
        Ok(())
    }
}

fn read_attributes(bytes: &[u8]) -> Result<Vec<Attribute>> {
    let mut from = Reader::new(WHAT, bytes);
    let mut attributes = Vec::with_capacity(bytes.len() / ATTRIBUTE_BYTES_MIN / 8);
    while from.remaining() > 0 {
        let (name_bytes, value_bytes) = (from.u16()?, from.u32()?);
        let name = from.take(name_bytes.into())?.to_vec();
        let value = from.take(value_bytes as usize)?.to_vec();
        attributes.push(Attribute { name, value });
    }
    Ok(attributes)
}

/// Checks that a path is relative and has no empty, `.` or `..` parts, except for `.` alone.
fn check_path(path: &[u8]) -> Check {
    let plain = |part: &[u8]| !matches!(part, b"" | b"." | b"..");
    demand!(
        path == b"." || (!path.contains(&0) && path.split(|byte| *byte == b'/').all(plain)),
        "the path {} leaves its place",
        path.escape_ascii()
    );
    Ok(())
}

/// Compares paths part by part, the bytes of a part as numbers. So a directory comes before its
/// contents, and `.` before everything.
pub fn path_cmp(a: &[u8], b: &[u8]) -> Ordering {
    let whole = |path: &[u8]| path == b".";
    match (whole(a), whole(b)) {
        (false, false) => {}
        (a, b) => return b.cmp(&a),
    }
    let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let next = |path: &[u8]| path.get(same).map(|byte| if *byte == b'/' { 0 } else { *byte });
    next(a).cmp(&next(b))
}
