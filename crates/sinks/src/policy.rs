//! Which servers and files a sink may use, as configured by the user or administrator who runs the program.
//!
//! The command line acts for its user and may do what the user may. The operator acts on behalf of every user
//! who may write a sink, and restricts both the network and the files.

use std::{
    io,
    path::{Component, Path, PathBuf},
};

use kollect_model::destination::Destination;

use crate::Network;

/// Restrictions for all sinks. By default there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SinkPolicy {
    /// Where sinks may connect to.
    pub network: Network,
    /// Where sinks may keep files.
    pub files: FilePolicy,
}

/// Where sinks may keep files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FilePolicy {
    /// Wherever the user who runs the program may.
    #[default]
    Anywhere,
    /// Below a directory, by relative paths.
    Below(PathBuf),
    /// Nowhere.
    Refused,
}

impl FilePolicy {
    /// Checks a path without accessing any file.
    pub fn check(&self, path: &str) -> Result<(), String> {
        match self {
            Self::Anywhere => return Ok(()),
            Self::Refused => return Err("the operator was started without --file-sink-root".into()),
            Self::Below(_) => {}
        }
        if path.contains('\0') {
            return Err("holds a NUL character".into());
        }
        let mut names = 0;
        for part in Path::new(path).components() {
            match part {
                Component::Normal(_) => names += 1,
                Component::CurDir => {}
                Component::ParentDir => return Err("must not contain ..".into()),
                Component::RootDir | Component::Prefix(_) => {
                    return Err("must be a relative path: it is looked up below --file-sink-root".into());
                }
            }
        }
        if names == 0 { Err("names no file".into()) } else { Ok(()) }
    }

    /// The absolute path of a path in a spec. In the operator no file is accessed: [`FilePolicy::resolve`] does that
    /// when a sink is opened. The command line follows its user's symbolic links, so that two names of one file
    /// are one destination.
    pub fn absolute(&self, path: &str) -> PathBuf {
        let real = match self {
            Self::Below(directory) => std::path::absolute(directory.join(path)),
            Self::Refused => std::path::absolute(path),
            Self::Anywhere => std::path::absolute(path).and_then(|path| real_path(&path).or(Ok(path))),
        };
        real.unwrap_or_else(|_| path.into())
    }

    /// The real path of a path in a spec. With [`FilePolicy::Below`] it must not go through symbolic links, so that one
    /// file has one path. Creates nothing.
    pub fn resolve(&self, path: &str) -> Result<PathBuf, String> {
        self.check(path)?;
        let Self::Below(directory) = self else { return Ok(path.into()) };
        let unreadable = |error: io::Error| format!("cannot be looked up below --file-sink-root: {error}");
        let root = real_path(directory).map_err(unreadable)?;
        let real = real_path(&root.join(path)).map_err(unreadable)?;
        if real == root || !real.starts_with(&root) {
            return Err("leads out of --file-sink-root through a symbolic link".into());
        }
        if real != Self::Below(root.clone()).absolute(path) {
            let path = real.strip_prefix(&root).unwrap_or(&real).display();
            return Err(format!("goes through a symbolic link below --file-sink-root; write {path}"));
        }
        Ok(real)
    }

    /// The destination of a sink that is the file or the directory at a path of a spec. `scheme` ends with a
    /// colon.
    pub(crate) fn destination(&self, scheme: &str, path: &str) -> Destination {
        Destination::new(scheme, [self.absolute(path).display().to_string()])
    }

    /// The path, as a spec writes it, of such a destination.
    pub(crate) fn path_at(&self, scheme: &str, destination: &Destination) -> Option<String> {
        let [absolute] = destination.names_at(scheme)?;
        match self {
            Self::Anywhere => Some(absolute.to_owned()),
            Self::Below(directory) => {
                let path = Path::new(absolute).strip_prefix(directory).ok()?;
                path.to_str().map(ToOwned::to_owned)
            }
            Self::Refused => None,
        }
    }
}

/// A path without symbolic links, as far as it exists. A dangling link is an error: a writer would create the
/// file that it names.
pub fn real_path(path: &Path) -> io::Result<PathBuf> {
    let mut missing = Vec::new();
    let mut existing = path;
    loop {
        match existing.symlink_metadata() {
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        match (existing.parent(), existing.file_name()) {
            (Some(parent), Some(name)) if !parent.as_os_str().is_empty() => {
                missing.push(name);
                existing = parent;
            }
            (Some(_), Some(name)) => {
                missing.push(name);
                existing = Path::new(".");
            }
            _ => break,
        }
    }
    let mut real = existing.canonicalize()?;
    real.extend(missing.iter().rev());
    Ok(real)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn paths_stay_below_their_directory() {
        let outside = tempfile::tempdir().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let files = FilePolicy::Below(root.clone());
        fs::create_dir(root.join("team")).unwrap();
        fs::write(root.join("team/old.db"), "").unwrap();
        symlink(outside.path(), root.join("out")).unwrap();
        symlink(outside.path().join("absent"), root.join("dangling.db")).unwrap();
        symlink(root.join("team"), root.join("in")).unwrap();
        symlink(".", root.join("self")).unwrap();
        for (path, resolved) in [
            ("x.db", "x.db"),
            ("./x.db", "x.db"),
            ("team/x.db", "team/x.db"),
            ("team/old.db", "team/old.db"),
            ("new/er/x.db", "new/er/x.db"),
            ("file:x.db", "file:x.db"),
        ] {
            assert_eq!(files.resolve(path), Ok(root.join(resolved)), "{path}");
        }
        for (path, part, at_admission) in [
            ("", "names no file", true),
            (".", "names no file", true),
            ("../x.db", "..", true),
            ("team/../../x.db", "..", true),
            ("team/../x.db", "..", true),
            ("/etc/x.db", "relative", true),
            ("a\0b", "NUL", true),
            ("out/x.db", "symbolic link", false),
            ("out/deep/er/x.db", "symbolic link", false),
            ("dangling.db", "cannot be looked up", false),
            ("self", "symbolic link", false),
            ("in/x.db", "write team/x.db", false),
            ("team/old.db/x", "cannot be looked up", false),
        ] {
            let problem = files.resolve(path).unwrap_err();
            assert!(problem.contains(part), "{path:?}: {problem}");
            assert_eq!(files.check(path).is_err(), at_admission, "{path:?}");
        }
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_root_directory_that_does_not_exist_yet_limits_paths_too() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap().join("later/team");
        assert_eq!(FilePolicy::Below(root.clone()).resolve("x.db"), Ok(root.join("x.db")));
        assert!(!root.exists(), "nothing is created");
    }

    #[test]
    fn without_a_root_directory_paths_are_used_as_written() {
        for path in ["x.db", "../x.db", "/tmp/x.db"] {
            assert_eq!(FilePolicy::Anywhere.resolve(path), Ok(path.into()));
        }
        for refused in [FilePolicy::Refused.resolve("x.db").map(drop), FilePolicy::Refused.check("x.db")] {
            assert_eq!(refused.unwrap_err(), "the operator was started without --file-sink-root");
        }
    }
}
