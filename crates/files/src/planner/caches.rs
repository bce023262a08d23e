//! Published planners of others.

use super::{Item, Memory, StreamPlan};
use std::collections::VecDeque;

/// Containers in memory, each with the number of its read; the most recently used at the end.
#[derive(Default)]
struct Containers {
    held: VecDeque<(u32, u32)>,
    most: usize,
}

impl Containers {
    fn new(most: u64) -> Containers {
        Containers { held: VecDeque::new(), most: most.max(1) as usize }
    }

    /// Returns the read that brought a container; reads it now if it is not in memory.
    fn fetch(&mut self, container: u32, at: usize, plan: &mut StreamPlan) -> u32 {
        if let Some(found) = self.held.iter().position(|(held, _)| *held == container)
            && let Some(entry) = self.held.remove(found)
        {
            self.held.push_back(entry);
            return entry.1;
        }
        let read = plan.reads.len() as u32;
        plan.reads.push((container, at));
        self.held.push_back((container, read));
        self.shrink();
        read
    }

    fn shrink(&mut self) {
        while self.held.len() > self.most {
            self.held.pop_front();
        }
    }
}

/// Plans with a cache of whole containers.
pub fn lru(recipe: &[Item], memory: Memory) -> StreamPlan {
    let mut plan = StreamPlan::default();
    let mut cache = Containers::new(memory.bytes / memory.container_bytes.max(1));
    for (at, item) in recipe.iter().enumerate() {
        let read = cache.fetch(item.container, at, &mut plan);
        plan.from.push(read);
    }
    plan
}

/// Fills one assembly area that begins at item `at`; returns its end.
fn assemble(
    recipe: &[Item],
    at: usize,
    area_bytes: u64,
    cache: &mut Containers,
    plan: &mut StreamPlan,
) -> usize {
    let mut end = at;
    let mut filled = 0;
    while let Some(item) = recipe.get(end)
        && (end == at || filled + u64::from(item.length) <= area_bytes)
    {
        filled += u64::from(item.length);
        end += 1;
    }
    // Items of the area by container, so that each container serves all its items at once.
    let mut order: Vec<usize> = (at..end).collect();
    order.sort_by_key(|item| recipe[*item].container);
    let mut served = vec![u32::MAX; end - at];
    for item in at..end {
        if served[item - at] != u32::MAX {
            continue;
        }
        let container = recipe[item].container;
        // The whole area is filled before its first byte is written.
        let read = cache.fetch(container, at, plan);
        let from = order.partition_point(|other| recipe[*other].container < container);
        for other in &order[from..] {
            if recipe[*other].container != container {
                break;
            }
            served[other - at] = read;
        }
    }
    plan.from.extend(served);
    end
}

/// Plans with a forward assembly area of all the memory but one container.
pub fn asm(recipe: &[Item], memory: Memory) -> StreamPlan {
    let area_bytes = memory.bytes.saturating_sub(memory.container_bytes);
    let mut plan = StreamPlan::default();
    let mut cache = Containers::new(1);
    let mut at = 0;
    while at < recipe.len() {
        at = assemble(recipe, at, area_bytes, &mut cache, &mut plan);
    }
    plan
}

/// Plans with an assembly area and a cache of containers that share the memory. In our reading,
/// every split of the memory is tried before each area, on as many of the recipe's next bytes as
/// the memory has, from the present cache. The split with the fewest reads a byte is taken.
pub fn dasm(recipe: &[Item], memory: Memory) -> StreamPlan {
    let most = (memory.bytes / memory.container_bytes.max(1)).max(1);
    let mut plan = StreamPlan::default();
    let mut cache = Containers::new(1);
    let mut at = 0;
    while at < recipe.len() {
        let mut chosen = (f64::INFINITY, 1);
        for containers in 1..=most {
            let area_bytes = memory.bytes - containers.min(most) * memory.container_bytes;
            let mut trial = StreamPlan::default();
            let held: VecDeque<(u32, u32)> = cache.held.clone();
            let mut tried = Containers { held, most: containers as usize };
            tried.shrink();
            let (mut end, mut bytes) = (at, 0);
            while end < recipe.len() && bytes < memory.bytes {
                let begun = end;
                end = assemble(recipe, end, area_bytes, &mut tried, &mut trial);
                bytes += super::bytes_of(&recipe[begun..end]);
            }
            let cost = trial.reads.len() as f64 / bytes.max(1) as f64;
            if cost < chosen.0 {
                chosen = (cost, containers);
            }
        }
        let (_, containers) = chosen;
        cache.most = containers as usize;
        cache.shrink();
        let area_bytes = memory.bytes - containers * memory.container_bytes.min(memory.bytes);
        at = assemble(recipe, at, area_bytes, &mut cache, &mut plan);
    }
    plan
}
