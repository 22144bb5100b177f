//! Rules of pod templates.

use super::*;

#[test]
fn a_container_does_not_ask_for_more_than_it_may_use() {
    let of = |list: &str, request: &str, limit: &str| {
        let resources = format!("resources: {{requests: {{memory: {request}}}, limits: {{memory: {limit}}}}}");
        let template =
            format!("rollout: {{template: {{spec: {{{list}: [{{name: worker, image: w, {resources}}}]}}}}}}");
        texts("", &format!("{template}, {RULE}"))
    };
    assert_eq!(
        of("containers", "65Gi", "64Gi"),
        [
            "spec.roles.rollout.template.spec.containers[0].resources.requests.memory: 65Gi is more than its limit, 64Gi: lower it, or raise \
          limits.memory"
        ]
    );
    assert_eq!(of("initContainers", "1G", "999M").len(), 1);
    for (request, limit) in [
        ("1Gi", "1024Mi"),
        ("300m", "0.3"),
        ("1e3", "1k"),
        ("1Gi", "2G"),
        ("0", "0"),
    ] {
        assert_eq!(of("containers", request, limit), [""; 0], "{request} {limit}");
    }
    for (request, limit) in [("1Gi", "1G"), ("2", "1999m"), ("'1E'", "'1P'"), ("1e3", "999")] {
        assert_eq!(of("containers", request, limit).len(), 1, "{request} {limit}");
    }
}

#[test]
fn a_field_of_a_pod_template_that_no_pod_would_have_is_named_when_the_job_comes_from_the_api_server() {
    let mut given = serde_json::to_value(job("", RULE)).unwrap();
    let template = serde_json::json!({"spec": {"nodeSelctor": {"a": "b"}, "containers": [{"name": "worker", "imagee": "x", "env": []}]}});
    for role in ["actor", "reference", "rollout"] {
        given["spec"]["roles"][role]["template"] = template.clone();
    }
    given["spec"]["roles"]["reward"]["placement"]["template"] = template;
    let read: PpoJob = serde_json::from_value(given).unwrap();
    let texts: Vec<String> = problems(&read).iter().map(ToString::to_string).collect();
    let expected = ["actor", "reference", "rollout", "reward.placement"].map(|role| {
        ["spec.nodeSelctor", "spec.containers[0].imagee"].map(|field| {
            format!("spec.roles.{role}.template.{field}: unknown field: Kubernetes has none of this name here")
        })
    });
    assert_eq!(texts, expected.concat());
}

#[test]
fn a_pod_template_may_have_the_fields_of_the_kubernetes_that_jobs_are_tested_on() {
    let from_file = "valueFrom: {fileKeyRef: {key: A, path: a.env, volumeName: v}}";
    let rules = "restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [75]}}]";
    let containers = format!("containers: [{{name: worker, {rules}, env: [{{name: A, {from_file}}}]}}]");
    let template = format!("actor: {{template: {{spec: {{schedulingGroup: {{podGroupName: g}}, {containers}}}}}}}");
    assert_eq!(texts("", &format!("{template}, {RULE}")), [""; 0]);
}

#[test]
fn a_quantity_of_a_pod_template_that_kubernetes_does_not_read_is_named() {
    let inside = |name: &str, spec: &str| {
        let template = format!("{name}: {{template: {{spec: {{{spec}}}}}}}");
        texts("", &format!("{template}, {RULE}"))
    };
    let wrong = inside(
        "actor",
        "containers: [{name: worker, resources: {limits: {memory: 16GB, cpu: -1}}}], volumes: [{name: a, emptyDir: {sizeLimit: 2 Gi}}]",
    );
    let expected = [
        ("containers[0].resources.limits.cpu", "-1"),
        ("containers[0].resources.limits.memory", "16GB"),
        ("volumes[0].emptyDir.sizeLimit", "2 Gi"),
    ]
    .map(|(field, given)| {
        let field = format!("spec.roles.actor.template.spec.{field}");
        format!("{field}: {given:?} is not a quantity: want a number and a unit, such as 500m, 16G or 16Gi")
    });
    assert_eq!(wrong, expected);
    for quantity in [
        "8", "0.5", "1.5", "500m", "16G", "16Gi", "1k", "1e9", "'1E'", "'.5Gi'", "'+1'",
    ] {
        let spec = format!(
            "initContainers: [{{name: fetch, image: f, resources: {{requests: {{nvidia.com/gpu: {quantity}}}}}}}]"
        );
        // A template without containers is read: the operator adds them.
        let found = inside("rollout", &spec);
        assert!(found.is_empty(), "{quantity}: {found:?}");
    }
    for no_quantity in ["''", "1K", "16gb", "1Gi1", "Gi"] {
        let spec = format!("containers: [{{name: worker, resources: {{requests: {{memory: {no_quantity}}}}}}}]");
        assert_eq!(inside("reference", &spec).len(), 1, "{no_quantity}");
    }
}

#[test]
fn a_container_without_an_image_that_is_none_of_the_operators_is_taken_for_a_misspelt_one() {
    let found = |role: &str, engine: &str, name: &str| {
        let template = format!("template: {{spec: {{containers: [{{name: {name}}}]}}}}");
        texts("", &format!("{role}: {{{engine}{template}}}, {RULE}"))
    };
    let refused = found("actor", "", "wroker");
    assert_eq!(
        refused,
        [
            "spec.roles.actor.template.spec.containers[0].image: is missing, and wroker is no container of the operator's, which have one: \
          give it, or is worker meant?"
        ]
    );
    assert!(found("actor", "", "worker").is_empty());
    assert!(found("rollout", "engine: vllm, ", "vllm").is_empty());
    assert_eq!(found("rollout", "", "vllm").len(), 1);
    assert!(found("actor", "", "logs, image: 'vector:1'").is_empty());
}

#[test]
fn an_init_container_without_an_image_is_named_whatever_it_is_called() {
    let found = |container: &str| {
        let template = format!("actor: {{template: {{spec: {{initContainers: [{container}]}}}}}}");
        texts("", &format!("{template}, {RULE}"))
    };
    let words = "spec.roles.actor.template.spec.initContainers[0].image: is missing, and the operator gives none to an initContainer: give it";
    assert_eq!(found("{name: fetch}"), [words]);
    assert_eq!(found("{name: worker}"), [words]);
    assert!(found("{name: fetch, image: 'rclone:1'}").is_empty());
}
