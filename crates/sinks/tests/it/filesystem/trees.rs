//! Which files there are, and their content.

use super::*;

/// Objects of two kinds and one without a namespace.
fn sample_rows() -> Vec<Arc<Row>> {
    vec![
        object(
            "u1",
            "apps",
            "Deployment",
            "shop",
            "cart",
            r#"{"image":"nginx:1.25","max":18446744073709551615}"#,
        ),
        object("u2", "", "Service", "shop", "cart", r#"{"ports":[80,8080],"text":"<&> it's \"on\": yes\n"}"#),
        object("u3", "", "Node", "", "n1", r#"{"empty":{},"none":null,"off":"off","ratio":0.50}"#),
    ]
}

async fn write_and_read(dir: &Path, fields: &Value, rows: &[Arc<Row>]) -> BTreeMap<String, String> {
    let sink = open_dir(dir, fields).await;
    write(&*sink, &inventory("prod", "all"), None, &added(rows)).await.unwrap();
    assert_eq!(sink.baseline(&inventory("prod", "all")).await.unwrap(), holding(rows));
    tree(dir)
}

/// Golden files: one text per layout and format.
#[tokio::test]
async fn files_have_the_documented_content() {
    for (name, fields) in [
        (
            "per-resource-yaml",
            json!({ "serialization": { "format": "yaml" }, "layout": { "mode": "perResource" } }),
        ),
        (
            "per-resource-json-attributes",
            json!({ "layout": { "mode": "perResource", "content": "attributes",
            "pathTemplate": "{cluster}/{group}/{kind}/{uid}.json", "filename": { "lowercaseKind": false, "groupInPath": "always" } } }),
        ),
        (
            "per-resource-ndjson",
            json!({ "serialization": { "format": "ndjson" }, "layout": { "mode": "perResource" } }),
        ),
        ("split-yaml", json!({ "serialization": { "format": "yaml" }, "layout": { "mode": "split" } })),
        ("document-json", json!({})),
        ("document-yaml", json!({ "serialization": { "format": "yaml" } })),
        (
            "document-ndjson",
            json!({ "serialization": { "format": "ndjson" }, "pathTemplate": "x/{cluster}/{namespace}.{name}.lines" }),
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut text = String::new();
        for (path, bytes) in write_and_read(dir.path(), &fields, &sample_rows()).await {
            let line = |line: &str| match line.split_once("exportedAt") {
                Some((before, after)) => {
                    let date = after.find("20").unwrap();
                    let (_, zone) = after.split_at(after.find('Z').unwrap());
                    format!("{before}exportedAt{}…{zone}", after.split_at(date).0)
                }
                None => line.to_owned(),
            };
            let lines: Vec<String> = bytes.split('\n').map(line).collect();
            text.extend(["=== ", &path, "\n", &lines.join("\n"), "\n"]);
        }
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/layout").join(name);
        assert_eq!(text, fs::read_to_string(&golden).unwrap(), "{name}");
    }
}

/// Zero rows give an empty document, and no file in a tree.
#[tokio::test]
async fn an_inventory_without_rows_is_an_empty_document_or_no_file() {
    for (fields, expected) in [
        (json!({}), Some("\"itemCount\":0,")),
        (json!({ "serialization": { "format": "yaml" } }), Some("[]\n")),
        (json!({ "serialization": { "format": "ndjson" } }), Some("")),
        (json!({ "layout": { "mode": "perResource" } }), None),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let files = write_and_read(dir.path(), &fields, &[]).await;
        assert_eq!(files.len(), usize::from(expected.is_some()), "{files:?}");
        let text = files.into_values().next();
        assert!(text.as_deref().unwrap_or_default().contains(expected.unwrap_or_default()), "{text:?}");
    }
}

/// Without a mode, the rows decide: separate files only while all rows are whole objects.
#[tokio::test]
async fn whole_objects_become_manifests_if_no_layout_mode_is_set() {
    let whole_object = |uid: &str, kind: &str| {
        let manifest =
            format!(r#"{{"resource":{{"apiVersion":"v1","kind":"{kind}","metadata":{{"name":"{uid}"}}}}}}"#);
        object(uid, "", kind, "shop", uid, &manifest)
    };
    let (one, two, other) = (
        whole_object("a", "Pod"),
        whole_object("b", "Service"),
        object("c", "", "Pod", "shop", "c", r#"{"n":1}"#),
    );
    let dir = tempfile::tempdir().unwrap();
    let fields = json!({ "layout": { "filename": {} }, "serialization": { "format": "yaml" } });
    let files = write_and_read(dir.path(), &fields, &[one.clone(), two.clone()]).await;
    assert_eq!(files.keys().collect::<Vec<_>>(), ["prod/shop/pod/a.yaml", "prod/shop/service/b.yaml"]);
    assert_eq!(files["prod/shop/pod/a.yaml"], "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n");

    // With one row that is not a whole object, all rows go into a document, also those not in the delta.
    let sink = open_dir(dir.path(), &fields).await;
    let all = inventory("prod", "all");
    write(&*sink, &all, None, &added(std::slice::from_ref(&other))).await.unwrap();
    let files = tree(dir.path());
    assert_eq!(files.keys().collect::<Vec<_>>(), ["inventory/team/all.yaml"]);
    let held = items(".yaml", &files["inventory/team/all.yaml"]);
    assert_eq!(held.iter().map(|item| item["uid"].as_str().unwrap()).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(held[0]["attributes"]["resource"]["metadata"]["name"], "a");
    // And back to separate files.
    let delta = Delta { removed: vec![removed(&other)], ..Delta::default() };
    write(&*sink, &all, None, &delta).await.unwrap();
    assert_eq!(
        tree(dir.path()).keys().collect::<Vec<_>>(),
        ["prod/shop/pod/a.yaml", "prod/shop/service/b.yaml"]
    );
    assert_eq!(tree(dir.path())["prod/shop/pod/a.yaml"], "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n");
    // The digests are 0: the next comparison writes the rows once more.
    let held = sink.baseline(&all).await.unwrap();
    assert_eq!(held.values().collect::<Vec<_>>(), [&RowDigest(0), &RowDigest(0)]);
}

#[tokio::test]
async fn rows_that_are_not_whole_objects_are_refused_by_name_with_content_manifest() {
    let dir = tempfile::tempdir().unwrap();
    let sink =
        open_dir(dir.path(), &json!({ "layout": { "mode": "perResource", "content": "manifest" } })).await;
    let whole_object = object("a", "", "Pod", "shop", "a", r#"{"x":{"apiVersion":"v1","kind":"Pod"}}"#);
    let (all, rows) = (inventory("", "all"), [whole_object.clone(), sample_rows()[0].clone()]);
    let receipt = write(&*sink, &all, None, &added(&rows)).await.unwrap();
    assert_eq!(receipt.refused.len(), 1);
    assert!(receipt.refused[0].why.contains("Deployment shop/cart"), "{}", receipt.refused[0].why);
    assert_eq!(sink.baseline(&all).await.unwrap(), holding([&whole_object]));
}

/// The same kind in two groups, and one object in two targets. Each row gets its own path.
#[tokio::test]
async fn rows_that_would_share_a_path_get_different_files_in_a_directory() {
    let fields = json!({ "layout": { "mode": "perResource" } });
    let names = |dir: &Path| tree(dir).into_keys().collect::<Vec<_>>();
    let apps = object("u1", "apps", "Ingress", "shop", "cart", "{}");
    let network = object("u2", "networking.k8s.io", "Ingress", "shop", "cart", "{}");
    let core = object("u3", "", "Ingress", "shop", "cart", "{}");
    let all = inventory("", "all");
    let dir = tempfile::tempdir().unwrap();
    let sink = open_dir(dir.path(), &fields).await;
    write(&*sink, &all, None, &added(std::slice::from_ref(&apps))).await.unwrap();
    assert_eq!(names(dir.path()), ["default/shop/ingress/cart.json"]);
    write(&*sink, &all, None, &added(std::slice::from_ref(&network))).await.unwrap();
    let two = ["default/shop/ingress.apps/cart.json", "default/shop/ingress.networking.k8s.io/cart.json"];
    assert_eq!(names(dir.path()), two);
    write(&*sink, &all, None, &added(std::slice::from_ref(&core))).await.unwrap();
    assert_eq!(sink.baseline(&all).await.unwrap(), holding([&apps, &network, &core]));
    assert_eq!(names(dir.path()), [two[0], "default/shop/ingress.core/cart.json", two[1]]);
    let delta = Delta { removed: vec![removed(&core), removed(&apps)], ..Delta::default() };
    write(&*sink, &all, None, &delta).await.unwrap();
    assert_eq!(names(dir.path()), ["default/shop/ingress/cart.json"]);
    assert_eq!(sink.baseline(&all).await.unwrap(), holding([&network]));

    // One object in two targets, beside one of another group.
    let same_object =
        Arc::new(Row { key: RowKey { uid: "u5".into(), ..network.key.clone() }, ..(*network).clone() });
    let receipt = write(&*sink, &all, None, &added(&[apps.clone(), same_object.clone()])).await.unwrap();
    assert_eq!(receipt.warnings.len(), 1, "{:?}", receipt.warnings);
    let three = names(dir.path());
    assert_eq!(three.len(), 3);
    assert_eq!(three[0], two[0]);
    assert!(three[1..].iter().all(|name| name.starts_with("default/shop/ingress/cart-")), "{three:?}");
    assert_eq!(sink.baseline(&all).await.unwrap(), holding([&apps, &network, &same_object]));

    // A row whose name equals the suffixed name of another row.
    let like_suffixed = object(
        "u4",
        "",
        "Ingress",
        "shop",
        three[1].rsplit_once('/').unwrap().1.strip_suffix(".json").unwrap(),
        "{}",
    );
    write(&*sink, &all, None, &added(std::slice::from_ref(&like_suffixed))).await.unwrap();
    assert_eq!(names(dir.path()).len(), 4);
    assert_eq!(sink.baseline(&all).await.unwrap(), holding([&apps, &network, &same_object, &like_suffixed]));
}

/// An inventory removes only its own files, and leaves none of them behind.
#[tokio::test]
async fn an_inventory_removes_only_its_own_files_from_a_shared_directory() {
    let dir = tempfile::tempdir().unwrap();
    let sink = open_dir(dir.path(), &json!({ "layout": { "mode": "perResource" } })).await;
    let (one, two) = (inventory("", "one"), inventory("", "two"));
    let rows = sample_rows();
    write(&*sink, &one, None, &added(&rows[..2])).await.unwrap();
    write(&*sink, &two, None, &added(&rows[2..])).await.unwrap();
    fs::write(dir.path().join("default/shop/service/README"), "mine").unwrap();
    let delta = Delta { removed: rows[..2].iter().map(|row| removed(row)).collect(), ..Delta::default() };
    write(&*sink, &one, None, &delta).await.unwrap();
    assert_eq!(
        tree(dir.path()).into_keys().collect::<Vec<_>>(),
        ["default/node/n1.json", "default/shop/service/README"]
    );
    assert!(!dir.path().join("default/shop/deployment").exists(), "empty directories go");

    // The same object in both: only this row is refused, by name and with advice.
    let receipt = write(&*sink, &one, None, &added(&rows)).await.unwrap();
    let reasons: Vec<&str> = receipt.refused.iter().map(|refusal| &*refusal.why).collect();
    assert_eq!(
        reasons,
        [
            "Node n1 of target team/web (uid u3): default/node/n1.json is a file of inventory team/two of cluster \
          \"\": put {cluster}, {namespace} and {name} of the inventory into spec.layout.pathTemplate, or use \
          another destination"
        ]
    );
    assert_eq!(sink.baseline(&one).await.unwrap(), holding(&rows[..2]));
    assert_eq!(sink.baseline(&two).await.unwrap(), holding(&rows[2..]));
    // The advice works, and all files move in one write.
    let fields = json!({ "layout": {
        "mode": "perResource", "pathTemplate": "{cluster}/{namespace}/{name}/{kind}/{sourceName}{extension}",
    } });
    let delta = Delta {
        changed: rows[..2].iter().map(changed).collect(),
        added: rows[2..].to_vec(),
        ..Delta::default()
    };
    let receipt = write(&*open_dir(dir.path(), &fields).await, &one, None, &delta).await.unwrap();
    assert!(receipt.refused.is_empty());
    assert!(dir.path().join("default/team/one/node/n1.json").is_file());
}

/// Kinds with equal names in different API groups and different inventories: the later one gets its group in the
/// path, and no file of the other one moves.
#[tokio::test]
async fn kinds_with_equal_names_in_two_inventories_get_different_files_in_a_directory() {
    let core = object("u1", "", "Service", "shop", "cart", "{}");
    let knative = object("u2", "serving.knative.dev", "Service", "shop", "cart", r#"{"n":1}"#);
    let plain = object("u3", "serving.knative.dev", "Service", "shop", "other", "{}");
    let (one, two) = (inventory("", "one"), inventory("", "two"));
    let dir = tempfile::tempdir().unwrap();
    let fields = json!({ "layout": { "mode": "perResource" } });
    let sink = open_dir(dir.path(), &fields).await;
    write(&*sink, &one, None, &added(std::slice::from_ref(&core))).await.unwrap();
    let rows = [knative.clone(), plain.clone()];
    let receipt = write(&*sink, &two, None, &added(&rows)).await.unwrap();
    assert!(receipt.refused.is_empty() && receipt.warnings.is_empty());
    let names = || tree(dir.path()).into_keys().collect::<Vec<_>>();
    let expected = [
        "default/shop/service.serving.knative.dev/cart.json",
        "default/shop/service/cart.json",
        "default/shop/service/other.json",
    ];
    assert_eq!(names(), expected);
    for inventory in [&one, &two] {
        write(&*sink, inventory, None, &Delta::default()).await.unwrap();
        assert_eq!(names(), expected);
    }
    assert_eq!(sink.baseline(&one).await.unwrap(), holding([&core]));
    assert_eq!(sink.baseline(&two).await.unwrap(), holding(&rows));
    // Once the other file is gone, the row gets the path without the group.
    let claim = sink.claim(&one, &Claimant::default()).await.unwrap();
    sink.forget(&one, &claim).await.unwrap();
    write(&*sink, &two, None, &Delta::default()).await.unwrap();
    assert_eq!(names(), ["default/shop/service/cart.json", "default/shop/service/other.json"]);
    assert_eq!(sink.baseline(&two).await.unwrap(), holding(&rows));
}

/// The same with a template of the user: only colliding rows are refused, and the advice works.
#[tokio::test]
async fn only_rows_whose_paths_collide_are_refused() {
    let core = object("u1", "", "Service", "shop", "cart", "{}");
    let knative = object("u2", "serving.knative.dev", "Service", "shop", "cart", "{}");
    let plain = object("u3", "serving.knative.dev", "Service", "shop", "other", "{}");
    let (one, two) = (inventory("", "one"), inventory("", "two"));
    let dir = tempfile::tempdir().unwrap();
    let template = |text: &str| json!({ "layout": { "mode": "perResource", "pathTemplate": text } });
    let sink = open_dir(dir.path(), &template("{kind}/{sourceName}{extension}")).await;
    write(&*sink, &one, None, &added(std::slice::from_ref(&core))).await.unwrap();
    let receipt = write(&*sink, &two, None, &added(&[knative.clone(), plain.clone()])).await.unwrap();
    let reasons: Vec<&str> = receipt.refused.iter().map(|refusal| &*refusal.why).collect();
    assert_eq!(
        reasons,
        [
            "Service shop/cart of target team/web (uid u2): service/cart.json is a file of inventory team/one of \
          cluster \"\", for an object of API group \"\": put {group} into spec.layout.pathTemplate, and let \
          spec.layout.filename.groupInPath be auto or always"
        ]
    );
    assert_eq!(sink.baseline(&two).await.unwrap(), holding([&plain]));
    let sink = open_dir(dir.path(), &template("{group}/{kind}/{sourceName}{extension}")).await;
    let delta = Delta { changed: vec![changed(&plain)], added: vec![knative.clone()], ..Delta::default() };
    assert!(write(&*sink, &two, None, &delta).await.unwrap().refused.is_empty());
    assert_eq!(sink.baseline(&two).await.unwrap(), holding([&knative, &plain]));

    // A row that cannot move because of an existing file keeps its old file.
    let file = dir.path().join("moved/other.json");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, "precious").unwrap();
    let sink = open_dir(dir.path(), &template("moved/{sourceName}{extension}")).await;
    let delta = Delta { changed: vec![changed(&knative), changed(&plain)], ..Delta::default() };
    let receipt = write(&*sink, &two, None, &delta).await.unwrap();
    assert_eq!(receipt.refused.len(), 1);
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    assert!(dir.path().join("moved/cart.json").is_file());
    assert!(dir.path().join("serving.knative.dev/service/other.json").is_file());
    assert_eq!(sink.baseline(&two).await.unwrap().len(), 2);
}

#[tokio::test]
async fn files_of_others_are_never_overwritten() {
    for (fields, path) in [
        (json!({}), "inventory/team/all.json"),
        (json!({ "layout": { "mode": "perResource" } }), "default/shop/service/cart.json"),
        (json!({ "layout": { "mode": "split" } }), "inventory/team/all.json"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "precious").unwrap();
        let sink = open_dir(dir.path(), &fields).await;
        let all = inventory("", "all");
        if fields["layout"]["mode"] == "perResource" {
            // Only one row is affected.
            let receipt = write(&*sink, &all, None, &added(&sample_rows())).await.unwrap();
            assert_eq!(receipt.refused.len(), 1);
            assert!(receipt.refused[0].why.contains(path), "{}", receipt.refused[0].why);
            assert_eq!(tree(dir.path())[path], "precious");
            assert_eq!(sink.baseline(&all).await.unwrap(), holding([&sample_rows()[0], &sample_rows()[2]]));
        } else {
            let error = write(&*sink, &all, None, &added(&sample_rows())).await.unwrap_err();
            assert_eq!((error.reason, error.class()), (SinkReason::Incompatible, ErrorClass::Terminal));
            assert!(error.to_string().contains(path), "{error}");
            assert_eq!(tree(dir.path()), BTreeMap::from([(path.to_owned(), "precious".to_owned())]));
        }
        fs::remove_file(&file).unwrap();
        write(&*sink, &all, None, &added(&sample_rows())).await.unwrap();
        assert_eq!(sink.baseline(&all).await.unwrap(), holding(&sample_rows()));
    }
}

/// Parts are added and removed with the rows.
#[tokio::test]
async fn parts_of_a_document_are_added_and_removed_with_rows() {
    for format in ["json", "yaml", "ndjson"] {
        let dir = tempfile::tempdir().unwrap();
        let sink = open_dir(dir.path(), &json!({ "serialization": { "format": format } })).await;
        let all = inventory("", "all");
        let rows: Vec<_> = (0..100)
            .map(|i| object(&format!("u{i:03}"), "", "Pod", "shop", &format!("p{i}"), "{}"))
            .collect();
        let claim = sink.claim(&all, &Claimant::default()).await.unwrap();
        let fill = added(&rows);
        let parts = |total: usize| -> Vec<String> {
            let name = |i| format!("inventory/team/all.part-{i:04}-of-{total:04}.{format}");
            (1..=total).map(name).collect()
        };
        sink.write(&Batch { part_bytes: 4000, ..Batch::new(&all, &claim, &fill) }).await.unwrap();
        let files: Vec<String> = tree(dir.path()).into_keys().collect();
        assert!(files.len() > 3, "{files:?}");
        assert_eq!(files, parts(files.len()));
        assert_eq!(sink.baseline(&all).await.unwrap(), holding(&rows));
        for text in tree(dir.path()).values() {
            assert!(text.len() <= 4000);
        }
        let delta =
            Delta { removed: rows[60..].iter().map(|row| removed(row)).collect(), ..Delta::default() };
        sink.write(&Batch { part_bytes: 4000, ..Batch::new(&all, &claim, &delta) }).await.unwrap();
        let fewer: Vec<String> = tree(dir.path()).into_keys().collect();
        assert!(fewer.len() < files.len());
        assert_eq!(fewer, parts(fewer.len()));
        assert_eq!(sink.baseline(&all).await.unwrap(), holding(&rows[..60]));
        sink.write(&Batch::new(&all, &claim, &Delta::default())).await.unwrap();
        assert_eq!(
            tree(dir.path()).into_keys().collect::<Vec<_>>(),
            [format!("inventory/team/all.{format}")]
        );
        sink.forget(&all, &claim).await.unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

/// Edits by others are found and undone; a different date alone changes no file.
#[tokio::test]
async fn documents_change_only_with_their_rows() {
    for fields in [
        json!({}),
        json!({ "layout": { "mode": "split" } }),
        json!({ "serialization": { "compression": "gzip" } }),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let all = inventory("", "all");
        let sink = open_dir(dir.path(), &fields).await;
        write(&*sink, &all, None, &added(&sample_rows())).await.unwrap();
        let before = tree(dir.path());
        write(&*open_dir(dir.path(), &fields).await, &all, None, &added(&sample_rows())).await.unwrap();
        assert_eq!(tree(dir.path()), before);
        for path in before.keys() {
            let file = dir.path().join(path);
            let bytes = fs::read(&file).unwrap();
            for damage in [Some([&*bytes, b"\n"].concat()), Some(Vec::new()), None] {
                match &damage {
                    Some(damaged) => fs::write(&file, damaged).unwrap(),
                    None => fs::remove_file(&file).unwrap(),
                }
                let held = sink.baseline(&all).await.unwrap();
                assert!(held.values().any(|digest| *digest == RowDigest(0)), "{path} {held:?}");
                let repair = Delta {
                    changed: sample_rows()
                        .iter()
                        .filter(|row| held[&row.key] != row.digest)
                        .map(changed)
                        .collect(),
                    ..Delta::default()
                };
                write(&*sink, &all, None, &repair).await.unwrap();
                assert_eq!(sink.baseline(&all).await.unwrap(), holding(&sample_rows()));
                let now = tree(dir.path());
                assert_eq!(now.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>());
            }
        }
    }
}

/// No name of an object leads out of the directory, and names never decide who owns a file.
#[tokio::test]
async fn no_name_of_an_object_leads_out_of_the_directory() {
    let outer = tempfile::tempdir().unwrap();
    let root = outer.path().join("root");
    let long = "ü".repeat(2000);
    let names = [
        "..",
        ".",
        "../../../etc/passwd",
        "/etc/passwd",
        "a/b",
        "a\\b",
        "a:b",
        "a\0b",
        "a\nb",
        "...",
        ".kollect",
        "#1",
        "x#1",
        "%2e%2e",
        " ",
        &long,
    ];
    for mode in ["document", "perResource", "split"] {
        let fields = json!({
            "pathTemplate": "{cluster}/{namespace}/{name}{extension}",
            "layout": { "mode": mode, "pathTemplate": "{cluster}/{namespace}/{name}/{sourceNamespace}/{sourceName}{extension}",
                        "index": { "pathTemplate": "i/{cluster}/{namespace}/{name}{extension}" } },
        });
        let sink = open_dir(&root, &fields).await;
        for name in names {
            let own = InventoryId { cluster: name.into(), namespace: Some(name.into()), name: name.into() };
            let rows: Vec<_> = names
                .iter()
                .map(|namespace| object(&format!("{namespace}{name}"), "", "Pod", namespace, name, "{}"))
                .collect();
            write(&*sink, &own, None, &added(&rows)).await.unwrap();
            assert_eq!(sink.baseline(&own).await.unwrap(), holding(&rows), "{name:?}");
        }
        for name in names {
            let own = InventoryId { cluster: name.into(), namespace: Some(name.into()), name: name.into() };
            assert_eq!(sink.baseline(&own).await.unwrap().len(), names.len(), "{name:?}");
            let claim = sink.claim(&own, &Claimant::default()).await.unwrap();
            sink.forget(&own, &claim).await.unwrap();
        }
        assert_eq!(fs::read_dir(&root).unwrap().count(), 0, "{mode}");
        assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 1);
    }
}

#[tokio::test]
async fn symbolic_links_that_lead_out_of_the_directory_are_refused() {
    let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::os::unix::fs::symlink(outside.path(), dir.path().join("default")).unwrap();
    let sink = open_dir(dir.path(), &json!({ "layout": { "mode": "perResource" } })).await;
    let error = write(&*sink, &inventory("", "all"), None, &added(&sample_rows())).await.unwrap_err();
    assert_eq!((error.reason, error.class()), (SinkReason::Incompatible, ErrorClass::Terminal));
    assert!(error.to_string().contains("default is a link that leads out"), "{error}");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
}

/// After a change of settings everything moves, also rows that are not in the delta.
#[tokio::test]
async fn a_new_layout_replaces_the_old_one() {
    let layouts = [
        json!({}),
        json!({ "serialization": { "format": "yaml" } }),
        json!({ "serialization": { "format": "ndjson", "compression": "gzip" } }),
        json!({ "layout": { "mode": "perResource" } }),
        json!({ "layout": { "mode": "perResource", "content": "attributes" }, "serialization": { "format": "yaml" } }),
        json!({ "layout": { "mode": "split" }, "serialization": { "format": "yaml" } }),
        json!({ "pathTemplate": "other/{namespace}/{name}{extension}" }),
    ];
    let rows = sample_rows();
    let all = inventory("", "all");
    for from in &layouts {
        for to in layouts.iter().filter(|to| *to != from) {
            let (dir, direct) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            write(&*open_dir(dir.path(), from).await, &all, None, &added(&rows)).await.unwrap();
            let sink = open_dir(dir.path(), to).await;
            let held = sink.baseline(&all).await.unwrap();
            assert!(held.len() == 3 && held.values().all(|digest| *digest == RowDigest(0)), "{from} {to}");
            // The delta has two rows; the third is not visible to the collector at the moment.
            let delta = Delta { changed: rows[..2].iter().map(changed).collect(), ..Delta::default() };
            write(&*sink, &all, None, &delta).await.unwrap();
            let mut expected = holding(&rows);
            expected.insert(rows[2].key.clone(), RowDigest(0));
            assert_eq!(sink.baseline(&all).await.unwrap(), expected, "{from} {to}");
            let delta = Delta { changed: rows[2..].iter().map(changed).collect(), ..Delta::default() };
            write(&*sink, &all, None, &delta).await.unwrap();
            assert_eq!(sink.baseline(&all).await.unwrap(), holding(&rows), "{from} {to}");
            write(&*open_dir(direct.path(), to).await, &all, None, &added(&rows)).await.unwrap();
            let (left, right) = (tree(dir.path()), tree(direct.path()));
            assert_eq!(left.keys().collect::<Vec<_>>(), right.keys().collect::<Vec<_>>(), "{from} {to}");
        }
    }
}

/// Manifests of an older release spell the same settings in another way: that alone is no reason to write.
#[tokio::test]
async fn a_manifest_of_an_older_release_is_not_written_again_in_a_directory() {
    // What the older release wrote for these settings.
    for (fields, former) in [
        (json!({ "layout": { "mode": "perResource" } }), "dbb1aefed5d05dfc71f223ed66f6bf63"),
        (json!({ "layout": { "mode": "document" } }), "471286e8979595a0b058e1932d4aa8d3"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (all, rows) = (inventory("", "all"), sample_rows());
        write(&*open_dir(dir.path(), &fields).await, &all, None, &added(&rows)).await.unwrap();
        let inventory_directory =
            fs::read_dir(dir.path().join(".kollect")).unwrap().next().unwrap().unwrap().path();
        let manifest = inventory_directory.join("manifest.ndjson");
        let fingerprint = || -> String {
            let text = fs::read_to_string(&manifest).unwrap();
            let header: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
            header["settings"].as_str().unwrap().to_owned()
        };
        let now = fingerprint();
        let older = fs::read_to_string(&manifest).unwrap().replace(&now, former);
        fs::write(&manifest, &older).unwrap();
        let files = tree(dir.path());

        let sink = open_dir(dir.path(), &fields).await;
        assert_eq!(sink.baseline(&all).await.unwrap(), holding(&rows), "nothing is to be written");
        write(&*sink, &all, None, &Delta::default()).await.unwrap();
        assert_eq!(fs::read_to_string(&manifest).unwrap(), older, "nothing was written");
        assert_eq!(tree(dir.path()), files);

        // A change writes its row, and the manifest with the new spelling.
        let second = object("u2", "", "Service", "shop", "cart", r#"{"ports":[81]}"#);
        let delta = Delta { changed: vec![changed(&second)], ..Delta::default() };
        write(&*sink, &all, None, &delta).await.unwrap();
        assert_eq!(fingerprint(), now);
        let after = tree(dir.path());
        let differ = after.iter().filter(|(path, text)| files.get(*path) != Some(text)).count();
        assert_eq!((differ, after.len()), (1, files.len()));
        assert_eq!(sink.baseline(&all).await.unwrap(), holding([&rows[0], &second, &rows[2]]));
    }
}

/// After any deltas in any order the bytes equal those of one write.
#[tokio::test]
async fn bytes_do_not_depend_on_the_order_of_deltas() {
    for (mode, format) in [
        ("document", "json"),
        ("document", "yaml"),
        ("document", "ndjson"),
        ("perResource", "yaml"),
        ("split", "json"),
    ] {
        for seed in 0..12 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (destination, direct) = (Files::new(mode, format), Files::new(mode, format));
            let sink = destination.open().await;
            let all = inventory("", "all");
            let claim = sink.claim(&all, &Claimant::default()).await.unwrap();
            let mut rows: BTreeMap<RowKey, Arc<Row>> = BTreeMap::new();
            let part_bytes = [500, 2000, 1 << 20][random.usize(..3)];
            for _ in 0..12 {
                let mut delta = Delta::default();
                for _ in 0..random.usize(..6) {
                    let (uid, name) = (random.u8(..12), random.u8(..4));
                    let text =
                        format!(r#"{{"n":{},"s":"{}"}}"#, random.u8(..3), "x".repeat(random.usize(..200)));
                    let row = object(
                        &format!("u{uid}"),
                        ["", "apps"][usize::from(uid) % 2],
                        "Pod",
                        "shop",
                        &format!("p{name}"),
                        &text,
                    );
                    delta.removed.retain(|removed| removed.key != row.key);
                    delta.added.retain(|added| added.key != row.key);
                    delta.changed.retain(|changed| changed.after.key != row.key);
                    if random.bool() {
                        delta.removed.push(removed(&row));
                    } else if rows.contains_key(&row.key) {
                        delta.changed.push(changed(&row));
                    } else {
                        delta.added.push(row);
                    }
                }
                for removed in &delta.removed {
                    rows.remove(&removed.key);
                }
                rows.extend(delta.rows().map(|row| (row.key.clone(), row.clone())));
                sink.write(&Batch { part_bytes, ..Batch::new(&all, &claim, &delta) }).await.unwrap();
                assert_eq!(
                    sink.baseline(&all).await.unwrap(),
                    holding(rows.values()),
                    "{mode} {format} {seed}"
                );
            }
            let direct_sink = direct.open().await;
            let claim = direct_sink.claim(&all, &Claimant::default()).await.unwrap();
            let mut all_rows: Vec<_> = rows.into_values().collect();
            random.shuffle(&mut all_rows);
            direct_sink
                .write(&Batch { part_bytes, ..Batch::new(&all, &claim, &added(&all_rows)) })
                .await
                .unwrap();
            let undated = |files: BTreeMap<String, String>| -> BTreeMap<String, String> {
                let without = |text: String| match text.split_once("\"exportedAt\":") {
                    Some((before, after)) => format!("{before}{}", after.split_once(',').unwrap().1),
                    None => text,
                };
                files.into_iter().map(|(path, text)| (path, without(text))).collect()
            };
            assert_eq!(
                undated(destination.files("all")),
                undated(direct.files("all")),
                "{mode} {format} {seed}"
            );
        }
    }
}
