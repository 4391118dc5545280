//! What an operator logs while the API server fails: each cause once, with what it is about.

use super::*;

impl World {
    fn log(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.dir.path().join("operator.log")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    fn logs(&self, what: &str, is_it: impl Fn(&Value) -> bool) {
        eventually(what, || {
            let log = self.log();
            log.iter().any(&is_it).then_some(()).ok_or(format!("{log:#?}"))
        });
    }
}

#[test]
fn a_failing_api_server_is_told_once_with_what_was_asked() {
    let mut world = World::new("noise");
    world.map("a", "1");
    world.install();
    let proxy = Proxy::start(world.plane).unwrap();
    world.kubeconfig = Some(proxy.kubeconfig(world.plane.kubeconfig()).unwrap());
    let fails = |times, part: &'static str| {
        let body = r#"{"message":"the server is busy"}"#;
        proxy.answer(times, move |line| line.contains(part), 503, &[], body);
    };
    fails(3, "/configmaps");
    fails(2, "/kollecttargets/maps/status");
    // At the level that operators have unless they ask for more.
    world.start(&["--log-level", "info"]);
    world.holds(&["a=1"]);
    world.becomes("kollecttarget/maps", "Ready", "True Collecting");
    world.logs("the list that failed is named", |line| {
        line["message"] == "cannot see objects of a kind"
            && line["gvk"].as_str().is_some_and(|gvk| gvk.contains("ConfigMap"))
            && line["error"].as_str().is_some_and(|error| error.contains("busy"))
    });
    let status = |line: &&Value| line["message"] == "cannot write a status; trying again";
    let log = world.log();
    let statuses: Vec<&Value> = log.iter().filter(status).collect();
    assert_eq!(statuses.len(), 1, "two tries failed for one reason: {log:#?}");
    assert_eq!((&statuses[0]["kind"], &statuses[0]["name"]), (&json!("KollectTarget"), &json!("maps")));
    let bare = |line: &&Value| line["message"].as_str().is_some_and(|text| text.starts_with("failed with"));
    assert_eq!(log.iter().find(bare), None);
}

#[test]
fn a_certificate_that_is_not_verified_is_told_once() {
    let mut world = World::new("unverified");
    world.map("a", "1");
    world.install();
    let text = std::fs::read_to_string(world.plane.kubeconfig()).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    let cluster = config.pointer_mut("/clusters/0/cluster").unwrap();
    let server = cluster["server"].clone();
    *cluster = json!({ "server": server, "insecure-skip-tls-verify": true });
    let file = world.dir.path().join("kubeconfig");
    std::fs::write(&file, config.to_string()).unwrap();
    world.kubeconfig = Some(file);
    world.start(&["--log-level", "info"]);
    world.holds(&["a=1"]);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    let log = world.log();
    let about = |line: &&Value| line["message"].as_str().is_some_and(|text| text.contains("cert"));
    let told: Vec<&Value> = log.iter().filter(about).collect();
    assert_eq!(told.len(), 1, "{told:#?}");
    assert!(told[0]["message"].as_str().unwrap().contains("not verified"), "{told:?}");
    assert!(told[0]["server"].as_str().unwrap().starts_with(server.as_str().unwrap()), "{told:?}");
}
