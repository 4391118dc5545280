//! A credential with every sign in it, in every notation that the page about redaction names: no part of it stays.

use serde_json::{Value, json};

use super::*;

const HEAD: &str = "Xq7zKw";
const TAIL: &str = "Vj9pLm";

const SIGNS: &[&str] = &[
    "", "'", "\"", ",", "\\", " ", "ü", ";", "&", "@", "/", "#", "<", ">", "{", "}", "$", "%", "`", "|", ")",
    "(", "=", ":", "[", "]", "!", "?", "*", "~", "''", "\\\"", "://", ", x=", "; y=",
];

fn shell(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\"'\"'"))
}

fn quoted(text: &str) -> String {
    json!(text).to_string()
}

fn url(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric();
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

fn xml(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#x27;")
}

/// A plain text of YAML, or one in quotes if it must be.
fn yaml(text: &str) -> String {
    let is_plain = text.chars().all(|c| c.is_alphanumeric() || "!$%()*+,./<=>?@^_`|~;".contains(c));
    if is_plain { text.to_owned() } else { format!("'{}'", text.replace('\'', "''")) }
}

/// What an object has, by the name of the notation.
fn notations(secret: &str) -> Vec<(&'static str, Value)> {
    let (sh, q) = (shell(secret), quoted(secret));
    let inner = quoted(&json!({ "password": secret, "b": "c" }).to_string());
    let file = |text: String| json!({ "file": text });
    let has = |signs: &str| secret.contains(|c| signs.contains(c));
    let mut all = vec![
        ("--password=x", json!({ "args": [format!("--password={secret}")] })),
        ("--password x", json!({ "args": ["--password", secret] })),
        ("NAME=x", json!({ "args": [format!("DB_PASSWORD={secret}")] })),
        ("-u user:x", json!({ "args": ["-u", format!("bob:{secret}")] })),
        ("shell --password x", json!({ "command": ["sh", "-c", format!("run --password {sh} --x y")] })),
        ("shell --password=x", json!({ "command": ["sh", "-c", format!("run --password={sh} --x y")] })),
        ("shell export", json!({ "command": ["sh", "-c", format!("export PGPASSWORD={sh}; psql")] })),
        (
            "curl -u",
            json!({ "command": ["sh", "-c", format!("curl -u {} https://x", shell(&format!("bob:{secret}")))] }),
        ),
        (
            "curl -H",
            json!({ "command": ["sh", "-c", format!("curl -H {} https://x", shell(&format!("X-Api-Key: {secret}")))] }),
        ),
        ("mysql -p", json!({ "command": ["sh", "-c", format!("mysql -u root -p{sh} db")] })),
        ("URL", json!({ "url": format!("amqp://bob:{}@h/q", url(secret)) })),
        ("parameter of a URL", json!({ "url": format!("https://h/q?a=b&password={}&c=d", url(secret)) })),
        ("header", json!({ "h": [format!("X-Api-Key: {secret}")] })),
        ("Authorization", json!({ "h": format!("Authorization: Bearer {secret}") })),
        ("JSON", file(format!("{{\"a\": 1, \"password\": {q}, \"b\": \"c\"}}"))),
        ("JSON list", file(json!({ "passwords": [secret, "other1"], "b": "c" }).to_string())),
        ("JSON in JSON", file(format!("{{\"x\": {inner}}}"))),
        ("JSON in JSON in JSON", file(format!("{{\"y\": {}}}", quoted(&format!("{{\"x\": {inner}}}"))))),
        ("JSON pair", file(json!({ "env": [{ "name": "DB_PASSWORD", "value": secret }] }).to_string())),
        ("YAML", file(format!("a: 1\npassword: {}\nz: 2\n", yaml(secret)))),
        ("YAML \"\"", file(format!("a: 1\npassword: {q}\nz: 2\n"))),
        ("YAML list", file(format!("a: 1\npasswords:\n- {}\n- q1w2e3\nz: 2\n", yaml(secret)))),
        ("YAML below", file(format!("a: 1\ncredentials:\n  data: {}\nz: 2\n", yaml(secret)))),
        ("YAML flow", file(format!("a: {{password: {q}, b: c}}\nz: 1\n"))),
        ("YAML pair", file(format!("env:\n- name: DB_PASSWORD\n  value: {}\nz: 2\n", yaml(secret)))),
        ("YAML key pair", file(format!("env:\n- key: DB_PASSWORD\n  value: {q}\nz: 2\n"))),
        ("YAML block", file(format!("a: 1\npassword: |\n  {secret}\nz: 2\n"))),
        ("YAML block |2-", file(format!("a: 1\npassword: |2-\n  {secret}\nz: 2\n"))),
        ("YAML next line", file(format!("a: 1\npassword:\n  {q}\nz: 2\n"))),
        ("YAML tag", file(format!("a: 1\npassword: !!str {q}\nz: 2\n"))),
        ("YAML anchor", file(format!("a: 1\npassword: &p {q}\nz: 2\n"))),
        ("YAML arguments", file(format!("args:\n  - --password\n  - {q}\n  - x\n"))),
        ("YAML arguments in a line", file(format!("args: [\"--password\", {q}, \"x\"]\nb: c\n"))),
        ("YAML comment", file(format!("# password: {secret}\nb: c\n"))),
        ("properties", file(format!("a=1\ndb.password={secret}\nz=2\n"))),
        ("properties =", file(format!("a=1\ndb.password = {secret}\nz=2\n"))),
        ("properties :", file(format!("a=1\ndb.password:{secret}\nz=2\n"))),
        ("TOML", file(format!("[a]\npassword = {q}\nz = 2\n"))),
        ("TOML in a line", file(format!("[a]\nx = {{ user = \"b\", password = {q} }}\nz = 2\n"))),
        ("environment", file(format!("A=1\nDB_PASSWORD={sh}\nZ=2\n"))),
        ("XML", file(format!("<a>\n<password>{}</password>\n</a>", xml(secret)))),
        ("XML attribute", file(format!("<a>\n<user name=\"x\" password=\"{}\"/>\n</a>", xml(secret)))),
        (
            "XML property",
            file(format!("<a>\n<property name=\"db.password\" value=\"{}\"/>\n</a>", xml(secret))),
        ),
        (
            "Hadoop",
            file(format!(
                "<c><property><name>fs.secret.key</name><value>{}</value></property></c>",
                xml(secret)
            )),
        ),
        (
            "SQL",
            file(format!("CREATE USER x;\nALTER USER bob WITH PASSWORD '{}';\n", secret.replace('\'', "''"))),
        ),
        ("nginx", file(format!("server {{\n proxy_set_header X-Api-Key {q};\n}}"))),
        ("HCL", file(format!("variable {{\n  password = {q}\n}}\n"))),
        (
            "PHP",
            file(format!("<?php\n'password' => '{}',\n", secret.replace('\\', "\\\\").replace('\'', "\\'"))),
        ),
        ("JavaScript", file(format!("x = {{\n password: {q},\n b: 1}}\n"))),
        ("Ruby", file(format!("x\nENV['DB_PASSWORD'] = {q}\nrun\n"))),
        ("Dockerfile", file(format!("FROM x\nENV A=b DB_PASSWORD={q} C=d\nRUN x\n"))),
        ("Spring", file(format!("spring:\n  password: ${{DB_PASSWORD:{secret}}}\n"))),
    ];
    if !has("'\"; ") {
        all.push((
            "connection string",
            json!({ "conn": format!("Server=db;User ID=sa;Password={secret};Encrypt=True") }),
        ));
    }
    if !has("'\\ \"`;,&") {
        all.push(("libpq", json!({ "conn": format!("host=db user=sa password={secret} dbname=x") })));
    }
    if !has("'") {
        all.push(("TOML '''", file(format!("[a]\npassword = '''{secret}'''\nz = 2\n"))));
    }
    if !has(" \"'") {
        all.push(("Dockerfile ENV", file(format!("FROM x\nENV DB_PASSWORD {secret}\nRUN x\n"))));
    }
    if !has("/?#@ <>\"'`\\") {
        all.push(("URL that is not escaped", json!({ "url": format!("amqp://bob:{secret}@h/q") })));
    }
    all
}

#[test]
fn no_part_of_a_credential_stays_in_any_notation() {
    let mut visible = Vec::new();
    for sign in SIGNS {
        let secret = format!("{HEAD}{sign}{TAIL}");
        for (notation, object) in notations(&secret) {
            let text = object.to_string();
            let Json::Map(mut map) = Json::read(&text, &Projection::everything()).unwrap() else {
                unreachable!("an object is a map")
            };
            Scrubber::default().scrub(&mut map, "", &mut Redactions::default());
            let mut out = String::new();
            Json::Map(map).write(&mut out);
            if out.contains(HEAD) || out.contains(TAIL) {
                visible.push(format!("{notation} with {sign:?}: {out}"));
            }
        }
    }
    assert!(visible.is_empty(), "{}", visible.join("\n"));
}
