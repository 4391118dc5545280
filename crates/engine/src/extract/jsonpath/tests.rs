//! Vectors from kubectl's documentation and from client-go's tests of JSONPath, one per rule and one per
//! way to get it wrong, and properties of random paths.

mod fuzz;
mod redacted;
mod refused;

use super::*;

/// The object of kubectl's documentation.
const LIST: &str = r#"{
  "kind": "List",
  "items": [
    {"kind": "None",
     "metadata": {"name": "127.0.0.1", "labels": {"kubernetes.io/hostname": "127.0.0.1"}},
     "status": {"capacity": {"cpu": "4"}, "ready": true, "addresses": [{"type": "LegacyHostIP", "address": "127.0.0.1"}]}},
    {"kind": "None",
     "metadata": {"name": "127.0.0.2"},
     "status": {"capacity": {"cpu": "8"}, "ready": false, "addresses": [
       {"type": "LegacyHostIP", "address": "127.0.0.2"}, {"type": "another", "address": "127.0.0.3"}]}}
  ],
  "users": [
    {"name": "myself", "user": {}},
    {"name": "e2e", "user": {"username": "admin", "password": "secret"}}
  ]
}"#;

const DEPLOYMENT: &str = r#"{
  "metadata": {"name": "web", "generation": 3,
    "labels": {"app.kubernetes.io/name": "web", "a key": "x", "it's": "y", "say \"hi\"": "z", "a\\b": "w", "": "empty"}},
  "spec": {"replicas": 3, "paused": false, "nothing": null, "list": [{"a": 1}, {"a": 2}], "min": 2,
    "matrix": [[1, 2], [3, 4]]},
  "status": {"conditions": [
    {"type": "Available", "status": "True", "n": 1},
    {"type": "Progressing", "status": "False", "n": 2.5, "reason": "Slow (very)"},
    {"type": "Ready", "status": "True", "n": "2", "reason": null}
  ]}
}"#;

const NUMBERS: &str = r#"{"n": [0, 1, 2, 3, 4, 5], "empty": [], "map": {"b": 2, "a": 1}}"#;

const MIXED: &str = r#"{"want": 2, "v": [
  {"x": 9007199254740993}, {"x": 9007199254740992}, {"x": 2}, {"x": 2.0}, {"x": -1.5e2}, {"x": "2"}, {"x": true},
  {"x": null}, {"x": [1, {"y": 1}]}, {"x": {"y": 1}}, {"y": 1}, 7, "s"
]}"#;

