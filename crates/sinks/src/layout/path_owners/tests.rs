use kollect_model::batch::InventoryId;

use super::*;
use crate::layout::{LayoutSettings, ReadableFormat};

/// The manifest of an inventory with these files.
fn manifest(name: &str, files: &[(&str, BlobHash)]) -> Manifest {
    let inventory = InventoryId { cluster: String::new(), namespace: Some("team".into()), name: name.into() };
    let shape = LayoutSettings::document(ReadableFormat::Json).shape(std::iter::empty());
    let mut manifest = Manifest::new(&inventory, String::new(), shape);
    manifest.header.files = files.iter().map(|(path, hash)| ((*path).to_owned(), *hash)).collect();
    manifest
}

fn listed(manifests: &[(&str, &str)]) -> Vec<ListedManifest> {
    manifests
        .iter()
        .map(|(directory, version)| ((*directory).to_owned(), Some((*version).to_owned())))
        .collect()
}

/// Searches for paths of an inventory `own`. Returns the owners, and which manifests were read.
fn find(
    known: &mut PathOwners,
    manifests: &[(&str, &str, &Manifest)],
    paths: &[&str],
) -> (OwnersByPath, Vec<String>) {
    let mut search = OwnerSearch::new(paths.iter().copied());
    let all: Vec<(&str, &str)> =
        manifests.iter().map(|(directory, version, _)| (*directory, *version)).collect();
    let unread = search.use_remembered(known, "own", listed(&all));
    let read: Vec<String> = unread.iter().map(|(directory, _)| directory.clone()).collect();
    for listed in unread {
        let (_, _, manifest) = manifests.iter().find(|(directory, ..)| *directory == listed.0).unwrap();
        let bytes = manifest.to_bytes().unwrap();
        let (header, lines) = Manifest::split(&bytes);
        let scanned = search.scan(&listed.0, header, [lines]);
        search.add(known, listed, scanned);
    }
    (search.found(), read)
}

#[test]
fn a_manifest_is_read_again_only_after_a_change() {
    let mut known = PathOwners::default();
    let (one, two) = (manifest("one", &[("a", BlobHash(1))]), manifest("two", &[("b", BlobHash(2))]));
    let own = manifest("own", &[]);
    let all = [("one", "1", &one), ("own", "1", &own), ("two", "1", &two)];
    assert_eq!(find(&mut known, &all, &["x"]), (OwnersByPath::new(), vec!["one".into(), "two".into()]));
    assert_eq!(find(&mut known, &all, &["y"]), (OwnersByPath::new(), vec![]));
    // The manifest is read once to find the owner.
    for read in [vec!["two".to_owned()], vec![]] {
        let (found, actually_read) = find(&mut known, &all, &["b", "y"]);
        assert_eq!(actually_read, read);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["b"]);
        assert_eq!(found["b"][0].described(), "inventory team/two of cluster \"\"");
    }
    let all = [("one", "2", &two), ("two", "1", &two)];
    assert_eq!(find(&mut known, &all, &["x"]), (OwnersByPath::new(), vec!["one".into()]));
    assert_eq!(find(&mut known, &all, &["a"]), (OwnersByPath::new(), vec![]));
    assert_eq!(find(&mut known, &all, &["b"]).0["b"].len(), 2);
    // Manifests that are not listed any more are forgotten.
    assert_eq!(find(&mut known, &[], &["b"]), (OwnersByPath::new(), vec![]));
    assert_eq!((known.manifests.len(), known.count), (0, 0));
}

#[test]
fn remembered_paths_and_owners_are_bounded() {
    let mut known = PathOwners::default();
    let paths: Vec<u64> = (0..MAX_PATHS as u64).collect();
    known.store("large", Some("1".into()), paths, BTreeMap::new());
    known.remember("small", Some("1".into()), &manifest("small", &[("a", BlobHash(1))]));
    assert_eq!(known.manifests.keys().collect::<Vec<_>>(), ["large"]);
    known.forget("large");
    known.remember("small", Some("1".into()), &manifest("small", &[("a", BlobHash(1))]));
    assert_eq!((known.manifests.len(), known.count), (1, 1));

    let names: Vec<String> = (0..MAX_OWNERS * 2).map(|i| format!("p{i}")).collect();
    let files: Vec<(&str, BlobHash)> = names.iter().map(|name| (&**name, BlobHash(1))).collect();
    let large = manifest("large", &files);
    let wanted: Vec<&str> = names.iter().map(|name| &**name).collect();
    for wanted in [&wanted[..10], &wanted, &wanted[..10]] {
        let (found, _) = find(&mut known, &[("large", "1", &large)], wanted);
        assert_eq!(found.len(), wanted.len(), "nothing is missing");
        assert!(known.manifests["large"].owners.len() <= MAX_OWNERS);
    }
}

#[test]
fn hashes_are_found_in_lists_of_any_length() {
    let mut random = fastrand::Rng::with_seed(7);
    let names: Vec<String> = (0..500).map(|i| format!("p{i}")).collect();
    for _ in 0..500 {
        let mut random_names = |max: usize| -> BTreeSet<&str> {
            let count = random.usize(..=max);
            (0..count).map(|_| &*names[random.usize(..names.len())]).collect()
        };
        let (present, wanted) = (random_names(500), random_names(20));
        for (present, wanted) in [(&present, &wanted), (&wanted, &present)] {
            let hashes = sorted(present.iter().map(|path| path_hash(path)).collect());
            let search = OwnerSearch::new(wanted.iter().copied());
            let found: BTreeSet<&str> = common(&hashes, &search.wanted).into_iter().collect();
            assert_eq!(found, present.intersection(wanted).copied().collect());
        }
    }
}

/// Exactly one of several manifests owns a path, whichever asks. After it has repaired the file it still owns it.
#[test]
fn exactly_one_of_several_manifests_owns_a_path() {
    let mut random = fastrand::Rng::with_seed(3);
    for _ in 0..500 {
        let names = ["a", "b", "c", "d"];
        let count = random.usize(2..=names.len());
        let hashes: Vec<BlobHash> = (0..count).map(|_| BlobHash(random.u128(..3))).collect();
        let manifests: Vec<Manifest> =
            names.iter().zip(&hashes).map(|(name, hash)| manifest(name, &[("p", *hash)])).collect();
        let owners = |file: Option<BlobHash>| -> Vec<usize> {
            let files = file.map(|hash| ("p".to_owned(), hash)).into_iter().collect();
            let owns = |index: &usize| {
                let others = manifests.iter().enumerate().filter(|(other, _)| other != index);
                let all: Vec<_> = others.map(|(other, manifest)| (names[other], "1", manifest)).collect();
                let (found, _) = find(&mut PathOwners::default(), &all, &["p"]);
                SettledPaths::new(&manifests[*index], names[*index], found, &files).lost.is_empty()
            };
            (0..count).filter(owns).collect()
        };
        let file = [None, Some(BlobHash(0)), Some(BlobHash(9))][random.usize(..3)];
        let first = owners(file);
        assert_eq!(first.len(), 1, "{hashes:?} {file:?}");
        let matching = file.filter(|file| hashes.contains(file));
        assert_eq!(matching, matching.map(|_| hashes[first[0]]), "what is there stays");
        assert!(matching.is_some() || first == [0], "{hashes:?} {file:?}: the smallest name");
        let repaired = owners(Some(hashes[first[0]]));
        assert_eq!(repaired, first, "{hashes:?} {file:?}");
    }
}
