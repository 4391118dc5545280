use kollect_model::crd::sinks::GitAuthor;
use serde_json::json;

use super::*;

fn git(fields: serde_json::Value) -> Git {
    serde_json::from_value(fields).unwrap()
}

#[test]
fn authors_and_trailers_that_git_cannot_record_are_refused() {
    for (fields, field) in [
        (json!({ "author": { "name": "a <b" } }), "spec.git.author.name"),
        (json!({ "author": { "name": "..." } }), "spec.git.author.name"),
        (json!({ "author": { "email": "a\nb" } }), "spec.git.author.email"),
        (json!({ "commitTrailers": ["Good: yes", "no colon"] }), "spec.git.commitTrailers[1]"),
        (json!({ "commitTrailers": ["two words: x"] }), "spec.git.commitTrailers[0]"),
    ] {
        let errors = CommitMessages::plan(Some(&git(fields))).unwrap_err();
        assert_eq!(errors.iter().map(|error| &*error.field).collect::<Vec<_>>(), [field]);
    }
    let empty = git(json!({ "commitMessage": " ", "author": { "name": "" } }));
    assert_eq!(CommitMessages::plan(Some(&empty)).unwrap(), CommitMessages::default());
    let named = Git { author: Some(GitAuthor { name: Some("Jörg".into()), email: None }), ..Git::default() };
    assert_eq!(CommitMessages::plan(Some(&named)).unwrap().author, "Jörg");
}

#[test]
fn a_subject_is_one_line_and_unknown_placeholders_stay() {
    let inventory = InventoryId { cluster: String::new(), namespace: None, name: "all".into() };
    let values = MessageValues {
        inventory: &inventory,
        sink: "s",
        generation: 3,
        items: 2,
        checksum: "0123456789abcdef",
        exported_at: "now",
        path: "p",
        changes: "+ x",
    };
    let messages = git(
        json!({ "commitMessage": "a\n{name} {cluster}/{namespace} {x} {", "commitBody": "{\"k\": {generation}}" }),
    );
    let text = CommitMessages::plan(Some(&messages)).unwrap().text(&values);
    assert_eq!(text, "a all default/cluster {x} {\n\n{\"k\": 3}\n");
    let text = CommitMessages::default().text(&MessageValues { changes: "", ..values });
    assert_eq!(text, "chore(default/cluster/all): export 2 items @ 0123456789ab\n");
}
