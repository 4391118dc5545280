//! Addresses of buckets, as users write them into `spec.endpoint`.

use std::fmt;

use url::Url;

const FORM: &str = "write s3://BUCKET/PREFIX, or https://HOST/BUCKET/PREFIX for another server than AWS";

/// Where a bucket is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BucketAddress {
    bucket: String,
    /// `None`: AWS.
    server: Option<BucketServer>,
    /// Requests name the bucket in their path and not in their host.
    path_style: bool,
}

/// A server that is not AWS.
#[derive(Clone, Debug, PartialEq, Eq)]
struct BucketServer {
    encrypted: bool,
    host: String,
    port: u16,
}

impl BucketAddress {
    /// The address, and the prefix of its objects. An error does not repeat the text.
    pub(super) fn parse(text: &str, path_style: Option<bool>) -> Result<(Self, String), String> {
        if text.contains(['?', '#', '@', ' ']) || text.chars().any(char::is_control) {
            return Err(format!("must hold no user, password, query or space; {FORM}"));
        }
        let (scheme, rest) = text.split_once("://").unwrap_or(("s3", text));
        let (server, path) = match scheme {
            "s3" => (None, rest.to_owned()),
            "http" | "https" => {
                let url = Url::parse(text).map_err(|_| format!("is not a URL; {FORM}"))?;
                let host = url.host_str().filter(|host| !host.is_empty() && !rest.starts_with('/'));
                let host = host.ok_or_else(|| format!("names no host; {FORM}"))?.to_owned();
                let port = url.port_or_known_default().unwrap_or_default();
                let path = rest.split_once('/').map_or("", |(_, path)| path).to_owned();
                (Some(BucketServer { encrypted: scheme == "https", host, port }), path)
            }
            _ => return Err(format!("is not the address of a bucket in S3; {FORM}")),
        };
        let (bucket, prefix) = path.split_once('/').unwrap_or((&path, ""));
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if bucket.is_empty() || !bucket.chars().all(fits) {
            return Err(format!("names no bucket; {FORM}"));
        }
        let prefix = prefix.trim_end_matches('/');
        let segments: Vec<&str> = prefix.split('/').collect();
        if !prefix.is_empty() && segments.iter().any(|segment| matches!(*segment, "" | "." | "..")) {
            return Err(format!("has a prefix with empty segments, . or ..; {FORM}"));
        }
        let is_ip = server
            .as_ref()
            .is_some_and(|server| server.host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok());
        if is_ip && path_style == Some(false) {
            return Err(
                "names an IP address: a bucket can be part of a name only; remove objectStore.pathStyle"
                    .into(),
            );
        }
        // A name with dots has no certificate of its own.
        let path_style = path_style.unwrap_or(server.is_some() || bucket.contains('.'));
        Ok((Self { bucket: bucket.to_owned(), server, path_style }, prefix.to_owned()))
    }

    pub(super) fn bucket(&self) -> &str {
        &self.bucket
    }

    pub(super) fn is_path_style(&self) -> bool {
        self.path_style
    }

    /// The host and the port that requests go to.
    pub(super) fn server(&self, region: &str) -> (String, u16) {
        let (host, port) = match &self.server {
            None => (format!("s3.{region}.amazonaws.com"), 443),
            Some(server) => (server.host.clone(), server.port),
        };
        (if self.path_style { host } else { format!("{}.{host}", self.bucket) }, port)
    }

    /// The URL of the server as the client library wants it: with the bucket in the host, unless the path names it.
    pub(super) fn endpoint(&self, region: &str) -> String {
        let (host, port) = self.server(region);
        let scheme =
            if self.server.as_ref().is_none_or(|server| server.encrypted) { "https" } else { "http" };
        format!("{scheme}://{host}:{port}")
    }
}

/// Statuses store this text: it never changes.
impl fmt::Display for BucketAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.server {
            None => write!(f, "s3://{}", self.bucket),
            Some(BucketServer { host, port, .. }) => write!(f, "s3://{host}:{port}/{}", self.bucket),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forms_of_the_go_implementation_are_understood() {
        for (text, destination, prefix, endpoint) in [
            ("s3://inventory", "s3://inventory", "", "https://inventory.s3.eu-west-1.amazonaws.com:443"),
            (
                "s3://inventory/a/b/",
                "s3://inventory",
                "a/b",
                "https://inventory.s3.eu-west-1.amazonaws.com:443",
            ),
            ("inventory/a", "s3://inventory", "a", "https://inventory.s3.eu-west-1.amazonaws.com:443"),
            ("s3://a.b/c", "s3://a.b", "c", "https://s3.eu-west-1.amazonaws.com:443"),
            ("http://minio:9000/inventory/a", "s3://minio:9000/inventory", "a", "http://minio:9000"),
            ("https://Store.example/x", "s3://store.example:443/x", "", "https://store.example:443"),
            ("http://[::1]:9000/x", "s3://[::1]:9000/x", "", "http://[::1]:9000"),
        ] {
            let (address, found) = BucketAddress::parse(text, None).unwrap();
            assert_eq!((&*address.to_string(), &*found), (destination, prefix), "{text}");
            assert_eq!(address.endpoint("eu-west-1"), endpoint, "{text}");
        }
        let (address, _) = BucketAddress::parse("https://store.example/x", Some(false)).unwrap();
        assert_eq!(address.endpoint("r"), "https://x.store.example:443");
    }

    #[test]
    fn other_texts_are_refused_without_repeating_them() {
        for text in [
            "",
            "s3://",
            "https://host",
            "https://host/",
            "gs://bucket",
            "file:/x",
            "https://user:hunter2@host/b",
            "s3://b/../c",
            "s3://b//c",
            "s3://b/c?x=hunter2",
            "http:///b",
            "s3://b ucket",
        ] {
            let problem = BucketAddress::parse(text, None).unwrap_err();
            assert!(!problem.contains("hunter2") && problem.contains("write s3://"), "{text}: {problem}");
        }
    }
}
