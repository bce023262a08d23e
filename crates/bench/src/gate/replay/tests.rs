use super::super::release::Release;
use super::super::synthetic::{self, flows, serial};
use super::super::trace::Trace;
use super::*;

const MS: u64 = 1_000_000;

fn after(variant: Variant, scope: Scope, ns: u64) -> Option<Gate> {
    Some(Gate { variant, scope, release: Release::After { ns }, buffer_bytes: u64::MAX })
}

fn trace(lines: &str) -> Trace {
    Trace::parse("test", &format!("outlive-io-trace 1\n{lines}")).unwrap()
}

fn run_us(trace: &Trace, gate: Option<Gate>) -> u64 {
    replay(trace, gate, Disks::Recorded).run_ns / 1000
}

fn slowdown(trace: &Trace, gate: Option<Gate>, disks: Disks) -> f64 {
    replay(trace, gate, disks).run_ns as f64 / replay(trace, None, disks).run_ns as f64
}

#[test]
fn without_a_gate_a_trace_takes_as_long_as_recorded() {
    let traces = [
        trace(
            "5 0 recv 0 - 9 0\n10 0 write 0 0 8192 5\n10 1 wait 2 - - 52\n20 0 sync 0 - - 30\n\
             52 0 wake 2 - - 1\n60 0 send 0 - 7 2\n70 1 sync 0 - - 30\n300 0 recv 0 - 9 1\n",
        ),
        serial("x", 100, 785_000, 40_000),
        flows("x", 5, 20, 3000, |number| number * 1000),
    ];
    for trace in traces {
        let outcome = replay(&trace, None, Disks::Recorded);
        assert_eq!(outcome.all_ns, trace.length_ns(), "{}", trace.program);
        assert_eq!((outcome.held, outcome.peak_bytes), (0, 0));
    }
}

#[test]
fn a_serial_program_slows_down_by_the_closed_form() {
    for (compute_ns, service_ns) in [(785_000u64, 40_000u64), (13_000_000, 40_000), (0, 1_000)] {
        let trace = serial("x", 50, compute_ns, service_ns);
        for delay_ns in [0, 40_000, 500_000, 4 * MS] {
            let (c, s, d) = (compute_ns as f64, service_ns as f64, delay_ns as f64);
            let gate = after(Variant::Delay, Scope::Disk, delay_ns);
            let found = slowdown(&trace, gate, Disks::Recorded);
            assert!((found - (c + s + d) / (c + s)).abs() < 1e-9, "{c} {s} {d}: {found}");
        }
    }
}

#[test]
fn outstanding_writes_follow_littles_law() {
    for trace in &synthetic::seed() {
        let outcome = replay(trace, after(Variant::Hold, Scope::Disk, 4 * MS), Disks::Recorded);
        let rate = outcome.held as f64 / outcome.all_ns as f64;
        assert!((outcome.outstanding() - rate * 4e6).abs() < 1e-9, "{}", trace.name);
    }
}

#[test]
fn a_longer_delay_is_never_faster() {
    let trace = flows("x", 4, 200, 300_000, |number| number % 7 * 100_000);
    let queues = Disks::Queues { count: 2, service_ns: 300_000 };
    // A log with queues is left out: its second writes come after a short run has ended.
    for (variant, disks) in [
        (Variant::Delay, Disks::Recorded),
        (Variant::Delay, queues),
        (Variant::Hold, queues),
        (Variant::Log, Disks::Recorded),
    ] {
        let mut before_ns = 0;
        for delay_ns in [0, 40_000, MS, 4 * MS, 100 * MS] {
            let run_ns = replay(&trace, after(variant, Scope::Disk, delay_ns), disks).run_ns;
            assert!(run_ns >= before_ns, "{variant:?} {disks:?} {delay_ns}");
            before_ns = run_ns;
        }
    }
}

/// One disk is the bottleneck already, so a delay of less than its queue costs nothing.
#[test]
fn several_disks_are_more_sensitive_than_one() {
    let trace = flows("x", 8, 500, MS, |_| MS);
    let gate = after(Variant::Delay, Scope::Disk, 4 * MS);
    let one = slowdown(&trace, gate, Disks::Queues { count: 1, service_ns: MS });
    let eight = slowdown(&trace, gate, Disks::Queues { count: 8, service_ns: MS });
    assert!((one - 1.0).abs() < 0.01, "{one}");
    assert!((eight - 3.0).abs() < 0.01, "{eight}");
}

#[test]
fn a_delayed_flow_shifts_the_flow_that_waits_for_it() {
    let lines = "0 0 sync 0 - - 30\n10 1 wait 2 - - 52\n50 0 wake 2 - - 1\n70 1 sync 1 - - 30\n";
    let gate = after(Variant::Delay, Scope::Disk, 500_000);
    assert_eq!(run_us(&trace(lines), None), 100);
    // The wake is 500 later, and the second sync takes 500 more.
    assert_eq!(run_us(&trace(lines), gate), 1100);
    let free = lines.replace("50 0 wake 2 - -", "50 0 send 0 - 1");
    assert_eq!(run_us(&trace(&free), gate), 600);
}

#[test]
fn flows_that_never_sync_a_file_at_once_have_a_lock() {
    let gate = after(Variant::Delay, Scope::Disk, 500_000);
    let lines = "0 0 sync 0 - - 30\n40 1 sync 0 - - 30\n80 2 sync 0 - - 30\n";
    assert_eq!(run_us(&trace(lines), None), 110);
    // The second and third wait for the first, and share a sync.
    assert_eq!(run_us(&trace(lines), gate), 2 * 530);
    let late = lines.replace("80 2", "600 2");
    assert_eq!(run_us(&trace(&late), gate), 3 * 530);
    // An acknowledged sync holds no lock.
    assert_eq!(run_us(&trace(lines), after(Variant::Hold, Scope::Disk, 500_000)), 80);
    let apart = late.replace("600 2 sync 0", "600 2 sync 1");
    assert_eq!(run_us(&trace(&apart), gate), 600 + 530);
    let at_once = lines.replace("40 1", "20 1");
    assert_eq!(run_us(&trace(&at_once), gate), 80 + 530);
}

