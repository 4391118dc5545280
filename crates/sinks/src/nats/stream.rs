//! The stream: found, created, or extended by one subject. No other setting of an existing stream is changed.

use std::time::Duration;

use kollect_model::{
    crd::sinks::EventMode,
    sink::{SinkError, SinkReason},
};
use serde_json::{Value, json};

use super::{
    NatsConfig,
    connect::Connection,
    failure::{NatsError, STREAM_EXISTS, STREAM_NOT_FOUND},
};

/// Attempts: other sinks may add their subjects at the same moment.
const ATTEMPTS: usize = 8;

/// The properties of the stream that writing needs.
#[derive(Clone, Debug)]
pub(super) struct StreamProperties {
    pub(super) name: String,
    /// Whether messages may have a time to live.
    pub(super) expires: bool,
    /// Maximum size of a message; `None`: only the limit of the server applies.
    pub(super) max_message: Option<usize>,
    /// Which limits may remove rows that are still needed, and how to lift them. From such a stream rows can be
    /// removed; nothing else is read or written.
    evicting: Option<String>,
    mode: EventMode,
    subjects: String,
}

/// Checks the name of a stream.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    let is_forbidden = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '*' | '>' | '/' | '\\');
    if name.is_empty() || name.contains(is_forbidden) {
        return Err("must not be empty or contain white space, *, >, / or \\".into());
    }
    Ok(())
}

impl StreamProperties {
    /// Finds the stream and checks it; creates it or adds the subject if the plan allows that.
    pub(super) async fn prepare(connection: &Connection, config: &NatsConfig) -> Result<Self, SinkError> {
        let name = &config.stream;
        let attempt = format!("prepare stream {name}");
        let subjects = match config.mode {
            EventMode::Rows => format!("{}.>", config.subject),
            EventMode::Snapshot => config.subject.clone(),
        };
        let mut stream = Self {
            name: name.clone(),
            expires: false,
            max_message: None,
            evicting: None,
            mode: config.mode,
            subjects,
        };
        for _ in 0..ATTEMPTS {
            let found = match connection.request(format!("STREAM.INFO.{name}"), &json!({})).await {
                Ok(info) => info.get("config").cloned().unwrap_or_default(),
                Err(NatsError::JetStream { code: STREAM_NOT_FOUND, .. }) if config.create => {
                    match connection.request(format!("STREAM.CREATE.{name}"), &stream.new_config()).await {
                        Ok(info) => info.get("config").cloned().unwrap_or_default(),
                        // Another client has created it first.
                        Err(NatsError::JetStream { code: STREAM_EXISTS, .. }) => continue,
                        Err(failure) => return Err(failure.into_error(&attempt)),
                    }
                }
                Err(failure) => return Err(stream.stream_error(failure, &attempt)),
            };
            stream.check_config(&found, &attempt)?;
            stream.evicting = stream.evicting_limits(&found);
            if stream.is_accepted_by(&found) {
                stream.expires = found.get("allow_msg_ttl").and_then(Value::as_bool).unwrap_or(false);
                stream.max_message = found
                    .get("max_msg_size")
                    .and_then(Value::as_u64)
                    .and_then(|size| usize::try_from(size).ok())
                    .filter(|size| *size > 0);
                return Ok(stream);
            }
            stream.check_keeps_rows(&attempt)?;
            if !config.create {
                return Err(stream.missing_subject_error(&attempt));
            }
            let updated = stream.with_subject(found);
            let answer = connection.request(format!("STREAM.UPDATE.{name}"), &updated).await;
            answer.map_err(|failure| failure.into_error(&attempt))?;
            // Read it again: an update of another client may have removed the subject.
        }
        Err(SinkError::new(SinkReason::Busy, format!("{attempt}: others keep changing it")))
    }

