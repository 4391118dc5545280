//! Redacted values are counted in status and metrics, and a policy that depends on one removes no row, also over a restart.

use serde_json::{Value, json};

use super::{OperatorTest, metrics::PLAIN};
use crate::program::eventually;

const SECRET: &str = "hunter2-of-the-operator";

impl OperatorTest {
    fn apply_deployment(&self, name: &str, env: &Value) {
        let labels = json!({ "app": "shop" });
        let container = json!({ "name": "main", "image": "x:1", "env": env });
        let template = json!({ "metadata": { "labels": labels }, "spec": { "containers": [container] } });
        self.apply(json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name, "labels": labels },
            "spec": { "selector": { "matchLabels": labels }, "template": template },
        }));
    }

    fn apply_deployment_profile(&self, attributes: Value) {
        let gvk = json!({ "group": "apps", "version": "v1", "kind": "Deployment" });
        self.apply_kollect("KollectProfile", "maps", json!({ "targetGVK": gvk, "attributes": attributes }));
    }

    fn apply_policy(&self, policy: &str) {
        let gvk = json!({ "group": "apps", "version": "v1", "kind": "Deployment" });
        let rule = json!({ "gvk": gvk, "matchLabels": { "app": "shop" }, "matchPolicy": policy });
        let namespaces = json!([self.namespace]);
        let spec = json!({ "profileRef": "maps", "includedNamespaces": namespaces, "resourceRules": [rule] });
        self.apply_kollect("KollectTarget", "maps", spec);
    }

    fn payloads(&self) -> Vec<Value> {
        let sql = format!("SELECT payload FROM {} ORDER BY name", self.table());
        self.postgres.psql(&sql).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Lines of a list in the status of the target.
    fn status_lines(&self, list: &str) -> Vec<Value> {
        self.get("kollecttarget/maps")["status"][list].as_array().cloned().unwrap_or_default()
    }
}

#[test]
fn redacted_values_are_counted_by_attribute_with_an_example() {
    let mut test = OperatorTest::new("redacted");
    let password = json!({ "name": "DB_PASSWORD", "value": SECRET });
    let address = json!({ "name": "DATABASE_URL", "value": format!("postgres://shop:{SECRET}@db/shop") });
    test.apply_deployment("a", &json!([password, address, { "name": "MODE", "value": "fast" }]));
    test.apply_deployment("b", &json!([password]));
    test.apply_deployment("c", &json!([]));
    test.install();
    test.apply_deployment_profile(json!([
        { "name": "env", "path": "$.spec.template.spec.containers[*].env[*].value" },
        { "name": "count", "path": "cel:size(object.spec.template.spec.containers[0].?env.orValue([]))" },
        { "name": "fast", "path": "cel:object.spec.template.spec.containers[0].?env.orValue([]).exists(e, e.value == 'fast')" },
        { "name": "phase", "path": "$.spec.template.spec.containers[0].image", "type": "int" },
        { "name": "third", "path": "cel:object.spec.template.spec.containers[0].env[1].name", "optional": true },
    ]));
    test.start(&PLAIN);
    eventually("the counts", || {
        let lines = test.status_lines("redactions");
        let counts: Vec<Value> =
            lines.iter().map(|line| json!([line["name"], line["values"], line["rows"]])).collect();
        (counts == [json!(["env", 3, 2]), json!(["fast", 2, 2])]).then_some(()).ok_or(format!("{lines:?}"))
    });
    let nulls = test.status_lines("nullAttributes");
    let example = |name: &str| nulls.iter().find(|line| line["name"] == name).unwrap()["example"].to_string();
    assert!(example("phase").contains("has a string, \\\"x:1\\\", declared int"), "{nulls:?}");
    assert!(example("third").contains(": "), "{nulls:?}");
    let series = |attribute: &str| {
        let profile = format!("{}/maps", test.namespace);
        format!(r#"kollect_redacted_values{{profile="{profile}",attribute="{attribute}"}}"#)
    };
    test.wait_for_metric(&series("env"), 3.0);
    test.wait_for_metric(&series("fast"), 2.0);
    let rows: Vec<Value> = test.payloads().into_iter().map(|payload| payload["attributes"].clone()).collect();
    let marker = json!({ "reason": "sensitive-key", "redacted": true });
    assert_eq!(rows[0]["env"], json!([marker, "postgres://shop:***@db/shop", "fast"]), "{rows:?}");
    assert_eq!((&rows[0]["count"], &rows[0]["fast"]), (&json!(3), &marker), "{rows:?}");
    assert_eq!((&rows[2]["count"], &rows[2]["fast"]), (&json!(0), &json!(false)), "{rows:?}");
    for object in test.objects() {
        assert!(!object.to_string().contains(SECRET), "{object}");
    }
    assert!(!format!("{rows:?}").contains(SECRET) && !test.log().contains(SECRET));
}

#[test]
fn a_policy_that_depends_on_a_redacted_value_freezes_rows_and_says_so() {
    let mut test = OperatorTest::new("undecided");
    test.apply_deployment("a", &json!([{ "name": "PASSWORD", "value": SECRET }]));
    test.apply_deployment("b", &json!([{ "name": "MODE", "value": "fast" }]));
    test.install();
    test.apply_deployment_profile(
        json!([{ "name": "value", "path": "$.spec.template.spec.containers[0].image" }]),
    );
    test.apply_policy("true");
    test.start(&[]);
    test.wait_for_rows(&["a=x:1", "b=x:1"]);
    let depends = "object.spec.template.spec.containers.exists(c, c.env.exists(e, e.value == 'fast'))";
    test.apply_policy(depends);
    test.wait_for_condition("kollecttarget/maps", "MatchUndecided", "True RedactedValue");
    test.wait_for_condition("kollecttarget/maps", "Synced", "False RedactedValue");
    test.wait_for_condition("kollecttarget/maps", "Ready", "True Collecting");
    test.wait_for_condition("kollectinventory/all", "Blind", "True RedactedValue");
    let message = test.condition_message("kollecttarget/maps", "MatchUndecided");
    assert!(
        message.contains(&format!(
            "whether 1 object is selected depends on redacted values ({}/a)",
            test.namespace
        )),
        "{message}"
    );
    assert_eq!(test.rows(), ["a=x:1", "b=x:1"], "its row stays");
    // A restart knows no rows but those of the sink.
    test.stop();
    test.start(&[]);
    test.wait_for_condition("kollecttarget/maps", "MatchUndecided", "True RedactedValue");
    test.apply_deployment("c", &json!([{ "name": "MODE", "value": "fast" }]));
    test.wait_for_rows(&["a=x:1", "b=x:1", "c=x:1"]);
    // A policy that can be decided removes what it does not select.
    test.apply_policy("object.spec.template.spec.containers.exists(c, c.env.exists(e, e.name == 'MODE'))");
    test.wait_for_rows(&["b=x:1", "c=x:1"]);
    test.wait_for_condition("kollecttarget/maps", "MatchUndecided", "");
    test.wait_for_condition("kollectinventory/all", "Blind", "");
    // An object that is undecided and then deleted is gone.
    test.apply_policy(depends);
    test.apply_deployment("d", &json!([{ "name": "TOKEN", "value": SECRET }]));
    test.wait_for_condition("kollecttarget/maps", "MatchUndecided", "True RedactedValue");
    test.delete("deployment/d");
    test.delete("deployment/a");
    test.wait_for_condition("kollecttarget/maps", "MatchUndecided", "");
    test.wait_for_rows(&["b=x:1", "c=x:1"]);
}
