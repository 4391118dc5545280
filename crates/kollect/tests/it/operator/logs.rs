//! What an operator logs while the API server fails: each cause once, with the URL or the server.

use super::*;

impl OperatorTest {
    fn log_lines(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.dir.path().join("operator.log")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    pub(super) fn wait_for_log_line(&self, expectation: &str, matches: impl Fn(&Value) -> bool) {
        eventually(expectation, || {
            let log = self.log_lines();
            log.iter().any(&matches).then_some(()).ok_or(format!("{log:#?}"))
        });
    }
}

#[test]
fn a_failing_api_server_is_logged_once_with_the_url() {
    let mut test = OperatorTest::new("noise");
    test.apply_config_map("a", "1");
    test.install();
    let proxy = Proxy::start(test.plane).unwrap();
    test.kubeconfig = Some(proxy.kubeconfig(test.plane.kubeconfig()).unwrap());
    let fail_requests = |times, part: &'static str| {
        let body = r#"{"message":"the server is busy"}"#;
        proxy.answer(times, move |line| line.contains(part), 503, &[], body);
    };
    // The client itself retries, at most 15 times.
    fail_requests(5, "/configmaps");
    fail_requests(5, "/kollecttargets/maps/status");
    // At the default log level.
    test.start(&["--log-level", "info"]);
    test.wait_for_rows(&["a=1"]);
    test.wait_for_condition("kollecttarget/maps", "Ready", "True Collecting");
    let log = test.log_lines();
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
fn an_unverified_certificate_is_logged_once() {
    let mut test = OperatorTest::new("unverified");
    test.apply_config_map("a", "1");
    test.install();
    let kubeconfig = std::fs::read_to_string(test.plane.kubeconfig()).unwrap();
    let mut config: Value = serde_json::from_str(&kubeconfig).unwrap();
    let cluster = config.pointer_mut("/clusters/0/cluster").unwrap();
    let server = cluster["server"].clone();
    *cluster = json!({ "server": server, "insecure-skip-tls-verify": true });
    let file = test.dir.path().join("kubeconfig");
    std::fs::write(&file, config.to_string()).unwrap();
    test.kubeconfig = Some(file);
    test.start(&["--log-level", "info"]);
    test.wait_for_rows(&["a=1"]);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    let log = test.log_lines();
    let is_about_certificates =
        |line: &&Value| line["message"].as_str().is_some_and(|text| text.contains("cert"));
    let warnings: Vec<&Value> = log.iter().filter(is_about_certificates).collect();
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    assert!(warnings[0]["message"].as_str().unwrap().contains("not verified"), "{warnings:?}");
    assert!(warnings[0]["server"].as_str().unwrap().starts_with(server.as_str().unwrap()), "{warnings:?}");
}
