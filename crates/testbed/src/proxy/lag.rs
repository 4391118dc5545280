//! Simulates an API server whose data is older than what a client has seen: a watch cannot resume, and lists
//! are stale.
//!
//! Called by tests of what clients do with such a list.

use serde_json::{Value, json};

use super::Proxy;
use crate::{ControlPlane, Error};

/// A list that was recorded earlier.
#[derive(Debug)]
pub struct RecordedList {
    /// Plural of the kind.
    resource: String,
    list: Value,
}

impl RecordedList {
    /// What a path such as `/api/v1/configmaps` lists now.
    pub fn of(plane: &ControlPlane, path: &str) -> Result<Self, Error> {
        let text = plane.kubectl(&["get", "--raw", path])?;
        let list = serde_json::from_str(&text);
        let list = list.map_err(std::io::Error::from).map_err(Error::io(format!("read the list {path}")))?;
        let resource = path.rsplit('/').next().unwrap_or_default().to_owned();
        Ok(Self { resource, list })
    }

    /// Resource version of the list.
    pub fn version(&self) -> &str {
        self.list["metadata"]["resourceVersion"].as_str().unwrap_or_default()
    }

    /// The list as the initial events of a streamed list.
    fn stream(&self) -> String {
        let objects = self.list["items"].as_array().into_iter().flatten();
        let metadata = json!({
            "resourceVersion": self.version(),
            "annotations": { "k8s.io/initial-events-end": "true" },
        });
        let end = json!({ "type": "BOOKMARK", "object": { "metadata": metadata } });
        let lines = objects.map(|object| json!({ "type": "ADDED", "object": object })).chain([end]);
        lines.map(|line| line.to_string() + "\n").collect()
    }
}

impl Proxy {
    /// Answers the next watch of the kind that resumes with 410 Expired, and the next `times` lists of the
    /// kind with this list. Cuts all connections.
    pub fn lag(&self, past: &RecordedList, times: usize) {
        let requests = |parameter: &'static str| {
            let path = format!("/{}?", past.resource);
            move |line: &str| line.contains(&path) && line.contains(parameter)
        };
        let expired = r#"{"kind":"Status","code":410,"reason":"Expired","message":"too old"}"#;
        self.answer(1, requests("resourceVersion="), 410, &[], expired);
        self.answer(times, requests("sendInitialEvents="), 200, &[], &past.stream());
        self.answer(times, requests("limit="), 200, &[], &past.list.to_string());
        self.cut();
    }
}
