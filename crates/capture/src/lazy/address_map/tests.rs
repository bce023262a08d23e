use super::*;
use outlive_types::SeededRng;
use std::collections::VecDeque;

fn two() -> AddressMap {
    AddressMap::new([100..200, 300..500].into_iter())
}

#[test]
fn memory_that_stays_is_where_it_was() {
    let addresses = two();
    assert_eq!(addresses.known(99), Origin::Zero);
    assert_eq!(addresses.known(100), Origin::Home(0, 100));
    assert_eq!(addresses.known(499), Origin::Home(1, 499));
    assert_eq!(addresses.known(500), Origin::Zero);
    assert_eq!(addresses.at(&(150..170)), At::Here(150, 20));
    assert_eq!(addresses.at(&(150..400)), At::Here(150, 50));
    assert_eq!(addresses.at(&(200..400)), At::Nowhere(100));
    assert_eq!(addresses.at(&(500..600)), At::Nowhere(100));
    assert_eq!(addresses.overlapping(&[0..100, 200..300, 500..600]), []);
    assert_eq!(addresses.overlapping(&[480..600, 0..101]), [0, 1]);
}

#[test]
fn parts_are_moved_given_up_and_unmapped() {
    let mut addresses = two();
    addresses.moved(&(350..400), 1000);
    assert_eq!(addresses.known(1010), Origin::Home(1, 360));
    assert_eq!(addresses.known(360), Origin::Zero, "it has moved away");
    assert_eq!(addresses.at(&(340..500)), At::Here(340, 10));
    assert_eq!(addresses.at(&(350..500)), At::Here(1000, 50));
    assert_eq!(addresses.overlapping(&[0..0, 1049..1050]), [1]);
    // The kernel reports after a move that the old address is unmapped.
    addresses.unmapped(&(350..400));
    assert_eq!(addresses.known(1010), Origin::Home(1, 360));
    addresses.dropped(&(1020..1030));
    assert_eq!(addresses.known(1025), Origin::Zero);
    assert_eq!(addresses.at(&(370..500)), At::Nowhere(10));
    assert_eq!(addresses.at(&(380..500)), At::Here(1030, 20));
    // The memory moves on, and the dropped part with it.
    addresses.moved(&(1000..1050), 2000);
    assert_eq!(addresses.at(&(370..380)), At::Nowhere(10));
    assert_eq!(addresses.known(2025), Origin::Zero);
    assert_eq!(addresses.at(&(380..500)), At::Here(2030, 20));
    addresses.unmapped(&(0..1000));
    assert_eq!(addresses.at(&(100..200)), At::Nowhere(100));
    assert_eq!(addresses.at(&(300..400)), At::Nowhere(50));
    assert_eq!(addresses.of(1).cloned().collect::<Vec<_>>(), [2000..2020, 2020..2030, 2030..2050]);
    assert_eq!(addresses.of(0).count(), 0);
}

#[test]
fn a_whole_region_owns_no_addresses() {
    let mut addresses = two();
    addresses.moved(&(300..350), 1000);
    addresses.set_over(1);
    assert!(addresses.is_over(1) && !addresses.is_over(0));
    assert_eq!((addresses.of(1).count(), addresses.of(0).count()), (0, 1));
    assert_eq!(addresses.known(400), Origin::Zero);
    // Its addresses are free for other memory, which moves on without it.
    addresses.moved(&(100..200), 400);
    assert_eq!(addresses.known(410), Origin::Home(0, 110));
    addresses.moved(&(400..500), 2000);
    assert_eq!(addresses.known(2010), Origin::Home(0, 110));
    assert_eq!(addresses.known(410), Origin::Zero);
    assert_eq!(addresses.overlapping(&[0..9, 9..9000]), [0]);
}

