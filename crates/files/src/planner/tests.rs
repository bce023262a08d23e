use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

const CONTAINER: u64 = 1000;

fn memory(containers: u64) -> Memory {
    Memory { bytes: containers * CONTAINER, container_bytes: CONTAINER }
}

/// Returns a chunk of 100 bytes; a container has ten.
fn item(number: u32) -> Item {
    Item { container: number / 10, offset: number % 10 * 100, length: 100 }
}

fn recipe() -> impl Strategy<Value = Vec<Item>> {
    // Runs, as in streams, over repeated chunks.
    prop::collection::vec((0..300u32, 1..30u32), 0..40).prop_map(|runs| {
        runs.into_iter().flat_map(|(from, count)| (from..from + count).map(item)).collect()
    })
}

type Planner = fn(&[Item], Memory) -> StreamPlan;
const PLANNERS: [(&str, Planner); 5] =
    [("lru", lru), ("asm", asm), ("dasm", dasm), ("belady", belady), ("best", best)];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_plan_yields_the_recipe_within_its_memory(recipe in recipe(), containers in 1..9u64) {
        let distinct: HashSet<u32> = recipe.iter().map(|item| item.container).collect();
        let mut fewest = usize::MAX;
        for (name, planner) in PLANNERS {
            let plan = planner(&recipe, memory(containers));
            prop_assert!(plan.is_sound(&recipe), "{}", name);
            prop_assert!(plan.reads.len() >= distinct.len(), "{}", name);
            let kept = plan.kept_bytes_max(&recipe);
            prop_assert!(kept <= (containers - 1) * CONTAINER, "{}: {} kept", name, kept);
            if name == "best" {
                prop_assert!(plan.reads.len() <= fewest);
            }
            fewest = fewest.min(plan.reads.len());
        }
    }

    #[test]
    fn traces_survive_their_text(recipe in recipe(), name in "[a-z][a-z 0-9.-]{0,9}[a-z]") {
        let version = Version { name, recipe };
        let trace = Trace { container_bytes: CONTAINER, versions: vec![version.clone(), version] };
        prop_assert_eq!(Trace::parse(&trace.to_text()).unwrap(), trace);
    }
}

#[test]
fn with_all_in_memory_each_container_is_read_once() {
    let recipe: Vec<Item> = (0..200).map(|at| item(at * 37 % 50)).collect();
    for (name, planner) in PLANNERS.into_iter().filter(|(name, _)| *name != "asm") {
        assert_eq!(planner(&recipe, memory(6)).reads.len(), 5, "{name}");
    }
    assert_eq!(asm(&recipe, memory(21)).reads.len(), 5);
}

#[test]
fn chunks_that_are_due_soon_are_kept() {
    // One chunk of each of 20 containers, repeatedly: 2000 bytes of chunks, 20,000 of containers.
    let recipe: Vec<Item> = (0..200).map(|at| item(at % 20 * 10)).collect();
    assert_eq!(belady(&recipe, memory(3)).reads.len(), 20);
    assert_eq!(lru(&recipe, memory(3)).reads.len(), 200);
    assert_eq!(asm(&recipe, memory(3)).reads.len(), 200);
}

#[test]
fn bad_traces_are_refused_with_their_line() {
    let refused = |text: &str| Trace::parse(text).unwrap_err().message().to_owned();
    assert!(refused("").contains("too early"));
    assert!(refused("something").contains("line 1"));
    let head = "outlive-trace 1\ncontainer_bytes 1000\n";
    assert!(refused(head).contains("no version"));
    assert!(refused(&format!("{head}1 2 3")).contains("line 3"));
    for (body, line) in [
        ("version a\n1 2\n", "line 4"),
        ("version a\n1 999 2\n", "within its container"),
        ("version a\n1 2 0\n", "must have a length"),
        ("version a\n1 -2 3\n", "line 4"),
        ("version a\n* 1\n3\n", "nothing is before it"),
        ("version a\n1 2 3\n* 2\n4\n", "too early"),
        ("version a\n1 2 3\n* 2\nversion b\n", "a length was expected"),
        ("version a\n1 2 3 4\n", "says nothing"),
        ("container_bytes 0\n", "no length"),
    ] {
        let message = refused(&format!("{head}{body}"));
        assert!(message.contains(line), "{body:?}: {message}");
    }
}