    /// Returns an error unless the stream exists and takes our messages.
    pub(super) async fn check(&self, connection: &Connection) -> Result<(), SinkError> {
        let attempt = format!("read stream {}", self.name);
        let info = connection.request(format!("STREAM.INFO.{}", self.name), &json!({})).await;
        let info = info.map_err(|failure| self.stream_error(failure, &attempt))?;
        let found = info.get("config").cloned().unwrap_or_default();
        self.check_config(&found, &attempt)?;
        refuse_evicting(self.evicting_limits(&found).as_deref(), &attempt)?;
        if self.is_accepted_by(&found) { Ok(()) } else { Err(self.missing_subject_error(&attempt)) }
    }

    /// Returns an error if the limits of the stream, when it was opened, could remove rows.
    pub(super) fn check_keeps_rows(&self, attempt: &str) -> Result<(), SinkError> {
        refuse_evicting(self.evicting.as_deref(), attempt)
    }

    /// A row must stay as long as its object exists: a limit that removes old messages would remove rows that have not
    /// changed for a while. A full stream that discards new messages is fine: it keeps its rows and the write
    /// fails. Snapshots are events and may expire.
    fn evicting_limits(&self, config: &Value) -> Option<String> {
        if self.mode != EventMode::Rows {
            return None;
        }
        let limit = |name: &str| config.get(name).and_then(Value::as_u64).filter(|limit| *limit > 0);
        let discards_old = config.get("discard").and_then(Value::as_str).unwrap_or("old") == "old";
        let (mut found, mut flags) = (Vec::new(), Vec::new());
        if let Some(age) = limit("max_age") {
            found.push(format!("max_age={:?}", Duration::from_nanos(age)));
            flags.push("--max-age=0s");
        }
        for (name, flag) in [("max_msgs", "--max-msgs=-1"), ("max_bytes", "--max-bytes=-1")] {
            if let Some(value) = limit(name).filter(|_| discards_old) {
                found.push(format!("{name}={value}"));
                flags.push(flag);
            }
        }
        (!found.is_empty()).then(|| {
            format!(
                "its limits may remove rows that are still wanted ({}); name another stream in \
                 spec.nats.stream, or run: nats stream edit {} {}",
                found.join(", "),
                self.name,
                flags.join(" ")
            )
        })
    }

    /// The configuration of a stream that the sink creates.
    fn new_config(&self) -> Value {
        let mut config = json!({
            "name": self.name,
            "description": "Inventories of Kollect",
            "subjects": [self.subjects],
            "retention": "limits",
            "storage": "file",
            "num_replicas": 1,
            "max_consumers": -1,
            "max_msgs": -1,
            "max_bytes": -1,
            "max_age": 0,
            "discard": "old",
            "allow_direct": true,
        });
        if self.mode == EventMode::Rows {
            config["max_msgs_per_subject"] = json!(1);
            // Servers before 2.11 ignore it: there removals do not expire.
            config["allow_msg_ttl"] = json!(true);
        }
        config
    }

    /// Returns an error if the stream's configuration does not fit our messages.
    fn check_config(&self, config: &Value, attempt: &str) -> Result<(), SinkError> {
        let name = &self.name;
        let refuse = |why: String| Err(SinkError::new(SinkReason::Incompatible, format!("{attempt}: {why}")));
        let retention = config.get("retention").and_then(Value::as_str).unwrap_or("limits");
        if retention != "limits" {
            return refuse(
                "its retention is not limits, and others remove what has been read; name another stream in \
                 spec.nats.stream"
                    .into(),
            );
        }
        if config.get("no_ack").and_then(Value::as_bool) == Some(true) {
            return refuse(format!("it does not acknowledge; run: nats stream edit {name} --ack"));
        }
        let refuses_second_message =
            config.get("discard_new_per_subject").and_then(Value::as_bool) == Some(true);
        if self.mode == EventMode::Rows && refuses_second_message {
            return refuse(format!(
                "it takes no second message of a subject (discard_new_per_subject=true), so no row could change; \
                 name another stream in spec.nats.stream, or run: nats stream edit {name} \
                 --no-discard-per-subject"
            ));
        }
        let kept_per_subject = config.get("max_msgs_per_subject").and_then(Value::as_i64).unwrap_or(-1);
        match self.mode {
            EventMode::Rows if kept_per_subject != 1 => refuse(format!(
                "it keeps more than the last message of each subject, and mode rows needs one that keeps only \
                 that; name another stream in spec.nats.stream, or run: nats stream edit {name} \
                 --max-msgs-per-subject=1"
            )),
            EventMode::Snapshot if kept_per_subject == 1 => refuse(
                "it keeps only the last message of each subject, and snapshots of several inventories share \
                 one; name another stream in spec.nats.stream"
                    .into(),
            ),
            _ => Ok(()),
        }
    }