#[test]
fn memory_that_came_to_an_address_is_not_the_memory_that_leaves_it() {
    // A region moves to where another one was; that one has moved on, or is unmapped.
    for another_moves in [false, true] {
        let mut addresses = two();
        addresses.moved(&(300..400), 100);
        assert_eq!(addresses.known(150), Origin::Home(1, 350));
        if another_moves {
            addresses.moved(&(100..200), 1000);
            assert_eq!(addresses.at(&(100..200)), At::Here(1000, 100));
        }
        addresses.unmapped(&(100..150));
        addresses.unmapped(&(150..200));
        addresses.unmapped(&(300..400));
        assert_eq!(addresses.at(&(300..350)), At::Here(100, 50));
        assert_eq!(addresses.at(&(350..400)), At::Here(150, 50));
        assert_eq!(addresses.known(150), Origin::Home(1, 350));
        if !another_moves {
            assert_eq!(addresses.at(&(100..200)), At::Nowhere(100));
        }
        // The moved region is unmapped as well.
        addresses.unmapped(&(100..160));
        assert_eq!(addresses.at(&(300..350)), At::Nowhere(50));
        assert_eq!(addresses.at(&(350..400)), At::Nowhere(10));
        assert_eq!(addresses.at(&(360..400)), At::Here(160, 40));
    }
    // The notice that the address is free comes only after something else has come there.
    let mut addresses = two();
    addresses.moved(&(100..200), 1000);
    addresses.moved(&(300..400), 100);
    addresses.unmapped(&(100..200));
    addresses.unmapped(&(300..400));
    assert_eq!(addresses.at(&(300..400)), At::Here(100, 100));
    addresses.unmapped(&(100..200));
    assert_eq!(addresses.at(&(300..400)), At::Nowhere(100));
}

/// A move may leave an emptied mapping behind, which the program moves on, unmaps or moves
/// something to.
#[test]
fn a_mapping_that_a_move_has_emptied_is_left_once() {
    for parts in [&[(100, 200)][..], &[(100, 130), (130, 200)]] {
        let mut addresses = AddressMap::new([100..200, 300..400, 500..600].into_iter());
        addresses.moved(&(100..200), 1000);
        for (start, end) in parts {
            addresses.moved(&(*start..*end), 2000 + start);
            addresses.unmapped(&(*start..*end));
        }
        addresses.moved(&(300..400), 100);
        addresses.unmapped(&(300..400));
        assert_eq!(addresses.at(&(300..400)), At::Here(100, 100));
        addresses.unmapped(&(100..200));
        assert_eq!(addresses.at(&(300..400)), At::Nowhere(100), "nothing swallows this notice");
        addresses.moved(&(500..600), 100);
        addresses.unmapped(&(500..600));
        addresses.moved(&(100..200), 7000);
        addresses.unmapped(&(100..200));
        assert_eq!(addresses.at(&(500..600)), At::Here(7000, 100));
        assert_eq!(addresses.at(&(100..200)), At::Here(1000, 100));
        assert_eq!(addresses.left, []);
    }
}

/// A program with several threads; each waits until its notice is read.
struct Program {
    /// Content of each cell, by number.
    cells: [Cell; CELLS],
    waiting: Vec<VecDeque<Told>>,
    addresses: AddressMap,
}

/// The smallest unit of memory that is moved.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cell {
    Unmapped,
    /// The old content has moved, and has left its mapping behind.
    Emptied,
    /// The content of this home.
    Holds(usize),
}

#[derive(Clone)]
struct Told {
    cells: Range<usize>,
    /// New address of the cells; if there is none, they are unmapped.
    to: Option<usize>,
    /// Whether some of them had been emptied before.
    emptied: bool,
}

const CELLS: usize = 16;
const CELL_BYTES: usize = 10;
const HOMES: [Range<usize>; 3] = [0..3, 3..6, 8..11];

fn bytes(cells: &Range<usize>) -> Range<usize> {
    cells.start * CELL_BYTES..cells.end * CELL_BYTES
}

fn meet(one: &Range<usize>, other: &Range<usize>) -> bool {
    overlap(one, other).is_some()
}

impl Program {
    fn new() -> Program {
        let mut cells = [Cell::Unmapped; CELLS];
        HOMES.into_iter().flatten().for_each(|home| cells[home] = Cell::Holds(home));
        let addresses = AddressMap::new(HOMES.iter().map(bytes));
        Program { cells, waiting: vec![VecDeque::new(); 3], addresses }
    }

    fn tell(&mut self, thread: usize) {
        let Some(Told { cells, to, .. }) = self.waiting[thread].pop_front() else { return };
        match to {
            Some(to) => self.addresses.moved(&bytes(&cells), to * CELL_BYTES),
            None => self.addresses.unmapped(&bytes(&cells)),
        }
    }

