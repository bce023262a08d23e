use super::*;
use outlive_format::{Image, ImageKind, Images, Remarks, SaveFigures};
use outlive_types::SessionId;

fn manifest(epoch: u64, changed_bytes: u64) -> Manifest {
    Manifest {
        session: SessionId([1; 12]),
        world_size: 1,
        epoch,
        parent: 0,
        predecessor: 0,
        frozen_ns: epoch * 3_600_000_000_000,
        figures: SaveFigures { changed_bytes, new_bytes: 7, ..SaveFigures::default() },
        failed_before: 0,
        remarks: Remarks::default(),
        metrics: Vec::new(),
        images: Images::One(Image::empty(0, ImageKind::Memory)),
    }
}

/// Returns the points of each line.
fn points(picture: &str) -> Vec<Vec<(f64, f64)>> {
    let of_line = |line: &str| {
        let pairs = line.split('"').next().unwrap().split_whitespace();
        let pair = |pair: &str| {
            let (x, y) = pair.split_once(',').unwrap();
            (x.parse().unwrap(), y.parse().unwrap())
        };
        pairs.map(pair).collect()
    };
    picture.split("points=\"").skip(1).map(of_line).collect()
}

#[test]
fn every_checkpoint_is_a_point_inside_the_picture() {
    for (count, axis) in [(0, Axis::Epoch), (1, Axis::Time), (2, Axis::Epoch), (100, Axis::Time)] {
        let manifests: Vec<Manifest> =
            (1..=count).map(|epoch| manifest(epoch, epoch * 1000)).collect();
        let picture = svg("a<b>&c", &manifests, axis);
        assert!(picture.contains("a&lt;b&gt;&amp;c") && picture.ends_with("</svg>\n"));
        assert!(!picture.contains("NaN") && !picture.contains("inf"));
        assert_eq!(picture.matches("class=\"checkpoint\"").count() as u64, count);
        let lines = points(&picture);
        assert_eq!(lines.len(), 6);
        for line in lines {
            assert_eq!(line.len() as u64, count);
            for (x, y) in line {
                assert!((LEFT..=WIDTH - RIGHT).contains(&x) && (0.0..=800.0).contains(&y));
            }
        }
    }
}

#[test]
fn metrics_have_panels_and_outliers_stand_at_the_edge() {
    let mut manifests: Vec<Manifest> = (1..=30).map(|epoch| manifest(epoch, 1000)).collect();
    for one in &mut manifests {
        one.metrics = vec![("loss".to_owned(), 1.0 / one.epoch as f64)];
    }
    manifests[3].metrics[0].1 = 1e30;
    manifests[4].metrics[0].1 = f64::INFINITY;
    manifests[5].metrics.clear();
    let picture = svg("j", &manifests, Axis::Epoch);
    assert!(picture.contains("metric loss") && picture.contains("beyond the edge"));
    assert!(!picture.contains("inf"), "{picture}");
    let lines = points(&picture);
    assert_eq!((lines.len(), lines[0].len()), (7, 29));
    let tops: Vec<usize> = (0..29).filter(|n| lines[0][*n].1 <= lines[0][3].1).collect();
    assert!(tops.contains(&3) && tops.contains(&4));
    // The others still differ.
    let (later, last) = (lines[0][10].1, lines[0][28].1);
    assert!(last - later > 3.0, "{later} {last}");
    assert!(picture.matches("class=\"beyond\"").count() >= 2);
    let mut many = manifest(1, 1);
    many.metrics = (0..9).map(|n| (format!("m{n}"), 0.5)).collect();
    assert!(svg("j", &[many], Axis::Epoch).contains("3 more metrics without a panel"));
}

#[test]
fn labels_tags_and_times_are_told() {
    let mut manifests: Vec<Manifest> = (1..=30).map(|epoch| manifest(epoch, 1000)).collect();
    manifests[0].remarks.label = "first <good> one".to_owned();
    manifests[29].remarks.tags = vec!["best".to_owned(), "last".to_owned()];
    manifests[14].remarks.pinned = true;
    manifests[15].remarks.mark = Mark::Bad;
    let picture = svg("j", &manifests, Axis::Epoch);
    for part in
        ["first &lt;good&gt; one", "#best #last", "epoch 1<", "epoch 30<", "1970-01-01 01:00:00Z"]
    {
        assert!(picture.contains(part), "{part}");
    }
    assert!(picture.contains("#8e44ad") && picture.contains("#c0392b"));
    // An hour apart: the same places by time.
    let places = |manifests: &[Manifest], axis| {
        points(&svg("j", manifests, axis))[0].iter().map(|p| p.0 as i64).collect::<Vec<_>>()
    };
    assert_eq!(places(&manifests, Axis::Epoch), places(&manifests, Axis::Time));
    manifests[29].frozen_ns *= 10;
    assert_ne!(places(&manifests, Axis::Epoch), places(&manifests, Axis::Time));
}

#[test]
fn figures_have_a_few_digits() {
    for (value, text) in [
        (0.0, "0"),
        (0.5, "0.5"),
        (1234.0, "1234"),
        (-2.25, "-2.25"),
        (0.001_234_6, "0.001235"),
        (1e9, "1.00e9"),
        (100_000.0, "100000"),
    ] {
        assert_eq!(figure(value), text);
    }
}
