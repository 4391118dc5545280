//! Destinations: where the rows of a binding are stored. Only this module prints and parses them.
//!
//! Statuses and owner records store the text. If its spelling changed, the operator would take the same
//! destination for a new one and remove the rows of the old one. So the spelling of a backend never changes,
//! and every text, also one of a newer version, is printed as it was read.

use std::{convert::Infallible, fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Prefix of the digest that replaces a server which only a Secret names.
const SECRET: &str = "secret-";
/// Length of that digest, in bytes: long enough that two servers never share one.
const SECRET_BYTES: usize = 16;

/// A destination: what a sink connects to, and the names by which it finds the rows there.
///
/// | Backend | Text |
/// |---|---|
/// | files | `SCHEME:PATH`, with an absolute path: `sqlite:/…`, `dir:/…` |
/// | Git | `git:REPOSITORY BRANCH` |
/// | PostgreSQL | `postgres://SERVERS/DATABASE "SCHEMA"."TABLE"` |
/// | all others | `SERVER NAME NAME …`, without spaces in any of them |
///
/// In statuses of the operator a server that only a Secret names is `SCHEME://secret-DIGEST`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(from = "String", into = "String")]
#[schemars(with = "String")]
pub struct Destination {
    server: String,
    names: Vec<String>,
}

impl Destination {
    /// A destination, printed as the table above says. For a file `server` is the scheme with its colon, and
    /// the one name is an absolute path. Others may hold no spaces; a new backend needs no spelling of its own.
    pub fn new<T: Into<String>>(server: impl Into<String>, names: impl IntoIterator<Item = T>) -> Self {
        let new = Self { server: server.into(), names: names.into_iter().map(Into::into).collect() };
        debug_assert_eq!(Self::from(new.to_string()), new, "it is read back as it was written");
        new
    }

    /// What a sink connects to, with the scheme: `postgres://db:5432/shop`, `git:https://host/repository`,
    /// `nats://host:4222`; for files only the scheme, such as `sqlite:`.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// The scheme, without its colon: `postgres`, `git`, `sqlite`. Destinations with different schemes are
    /// different destinations.
    pub fn scheme(&self) -> &str {
        self.server.split_once(':').map_or(&*self.server, |(scheme, _)| scheme)
    }

    /// The names at the server, if there are exactly `N`: schema and table, branch, stream and subject, or a path.
    pub fn names<const N: usize>(&self) -> Option<[&str; N]> {
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        names.try_into().ok()
    }

    /// The same names at another server.
    #[must_use]
    pub fn with_server(&self, server: impl Into<String>) -> Self {
        Self { server: server.into(), names: self.names.clone() }
    }

    /// The destination for readers who may not see its server: host, port and database are replaced by a
    /// digest. Equal servers have equal digests within the cluster with this id, and other ones in every other
    /// cluster. A destination whose server is replaced already stays as it is.
    #[must_use]
    pub fn with_secret_server(&self, cluster_id: &str) -> Self {
        let Some((scheme, server)) = self.server.split_once("://") else { return self.clone() };
        if is_secret(server) {
            return self.clone();
        }
        let digest = Sha256::digest(format!("{cluster_id}\0{}", self.server));
        let number =
            digest.iter().take(SECRET_BYTES).fold(0_u128, |number, byte| number << 8 | u128::from(*byte));
        self.with_server(format!("{scheme}://{SECRET}{number:032x}"))
    }

    /// The names at the server, if it is `server` and there are exactly `N`.
    pub fn names_at<const N: usize>(&self, server: &str) -> Option<[&str; N]> {
        if self.server == server { self.names() } else { None }
    }
}

/// Whether a server has been replaced by its digest. A real server has a port and a path.
fn is_secret(server: &str) -> bool {
    let digits = server.strip_prefix(SECRET);
    digits.is_some_and(|digits| {
        digits.len() == 2 * SECRET_BYTES && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
    })
}

/// Text form of a destination.
enum Spelling {
    /// `SCHEME:/PATH`
    Path,
    /// `SERVER NAME`; the server may contain spaces, the name may not.
    LastWord,
    /// `SERVER "NAME"."NAME"`
    Quoted,
    /// `SERVER NAME NAME …`
    Words,
}

impl Spelling {
    fn of(text: &str) -> Self {
        match text.split_once(':') {
            Some(("git", _)) => Self::LastWord,
            Some(("postgres", _)) => Self::Quoted,
            Some((_, rest)) if is_path(rest) => Self::Path,
            _ => Self::Words,
        }
    }
}

/// Whether this is an absolute path, and not the rest of a URL.
fn is_path(text: &str) -> bool {
    text.starts_with('/') && !text.starts_with("//")
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.server)?;
        match (Spelling::of(&self.server), &*self.names) {
            (Spelling::Words, [path]) if self.server.ends_with(':') && is_path(path) => f.write_str(path),
            (Spelling::Quoted, [schema, table]) => write!(f, " \"{schema}\".\"{table}\""),
            (_, names) => names.iter().try_for_each(|name| write!(f, " {name}")),
        }
    }
}

