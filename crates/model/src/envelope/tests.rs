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

const ABOUT: About<'_> =
    About { generation: 7, cluster: "", exported_at: "2026-01-02T03:04:05.6Z", part_bytes: 1 << 20 };

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
fn documents_are_as_documented() {
    let whole = documents(&rows(), &ABOUT);
    assert_eq!((whole.len(), whole[0].part), (1, None));
    golden("items.json", &whole[0]);
    assert_eq!(checksum(&whole), whole[0].checksum);

    let empty = documents([], &About { generation: 0, cluster: "a<b", ..ABOUT });
    assert_eq!((empty.len(), empty[0].part), (1, None));
    golden("empty.json", &empty[0]);

    let limit = overhead(&ABOUT) + 410;
    let parts = documents(&rows(), &About { part_bytes: limit, ..ABOUT });
    assert_eq!(parts.iter().map(|part| part.part).collect::<Vec<_>>(), [Some((1, 2)), Some((2, 2))]);
    for (part, name) in parts.iter().zip(["part-1.json", "part-2.json"]) {
        assert!(part.bytes.len() <= limit);
        golden(name, part);
    }
    let lines = format!("{}\n{}\n", parts[0].checksum, parts[1].checksum);
    assert_eq!(checksum(&parts), hex(&Sha256::digest(lines)));
}

/// Law 13: bytes depend on the rows, not on the order in which they came.
#[test]
fn the_order_of_rows_does_not_matter() {
    let mut rows: Vec<Row> =
        (0..200).map(|i| row(Some("t"), "", "ns", &format!("n{i}"), &format!(r#"{{"i":{i}}}"#))).collect();
    for part_bytes in [0, 1000, 5000, 1 << 20] {
        let about = About { part_bytes, ..ABOUT };
        let before = documents(&rows, &about);
        rows.reverse();
        rows.rotate_left(77);
        assert_eq!(documents(&rows, &about), before);
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
fn w3_an_item_larger_than_a_part_is_a_part_of_its_own() {
    let large = row(Some("t"), "", "ns", "large", &format!(r#"{{"x":"{}"}}"#, "x".repeat(10_000)));
    let rows = [row(Some("t"), "", "ns", "a", "{}"), large, row(Some("t"), "", "ns", "z", "{}")];
    let parts = documents(&rows, &About { part_bytes: 2000, ..ABOUT });
    assert_eq!(parts.iter().map(|part| part.item_count).collect::<Vec<_>>(), [1, 1, 1]);
    assert!(parts[1].bytes.len() > 10_000);
}

/// Measures time: ten times as many rows may take up to 40 times as long. Quadratic work would take 100 times
/// as long.
#[test]
fn w48_cutting_is_not_quadratic() {
    let rows: Vec<Row> = (0..100_000)
        .map(|i| row(Some("t"), "", "ns", &format!("n{i:06}"), &format!(r#"{{"i":{i}}}"#)))
        .collect();
    let time = |rows: &[Row]| {
        let start = std::time::Instant::now();
        assert!(!documents(rows, &About { part_bytes: 100_000, ..ABOUT }).is_empty());
        start.elapsed()
    };
    let few = (0..5).map(|_| time(&rows[..10_000])).min().unwrap();
    let many = time(&rows);
    assert!(many < few * 40, "10,000 rows: {few:?}, 100,000 rows: {many:?}");
}