/// Paths that name one value: the value, or nothing.
const DEFINITE_PATHS: &[(&str, &str, Option<&str>)] = &[
    ("{.spec.replicas}", DEPLOYMENT, Some("3")),
    (".spec.replicas", DEPLOYMENT, Some("3")),
    ("$.spec.replicas", DEPLOYMENT, Some("3")),
    ("{$.spec.replicas}", DEPLOYMENT, Some("3")),
    ("{@.spec.replicas}", DEPLOYMENT, Some("3")),
    ("{ .spec.replicas }", DEPLOYMENT, Some("3")),
    (" $.spec.replicas\n", DEPLOYMENT, Some("3")),
    ("$['spec'][\"replicas\"]", DEPLOYMENT, Some("3")),
    ("{['spec']['replicas']}", DEPLOYMENT, Some("3")),
    ("$.['spec'].[ 'replicas' ]", DEPLOYMENT, Some("3")),
    ("{.kind}", LIST, Some(r#""List""#)),
    ("{['kind']}", LIST, Some(r#""List""#)),
    ("{.users[0].name}", LIST, Some(r#""myself""#)),
    ("{.users[1].user}", LIST, Some(r#"{"password":"secret","username":"admin"}"#)),
    (r"{.items[0].metadata.labels.kubernetes\.io/hostname}", LIST, Some(r#""127.0.0.1""#)),
    (r".metadata.labels.app\.kubernetes\.io/name", DEPLOYMENT, Some(r#""web""#)),
    (r"$.metadata.labels['app\.kubernetes\.io/name']", DEPLOYMENT, Some(r#""web""#)),
    ("$.metadata.labels['app.kubernetes.io/name']", DEPLOYMENT, Some(r#""web""#)),
    (r".metadata.labels.a\ key", DEPLOYMENT, Some(r#""x""#)),
    ("$.metadata.labels['a key']", DEPLOYMENT, Some(r#""x""#)),
    ("$.metadata.labels[\"it's\"]", DEPLOYMENT, Some(r#""y""#)),
    (r"$.metadata.labels['it\'s']", DEPLOYMENT, Some(r#""y""#)),
    ("$.metadata.labels['say \"hi\"']", DEPLOYMENT, Some(r#""z""#)),
    (r"$.metadata.labels['a\\b']", DEPLOYMENT, Some(r#""w""#)),
    ("$.metadata.labels['']", DEPLOYMENT, Some(r#""empty""#)),
    ("$.spec.list[1]", DEPLOYMENT, Some(r#"{"a":2}"#)),
    ("$.spec.list[-1].a", DEPLOYMENT, Some("2")),
    ("$.spec.list[-2].a", DEPLOYMENT, Some("1")),
    ("$.spec.matrix[1][0]", DEPLOYMENT, Some("3")),
    ("$.spec.paused", DEPLOYMENT, Some("false")),
    ("$.spec.nothing", DEPLOYMENT, Some("null")),
    ("$.spec.list", DEPLOYMENT, Some(r#"[{"a":1},{"a":2}]"#)),
    ("$.map", NUMBERS, Some(r#"{"a":1,"b":2}"#)),
    ("$", "7", Some("7")),
    (".", "[1]", Some("[1]")),
    ("{.}", "[1]", Some("[1]")),
    ("{$}", "[1]", Some("[1]")),
    ("{@}", "[1]", Some("[1]")),
    ("$[0]", "[1]", Some("1")),
    ("$.spec.gone", DEPLOYMENT, None),
    ("$.spec.gone.deeper[0]", DEPLOYMENT, None),
    ("$.spec.replicas.deeper", DEPLOYMENT, None),
    ("$.spec.nothing.deeper", DEPLOYMENT, None),
    ("$.spec[0]", DEPLOYMENT, None),
    ("$.spec.list.a", DEPLOYMENT, None),
    ("$.spec.list[2]", DEPLOYMENT, None),
    ("$.spec.list[-3]", DEPLOYMENT, None),
    ("$.n[9223372036854775807]", NUMBERS, None),
    ("$.n[-9223372036854775808]", NUMBERS, None),
];

/// Every other path: always a list.
const LIST_PATHS: &[(&str, &str, &str)] = &[
    // Wildcards.
    ("{.items[*].metadata.name}", LIST, r#"["127.0.0.1","127.0.0.2"]"#),
    ("{.items[*].status.addresses[*].address}", LIST, r#"["127.0.0.1","127.0.0.2","127.0.0.3"]"#),
    ("$.map.*", NUMBERS, "[1,2]"),
    ("$.map[*]", NUMBERS, "[1,2]"),
    ("$.n.*", NUMBERS, "[0,1,2,3,4,5]"),
    ("$.*.x", NUMBERS, "[]"),
    ("$.gone[*]", NUMBERS, "[]"),
    ("$.empty[*]", NUMBERS, "[]"),
    ("$.kind[*]", LIST, "[]"),
    // Slices.
    ("$.n[0:2]", NUMBERS, "[0,1]"),
    ("$.n[:2]", NUMBERS, "[0,1]"),
    ("$.n[4:]", NUMBERS, "[4,5]"),
    ("$.n[:]", NUMBERS, "[0,1,2,3,4,5]"),
    ("$.n[0:0]", NUMBERS, "[]"),
    ("$.n[0:-1]", NUMBERS, "[0,1,2,3,4]"),
    ("$.n[-1:]", NUMBERS, "[5]"),
    ("$.n[-2:]", NUMBERS, "[4,5]"),
    ("$.n[-1:0]", NUMBERS, "[]"),
    ("$.n[3:1]", NUMBERS, "[]"),
    ("$.n[-5:-5]", NUMBERS, "[]"),
    ("$.n[9:9]", NUMBERS, "[]"),
    ("$.n[1:4:2]", NUMBERS, "[1,3]"),
    ("$.n[1:4:4]", NUMBERS, "[1]"),
    ("$.n[0:6:5]", NUMBERS, "[0,5]"),
    ("$.n[::2]", NUMBERS, "[0,2,4]"),
    ("$.n[1::2]", NUMBERS, "[1,3,5]"),
    ("$.n[0:6:]", NUMBERS, "[0,1,2,3,4,5]"),
    ("$.n[2:99]", NUMBERS, "[2,3,4,5]"),
    ("$.n[-99:2]", NUMBERS, "[0,1]"),
    ("$.n[-9223372036854775808:9223372036854775807:9223372036854775807]", NUMBERS, "[0]"),
    ("$.map[0:2]", NUMBERS, "[]"),
    ("$.spec.list[0:1].a", DEPLOYMENT, "[1]"),
    // Unions.
    ("{[1,3,4]}", "[0,1,2,3,4]", "[1,3,4]"),
    ("$.n[4, 0]", NUMBERS, "[4,0]"),
    ("$.n[0,0,-6]", NUMBERS, "[0,0,0]"),
    ("$.n[5,0:2,1]", NUMBERS, "[5,0,1,1]"),
    ("$.n[0,-1,99]", NUMBERS, "[0,5]"),
    ("$.n[0,4:]", NUMBERS, "[0,4,5]"),
    ("$.map['b', \"a\", 'c']", NUMBERS, "[2,1]"),
    ("$.map['b','b']", NUMBERS, "[2,2]"),
    ("$.map['*']", NUMBERS, "[1,2]"),
    ("$..map['b','a']", NUMBERS, "[1,2]"),
    ("{.items[*]['kind','metadata'].name}", LIST, r#"["127.0.0.1","127.0.0.2"]"#),
    (r"$.metadata.labels['a key','app\.kubernetes\.io/name']", DEPLOYMENT, r#"["x","web"]"#),
    (r"$.metadata.labels['app.kubernetes.io/name','a key']", DEPLOYMENT, r#"["web","x"]"#),
    ("$.n['a','b']", NUMBERS, "[]"),
    // Recursive descent.
    ("{..name}", LIST, r#"["127.0.0.1","127.0.0.2","myself","e2e"]"#),
    ("$..['name']", LIST, r#"["127.0.0.1","127.0.0.2","myself","e2e"]"#),
    (
        "$..x",
        r#"{"z":{"x":4},"x":{"x":{"x":1}},"a":[{"x":2},[{"x":3}]]}"#,
        r#"[2,3,{"x":{"x":1}},{"x":1},1,4]"#,
    ),
    ("$..x..x", r#"{"z":{"x":4},"x":{"x":{"x":1}}}"#, r#"[{"x":1},1]"#),
    ("$..*", r#"{"b":2,"a":{"c":[1]}}"#, r#"[{"c":[1]},[1],1,2]"#),
    ("$..*..*", r#"{"b":2,"a":{"c":[1]}}"#, "[[1],1]"),
    ("$..[*]", "[[1],2]", "[[1],1,2]"),
    ("$..[0]", r#"{"a":[[1,2],3],"b":{"c":[4]}}"#, "[[1,2],1,4]"),
    ("$..[0:2]", "[[1,2,3],4,5]", "[[1,2,3],1,2,4]"),
    ("$..['cpu','ready']", LIST, r#"["4",true,"8",false]"#),
    ("$.status..status", DEPLOYMENT, r#"["True","False","True"]"#),
    ("$..gone", DEPLOYMENT, "[]"),
    ("$..[?(@.type == 'another')].address", LIST, r#"["127.0.0.3"]"#),
    ("$..addresses[-1].address", LIST, r#"["127.0.0.1","127.0.0.3"]"#),
    // Filters: existence.
    ("{[?(@.z)].id}", r#"[{"id":1},{"id":2,"z":1},{"id":3,"z":null},4]"#, "[2,3]"),
    ("$.status.conditions[?(@.reason)].type", DEPLOYMENT, r#"["Progressing","Ready"]"#),
    ("$.status.conditions[?(!@.reason)].type", DEPLOYMENT, r#"["Available"]"#),
    ("$.status.conditions[?(! @.reason)].type", DEPLOYMENT, r#"["Available"]"#),
    ("$.items[?(@.status.addresses[1])].metadata.name", LIST, r#"["127.0.0.2"]"#),
    ("$.users[?(@.user.*)].name", LIST, r#"["e2e"]"#),
    ("$.items[?(@..another)]", LIST, "[]"),
    ("$.n[?(@)]", NUMBERS, "[0,1,2,3,4,5]"),
    ("$.n[?($.map.a)]", NUMBERS, "[0,1,2,3,4,5]"),
    ("$.n[?($.gone)]", NUMBERS, "[]"),
    ("$.map[?(@)]", NUMBERS, "[]"),
    // Filters: comparisons.
    (r#"{.users[?(@.name=="e2e")].user.password}"#, LIST, r#"["secret"]"#),
    (r#"{.items[?(@.metadata.labels.kubernetes\.io/hostname=="127.0.0.1")].kind}"#, LIST, r#"["None"]"#),
    ("{.items[?(@..ready==true)].metadata.name}", LIST, r#"["127.0.0.1"]"#),
    ("$.items[?( .status.ready == false )].metadata.name", LIST, r#"["127.0.0.2"]"#),
    ("$.items[?(['kind'] == 'None')].metadata.name", LIST, r#"["127.0.0.1","127.0.0.2"]"#),
    ("{[?(@<5)]}", "[2,6,3,7]", "[2,3]"),
    ("$[? (@ >= -2) ]", "[-3,-2,-1.5]", "[-2,-1.5]"),
    ("$.status.conditions[?('True' == @.status)].n", DEPLOYMENT, r#"[1,"2"]"#),
    ("$.status.conditions[?(@.status != 'True')].type", DEPLOYMENT, r#"["Progressing"]"#),
    ("$.status.conditions[?(@.reason == 'Slow (very)')].type", DEPLOYMENT, r#"["Progressing"]"#),
    ("$.status.conditions[?(@.type > 'B')].type", DEPLOYMENT, r#"["Progressing","Ready"]"#),
    ("$.status.conditions[?(@.type <= \"Progressing\")].type", DEPLOYMENT, r#"["Available","Progressing"]"#),
    (r"$[?(@ == 'it\'s')]", r#"["it's"]"#, r#"["it's"]"#),
    (r"$[?(@ == 'a\tb\\\.')]", r#"["a\tb\\."]"#, r#"["a\tb\\."]"#),
    ("$.v[?(@.x == 9007199254740993)]", MIXED, r#"[{"x":9007199254740993}]"#),
    ("$.v[?(@.x > 9007199254740992)]", MIXED, r#"[{"x":9007199254740993}]"#),
    ("$.v[?(@.x == 2)]", MIXED, r#"[{"x":2},{"x":2.0}]"#),
    ("$.v[?(@.x == '2')]", MIXED, r#"[{"x":"2"}]"#),
    ("$.v[?(@.x == -150)]", MIXED, r#"[{"x":-1.5e2}]"#),
    ("$.v[?(@.x < 1.5)]", MIXED, r#"[{"x":-1.5e2}]"#),
    ("$.v[?(@.x == true)]", MIXED, r#"[{"x":true}]"#),
    ("$.v[?(@.x == null)]", MIXED, r#"[{"x":null}]"#),
    ("$.v[?(@.x <= null)]", MIXED, "[]"),
    ("$.v[?(@.x >= true)]", MIXED, "[]"),
    (
        "$.v[?(@.x != 2)].x",
        MIXED,
        r#"[9007199254740993,9007199254740992,-1.5e2,"2",true,null,[1,{"y":1}],{"y":1}]"#,
    ),
    ("$.v[?(@.x == @.x)].x[0]", MIXED, "[1]"),
    ("$.v[?(@.x[1] == $.v[9].x)].x[0]", MIXED, "[1]"),
    ("$.v[?(@.x == $.want)]", MIXED, r#"[{"x":2},{"x":2.0}]"#),
    ("$.v[?(@.x == $.gone)]", MIXED, "[]"),
    ("$.spec.list[?(@.a >= $.spec.min)]", DEPLOYMENT, r#"[{"a":2}]"#),
    ("$.spec.matrix[?(@[0] == 3)][1]", DEPLOYMENT, "[4]"),
    ("$.spec.matrix[*][?(@ == 3)]", DEPLOYMENT, "[3]"),
    ("$.items[?(@.status.addresses[-1]['type'] == 'another')].metadata.name", LIST, r#"["127.0.0.2"]"#),
    // Filters: any value of a side counts.
    ("$.items[?(@.status.addresses[*].type == 'another')].metadata.name", LIST, r#"["127.0.0.2"]"#),
    (
        "$.items[?(@.status.addresses[*].type != 'another')].metadata.name",
        LIST,
        r#"["127.0.0.1","127.0.0.2"]"#,
    ),
    (
        "$.items[?(@.status.addresses[?(@.type == 'another')].address == '127.0.0.3')].metadata.name",
        LIST,
        r#"["127.0.0.2"]"#,
    ),
    ("$.a[?(@.b[?(@..c == 1)])].d", r#"{"a":[{"b":[{"x":{"c":1}}],"d":1},{"b":[{"c":2}],"d":2}]}"#, "[1]"),
    // Filters: and, or, not, parentheses.
    ("$.n[?(@ > 1 && @ < 4)]", NUMBERS, "[2,3]"),
    ("$.n[?(@ < 1 || @ > 4)]", NUMBERS, "[0,5]"),
    ("$.n[?(@ == 0 || @ > 1 && @ < 3)]", NUMBERS, "[0,2]"),
    ("$.n[?((@ == 0 || @ > 1) && @ < 3)]", NUMBERS, "[0,2]"),
    ("$.n[?((@ == 0 || @ == 1) && @ > 0)]", NUMBERS, "[1]"),
    ("$.n[?(!(@ == 0 || @ > 1))]", NUMBERS, "[1]"),
    ("$.n[?(@>0&&@<2||@==5)]", NUMBERS, "[1,5]"),
    ("$.status.conditions[?(@.reason && @.status == 'True')].type", DEPLOYMENT, r#"["Ready"]"#),
];

fn read<'a>(text: &'a str, projection: &Projection) -> Json<'a> {
    Json::read(text, projection).unwrap_or_else(|e| unreachable!("{text}: {e}"))
}

fn written(value: &Json<'_>) -> String {
    let mut out = String::new();
    value.write(&mut out);
    out
}

fn parsed(path: &str) -> Path {
    Path::parse(path).unwrap_or_else(|e| unreachable!("{path}: {e:?}"))
}

/// One value as it is, none as nothing, many as a list.
fn found(path: &Path, object: &Json<'_>) -> Option<String> {
    match path.find(object) {
        PathMatches::One(value) => value.map(written),
        PathMatches::Many(values) => Some(written(&Json::List(values.into_iter().cloned().collect()))),
    }
}

#[test]
fn a_definite_path_yields_the_value_or_nothing() {
    for (text, object, expected) in DEFINITE_PATHS {
        let path = parsed(text);
        assert!(path.is_definite(), "{text}");
        assert_eq!(found(&path, &read(object, &Projection::everything())).as_deref(), *expected, "{text}");
    }
}

#[test]
fn every_other_path_yields_a_list() {
    for (text, object, expected) in LIST_PATHS {
        let path = parsed(text);
        assert!(!path.is_definite(), "{text}");
        assert_eq!(
            found(&path, &read(object, &Projection::everything())).as_deref(),
            Some(*expected),
            "{text}"
        );
    }
}

#[test]
fn a_projection_reads_everything_that_its_path_needs() {
    let vectors = DEFINITE_PATHS.iter().map(|v| (v.0, v.1)).chain(LIST_PATHS.iter().map(|v| (v.0, v.1)));
    for (text, object) in vectors {
        let path = parsed(text);
        let mut projection = Projection::default();
        path.project(&mut projection);
        let (everything, part) = (read(object, &Projection::everything()), read(object, &projection));
        assert_eq!(found(&path, &part), found(&path, &everything), "{text}: {projection:?}");
    }
}

#[test]
fn a_projection_reads_little_more_than_its_path_needs() {
    for (text, object, expected) in [
        ("$.metadata.name", DEPLOYMENT, r#"{"metadata":{"name":"web"}}"#),
        ("$.map['b','c']", NUMBERS, r#"{"map":{"b":2}}"#),
        ("$.spec.list[1].a", DEPLOYMENT, r#"{"spec":{"list":[{"a":1},{"a":2}]}}"#),
        ("$.users[*].name", LIST, r#"{"users":[{"name":"myself"},{"name":"e2e"}]}"#),
        (
            "$.users[?(@.user)].name",
            LIST,
            r#"{"users":[{"name":"myself","user":{}},{"name":"e2e","user":{}}]}"#,
        ),
        ("$.users[?(!@.gone)].gone", LIST, r#"{"users":[{},{}]}"#),
        ("$.n[?($.map.a)]", r#"{"n":[1],"map":{"a":{"deep":1},"b":2}}"#, r#"{"map":{"a":{}},"n":[1]}"#),
        ("$.spec..a", r#"{"spec":{"a":1,"b":2},"status":1}"#, r#"{"spec":{"a":1,"b":2}}"#),
        ("$.a..[?(@.x == $.b.c)]", r#"{"a":[],"b":{"c":1,"d":1},"c":1}"#, r#"{"a":[],"b":{"c":1}}"#),
    ] {
        let mut projection = Projection::default();
        parsed(text).project(&mut projection);
        assert_eq!(written(&read(object, &projection)), expected, "{text}");
    }
}

#[test]
fn a_projection_is_added_to_what_is_read_already() {
    let mut projection = Projection::default();
    ["$.a.b", "$.a.c[*].d", "$.a.c[0].e"].iter().for_each(|text| parsed(text).project(&mut projection));
    let object = r#"{"a":{"b":1,"c":[{"d":1,"e":2,"f":3}],"g":4}}"#;
    assert_eq!(written(&read(object, &projection)), r#"{"a":{"b":1,"c":[{"d":1,"e":2}]}}"#);
}

#[test]
fn removal_removes_every_value_that_the_path_names() {
    for (text, object, expected) in [
        ("$.a.b", r#"{"a":{"b":1,"c":2}}"#, r#"{"a":{"c":2}}"#),
        ("$.a.b", r#"{"a":[{"b":1}]}"#, r#"{"a":[{"b":1}]}"#),
        ("$.gone.b", r#"{"a":1}"#, r#"{"a":1}"#),
        ("$.a[0]", r#"{"a":[1,2,3]}"#, r#"{"a":[2,3]}"#),
        ("$.a[-1]", r#"{"a":[1,2,3]}"#, r#"{"a":[1,2]}"#),
        ("$.a[9]", r#"{"a":[1,2,3]}"#, r#"{"a":[1,2,3]}"#),
        ("$.a[0,2]", r#"{"a":[1,2,3]}"#, r#"{"a":[2]}"#),
        ("$.a[::2]", r#"{"a":[1,2,3,4,5]}"#, r#"{"a":[2,4]}"#),
        ("$.a[*]", r#"{"a":[1,2,3]}"#, r#"{"a":[]}"#),
        ("$.a.*", r#"{"a":{"b":1,"c":2}}"#, r#"{"a":{}}"#),
        ("$.a['b','d']", r#"{"a":{"b":1,"c":2,"d":3}}"#, r#"{"a":{"c":2}}"#),
        ("$.a[*].b", r#"{"a":[{"b":1,"c":2},{"b":3},{"c":4}]}"#, r#"{"a":[{"c":2},{},{"c":4}]}"#),
        ("$..b", r#"{"b":{"b":1},"a":[{"b":1,"c":{"b":2}}]}"#, r#"{"a":[{"c":{}}]}"#),
        ("$..[0]", "[[1,2],[3,4]]", "[[4]]"),
        ("$.a[?(@.b == 1)]", r#"{"a":[{"b":1},{"b":2},{"b":1}]}"#, r#"{"a":[{"b":2}]}"#),
        ("$.a[?(@.b == $.a[0].b)]", r#"{"a":[{"b":1},{"b":2},{"b":1}]}"#, r#"{"a":[{"b":2}]}"#),
        ("$", r#"{"a":1}"#, r#"{"a":1}"#),
    ] {
        let mut value = read(object, &Projection::everything());
        parsed(text).remove(&mut value);
        assert_eq!(written(&value), expected, "{text}");
    }
}

#[test]
fn many_ways_to_one_value_do_not_multiply_the_work() {
    let deep = format!("{}1{}", r#"{"a":["#.repeat(60), "]}".repeat(60));
    let object = read(&deep, &Projection::everything());
    let wild = "..*".repeat(40);
    let outside = ["$", &wild, "[?(@.*.*[?(@.*.*)])]"].concat();
    let inside = ["$.a[?(@.a[?(@", &wild, ")])]"].concat();
    for text in [&format!("${wild}"), &outside, &inside] {
        let PathMatches::Many(values) = parsed(text).find(&object) else { unreachable!("{text}") };
        assert!(values.len() <= 120, "{text}");
    }
    let unions = format!("${}", "['a','b']".repeat(64));
    let mut projection = Projection::default();
    parsed(&unions).project(&mut projection);
    assert_eq!(found(&parsed(&unions), &read(&deep, &projection)).as_deref(), Some("[]"));
}
