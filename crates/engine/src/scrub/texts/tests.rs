use rustix::time::{ClockId, clock_gettime};

use super::*;
use crate::random::Random;

fn masked(text: &str) -> String {
    match mask(text, TextForm::Value, &CredentialNames::default()) {
        MaskedText::Unchanged => text.to_owned(),
        MaskedText::Whole => "•".to_owned(),
        MaskedText::Partly(masked) => masked,
    }
}

#[test]
fn credentials_are_masked_and_the_rest_stays_readable() {
    for (text, expected) in [
        ("postgres://u:p@ss:w@h/db", "postgres://u:***@h/db"),
        ("postgres://u:p/a@h/db", "postgres://u:***@h/db"),
        (
            "see https://h:8080/a/@scope and redis://:x1y2z3@h",
            "see https://h:8080/a/@scope and redis://:***@h",
        ),
        ("user:hunter2@tcp(db:3306)/shop", "user:***@tcp(db:3306)/shop"),
        ("shop/hunter2@//ora:1521/X", "shop/***@//ora:1521/X"),
        (
            "jdbc:mysql://h/db?user=u&password=hunter2&ssl=true",
            "jdbc:mysql://h/db?user=u&password=***&ssl=true",
        ),
        ("https://b.blob.example/c?sv=1&sig=abc%2Fdef&se=2", "https://b.blob.example/c?sv=1&sig=***&se=2"),
        ("host=db user=u password='it''s' sslmode=on", "host=db user=u password='***' sslmode=on"),
        ("user=a,password=b%c!,host=d", "user=a,password=***,host=d"),
        (r#"{"a":{"client_secret" : "x\"y", "n":1}}"#, r#"{"a":{"client_secret" : "***", "n":1}}"#),
        (r#"{\"token\":\"hunter2\"}"#, r#"{\"token\":\"***\"}"#),
        (r#"{"tokens":["a1b2","c3d4"],"pin":1}"#, r#"{"tokens":["***","***"],"pin":1}"#),
        (r#"{"name":"DB_PASSWORD","value":"hunter2"}"#, r#"{"name":"DB_PASSWORD","value":"***"}"#),
        (
            "- op: add\n  value: {name: TOKEN, value: hunter2}\n",
            "- op: add\n  value: {name: TOKEN, value: ***}\n",
        ),
        (
            "env:\n- name: DB_PASS\n  value: hunter2\n- name: A\n  value: b\n",
            "env:\n- name: DB_PASS\n  value: ***\n- name: A\n  value: b\n",
        ),
        ("password: |\n  hunter2\n  hunter3\nuser: bob\n", "password: |\n  ***\n  ***\nuser: bob\n"),
        ("a: {type: Bearer, credentials: hunter2}\nb: 1\n", "a: {type: Bearer, credentials: ***}\nb: 1\n"),
        ("# old: 1\n# password: hunter2\nx = 1\n", "# old: 1\n# password: ***\nx = 1\n"),
        ("requirepass hunter2\nport 6379\n", "requirepass ***\nport 6379\n"),
        ("<a><password>hunter2</password></a>", "<a><password>***</password></a>"),
        ("docker login -u bob -p hunter2 registry", "docker login -u bob -p *** registry"),
        ("CREATE ROLE x LOGIN PASSWORD 'hunter2'", "CREATE ROLE x LOGIN PASSWORD '***'"),
        (r#"curl -H "X-Api-Key: hunter2" https://x"#, r#"curl -H "X-Api-Key: ***" https://x"#),
        (r#"if ($http_x_api_key != "hunter2") {}"#, r#"if ($http_x_api_key != "***") {}"#),
        ("'secret' => 'hunter2',", "'secret' => '***',"),
        ("Basic Ym9iOmh1bnRlcjI=", "Basic ***"),
        ("local API_KEY = \"hunter2\"", "local API_KEY = \"***\""),
        ("LS0tLS1CRUdJTiBSU0EgUFJJVkFURSBLRVktLS0tLQpNSUlF", "•"),
        (r#"{"kty":"oct","kid":"a","k":"aHVudGVyMg"}"#, r#"{"kty":"oct","kid":"a","k":"***"}"#),
    ] {
        assert_eq!(masked(text), expected, "{text}");
    }
}

#[test]
fn texts_without_credentials_stay_as_they_are() {
    for text in [
        "",
        "nginx:1.27",
        "registry.example.com/team/cart:v1.2.3@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        "cart-7d9f8b6c5d-abcde",
        "https://user@example.com/path?page=2",
        "git@github.com:acme/shop.git",
        "ssh://git@github.com/acme/shop",
        "Check that the password policy is set",
        "password=unset",
        "token={{ .Values.token }}&x=1",
        "postgres://$(USER):$(PASSWORD)@db/shop",
        "https://h/cb?token=${TOKEN}",
        "--password-file=/etc/pw --token-ttl=5m",
        "mysqladmin ping -p\"$(cat /run/secrets/x)\"",
        "sum by (auth) (rate(x{auth=\"api_key\"}[5m]))",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        "a == b && token == c",
        "key: value\nport: 80\n",
        "password_file: /etc/pw\nsecretName: s1\nmax_tokens: 5\n",
        "{\"keys\":[{\"kty\":\"RSA\",\"n\":\"abc\",\"e\":\"AQAB\"}]}",
        "(?i)password=(\\S+)",
        "scopes: secrets:read tokens:write",
    ] {
        assert_eq!(masked(text), text);
    }
}

#[test]
fn no_text_makes_it_panic() {
    let pieces = [
        "password",
        "token",
        "=",
        ":",
        " ",
        "\n",
        "\"",
        "'",
        "\\",
        "{",
        "}",
        "[",
        "]",
        ",",
        "://",
        "@",
        "/",
        "-p",
        "--",
        "-u ",
        "$(",
        ")",
        "${",
        "-----BEGIN ",
        "PRIVATE KEY-----",
        "-----END",
        "eyJ",
        ".",
        "ghp_",
        "a",
        "é",
        "🦀",
        "1",
        "name",
        "value",
        "<",
        "</password>",
        ">",
        "user ",
        "map $http_token",
        "Bearer ",
        "chpasswd",
        "LoginModule",
        "user_a",
        "\"kty\"",
        "\"k\"",
        "$2a$",
        "|",
        "=>",
        "==",
        "#",
        "LS0tLS1CRUdJTi",
        "@tcp(",
    ];
    let mut random = Random(11);
    for _ in 0..30_000 {
        let text: String = (0..random.below(16)).map(|_| random.pick(&pieces)).collect();
        masked(&masked(&text));
    }
}

/// Milliseconds of this thread's CPU time: how busy the machine is does not count.
fn work_of(text: &str) -> i64 {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec * 1000 + time.tv_nsec / 1_000_000
    };
    let began = now();
    masked(text);
    masked(&format!("{text}\n"));
    now() - began
}

/// Each text makes one rule look at every part of it. Four times the text is about four times the work, and sixteen times if the
/// work grew with its square.
#[test]
fn the_work_is_in_proportion_to_the_text() {
    let pieces = [
        "://",
        "://:x/",
        "password=",
        "password=\"",
        "\"token\": '",
        "'token': \"",
        "\"tokens\": [",
        "@tcp(",
        "@//",
        "aaa.",
        "eyJ.",
        "hvs.",
        "sk-a.",
        "-----BEGIN ",
        "-----BEGIN PRIVATE KEY-----",
        "LS0tLS1CRUdJTi",
        ":AA",
        "--token \"",
        "-p'",
        "password: \"",
        "password: |\n",
        "</password>",
        "name: token, ",
        "('token', '",
        "$2a$",
        "Bearer ",
        "pw ",
        "\"kty\"\"k\" ",
        "LoginModule user_a=\"",
        "chpasswd ",
        "user >",
        "map $http_token\n",
        "{token: ",
        "a=b,",
        "$(",
        "${",
        "{{",
        "hooks.slack.com/services/",
        "password == \"",
        "login -p x ",
        "identified by ",
        "=>",
        " ",
        "x",
    ];
    for piece in pieces {
        let text_of = |bytes: usize| piece.repeat(bytes / piece.len());
        let (small, large) = (work_of(&text_of(32 << 10)), work_of(&text_of(128 << 10)));
        assert!(large < 10 * small + 100, "{piece}: {small} ms, four times as long {large} ms");
    }
}
