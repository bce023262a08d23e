use super::*;
use proptest::prelude::*;

fn header(text: &str, data_bytes: u64) -> Result<Header> {
    Header::decode(text.as_bytes(), data_bytes)
}

fn refuses(text: &str, data_bytes: u64, why: &str) {
    let error = header(text, data_bytes).unwrap_err();
    assert_eq!(error.kind(), outlive_types::ErrorKind::Invalid);
    assert!(error.message().contains(why), "{text}: {error}");
}

#[test]
fn a_header_of_the_format_is_read() {
    let text = r#"{"__metadata__":{"format":"pt"},
        "b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},
        "a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},
        "none":{"dtype":"I64","shape":[0,7],"data_offsets":[16,16]}}   "#;
    let found = header(text, 16).unwrap();
    let names: Vec<&str> = found.tensors.iter().map(|tensor| &tensor.name[..]).collect();
    assert_eq!(names, ["a", "b", "none"]);
    assert_eq!(found.tensors[1].shape, [2, 3]);
    assert_eq!(found.metadata["format"], "pt");
    assert_eq!(header("{}", 0).unwrap(), Header::default());
}

#[test]
fn hostile_headers_are_refused() {
    let one = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"x":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    refuses("[]", 0, "no JSON object");
    refuses("{\"x\":", 0, "cannot be read");
    refuses("{} {}", 0, "cannot be read");
    refuses(&one("F33", "[1]", "[0,4]"), 4, "unknown");
    refuses(&one("F32", "[2]", "[0,4]"), 4, "does not fit");
    refuses(&one("F32", "[1]", "[4,0]"), 4, "does not fit");
    refuses(&one("F32", "[-1]", "[0,4]"), 4, "another way");
    refuses(&one("F32", "[1.5]", "[0,4]"), 4, "another way");
    refuses(&one("F32", "[4294967296,4294967296]", "[0,0]"), 0, "does not fit");
    refuses(&one("F32", "[1]", "[1,5]"), 5, "the one before ends at 0");
    refuses(&one("F32", "[1]", "[0,4]"), 5, "behind the header");
    refuses(&one("F32", "[2]", "[0,8]"), 4, "behind the header");
    refuses(&one("F4", "[3]", "[0,2]"), 2, "does not fit");
    refuses(&one("U8", &format!("[{}1]", "1,".repeat(64)), "[0,1]"), 1, "axes");
    refuses(r#"{"__metadata__":{"a":1}}"#, 0, "object of texts");
    let twice = r#"{"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},
        "x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#;
    refuses(twice, 0, "occurs twice");
    let overlap = r#"{"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},
        "y":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}"#;
    refuses(overlap, 6, "the one before ends at 4");
}

#[test]
fn a_length_beyond_the_file_or_the_bound_is_refused() {
    let length = |length: u64, file_bytes| Header::length(length.to_le_bytes(), file_bytes);
    assert_eq!(length(2, 10).unwrap(), 2);
    assert!(length(3, 10).is_err());
    assert!(length(0, 10).is_err());
    assert!(length(u64::MAX, u64::MAX).is_err());
    assert!(length(HEADER_BYTES_MAX + 1, u64::MAX).is_err());
    assert_eq!(length(HEADER_BYTES_MAX, u64::MAX).unwrap(), HEADER_BYTES_MAX);
}

proptest! {
    #[test]
    fn any_header_is_read_as_it_was_written(
        tensors in prop::collection::vec((".{0,12}", 0usize..21, prop::collection::vec(0u64..5, 0..4)), 0..8),
        metadata in prop::collection::btree_map(".{0,8}", ".{0,8}", 0..4),
    ) {
        let mut written = Header { metadata, ..Header::default() };
        let mut names = HashSet::from([METADATA.to_owned()]);
        let mut at = 0;
        for (name, number, shape) in tensors {
            let dtype = ["BOOL", "F4", "BF16", "F64", "F8_E4M3", "C64", "I16"][number % 7];
            let dtype = Dtype::named(dtype).unwrap();
            let Some(bytes) = dtype.bytes_of(&shape) else { continue };
            if names.insert(name.clone()) {
                written.tensors.push(TensorInfo { name, dtype, shape, begin: at, end: at + bytes });
                at += bytes;
            }
        }
        written.tensors.sort_by(|a, b| (a.begin, a.end, &a.name).cmp(&(b.begin, b.end, &b.name)));
        let bytes = written.encode().unwrap();
        let (first, text) = bytes.split_first_chunk().unwrap();
        prop_assert_eq!(Header::length(*first, bytes.len() as u64 + at).unwrap(), text.len() as u64);
        prop_assert!(bytes.len().is_multiple_of(8));
        prop_assert_eq!(Header::decode(text, at).unwrap(), written);
    }

    #[test]
    fn no_text_makes_the_decoder_panic(text in "[\\[\\]{}\":,0-9a-zA-Z_ ]{0,200}", bytes in any::<u64>()) {
        let _ = Header::decode(text.as_bytes(), bytes);
    }

    #[test]
    fn a_changed_header_is_another_one_or_refused(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let text = br#"{"x":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}"#;
        let mut changed = text.to_vec();
        changed[at.index(text.len())] = byte;
        if let Ok(found) = Header::decode(&changed, 24) {
            prop_assert_eq!(found.tensors.iter().map(|it| it.end - it.begin).sum::<u64>(), 24);
        }
    }
}
