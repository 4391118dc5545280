//! What an operator logs while the API server fails: each cause once, with what it is about.

use super::*;

impl World {
    fn log_lines(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.dir.path().join("operator.log")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    pub(super) fn logs_line(&self, what: &str, is_it: impl Fn(&Value) -> bool) {
        eventually(what, || {
            let log = self.log_lines();
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
    // The client itself retries, at most 15 times.
    fails(5, "/configmaps");
    fails(5, "/kollecttargets/maps/status");
    // At the default log level.
    world.start(&["--log-level", "info"]);
    world.holds(&["a=1"]);
    world.becomes("kollecttarget/maps", "Ready", "True Collecting");
    let log = world.log_lines();
    let failed = log.iter().filter(|line| line["message"].as_str().is_some_and(|text| text.contains("503")));
    // The span of the request is in that of a task.
    let url = |line: &Value| -> Option<String> {
        let spans = line["spans"].as_array()?;
        spans.iter().find_map(|span| Some(span["http.url"].as_str()?.to_owned()))
    };
    let urls: Vec<String> = failed.map(|line| url(line).unwrap()).collect();
    assert_eq!(urls.len(), 2, "each request once: {log:#?}");
    for part in ["/configmaps", "/kollecttargets/maps/status"] {
        assert!(urls.iter().any(|url| url.contains(part)), "{part} is not in {urls:?}");
    }
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
    let log = world.log_lines();
    let about = |line: &&Value| line["message"].as_str().is_some_and(|text| text.contains("cert"));
    let told: Vec<&Value> = log.iter().filter(about).collect();
    assert_eq!(told.len(), 1, "{told:#?}");
    assert!(told[0]["message"].as_str().unwrap().contains("not verified"), "{told:?}");
    assert!(told[0]["server"].as_str().unwrap().starts_with(server.as_str().unwrap()), "{told:?}");
}