/// A request: receive, write, sync, reply; then the next one.
const REQUESTS: &str = "0 0 recv 0 - 9 0\n10 0 write 0 0 8192 5\n20 0 sync 0 - - 30\n\
    60 0 send 0 - 100 2\n100 0 recv 0 - 9 0\n110 0 write 0 0 8192 5\n120 0 sync 0 - - 30\n\
    160 0 send 0 - 100 2\n";

#[test]
fn acknowledge_and_hold_waits_for_messages_only() {
    let requests = trace(REQUESTS);
    assert_eq!(run_us(&requests, None), 162);
    // Syncs return at once: 2 * 30 less, whatever the delay is.
    for delay_ns in [0, 500_000, 10_000 * MS] {
        assert_eq!(run_us(&requests, after(Variant::Hold, Scope::Disk, delay_ns)), 102);
    }
    // The client has the first reply 500 later, and so asks 500 later. It need not wait for the
    // sync's own delay besides.
    assert_eq!(run_us(&requests, after(Variant::Hold, Scope::All, 500_000)), 602);
    // The program itself waits for each sync and each message.
    assert_eq!(run_us(&requests, after(Variant::Delay, Scope::Disk, 500_000)), 1162);
    assert_eq!(run_us(&requests, after(Variant::Delay, Scope::All, 500_000)), 2162);
}

#[test]
fn a_program_that_sends_nothing_never_waits_if_the_gate_acknowledges() {
    let trace = serial("x", 100, 1000, 0);
    let gate = after(Variant::Hold, Scope::All, 10_000 * MS);
    assert_eq!(slowdown(&trace, gate, Disks::Recorded), 1.0);
}

#[test]
fn a_log_costs_the_disk_a_second_write() {
    let requests = trace(REQUESTS);
    // Syncs take their own time, and no delay.
    assert_eq!(run_us(&requests, after(Variant::Log, Scope::Disk, 500_000)), 162);
    assert_eq!(run_us(&requests, after(Variant::Log, Scope::All, 500_000)), 662);
    // A saturated disk writes everything twice.
    let busy = flows("x", 4, 500, MS, |_| 0);
    let gate = after(Variant::Log, Scope::Disk, 0);
    let found = slowdown(&busy, gate, Disks::Queues { count: 1, service_ns: MS });
    assert!((1.9..=2.0).contains(&found), "{found}");
}

#[test]
fn a_full_buffer_makes_the_program_wait() {
    let trace = serial("x", 8, 1000, 0);
    let gate = |buffer_bytes| {
        Some(Gate {
            variant: Variant::Hold,
            scope: Scope::Disk,
            release: Release::After { ns: MS },
            buffer_bytes,
        })
    };
    let two = replay(&trace, gate(2 * synthetic::WRITE_BYTES), Disks::Recorded);
    assert_eq!((two.stalls, two.held, two.peak_bytes), (3, 8, 2 * synthetic::WRITE_BYTES));
    // Writes 3, 5 and 7 wait for the first of the two before: each pair takes 1 ms, the last one
    // comes 1 us after the one before it.
    assert_eq!(two.run_ns, 3 * MS + 1000 + 1000);
    let enough = replay(&trace, gate(8 * synthetic::WRITE_BYTES), Disks::Recorded);
    assert_eq!((enough.stalls, enough.run_ns), (0, 8000));
    // An output that is larger than the buffer goes through it alone.
    let small = replay(&trace, gate(1), Disks::Recorded);
    assert_eq!((small.stalls, small.run_ns), (7, 7 * MS + 1000));
}

#[test]
fn a_small_output_does_not_overtake_a_large_one_that_waits_for_room() {
    let trace =
        trace("0 0 durable 0 0 8192 1\n100 1 durable 1 0 16384 1\n200 2 durable 2 0 8192 1\n");
    let gate = Gate {
        variant: Variant::Hold,
        scope: Scope::Disk,
        release: Release::After { ns: MS },
        buffer_bytes: 16384,
    };
    let outcome = replay(&trace, Some(gate), Disks::Recorded);
    // The large one enters when the first has gone at 1 ms, and the small one 1 ms later.
    assert_eq!((outcome.stalls, outcome.run_ns), (2, 2 * MS));
}

#[test]
fn outputs_of_a_checkpoint_go_together() {
    let trace = serial("x", 3, MS, 0);
    let gate = Some(Gate {
        variant: Variant::Delay,
        scope: Scope::Disk,
        release: Release::Checkpoints { every_ns: 10 * MS, commit_ns: 2 * MS },
        buffer_bytes: u64::MAX,
    });
    // Written at 1, released at 12; written at 13, released at 22; at 23, at 32.
    let outcome = replay(&trace, gate, Disks::Recorded);
    assert_eq!((outcome.run_ns, outcome.held_ns), (32 * MS, (11 + 9 + 9) * MS));
}

#[test]
fn only_flows_with_clients_count_as_the_run() {
    let trace = trace("0 0 recv 0 - 9 0\n10 0 sync 0 - - 5\n20 1 sync 1 - - 700\n");
    let outcome = replay(&trace, None, Disks::Recorded);
    assert_eq!((outcome.run_ns, outcome.all_ns), (15_000, 720_000));
}