/// A text that does not have the form of its scheme becomes the server as a whole, without names.
impl From<String> for Destination {
    fn from(text: String) -> Self {
        let parts = match Spelling::of(&text) {
            Spelling::Path => {
                text.split_once(':').map(|(scheme, path)| (format!("{scheme}:"), vec![path.to_owned()]))
            }
            Spelling::LastWord => {
                text.rsplit_once(' ').map(|(server, name)| (server.to_owned(), vec![name.to_owned()]))
            }
            Spelling::Quoted => quoted(&text),
            Spelling::Words => {
                let mut words = text.split(' ').map(ToOwned::to_owned);
                let server = words.next().filter(|server| !server.ends_with(':'));
                server.map(|server| (server, words.collect()))
            }
        };
        let (server, names) = parts.unwrap_or_else(|| (text, Vec::new()));
        Self { server, names }
    }
}

fn quoted(text: &str) -> Option<(String, Vec<String>)> {
    let (server, names) = text.strip_suffix('"')?.split_once(" \"")?;
    let (schema, table) = names.split_once("\".\"")?;
    Some((server.to_owned(), vec![schema.to_owned(), table.to_owned()]))
}

impl FromStr for Destination {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self::from(text.to_owned()))
    }
}

impl From<&str> for Destination {
    fn from(text: &str) -> Self {
        Self::from(text.to_owned())
    }
}

impl From<Destination> for String {
    fn from(destination: Destination) -> Self {
        destination.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_spelling_is_read_back() {
        for (text, server, names) in [
            ("sqlite:/data/team a/x.db", "sqlite:", &["/data/team a/x.db"][..]),
            ("dir:/data", "dir:", &["/data"]),
            ("later:/data/my log", "later:", &["/data/my log"]),
            ("git:https://host/repository main", "git:https://host/repository", &["main"]),
            ("git:file:///data/my repository main", "git:file:///data/my repository", &["main"]),
            (
                "postgres://a:5432,b:5433/shop \"public\".\"rows\"",
                "postgres://a:5432,b:5433/shop",
                &["public", "rows"],
            ),
            ("nats://a:4222,b:4222 stream a.b", "nats://a:4222,b:4222", &["stream", "a.b"]),
            ("later://x", "later://x", &[]),
        ] {
            let destination = Destination::from(text);
            assert_eq!(destination, Destination::new(server, names.iter().copied()), "{text}");
            assert_eq!(destination.to_string(), text);
            assert_eq!(destination.server(), server);
        }
    }

    #[test]
    fn names_are_found_on_the_same_server_only() {
        let table = Destination::from("postgres://db:5432/shop \"a\".\"b\"");
        assert_eq!(table.names_at("postgres://db:5432/shop"), Some(["a", "b"]));
        assert_eq!(table.names_at::<1>("postgres://db:5432/shop"), None);
        assert_eq!(table.names_at::<2>("postgres://db:5432/sho"), None);
        assert_eq!(
            Destination::from("postgres://db:5432/shop a").names_at::<2>("postgres://db:5432/shop"),
            None
        );
    }

    #[test]
    fn a_server_is_replaced_by_a_digest_once() {
        let table = Destination::from("postgres://db:5432/shop \"a\".\"b\"");
        let shown = table.with_secret_server("cluster");
        let text = shown.to_string();
        assert!(text.starts_with("postgres://secret-") && text.ends_with(" \"a\".\"b\""), "{text}");
        assert!(!text.contains("db") && !text.contains("5432") && !text.contains("shop"), "{text}");
        assert_eq!(Destination::from(&*text), shown);
        assert_eq!(shown.with_secret_server("cluster"), shown);
        assert_eq!(shown.with_server(table.server()), table);
        let other_table =
            Destination::from("postgres://db:5432/shop \"a\".\"c\"").with_secret_server("cluster");
        assert_eq!(other_table.server(), shown.server());
        for (text, cluster) in [
            ("postgres://db:5432/shop \"a\".\"b\"", "another cluster"),
            ("postgres://db:5433/shop \"a\".\"b\"", "cluster"),
            ("postgres://db:5432/Shop \"a\".\"b\"", "cluster"),
            // A host of this name is not a digest.
            ("postgres://secret-0123:5432/shop \"a\".\"b\"", "cluster"),
        ] {
            let other = Destination::from(text).with_secret_server(cluster);
            assert_ne!(other.server(), shown.server(), "{text}");
            assert!(!other.to_string().contains("543"), "{other}");
        }
    }

    /// Texts of other versions, texts that users wrote and truncated texts are printed as they were read.
    #[test]
    fn every_text_is_printed_as_it_was_read() {
        let pieces = [
            "",
            " ",
            "  ",
            ":",
            "/",
            "//",
            "sqlite:",
            "dir:",
            "git:",
            "postgres://",
            "nats://",
            "a",
            "\"",
            "\".\"",
            " \"",
            "é",
        ];
        let mut texts = vec![String::new()];
        for _ in 0..4 {
            texts = texts
                .iter()
                .flat_map(|text| pieces.iter().map(move |piece| format!("{text}{piece}")))
                .collect();
        }
        for text in texts {
            assert_eq!(Destination::from(&*text).to_string(), text);
        }
    }
}
