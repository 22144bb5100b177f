//! Rules of where models, data and checkpoints lie: exactly one place each, and one that the environment can reach.

use std::path::Path;

use super::kept::{can_be_written, read_only_volume};
use super::{Problem, those_given};
use crate::PpoJobSpec;
use crate::environment::Environment;
use crate::pod::RUNS_FOLDER;
use crate::spec::{AccessMode, DataFormat, DataSource, ModelSource, PvcPath};

/// Adds sources that are missing, doubled or out of reach.
pub fn check(spec: &PpoJobSpec, environment: &Environment, problems: &mut Vec<Problem>) {
    let mut checker = Checker { environment, problems };
    checker.model("spec.model.policy", Some(&spec.model.policy));
    checker.model("spec.model.critic", spec.model.critic.as_ref());
    checker.model("spec.model.reference", spec.model.reference.as_ref());
    checker.data("spec.prompts.source", &spec.prompts.source);
    if let Some(evaluation) = &spec.evaluation {
        checker.data("spec.evaluation.source", &evaluation.source);
    }
    checker.model(
        "spec.roles.reward.model.source",
        spec.roles.reward.model.as_ref().map(|model| &model.source),
    );

    let checkpoint = &spec.checkpoint;
    let places = [
        ("path", checkpoint.path.is_some()),
        ("pvc", checkpoint.pvc.is_some()),
        ("volumeClaim", checkpoint.volume_claim.is_some()),
    ];
    if places.iter().filter(|(_, given)| *given).count() > 1 {
        let message = format!("give at most one of path, pvc, volumeClaim; {}", those_given(&places));
        checker.refuse("spec.checkpoint", &message);
    }
    checker.path("spec.checkpoint.path", checkpoint.path.as_deref());
    checker.writable(spec);
    if checkpoint.pvc.is_some() {
        checker.claim("spec.checkpoint.pvc");
    }
    if checkpoint.volume_claim.is_some() {
        checker.claim("spec.checkpoint.volumeClaim");
    }
    checker.shared(spec);
    checker.access_modes(spec);
}

struct Checker<'a> {
    environment: &'a Environment,
    problems: &'a mut Vec<Problem>,
}

