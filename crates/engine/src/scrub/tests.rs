use std::fs;

use super::{
    names::{CREDENTIAL_WORDS, WordMatch},
    *,
};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/use/redaction.md");

fn scrubbed_by(scrubber: &Scrubber, text: &str) -> String {
    let mut value =
        Json::read(text, &Projection::everything()).unwrap_or_else(|error| unreachable!("{text}: {error}"));
    let mut found = Redactions::new(true);
    if let Json::Map(map) = &mut value {
        scrubber.scrub(map, "", &mut found);
    }
    let mut out = String::new();
    value.write(&mut out);
    let places = found.into_places();
    assert!(places.iter().all(|place| !place.path.contains("hunter")), "{places:?}");
    out
}

fn scrubbed(text: &str) -> String {
    scrubbed_by(&Scrubber::default(), text)
}

/// The text as canonical JSON, with a marker for each `•`.
fn expected(text: &str) -> String {
    let marked = text.replace('•', r#"{"reason":"sensitive-key","redacted":true}"#);
    let value: serde_json::Value =
        serde_json::from_str(&marked).unwrap_or_else(|error| unreachable!("{text}: {error}"));
    value.to_string()
}

/// The texts in backticks at the beginning of the cells of a line.
fn cells(line: &str) -> Vec<&str> {
    let cells = line.strip_prefix("| ").unwrap_or_default().split(" | ");
    cells.filter_map(|cell| cell.trim_end_matches(" |").strip_prefix('`')?.strip_suffix('`')).collect()
}

#[test]
fn every_line_of_the_documented_tables_is_true() {
    let page = fs::read_to_string(PAGE).unwrap();
    let mut count = 0;
    for line in page.lines() {
        let cells: Vec<&str> = cells(line).into_iter().filter(|cell| cell.starts_with('{')).collect();
        match cells.as_slice() {
            [before, after] => assert_eq!(scrubbed(before), expected(after), "{line}"),
            [same] if !same.contains("sensitive-key") => assert_eq!(scrubbed(same), expected(same), "{line}"),
            _ => continue,
        }
        count += 1;
    }
    assert!(count > 35, "{count}");
}

#[test]
fn every_word_of_the_table_is_documented_and_found_in_all_spellings() {
    let page = fs::read_to_string(PAGE).unwrap();
    let (_, table) = page.split_once("| Words | Hide |").unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    let documented: Vec<&str> = table.split('`').skip(1).step_by(2).collect();
    let names = CredentialNames::default();
    for known in CREDENTIAL_WORDS {
        assert!(documented.contains(&known.word), "{} is not documented", known.word);
        let mut spellings = vec![format!("db_{}", known.word), format!("DB-{}_2", known.word.to_uppercase())];
        if known.matched != WordMatch::LastOfSeveral {
            spellings.extend([known.word.to_owned(), format!("{}Value", known.word)]);
        }
        if !known.word.ends_with('s') {
            spellings.push(format!("my.{}s", known.word));
        }
        for spelling in spellings {
            assert_eq!(names.meaning(&spelling), known.meaning, "{spelling}");
        }
    }
}

#[test]
fn names_are_split_into_words() {
    let names = CredentialNames::default();
    for name in [
        "SECRET_ID",
        "secretId",
        "secret-id",
        "API_KEY",
        "apiKey",
        "APIKey",
        "api-key",
        "x-api-key",
        "SSH_KEY",
        "signing_key",
        "GITHUB_PAT",
        "CONNECTION_STRING",
        "ADMIN_PIN",
        "JWT_SIGNING_KEY",
        "example.com/deploy-token",
        "client-key-data",
        "listener.sasl.password",
        "PASSWORD_1",
        "TOKEN_VALUE",
        "sesSmtpPasswordV4",
        "X-Vendor-Key",
        "Authorization",
    ] {
        assert!(names.meaning(name).is_credential(), "{name}");
    }
    for name in [
        "",
        "name",
        "value",
        "base",
        "key",
        "spat",
        "pin",
        "pat",
        "path",
        "format",
        "keyboard",
        "monkey",
        "compass",
        "bypass",
        "tokenizer",
        "secretName",
        "passwordPolicy",
        "authority",
        "authenticated",
        "author",
        "publicKey",
        "uid",
        "id",
        "cookie",
        "system",
        "information",
        "onepassword",
        "eosToken",
        "existingSecretKey",
        "pass-through",
        "é",
        "s",
        "S",
    ] {
        assert!(!names.meaning(name).is_credential(), "{name}");
    }
}

#[test]
fn administrators_add_names_and_take_names_out() {
    let added = ["Pin".to_owned(), "Ключ".to_owned(), "id".to_owned(), "token".to_owned()];
    let allowed = ["routing-Token".to_owned(), "secret".to_owned()];
    let scrubber = Scrubber::new(CredentialNames::new(&added[..3], &allowed), true);
    assert_eq!(
        scrubbed_by(
            &scrubber,
            r#"{"userPin":7,"PIN":"no","МойКлюч":"hunter2","uid":"u","id":"hunter2","routing-token":"r","secret":"s","mySecret":"hunter2",
                "a":{"pin":{"name":"hunter2","n":7,"on":true,"list":["hunter2",{"type":"hunter2"}]}}}"#
        ),
        expected(
            r#"{"userPin":•,"PIN":•,"МойКлюч":•,"uid":"u","id":•,"routing-token":"r","secret":"s","mySecret":•,
                "a":{"pin":{"name":•,"n":•,"on":true,"list":[•,{"type":•}]}}}"#
        )
    );
    let both = Scrubber::new(CredentialNames::new(&added, &allowed), true);
    assert_eq!(
        scrubbed_by(&both, r#"{"routing-token":"hunter2"}"#),
        expected(r#"{"routing-token":•}"#),
        "added wins"
    );
    let url = r#"{"url":"redis://:hunter2@h","password":"hunter2"}"#;
    let texts_off = Scrubber::new(CredentialNames::default(), false);
    assert_eq!(scrubbed_by(&texts_off, url), expected(r#"{"url":"redis://:hunter2@h","password":•}"#));
    assert_eq!(
        scrubbed_by(&scrubber, url),
        expected(r#"{"url":"redis://:***@h","password":•}"#),
        "allowed names do not count"
    );
}

#[test]
fn places_are_named_and_never_their_values() {
    let text = r#"{"a":{"b.c/d":[{"name":"TOKEN","value":"hunter2"}],"url":"redis://:hunter2@h"},"password":["hunter2"],"auth":{"key":"Hunter2"}}"#;
    let Json::Map(mut map) = Json::read(text, &Projection::everything()).unwrap() else {
        unreachable!("a map")
    };
    let mut found = Redactions::new(true);
    Scrubber::default().scrub(&mut map, "", &mut found);
    let places: Vec<String> =
        found.into_places().into_iter().map(|place| format!("{}: {}", place.path, place.cause)).collect();
    assert_eq!(
        places,
        [
            "a['b.c/d'][0].value: the name beside it means a credential",
            "a.url: a part of the text is a credential",
            "auth.key: a name above it means a credential",
            "password[0]: its name means a credential",
        ]
    );
}

#[test]
fn names_are_read_beside_values() {
    let text = r#"{"env":[{"name":"DB_PASSWORD","value":"hunter2","other":1}]}"#;
    let mut projection = Projection::default();
    projection.key("env").each().key("value").take_all();
    add_redaction_fields(&mut projection);
    let Json::Map(mut map) = Json::read(text, &projection).unwrap() else { unreachable!("a map") };
    Scrubber::default().scrub(&mut map, "", &mut Redactions::default());
    let mut out = String::new();
    Json::Map(map).write(&mut out);
    assert_eq!(out, expected(r#"{"env":[{"name":"DB_PASSWORD","value":•}]}"#));
}

/// Exceptions are narrow: none of them lets a credential through that only resembles what it is for.
#[test]
fn exceptions_do_not_let_credentials_through() {
    for text in [
        // Words of exceptions inside of other words.
        r#"{"KEYSTONE_PASSWORD":"hunter2x","GMAIL_COM_PASS":"hunter2x","DERBY_PASS":"hunter2x","REPLICA_SECRET":"hunter2x"}"#,
        r#"{"PUBLIC_PASSWORD":"hunter2x","PUBLICATION_TOKEN":"hunter2x","SHOPIFY_API_KEY_SECRET":"hunter2x","mySiteKeyPassword":"hunter2x"}"#,
        r#"{"HASH_SECRET":"hunter2x","MAX_PASSWORD":"hunter2x","min-password":"hunter2x"}"#,
        // Placeholders with defaults.
        r#"{"password":"${DB_PASSWORD:hunter2}","a_token":"${X-hunter2}","b_token":"${X:+hunter2}"}"#,
        r#"{"password":"$(echo hunter2)","secret":"{{ \"hunter2\" }}","token":"{{ printf \"hunter2\" }}"}"#,
        // Names of objects.
        r#"{"BASIC_AUTH":"hunter2:blue-hunter","API_TOKEN":"admin:correct-hunter","clientSecret":"acme/blue-hunter"}"#,
        r#"{"secret":"webhook-hunter-7f3a","token":"super-hunter-secret","MY_SECRET":"hunter-webhook-secret"}"#,
        // Keys of Secrets.
        r#"{"name":"minio","secretKey":"wJalrXUtnFEMI7hunter"}"#,
        r#"{"s3SecretKey":"AbCdhunterQrSt"}"#,
        r#"{"x":{"secretName":"s1","password":"correcthunter"}}"#,
        r#"{"tls":{"key":"hunterhunter"},"auth":{"key":"hunterhunter"},"credentials":{"key":"hunterhunter","data":"correct-hunter"}}"#,
        r#"{"credentials":{"secret":"Hunter2!x hunter","key":"k1","items":["hunter!z"]}}"#,
        // Passwords may be anything.
        r#"{"a":{"password":"\\Qhunter"},"b":{"password":"[^hunter"},"c":{"password":"$HUNTERhunter"},"d":{"password":"sha256:hunter"}}"#,
        r#"{"passwords":{"user":"hunter2","database":"hunter2"},"tokens":{"user":"hunter2","url":"hunter2"}}"#,
        r#"{"e":[{"name":"x","key":"DB_PASSWORD","value":"hunter2"}]}"#,
        r#"{"openAPIV3Schema":{"url":"redis://:hunter2@h"},"encryptedData":{"password":"hunter2"}}"#,
        r#"{"args":["--password=correct hunter battery","PASSWORD=hunter horse","--user=bob:hunter2"],"conn":"Server=db;Password=my hunter;Encrypt=True"}"#,
        r#"{"args":["--max-token","hunter2"],"b":["sshpass","-phunter2","ssh","x"]}"#,
    ] {
        let found = scrubbed(text);
        assert!(!found.to_lowercase().contains("hunter"), "{text}\n{found}");
    }
    assert_eq!(
        scrubbed(r#"{"a":{"password":"ab","pwd":"1"},"token":"ab"}"#),
        expected(r#"{"a":{"password":•,"pwd":•},"token":"ab"}"#),
        "also a short password is one"
    );
}

#[test]
fn well_known_fields_of_kubernetes_stay() {
    for text in [
        r#"{"hard":{"secrets":"100","count/secrets":"7"},"used":{"secrets":"120"},"LLM_TOKENS":"4096","args":["--max-tokens","8192"]}"#,
        r#"{"annotations":{"nginx.ingress.kubernetes.io/auth-secret":"basicauth","nginx.ingress.kubernetes.io/proxy-ssl-secret":"prod/certs"}}"#,
        r#"{"args":["--secret=default/foo","--user","1000:1000"],"AUTH":"ldap","KAFKA_AUTH":"SCRAM"}"#,
        r#"{"serviceAccountToken":{"audience":"vault","expirationSeconds":3600,"path":"token"},"automountServiceAccountToken":true}"#,
        r#"{"secretKeyRef":{"name":"db","key":"password","optional":true},"imagePullSecrets":[{"name":"regcred"}]}"#,
        r#"{"tls":[{"hosts":["a"],"secretName":"tls"}],"secretObjects":[{"secretName":"x","type":"Opaque"}]}"#,
        r#"{"script":"read -p 'Password: ' X\nkubectl get x -o jsonpath='{.a}'\n"}"#,
        r#"{"sql":"CREATE TABLE u (password VARCHAR(255), token TEXT);\n","code":"user.password = hash(input)\npassword: str\n"}"#,
        r#"{"webhooks":[{"clientConfig":{"caBundle":"LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1JSUI="}}]}"#,
        r#"{"kubernetes.io/service-account.name":"x","tokenRequests":[{"audience":"a"}],"bootstrapTokens":[{"description":"first","ttl":"24h","usages":["signing"]}]}"#,
    ] {
        assert_eq!(scrubbed(text), expected(text));
    }
}
