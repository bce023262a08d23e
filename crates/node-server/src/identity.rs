//! The file `.node` in each location of a node: its number, and the place of the location.

use crate::sessions::hex;
use outlive_backend::{Location, SmallFiles};
use outlive_types::{Error, Result, Rng, SystemRng};
use serde_json::{Value, json};
use std::time::Duration;

/// Name of the file.
const NODE_FILE: &str = ".node";

/// The content of such a file.
struct Identity {
    node: [u8; 16],
    /// Position of the location among those of the node, and their count.
    position: u64,
    count: u64,
    /// Longest life of a session so far, in milliseconds.
    session_ms: u64,
}

/// Returns the number of a node, and the longest life of a session of its earlier runs, and notes
/// this one. New data gets a new number.
///
/// # Errors
/// `Invalid` if a location is not the one that the node served in its place; `Damaged` if a file is
/// not readable.
pub(crate) fn identify(
    roots: &[Location],
    session: Duration,
) -> Result<([u8; 16], Option<Duration>)> {
    let known: Result<Vec<Option<Identity>>> = roots.iter().map(Identity::read).collect();
    let known = known?;
    let first = known.first().and_then(Option::as_ref);
    let served = first.map_or(0, |first| first.count);
    let mut node = [0; 16];
    match first {
        Some(first) => node = first.node,
        None => SystemRng.fill(&mut node),
    }
    for ((position, root), known) in (0..).zip(roots).zip(&known) {
        let fits = match known {
            Some(known) => known.node == node && known.position == position,
            // A further location may be added behind the others.
            None => position >= served,
        };
        if !fits {
            return Err(Error::invalid(format!(
                "{root} is not what the node served as its location {}: name all locations in their \
                 order, and mount their disks first",
                position + 1
            )));
        }
    }
    if served > roots.len() as u64 {
        return Err(Error::invalid(format!(
            "the node served {served} locations, and {} are named: name all of them",
            roots.len()
        )));
    }
    let earlier = first.map(|first| Duration::from_millis(first.session_ms));
    let longest = earlier.unwrap_or_default().max(session);
    let session_ms = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
    let count = roots.len() as u64;
    if first.is_some_and(|first| (first.count, first.session_ms) == (count, session_ms)) {
        // The disk may be full.
        return Ok((node, earlier));
    }
    // The first one knows the others only once they have their file, also after a kill in between.
    let mut order: Vec<(u64, u64)> = vec![(0, served)];
    order.extend((1..count).map(|position| (position, count)));
    order.push((0, count));
    for (position, count) in order {
        let root = &roots[usize::try_from(position).unwrap_or_default()];
        root.make_folders(&[])?;
        Identity { node, position, count, session_ms }.write(root)?;
    }
    Ok((node, earlier))
}

impl Identity {
    fn read(root: &Location) -> Result<Option<Identity>> {
        let Some(text) = root.read(NODE_FILE)? else { return Ok(None) };
        let parsed = serde_json::from_slice(&text).ok().and_then(|value| Identity::parse(&value));
        parsed.map(Some).ok_or_else(|| {
            Error::damaged(format!(
                "{} is damaged: delete it in each location of the node, which then gets another number",
                root.name(NODE_FILE)
            ))
        })
    }

    fn parse(value: &Value) -> Option<Identity> {
        let number = |name: &str| value.get(name)?.as_u64();
        let digits = value.get("node")?.as_str().filter(|digits| digits.len() == 32)?;
        Some(Identity {
            node: u128::from_str_radix(digits, 16).ok()?.to_be_bytes(),
            position: number("position")?,
            count: number("count")?,
            session_ms: number("session_ms")?,
        })
    }

    fn write(&self, root: &Location) -> Result<()> {
        let value = json!({
            "node": hex(&self.node),
            "position": self.position,
            "count": self.count,
            "session_ms": self.session_ms,
        });
        root.write(NODE_FILE, value.to_string().as_bytes())?;
        root.sync_folder("")
    }
}
