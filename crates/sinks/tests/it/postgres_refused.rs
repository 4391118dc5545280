//! Rows that PostgreSQL refuses.

use kollect_model::batch::Delta;

use crate::{
    conformance::{added, assert_holds, inventory, removed, row, write},
    postgres::{opened, schema},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_the_server_refuses_is_named() {
    let server = schema("refusing");
    let sink = opened(server, "refusing").await;
    let all = inventory("", "all");
    for count in [3, 2_000] {
        let mut rows: Vec<_> = (0..count).map(|i| row(&format!("u{i}"), "{}")).collect();
        rows.insert(1, row("too large", r#"{"n":1e200000,"text":"hunter2"}"#));
        let receipt = write(&*sink, &all, None, &added(&rows)).await.unwrap();
        let [refusal] = receipt.refused.as_slice() else { unreachable!("{:?}", receipt.refused) };
        assert!(
            refusal.why.contains("Deployment shop/cart of target team/pods (uid too large)"),
            "{refusal:?}"
        );
        assert!(!refusal.why.contains("hunter2"), "{refusal:?}");
        assert_holds(&*sink, &all, rows.iter().filter(|row| &*row.key.uid != "too large")).await;
    }
    server.psql("ALTER TABLE refusing.inventory ADD CHECK (source_uid NOT LIKE 'no%')").unwrap();
    let rows = ["v1", "no1", "v2", "no2"].map(|uid| row(uid, "{}"));
    let receipt = write(&*sink, &all, None, &added(&rows)).await.unwrap();
    assert_eq!(receipt.refused.iter().map(|refusal| &*refusal.key.uid).collect::<Vec<_>>(), ["no1", "no2"]);
    assert!(sink.baseline(&all).await.unwrap().contains_key(&rows[2].key));

    // Every row is refused: each is named, none is quoted, and removals are still applied.
    server
        .psql("DELETE FROM refusing.inventory; ALTER TABLE refusing.inventory ADD CHECK (name <> 'cart') NOT VALID")
        .unwrap();
    let rows: Vec<_> = (0..200).map(|i| row(&format!("u{i}"), r#"{"secret":"hunter2"}"#)).collect();
    let receipt = write(&*sink, &all, None, &added(&rows)).await.unwrap();
    assert_eq!(receipt.refused.len(), 200);
    assert!(!format!("{receipt:?}").contains("hunter2"), "rows are not quoted: {receipt:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn other_rows_are_written_beside_many_refused_rows() {
    let server = schema("refusing_many");
    let sink = opened(server, "refusing_many").await;
    server.psql("ALTER TABLE refusing_many.inventory ADD CHECK (source_uid NOT LIKE 'no%')").unwrap();
    let all = inventory("", "all");
    let removed_later = row("gone later", "{}");
    write(&*sink, &all, None, &added(std::slice::from_ref(&removed_later))).await.unwrap();
    // Every fourth row, and one block of rows.
    for (name, is_refused) in [("scattered", (|i| i % 4 == 0) as fn(usize) -> bool), ("block", |i| i < 250)] {
        let uid = |i: usize| if is_refused(i) { format!("no {name} {i}") } else { format!("{name} {i}") };
        let rows: Vec<_> = (0..1_000).map(|i| row(&uid(i), "{}")).collect();
        let delta = Delta { added: rows.clone(), removed: vec![removed(&removed_later)], ..Delta::default() };
        let receipt = write(&*sink, &all, None, &delta).await.unwrap();
        let (refused_rows, accepted_rows): (Vec<_>, Vec<_>) =
            rows.iter().partition(|row| row.key.uid.starts_with("no"));
        let refused: Vec<_> = receipt.refused.iter().map(|refusal| refusal.key.clone()).collect();
        assert_eq!(refused, refused_rows.iter().map(|row| row.key.clone()).collect::<Vec<_>>());
        assert!(receipt.refused[249].why.contains(&*refused_rows[249].key.uid), "{:?}", receipt.refused[249]);
        assert_holds(&*sink, &all, accepted_rows.iter().copied()).await;
        let removed = accepted_rows.iter().map(|row| removed(row)).collect();
        write(&*sink, &all, None, &Delta { removed, ..Delta::default() }).await.unwrap();
    }
}
