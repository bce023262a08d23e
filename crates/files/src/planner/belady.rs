//! Our planner: it keeps chunks by their next use.

use super::{Item, Memory, StreamPlan, asm, dasm, lru};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Uses of the chunks of a recipe.
struct Uses {
    /// For each item, the number of its chunk.
    chunk: Vec<u32>,
    /// For each chunk, its description and the items that use it, ascending.
    chunks: Vec<(Item, Vec<usize>)>,
    /// For each container, its chunks.
    containers: HashMap<u32, Vec<u32>>,
}

impl Uses {
    fn of(recipe: &[Item]) -> Uses {
        let mut numbers: HashMap<Item, u32> = HashMap::new();
        let mut uses = Uses { chunk: Vec::new(), chunks: Vec::new(), containers: HashMap::new() };
        for (at, item) in recipe.iter().enumerate() {
            let number = *numbers.entry(*item).or_insert_with(|| {
                let number = uses.chunks.len() as u32;
                uses.chunks.push((*item, Vec::new()));
                uses.containers.entry(item.container).or_default().push(number);
                number
            });
            uses.chunks[number as usize].1.push(at);
            uses.chunk.push(number);
        }
        uses
    }

    /// Returns the first use of a chunk after item `at`.
    fn next(&self, chunk: u32, at: usize) -> Option<usize> {
        let items = &self.chunks[chunk as usize].1;
        items.get(items.partition_point(|item| *item <= at)).copied()
    }

    fn bytes(&self, chunk: u32) -> u64 {
        u64::from(self.chunks[chunk as usize].0.length)
    }
}

/// Keeps the chunks of each read container that are used again; those with the latest next use are
/// dropped first.
pub fn belady(recipe: &[Item], memory: Memory) -> StreamPlan {
    let uses = Uses::of(recipe);
    let room_bytes = memory.bytes.saturating_sub(memory.container_bytes);
    let mut plan = StreamPlan::default();
    // Kept chunks: by next use, and by chunk with the read that brought it.
    let mut due: BTreeSet<(usize, u32)> = BTreeSet::new();
    let mut kept: HashMap<u32, u32> = HashMap::new();
    let mut kept_bytes = 0;
    // The container in the buffer, and its read.
    let mut buffer: Option<(u32, u32)> = None;
    for (at, item) in recipe.iter().enumerate() {
        let chunk = uses.chunk[at];
        if let Some(read) = kept.get(&chunk).copied() {
            plan.from.push(read);
            due.remove(&(at, chunk));
            match uses.next(chunk, at) {
                Some(next) => drop(due.insert((next, chunk))),
                None => {
                    kept.remove(&chunk);
                    kept_bytes -= uses.bytes(chunk);
                }
            }
            continue;
        }
        if let Some((container, read)) = buffer
            && container == item.container
        {
            plan.from.push(read);
            continue;
        }
        // Before the buffer gets another container, its chunks with a further use are kept, as far
        // as there is room. So a chunk that is due before the next read takes none.
        if let Some((container, read)) = buffer {
            keep(&uses, container, read, at, room_bytes, &mut due, &mut kept, &mut kept_bytes);
        }
        let read = plan.reads.len() as u32;
        plan.reads.push((item.container, at));
        plan.from.push(read);
        buffer = Some((item.container, read));
    }
    plan
}

#[allow(clippy::too_many_arguments)] // the cache's parts, in one place
fn keep(
    uses: &Uses,
    container: u32,
    read: u32,
    at: usize,
    room_bytes: u64,
    due: &mut BTreeSet<(usize, u32)>,
    kept: &mut HashMap<u32, u32>,
    kept_bytes: &mut u64,
) {
    for chunk in uses.containers.get(&container).into_iter().flatten() {
        // Item `at` belongs to another container.
        let Some(next) = uses.next(*chunk, at).filter(|_| !kept.contains_key(chunk)) else {
            continue;
        };
        kept.insert(*chunk, read);
        due.insert((next, *chunk));
        *kept_bytes += uses.bytes(*chunk);
    }
    while *kept_bytes > room_bytes
        && let Some((_, chunk)) = due.pop_last()
    {
        kept.remove(&chunk);
        *kept_bytes -= uses.bytes(chunk);
    }
}

/// Returns the plan with the fewest reads of all our planners.
pub fn best(recipe: &[Item], memory: Memory) -> StreamPlan {
    let ours = belady(recipe, memory);
    let containers: HashSet<u32> = recipe.iter().map(|item| item.container).collect();
    if ours.reads.len() == containers.len() {
        return ours; // Each is read once: no plan has fewer reads.
    }
    let others = [asm(recipe, memory), dasm(recipe, memory), lru(recipe, memory)];
    let fewest = |a: StreamPlan, b: StreamPlan| if b.reads.len() < a.reads.len() { b } else { a };
    others.into_iter().fold(ours, fewest)
}
