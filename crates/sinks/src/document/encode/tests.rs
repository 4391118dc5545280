//! The bytes of every format. `UPDATE=1` writes the expected files.

use std::{fs, path::PathBuf};

use kollect_model::{
    row::{RowKey, TargetId},
    schema::{AttributeSchema, AttributeType as T, Schema, TargetSchema},
};
use serde_json::value::RawValue;

use super::*;

fn row(target: &str, group: &str, name: &str, attributes: &str) -> Row {
    let key = RowKey {
        target: TargetId { namespace: Some("team".into()), name: target.into() },
        group: group.into(),
        kind: "Deployment".into(),
        namespace: "shop".into(),
        uid: format!("00000000-0000-4000-8000-00000000000{}", name.len()).into(),
    };
    let attributes = RawValue::from_string(attributes.into()).unwrap();
    Row::new(key, "v1".into(), name.into(), attributes.into())
}

fn schema() -> Schema {
    let target = |name: &str, attributes: &[(&str, Option<T>)]| {
        let attributes = attributes.iter().map(|(name, type_)| AttributeSchema {
            name: (*name).into(),
            type_: *type_,
            optional: false,
        });
        let id = TargetId { namespace: Some("team".into()), name: name.into() };
        (id, TargetSchema { profile: format!("team/{name}"), attributes: attributes.collect() })
    };
    let web = [
        ("Image", None),
        ("memory", Some(T::Quantity)),
        ("ports", Some(T::List)),
        ("ready", Some(T::Bool)),
        ("replicas", Some(T::Int)),
        ("since", Some(T::Timestamp)),
        ("weight", Some(T::Number)),
    ];
    Schema { targets: [target("web", &web), target("other", &[("replicas", Some(T::String))])].into() }
}

/// Rows in an order of their own: documents are sorted.
fn rows() -> Vec<Row> {
    let full = r#"{"Image":"a:1, \"<b>\"","memory":"1.5Gi","ports":[80,{"a":1}],"ready":true,"replicas":3,"since":"2026-01-01T12:00:00+01:00","weight":0.25}"#;
    let marker = r#"{"Image":{"reason":"sensitive-key","redacted":true},"memory":null,"replicas":99999999999999999999}"#;
    vec![
        row("web", "apps", "web", full),
        row("other", "", "c", r#"{"replicas":"many"}"#),
        row("web", "apps", "ab", marker),
    ]
}

fn encoded(format: DocumentFormat, compression: Compression, rows: &[Row]) -> Bytes {
    let settings = DocumentSettings { compression, ..DocumentSettings::of(format) };
    let inventory =
        InventoryId { cluster: "east".into(), namespace: Some("team".into()), name: "all".into() };
    let facts = DocumentFacts {
        exported_at: "2026-11-18T20:00:00.123456789Z".parse().unwrap(),
        generation: 3,
        revision: 42,
        epoch: 7,
        coverage: "complete",
    };
    let columns = Columns::of(&schema(), None);
    encode(&settings, &inventory, rows.iter().collect(), &columns, &facts).unwrap().bytes
}

#[test]
fn the_bytes_of_documents_do_not_change() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/documents");
    for (name, format, compression) in [
        ("all.json", DocumentFormat::Json, Compression::None),
        ("all.ndjson", DocumentFormat::Ndjson, Compression::None),
        ("all.csv", DocumentFormat::Csv, Compression::None),
        ("all.csv.gz", DocumentFormat::Csv, Compression::Gzip),
        ("all.parquet", DocumentFormat::Parquet, Compression::None),
    ] {
        let bytes = encoded(format, compression, &rows());
        let file = folder.join(name);
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&file, &bytes).unwrap();
        }
        assert!(fs::read(&file).unwrap() == bytes, "{name} has changed; see UPDATE=1");
        let mut other_order = rows();
        other_order.reverse();
        assert_eq!(encoded(format, compression, &other_order), bytes, "{name} depends on the order of rows");
    }
}

#[test]
fn a_csv_document_is_readable() {
    let text = String::from_utf8(encoded(DocumentFormat::Csv, Compression::None, &rows()).to_vec()).unwrap();
    let lines: Vec<&str> = text.split_terminator("\r\n").collect();
    assert_eq!(
        lines[0],
        "cluster,inventory_namespace,inventory_name,target_namespace,target_name,namespace,name,uid,api_version,kind,group,attr_image,\
         attr_memory,attr_memory_num,attr_ports,attr_ready,attr_replicas,attr_since,attr_weight,attributes"
    );
    assert!(lines[1].contains(",ab,") && lines[2].contains(",c,") && lines[3].contains(",web,"), "{text}");
    assert!(
        lines[3].contains(
            r#","a:1, ""<b>""",1.5Gi,1610612736,"[80,{""a"":1}]",true,3,2026-01-01T11:00:00Z,0.25,"#
        ),
        "{text}"
    );
}
