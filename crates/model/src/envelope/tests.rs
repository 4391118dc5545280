//! Documents against golden files. Their checksums were computed by another program.

use std::{fs, path::Path};

use serde_json::{Value, value::RawValue};

use super::*;
use crate::row::TargetId;

fn row(target: Option<&str>, group: &str, namespace: &str, name: &str, attributes: &str) -> Row {
    let key = RowKey {
        target: TargetId { namespace: target.map(Into::into), name: "web".into() },
        group: group.into(),
        kind: "Thing".into(),
        namespace: namespace.into(),
        uid: format!("uid-{name}").into(),
    };
    Row::new(key, "v1".into(), name.into(), RawValue::from_string(attributes.into()).unwrap().into())
}

fn rows() -> Vec<Row> {
    vec![
        row(Some("team"), "apps", "shop", "cart", r#"{"image":"a<b>&c","max":9223372036854775807}"#),
        row(None, "", "", "node-1", r#"{"deep":{"list":[1,2.50,null,true]},"text":"line\u2028"}"#),
        row(Some("team"), "apps", "shop", "a&b", "{\"raw\":\"\u{2028}\u{2029}\u{7f}🦀\"}"),
        row(Some("area"), "", "shop", "zero", r#"{"n":18446744073709551615}"#),
    ]
}

const SETTINGS: DocumentSettings<'_> = DocumentSettings {
    generation: 7,
    cluster: "",
    exported_at: "2026-01-02T03:04:05.6Z",
    part_bytes: 1 << 20,
};

fn golden(name: &str, document: &Document) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/envelope").join(name);
    let expected = fs::read(&file).unwrap();
    assert_eq!(String::from_utf8_lossy(&document.bytes), String::from_utf8_lossy(&expected), "{name}");
    let value: Value = serde_json::from_slice(&expected).unwrap();
    assert_eq!(value["checksum"], *document.checksum);
    assert_eq!(value["itemCount"], document.item_count);
    assert_eq!(value["items"].as_array().unwrap().len(), document.item_count);
}

#[test]
fn documents_equal_the_golden_files() {
    let single = documents(&rows(), &SETTINGS);
    assert_eq!((single.len(), single[0].part), (1, None));
    golden("items.json", &single[0]);
    assert_eq!(checksum(&single), single[0].checksum);

    let empty = documents([], &DocumentSettings { generation: 0, cluster: "a<b", ..SETTINGS });
    assert_eq!((empty.len(), empty[0].part), (1, None));
    golden("empty.json", &empty[0]);

    let limit = overhead(&SETTINGS) + 410;
    let parts = documents(&rows(), &DocumentSettings { part_bytes: limit, ..SETTINGS });
    assert_eq!(parts.iter().map(|part| part.part).collect::<Vec<_>>(), [Some((1, 2)), Some((2, 2))]);
    for (part, name) in parts.iter().zip(["part-1.json", "part-2.json"]) {
        assert!(part.bytes.len() <= limit);
        golden(name, part);
    }
    let lines = format!("{}\n{}\n", parts[0].checksum, parts[1].checksum);
    assert_eq!(checksum(&parts), hex(&Sha256::digest(lines)));
}

/// Bytes depend on the rows, not on the order in which they came.
#[test]
fn documents_do_not_depend_on_the_order_of_rows() {
    let mut rows: Vec<Row> =
        (0..200).map(|i| row(Some("t"), "", "ns", &format!("n{i}"), &format!(r#"{{"i":{i}}}"#))).collect();
    for part_bytes in [0, 1000, 5000, 1 << 20] {
        let settings = DocumentSettings { part_bytes, ..SETTINGS };
        let before = documents(&rows, &settings);
        rows.reverse();
        rows.rotate_left(77);
        assert_eq!(documents(&rows, &settings), before);
    }
}

#[test]
fn packing_sorts_as_full_texts_would() {
    let items: Vec<Item> = rows().iter().map(Item::of).collect();
    let mut by_text: Vec<String> = items.iter().map(|item| item.text.clone()).collect();
    by_text.sort();
    let packed: Vec<String> = pack(items, 0, 0).into_iter().flatten().map(|item| item.text).collect();
    assert_eq!(packed, by_text);
}

#[test]
fn an_item_larger_than_a_part_is_a_part_of_its_own() {
    let large = row(Some("t"), "", "ns", "large", &format!(r#"{{"x":"{}"}}"#, "x".repeat(10_000)));
    let rows = [row(Some("t"), "", "ns", "a", "{}"), large, row(Some("t"), "", "ns", "z", "{}")];
    let parts = documents(&rows, &DocumentSettings { part_bytes: 2000, ..SETTINGS });
    assert_eq!(parts.iter().map(|part| part.item_count).collect::<Vec<_>>(), [1, 1, 1]);
    assert!(parts[1].bytes.len() > 10_000);
}

/// Measures time: ten times as many rows may take up to 40 times as long. Quadratic work would take 100 times
/// as long.
#[test]
fn the_time_to_cut_documents_into_parts_is_not_quadratic() {
    let rows: Vec<Row> = (0..100_000)
        .map(|i| row(Some("t"), "", "ns", &format!("n{i:06}"), &format!(r#"{{"i":{i}}}"#)))
        .collect();
    let time = |rows: &[Row]| {
        let start = std::time::Instant::now();
        assert!(!documents(rows, &DocumentSettings { part_bytes: 100_000, ..SETTINGS }).is_empty());
        start.elapsed()
    };
    let few = (0..5).map(|_| time(&rows[..10_000])).min().unwrap();
    let many = time(&rows);
    assert!(many < few * 40, "10,000 rows: {few:?}, 100,000 rows: {many:?}");
}