impl Checker<'_> {
    fn model(&mut self, field: &str, source: Option<&ModelSource>) {
        let Some(source) = source else { return };
        let places = [
            ("path", source.path.is_some()),
            ("pvc", source.pvc.is_some()),
            ("hub", source.hub.is_some()),
        ];
        self.exactly_one(field, &places);
        self.path(&format!("{field}.path"), source.path.as_deref());
        self.volume(field, source.pvc.as_ref());
    }

    fn data(&mut self, field: &str, source: &DataSource) {
        let given = [
            ("path", source.path.is_some()),
            ("paths", source.paths.is_some()),
            ("pvc", source.pvc.is_some()),
        ];
        self.exactly_one(field, &given);
        let one = source.path.iter().map(|path| (format!("{field}.path"), path));
        let several = source.paths.iter().flatten().enumerate();
        let several = several.map(|(index, path)| (format!("{field}.paths[{index}]"), path));
        for (field, path) in one.chain(several) {
            self.path(&field, Some(path));
            self.format(&field, path);
        }
        self.volume(field, source.pvc.as_ref());
        if let (Environment::Cluster { .. }, Some(pvc)) = (self.environment, &source.pvc) {
            self.format(&format!("{field}.pvc.path"), &pvc.path);
        }
    }

    fn format(&mut self, field: &str, path: &str) {
        if DataFormat::of(Path::new(path)).is_none() && !DataFormat::is_folder(path) {
            let wanted = DataFormat::EXTENSIONS;
            self.refuse(
                field,
                &format!(
                    "{path:?} is no data file: its extension must be {wanted}; the name of a folder that has a dot in it ends with a slash"
                ),
            );
        }
    }

    fn exactly_one(&mut self, field: &str, places: &[(&str, bool)]) {
        let of: Vec<&str> = places.iter().map(|(name, _)| *name).collect();
        let of = of.join(", ");
        match places.iter().filter(|(_, given)| *given).count() {
            0 => self.refuse(field, &format!("names no place: give exactly one of {of}")),
            1 => {}
            given => {
                let which = those_given(places);
                self.refuse(
                    field,
                    &format!("names {given} places: give exactly one of {of}; {which}"),
                );
            }
        }
    }

    fn path(&mut self, field: &str, path: Option<&str>) {
        let Some(path) = path else { return };
        if path == "~" || path.starts_with("~/") {
            let message = format!("{path:?} lies below a home folder; write its path in full: no shell expands ~ here");
            self.refuse(field, &message);
        } else if matches!(self.environment, Environment::Cluster { .. }) && !path.starts_with('/') {
            self.refuse(
                field,
                &format!("{path:?} is relative; in a pod only an absolute path has a meaning (or give pvc)"),
            );
        }
    }

    fn volume(&mut self, field: &str, pvc: Option<&PvcPath>) {
        let Some(pvc) = pvc else { return };
        self.claim(&format!("{field}.pvc"));
        if pvc.path.split('/').any(|part| part == "..") {
            self.refuse(
                &format!("{field}.pvc.path"),
                &format!("{:?} leaves the volume; remove '..'", pvc.path),
            );
        }
    }

    fn claim(&mut self, field: &str) {
        if matches!(self.environment, Environment::Laptop { .. }) {
            self.refuse(
                field,
                "a PersistentVolumeClaim is on a cluster; on this machine give path instead, or `ppo-worker run --volumes DIR`",
            );
        }
    }

    /// The root of a pod cannot be written, nor a volume that is mounted to be read.
    fn writable(&mut self, spec: &PpoJobSpec) {
        let (checkpoint, actor) = (&spec.checkpoint, &spec.roles.actor);
        let (field, folder) = match &checkpoint.path {
            Some(path) => ("spec.checkpoint.path", path.as_str()),
            None if checkpoint.pvc.is_some() || checkpoint.volume_claim.is_some() => return,
            None => ("spec.checkpoint", RUNS_FOLDER),
        };
        if matches!(self.environment, Environment::Laptop { .. }) || !folder.starts_with('/') {
            return;
        }
        if let Some(volume) = read_only_volume(actor, Path::new(folder)) {
            self.refuse(
                field,
                &format!(
                    "{folder:?} is where checkpoints are written, in the volume {volume} of spec.roles.actor.template, which can only be \
                     read; remove readOnly, mount another volume there, or give volumeClaim or pvc"
                ),
            );
        } else if !can_be_written(actor, Path::new(folder)) {
            self.refuse(
                field,
                &format!(
                    "{folder:?} is in no volume that spec.roles.actor.template mounts in the container worker, and nothing else of a pod can \
                     be written; mount one there, or give volumeClaim or pvc"
                ),
            );
        }
    }

    /// The actor's pods write each checkpoint together, and read it all.
    fn shared(&mut self, spec: &PpoJobSpec) {
        let actor = &spec.roles.actor;
        if matches!(self.environment, Environment::Laptop { .. }) || actor.nodes <= 1 {
            return;
        }
        let path = spec.checkpoint.path.as_deref();
        let is_writable = path.is_none_or(|path| can_be_written(actor, Path::new(path)));
        if is_writable && !spec.outlives_pods() {
            let nodes = actor.nodes;
            self.refuse(
                "spec.checkpoint",
                &format!(
                    "{nodes} actor pods write each checkpoint together, and each would have a folder of its own; give volumeClaim, \
                     a pvc of access mode ReadWriteMany, or a path that spec.roles.actor.template mounts"
                ),
            );
        }
    }

    /// Each pod of the actor writes into the claim that is made.
    fn access_modes(&mut self, spec: &PpoJobSpec) {
        let Some(claim) = &spec.checkpoint.volume_claim else {
            return;
        };
        let (modes, pods) = (&claim.access_modes, spec.roles.actor.nodes);
        if matches!(self.environment, Environment::Laptop { .. }) || modes.is_empty() {
            return;
        }
        let field = "spec.checkpoint.volumeClaim.accessModes";
        let fitting = match pods {
            0 | 1 => "ReadWriteOnce",
            _ => "ReadWriteMany",
        };
        if modes.iter().all(|mode| *mode == AccessMode::ReadOnlyMany) {
            let message = format!("{modes:?} cannot be written, and checkpoints are; use {fitting}");
            self.refuse(field, &message);
        } else if pods > 1 && !modes.contains(&AccessMode::ReadWriteMany) {
            let message = format!("{modes:?} lets one node mount it, and the actor has {pods} pods; use {fitting}");
            self.refuse(field, &message);
        }
    }

    fn refuse(&mut self, field: &str, message: &str) {
        self.problems.push(Problem::new(field, message));
    }
}
