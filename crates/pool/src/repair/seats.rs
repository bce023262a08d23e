//! The seats of a pool. The node of a host takes one while a job runs there, and the pool keeps its
//! data on the disks of these hosts: docs/design/050-seats.md.

use crate::Pool;
use crate::descriptor::redundancy::{TargetConfig, TargetState};
use outlive_backend::SmallFiles;
use outlive_types::{Error, Result};

/// A seat of a pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seat {
    /// Number of the target in it. A seat gets another number with each host that takes it.
    pub id: u32,
    /// Location on the node that has taken it.
    pub location: String,
    /// Host of that node.
    pub host: Option<String>,
    /// Whether a node has taken it, and answers.
    pub state: SeatState,
    /// Whether the logs do not say yet what was lost with the host before.
    pub is_unsettled: bool,
}

/// State of a seat.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SeatState {
    /// No node has taken it.
    Vacant,
    /// Its node answers.
    Taken,
    /// Its node does not answer, for this reason.
    Away(Error),
}

impl Pool {
    /// Returns the seats, each with its state now. Waits for silent nodes as long as for any silent
    /// target.
    ///
    /// # Errors
    /// Errors of the table.
    pub fn seats(&self) -> Result<Vec<Seat>> {
        self.refresh_targets()?;
        let Some(table) = self.table() else { return Ok(Vec::new()) };
        let (rows, targets) = (table.rows()?, self.targets());
        let begun: Vec<_> = targets.members().iter().map(|member| member.begin_check()).collect();
        let checked: Vec<_> = targets.members().iter().zip(begun).collect();
        let mut seats = Vec::new();
        for (member, begun) in checked {
            let found = member.end_check(begun);
            let row = rows.iter().find(|row| row.id == Some(member.id));
            let Some(TargetConfig { location, host, .. }) = row.filter(|row| row.is_seat()) else {
                continue;
            };
            let state = match found {
                _ if member.is_vacant => SeatState::Vacant,
                Ok(()) => SeatState::Taken,
                Err(error) => SeatState::Away(error),
            };
            seats.push(Seat {
                id: member.id,
                location: location.clone(),
                host: host.clone(),
                state,
                is_unsettled: member.is_unsettled,
            });
        }
        Ok(seats)
    }

    /// Takes a vacant seat for a node of a host, at a location that holds nothing. If the node has
    /// taken one already, under this or another address, that one stays its own: the last part of the
    /// location identifies it. Returns the seat's number; `None` if no seat is vacant.
    ///
    /// # Errors
    /// `Invalid` if too many seats are on one host; `Retry` while another command collects; errors of
    /// the table and the node.
    pub fn take_seat(&self, location: &str, host: &str) -> Result<Option<u32>> {
        let (table, _alone) = self.changing()?;
        let mut taken = None;
        self.change(&table, &mut |table, rows| {
            let (since, next) = (table.version()? + 1, rows.next_id);
            let is_own = |row: &&mut TargetConfig| {
                row.is_seat() && folder(&row.location) == folder(location)
            };
            taken = None;
            if let Some(row) = rows.targets.iter_mut().find(is_own) {
                (row.location, row.host) = (location.to_owned(), Some(host.to_owned()));
                // It was killed while it gave the seat back.
                if row.state != TargetState::Active {
                    (row.state, row.remove, row.since) = (TargetState::Active, false, since);
                }
                taken = Some((row.clone(), false));
            } else if let Some(row) =
                rows.targets.iter_mut().find(|row| row.is_seat() && row.is_vacant())
            {
                row.id = Some(next);
                (row.location, row.host) = (location.to_owned(), Some(host.to_owned()));
                taken = Some((row.clone(), true));
                rows.next_id += 1;
            }
            Ok(())
        })?;
        let Some((row, is_new)) = taken else { return Ok(None) };
        // The table first: a node that misses the marker of its seat gives the seat up again.
        if is_new {
            table.locations().mark(&row)?;
            self.refresh_targets()?;
        }
        Ok(row.id)
    }
}

/// Folder beside the descriptor with the signs of life of nodes.
const SIGNS: &str = "seats";

impl Pool {
    /// Notes that the node with this folder is alive. `sign` differs from call to call.
    ///
    /// # Errors
    /// Errors of the pool's own location.
    pub fn give_sign(&self, folder: &str, sign: &str) -> Result<()> {
        let Some(paths) = self.paths() else { return Ok(()) };
        paths.root.make_folders(&[SIGNS])?;
        paths.root.write(&format!("{SIGNS}/{folder}"), sign.as_bytes())
    }

    /// Returns the last sign of life of the node of a seat; `None` if it gave none.
    ///
    /// # Errors
    /// Errors of the pool's own location.
    pub fn sign_of(&self, seat: &Seat) -> Result<Option<Vec<u8>>> {
        match (self.paths(), folder(&seat.location)) {
            (Some(paths), Some(folder)) => paths.root.read(&format!("{SIGNS}/{folder}")),
            _ => Ok(None),
        }
    }

    /// Deletes the signs of life of a node, in a directory. A bucket keeps a small object.
    pub fn forget_sign(&self, folder: &str) {
        let root = self.paths().and_then(|paths| paths.root.as_directory());
        if let Some(root) = root {
            let _ = std::fs::remove_file(root.join(SIGNS).join(folder));
        }
    }
}

/// Returns the last part of a location on a node: the name of the folder that its node chose.
fn folder(location: &str) -> Option<&str> {
    location.rsplit_once('/').map(|(_, folder)| folder)
}
