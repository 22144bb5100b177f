//! Where checkpoints go, and what outlives the pods.

use super::*;

#[test]
fn several_actor_pods_need_a_folder_that_all_of_them_reach() {
    let two = |template: &str| format!("{RULE}, actor: {{nodes: 2{template}}}");
    let refused = texts("", &two(""));
    assert!(
        refused[0].starts_with("spec.checkpoint: 2 actor pods write each checkpoint together"),
        "{refused:?}"
    );
    let mounted = ", template: {spec: {containers: [{name: worker, volumeMounts: [{name: runs, mountPath: /runs}]}]}}";
    for (blocks, roles) in [
        ("checkpoint: {path: /runs/shared}", two(mounted)),
        ("checkpoint: {pvc: checkpoints}", two("")),
        ("checkpoint: {volumeClaim: {storage: 1Gi}}", two("")),
        ("", two(mounted)),
    ] {
        assert_eq!(texts(blocks, &roles), Vec::<String>::new(), "{blocks} {roles}");
    }
    let once = "checkpoint: {volumeClaim: {storage: 1Gi, accessModes: [ReadWriteOnce]}}";
    assert!(texts(once, &two(""))[0].starts_with("spec.checkpoint.volumeClaim.accessModes: "));
    assert_eq!(texts(once, RULE), Vec::<String>::new());
}

#[test]
fn a_claim_for_checkpoints_can_be_written() {
    let claim = |modes: &str| format!("checkpoint: {{volumeClaim: {{storage: 1Gi, accessModes: [{modes}]}}}}");
    let field = "spec.checkpoint.volumeClaim.accessModes";
    assert_eq!(
        one(&claim("ReadOnlyMany"), RULE),
        format!("{field}: [ReadOnlyMany] cannot be written, and checkpoints are; use ReadWriteOnce")
    );
    assert_eq!(
        one(&claim("ReadOnlyMany"), &format!("{RULE}, actor: {{nodes: 2}}")),
        format!("{field}: [ReadOnlyMany] cannot be written, and checkpoints are; use ReadWriteMany")
    );
    for modes in ["", "ReadWriteOncePod", "ReadOnlyMany, ReadWriteOnce"] {
        assert_eq!(texts(&claim(modes), RULE), Vec::<String>::new(), "{modes}");
    }
}

/// Roles with an actor that mounts a volume of the given source.
fn mounting(path: &str, source: &str) -> String {
    let worker = format!("{{name: worker, volumeMounts: [{{name: disk, mountPath: {path}}}]}}");
    format!("{RULE}, actor: {{template: {{spec: {{containers: [{worker}], volumes: [{{name: disk, {source}}}]}}}}}}")
}

#[test]
fn checkpoints_on_a_cluster_go_where_a_pod_can_write() {
    let claim = "persistentVolumeClaim: {claimName: disk}";
    let at = "checkpoint: {path: /disk/run}";
    assert!(one(at, RULE).starts_with("spec.checkpoint.path: \"/disk/run\" is in no volume"));
    assert!(one(at, &mounting("/dis", claim)).starts_with("spec.checkpoint.path: "));
    assert!(texts(at, &mounting("/disk", claim)).is_empty());
    assert!(texts("checkpoint: {path: /tmp/run}", RULE).is_empty());
    assert!(validate(&job(at, RULE), &laptop()).is_ok());
}

#[test]
fn checkpoints_do_not_go_into_a_volume_that_can_only_be_read() {
    let at = "checkpoint: {path: /disk/run}";
    let claim = "persistentVolumeClaim: {claimName: disk}";
    let mounted_to_read = |path: &str| mounting(path, claim).replace("mountPath:", "readOnly: true, mountPath:");
    let text = one(at, &mounted_to_read("/disk"));
    assert!(
        text.starts_with("spec.checkpoint.path: \"/disk/run\" is where checkpoints are written, in the volume disk"),
        "{text}"
    );
    for source in [
        "persistentVolumeClaim: {claimName: disk, readOnly: true}",
        "configMap: {name: disk}",
        "secret: {secretName: disk}",
    ] {
        assert_eq!(one(at, &mounting("/disk", source)), text, "{source}");
    }
    let text = one("", &mounted_to_read("/runs"));
    assert!(text.starts_with("spec.checkpoint: \"/runs\" is where"), "{text}");
    assert_eq!(texts("checkpoint: {pvc: disk}", &mounted_to_read("/data")), [""; 0]);
    assert!(validate(&job(at, &mounted_to_read("/disk")), &laptop()).is_ok());
}

#[test]
fn a_claim_of_nothing_is_refused() {
    let claim = |size: &str| format!("checkpoint: {{volumeClaim: {{storage: {size}}}}}");
    for nothing in ["'0'", "0Gi", "'0.00'", "00.0T"] {
        let text = one(&claim(nothing), RULE);
        assert!(
            text.contains("storage") && text.contains("want a number above 0"),
            "{text}"
        );
    }
    for size in ["0.5Gi", "'1'", "010Gi", "10.25T"] {
        assert_eq!(texts(&claim(size), RULE), [""; 0], "{size}");
    }
}

#[test]
fn a_model_that_goes_with_its_pod_is_warned_of_on_a_cluster_alone() {
    let fields = |blocks: &str, roles: &str, environment: &Environment| -> Vec<String> {
        let plan = crate::Plan::of(&job(blocks, roles), environment, None).unwrap();
        plan.warnings.into_iter().map(|warning| warning.field).collect()
    };
    let cluster = |blocks: &str, roles: &str| fields(blocks, roles, &Environment::cluster());
    let (claim, scratch) = ("persistentVolumeClaim: {claimName: disk}", "emptyDir: {}");
    for (blocks, roles) in [
        ("", RULE.to_owned()),
        ("checkpoint: {path: /tmp/run}", RULE.to_owned()),
        ("", mounting("/runs", scratch)),
        ("checkpoint: {path: /disk/run}", mounting("/disk", scratch)),
    ] {
        assert_eq!(cluster(blocks, &roles), ["spec.checkpoint"], "{blocks} {roles}");
        assert!(fields(blocks, &roles, &laptop()).is_empty());
    }
    for (blocks, roles) in [
        ("checkpoint: {pvc: disk}", RULE.to_owned()),
        ("checkpoint: {volumeClaim: {storage: 1Gi}}", RULE.to_owned()),
        ("", mounting("/runs", claim)),
        ("", mounting("/runs/math", claim)),
        ("checkpoint: {path: /disk/run}", mounting("/disk", claim)),
    ] {
        assert!(cluster(blocks, &roles).is_empty(), "{blocks} {roles}");
    }
}