    fn is_to_be_told(&self, of: impl Fn(&Told) -> bool) -> bool {
        self.waiting.iter().flatten().any(of)
    }

    /// Whether all cells are mapped, and no notice that they leave or arrive is still unread. A
    /// second leave could not be distinguished from the first, and no program moves memory that has
    /// not arrived.
    fn may_leave(&self, cells: &Range<usize>) -> bool {
        let is_changing = self.is_to_be_told(|told| {
            let comes = |to| meet(&(to..to + told.cells.len()), cells);
            meet(&told.cells, cells) || told.to.is_some_and(comes)
        });
        !is_changing && self.cells[cells.clone()].iter().all(|cell| *cell != Cell::Unmapped)
    }

    /// Whether nothing is there. Memory that arrives while something emptied leaves could not be
    /// distinguished from that.
    fn is_free(&self, cells: &Range<usize>) -> bool {
        !self.is_to_be_told(|told| told.emptied && meet(&told.cells, cells))
            && self.cells[cells.clone()].iter().all(|cell| *cell == Cell::Unmapped)
    }

    fn tell_later(&mut self, thread: usize, cells: &Range<usize>, to: Option<usize>) {
        let emptied = self.cells[cells.clone()].contains(&Cell::Emptied);
        self.waiting[thread].push_back(Told { cells: cells.clone(), to, emptied });
    }

    fn unmap(&mut self, thread: usize, cells: &Range<usize>) {
        self.tell_later(thread, cells, None);
        self.cells[cells.clone()].fill(Cell::Unmapped);
    }

    fn move_to(&mut self, thread: usize, from: &Range<usize>, to: usize, empties: bool) {
        let held = self.cells[from.clone()].to_vec();
        self.tell_later(thread, from, Some(to));
        if empties {
            self.cells[from.clone()].fill(Cell::Emptied);
        } else {
            self.unmap(thread, from);
        }
        self.cells[to..to + held.len()].copy_from_slice(&held);
    }

    /// Checks, once all notices are read, that every home is found, and that no notice is still
    /// expected.
    fn check(&self, seed: u64) {
        for home in HOMES.into_iter().flatten() {
            let at = self.cells.iter().position(|cell| *cell == Cell::Holds(home));
            let expected = match at {
                Some(at) => At::Here(at * CELL_BYTES, CELL_BYTES),
                None => At::Nowhere(CELL_BYTES),
            };
            let found = self.addresses.at(&bytes(&(home..home + 1)));
            assert_eq!(found, expected, "seed {seed}, home {home}");
        }
        for (number, cell) in self.cells.iter().enumerate() {
            let here = bytes(&(number..number + 1));
            let left = self.addresses.left.iter().filter(|left| meet(left, &here)).count();
            // The table does not know which cells were empty when they came here.
            let most = usize::from(*cell == Cell::Emptied);
            assert!(left <= most, "seed {seed}, cell {number}: {left}");
        }
    }
}

#[test]
fn everything_is_found_in_any_order_of_the_threads_notices() {
    for seed in 0..6000 {
        let rng = SeededRng::new(seed);
        let luck = |below: usize| rng.next_u64() as usize % below;
        let mut program = Program::new();
        for _ in 0..80 {
            let thread = luck(3);
            if !program.waiting[thread].is_empty() {
                program.tell(thread);
                continue;
            }
            let count = 1 + luck(3);
            let some = || luck(CELLS + 1 - count);
            let (from, to) = (some(), some());
            let (from, room) = (from..from + count, to..to + count);
            if !program.may_leave(&from) {
                continue;
            }
            let (moves, empties) = (luck(6) > 0, luck(3) == 0);
            if !moves {
                program.unmap(thread, &from);
            } else if meet(&from, &room) {
                // The kernel refuses that.
            } else if program.is_free(&room) {
                program.move_to(thread, &from, to, empties);
            } else if luck(4) == 0 && program.may_leave(&room) {
                // The content there is unmapped first.
                program.unmap(thread, &room);
                program.move_to(thread, &from, to, empties);
            }
        }
        (0..9).for_each(|number| program.tell(number % 3));
        program.check(seed);
    }
}