    fn is_accepted_by(&self, config: &Value) -> bool {
        let subjects = config.get("subjects").and_then(Value::as_array);
        subjects.is_some_and(|all| {
            all.iter().filter_map(Value::as_str).any(|pattern| covers(pattern, &self.subjects))
        })
    }

    fn with_subject(&self, mut config: Value) -> Value {
        match config.get_mut("subjects").and_then(Value::as_array_mut) {
            Some(all) => {
                // Subjects that ours includes would overlap with it.
                all.retain(|known| !known.as_str().is_some_and(|known| covers(&self.subjects, known)));
                all.push(json!(self.subjects));
            }
            None => config["subjects"] = json!([self.subjects]),
        }
        config
    }

    fn missing_subject_error(&self, attempt: &str) -> SinkError {
        let Self { name, subjects, .. } = self;
        let why = format!(
            "{attempt}: it does not take {subjects}; add that to its subjects: nats stream edit {name} \
             --subjects='SUBJECT,…,{subjects}'"
        );
        SinkError::new(SinkReason::Incompatible, why)
    }

    fn stream_error(&self, failure: NatsError, attempt: &str) -> SinkError {
        let Self { name, subjects, .. } = self;
        match failure {
            NatsError::NoResponders => {
                let why = "JetStream is not enabled on this server or for this account";
                SinkError::new(SinkReason::Incompatible, format!("{attempt}: {why}"))
            }
            NatsError::JetStream { code: STREAM_NOT_FOUND, .. } => {
                let flags = match self.mode {
                    EventMode::Rows => " --max-msgs-per-subject=1 --allow-msg-ttl",
                    EventMode::Snapshot => "",
                };
                let why = format!(
                    "{attempt}: it does not exist; run: nats stream add {name} --subjects='{subjects}' \
                     --defaults{flags}"
                );
                SinkError::new(SinkReason::Missing, why)
            }
            failure => failure.into_error(attempt),
        }
    }
}

fn refuse_evicting(evicting: Option<&str>, attempt: &str) -> Result<(), SinkError> {
    let refused = |why| SinkError::new(SinkReason::Incompatible, format!("{attempt}: {why}"));
    evicting.map_or(Ok(()), |why| Err(refused(why)))
}

/// Whether everything that matches `subject` matches `pattern`.
fn covers(pattern: &str, subject: &str) -> bool {
    let (mut pattern, mut subject) = (pattern.split('.'), subject.split('.'));
    loop {
        match (pattern.next(), subject.next()) {
            (None, None) | (Some(">"), Some(_)) => return true,
            (Some("*"), Some(token)) if token != ">" => {}
            (Some(one), Some(other)) if one == other && one != "*" => {}
            _ => return false,
        }
    }
}

/// The value of the time-to-live header: whole seconds.
pub(super) fn ttl(config: &NatsConfig) -> String {
    format!("{}s", config.marker_ttl.max(Duration::from_secs(1)).as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_cover_what_they_match() {
        for (pattern, subject, expected) in [
            ("a.>", "a.>", true),
            ("a.>", "a.b.>", true),
            (">", "a.>", true),
            ("a.>", "a", false),
            ("a", "a", true),
            ("*", "a", true),
            ("*.>", "a.>", true),
            ("a.*", "a.>", false),
            ("a.*", "a.*", true),
            ("a", "b", false),
            ("a.b", "a", false),
            ("a.b.>", "a.>", false),
        ] {
            assert_eq!(covers(pattern, subject), expected, "{pattern} {subject}");
        }
    }
}
