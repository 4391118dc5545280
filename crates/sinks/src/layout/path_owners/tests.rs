use kollect_model::batch::InventoryId;

use super::*;
use crate::layout::{FileFormat, Settings};

/// The manifest of an inventory with these files.
fn manifest(name: &str, files: &[(&str, Hash)]) -> Manifest {
    let inventory = InventoryId { cluster: String::new(), namespace: Some("team".into()), name: name.into() };
    let shape = Settings::document(FileFormat::Json).shape(std::iter::empty());
    let mut manifest = Manifest::new(&inventory, String::new(), shape);
    manifest.header.files = files.iter().map(|(path, hash)| ((*path).to_owned(), *hash)).collect();
    manifest
}

fn listed(manifests: &[(&str, &str)]) -> Vec<Listed> {
    manifests.iter().map(|(books, version)| ((*books).to_owned(), Some((*version).to_owned()))).collect()
}

/// Searches for paths of an inventory `own`. Returns the owners, and which manifests were read.
fn find(
    known: &mut PathOwners,
    manifests: &[(&str, &str, &Manifest)],
    paths: &[&str],
) -> (Owners, Vec<String>) {
    let mut search = Search::new(paths.iter().copied());
    let all: Vec<(&str, &str)> = manifests.iter().map(|(books, version, _)| (*books, *version)).collect();
    let unread = search.ask(known, "own", listed(&all));
    let read: Vec<String> = unread.iter().map(|(books, _)| books.clone()).collect();
    for listed in unread {
        let (_, _, manifest) = manifests.iter().find(|(books, ..)| *books == listed.0).unwrap();
        let bytes = manifest.to_bytes().unwrap();
        let (header, lines) = Manifest::split(&bytes);
        let scanned = search.scan(&listed.0, header, [lines]);
        search.take(known, listed, scanned);
    }
    (search.found(), read)
}

#[test]
fn manifests_are_read_when_they_have_changed() {
    let mut known = PathOwners::default();
    let (one, two) = (manifest("one", &[("a", Hash(1))]), manifest("two", &[("b", Hash(2))]));
    let own = manifest("own", &[]);
    let all = [("one", "1", &one), ("own", "1", &own), ("two", "1", &two)];
    assert_eq!(find(&mut known, &all, &["x"]), (Owners::new(), vec!["one".into(), "two".into()]));
    assert_eq!(find(&mut known, &all, &["y"]), (Owners::new(), vec![]));
    // The manifest is read once to find the owner.
    for read in [vec!["two".to_owned()], vec![]] {
        let (found, really_read) = find(&mut known, &all, &["b", "y"]);
        assert_eq!(really_read, read);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["b"]);
        assert_eq!(found["b"][0].described(), "inventory team/two of cluster \"\"");
    }
    let all = [("one", "2", &two), ("two", "1", &two)];
    assert_eq!(find(&mut known, &all, &["x"]), (Owners::new(), vec!["one".into()]));
    assert_eq!(find(&mut known, &all, &["a"]), (Owners::new(), vec![]));
    assert_eq!(find(&mut known, &all, &["b"]).0["b"].len(), 2);
    // Manifests that are not listed any more are forgotten.
    assert_eq!(find(&mut known, &[], &["b"]), (Owners::new(), vec![]));
    assert_eq!((known.manifests.len(), known.count), (0, 0));
}

#[test]
fn what_is_remembered_is_bounded() {
    let mut known = PathOwners::default();
    let paths: Vec<u64> = (0..MOST_PATHS as u64).collect();
    known.keep("large", Some("1".into()), paths, BTreeMap::new());
    known.remember("small", Some("1".into()), &manifest("small", &[("a", Hash(1))]));
    assert_eq!(known.manifests.keys().collect::<Vec<_>>(), ["large"]);
    known.forget("large");
    known.remember("small", Some("1".into()), &manifest("small", &[("a", Hash(1))]));
    assert_eq!((known.manifests.len(), known.count), (1, 1));

    let names: Vec<String> = (0..MOST_OWNERS * 2).map(|i| format!("p{i}")).collect();
    let files: Vec<(&str, Hash)> = names.iter().map(|name| (&**name, Hash(1))).collect();
    let large = manifest("large", &files);
    let wanted: Vec<&str> = names.iter().map(|name| &**name).collect();
    for wanted in [&wanted[..10], &wanted, &wanted[..10]] {
        let (found, _) = find(&mut known, &[("large", "1", &large)], wanted);
        assert_eq!(found.len(), wanted.len(), "nothing is missing");
        assert!(known.manifests["large"].owners.len() <= MOST_OWNERS);
    }
}

#[test]
fn hashes_are_found_in_lists_of_any_length() {
    let mut random = fastrand::Rng::with_seed(7);
    let names: Vec<String> = (0..500).map(|i| format!("p{i}")).collect();
    for _ in 0..500 {
        let mut some = |most: usize| -> BTreeSet<&str> {
            let count = random.usize(..=most);
            (0..count).map(|_| &*names[random.usize(..names.len())]).collect()
        };
        let (there, wanted) = (some(500), some(20));
        for (there, wanted) in [(&there, &wanted), (&wanted, &there)] {
            let hashes = sorted(there.iter().map(|path| path_hash(path)).collect());
            let search = Search::new(wanted.iter().copied());
            let found: BTreeSet<&str> = common(&hashes, &search.wanted).into_iter().collect();
            assert_eq!(found, there.intersection(wanted).copied().collect());
        }
    }
}

/// Exactly one of several manifests owns a path, whichever asks. After it has repaired the file it still owns it.
#[test]
fn one_of_all_manifests_has_a_path() {
    let mut random = fastrand::Rng::with_seed(3);
    for _ in 0..500 {
        let names = ["a", "b", "c", "d"];
        let count = random.usize(2..=names.len());
        let hashes: Vec<Hash> = (0..count).map(|_| Hash(random.u128(..3))).collect();
        let manifests: Vec<Manifest> =
            names.iter().zip(&hashes).map(|(name, hash)| manifest(name, &[("p", *hash)])).collect();
        let winners = |file: Option<Hash>| -> Vec<usize> {
            let files = file.map(|hash| ("p".to_owned(), hash)).into_iter().collect();
            let has = |index: &usize| {
                let others = manifests.iter().enumerate().filter(|(other, _)| other != index);
                let all: Vec<_> = others.map(|(other, manifest)| (names[other], "1", manifest)).collect();
                let (found, _) = find(&mut PathOwners::default(), &all, &["p"]);
                Settled::new(&manifests[*index], names[*index], found, &files).lost.is_empty()
            };
            (0..count).filter(has).collect()
        };
        let file = [None, Some(Hash(0)), Some(Hash(9))][random.usize(..3)];
        let first = winners(file);
        assert_eq!(first.len(), 1, "{hashes:?} {file:?}");
        let holds = file.filter(|file| hashes.contains(file));
        assert_eq!(holds, holds.map(|_| hashes[first[0]]), "what is there stays");
        assert!(holds.is_some() || first == [0], "{hashes:?} {file:?}: the smallest name");
        let repaired = winners(Some(hashes[first[0]]));
        assert_eq!(repaired, first, "{hashes:?} {file:?}");
    }
}
