//! Which controllers run, in kube-controller-manager's words: `*` is those that run by default, `name` one more, `-name`
//! one less, and of a name the first word counts. One word more is ours alone: `storage` is all that mooring has.

use std::collections::BTreeSet;

use self::StorageController::{
    AttachDetach, AttributesClassProtection, Binder, ClaimProtection, EphemeralVolumes, Expander,
    VolumeProtection,
};
use super::kcm_controllers::is_known;

/// A controller that mooring has, in the order in which they are started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StorageController {
    /// `persistentvolume-attach-detach-controller`.
    AttachDetach,
    /// `persistentvolume-binder-controller`.
    Binder,
    /// `persistentvolumeclaim-protection-controller`.
    ClaimProtection,
    /// `persistentvolume-protection-controller`.
    VolumeProtection,
    /// `volumeattributesclass-protection-controller`.
    AttributesClassProtection,
    /// `ephemeral-volume-controller`.
    EphemeralVolumes,
    /// `persistentvolume-expander-controller`.
    Expander,
}

impl StorageController {
    /// KCM's name of it.
    pub fn name(self) -> &'static str {
        OURS.iter().find(|(ours, ..)| *ours == self).map_or("", |(_, name, ..)| name)
    }
}

/// Each with KCM's name of it, the name before 1.28, if it had one, and whether it runs by default.
const OURS: [(StorageController, &str, Option<&str>, bool); 7] = [
    (AttachDetach, "persistentvolume-attach-detach-controller", Some("attachdetach"), true),
    (Binder, "persistentvolume-binder-controller", Some("persistentvolume-binder"), true),
    (ClaimProtection, "persistentvolumeclaim-protection-controller", Some("pvc-protection"), false),
    (VolumeProtection, "persistentvolume-protection-controller", Some("pv-protection"), false),
    (AttributesClassProtection, "volumeattributesclass-protection-controller", None, false),
    (EphemeralVolumes, "ephemeral-volume-controller", Some("ephemeral-volume"), false),
    (Expander, "persistentvolume-expander-controller", Some("persistentvolume-expander"), false),
];

/// The word for all of them, which KCM does not know.
const STORAGE: &str = "storage";

/// The controllers that run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controllers {
    /// Those.
    pub running: BTreeSet<StorageController>,
    /// KCM's that are named and not ours: they do not run here.
    pub passed_over: Vec<String>,
}

impl Controllers {
    /// Those of a list.
    ///
    /// # Errors
    /// A name is no controller's, or nothing is left to run: a sentence for the operator.
    // KCM: staging/src/k8s.io/controller-manager, app/helper.go, IsControllerEnabled, and options/generic.go, Validate.
    pub fn parse(list: &str) -> Result<Self, String> {
        let words: Vec<&str> = list.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
        let named =
            || words.iter().filter(|word| **word != "*").map(|word| word.strip_prefix('-').unwrap_or(word));
        if let Some(unknown) = named().find(|name| *name != STORAGE && !is_known(name)) {
            return Err(format!("{unknown:?} is not in the list of known controllers"));
        }
        let runs = |(_, name, alias, by_default): &&(StorageController, &str, Option<&str>, bool)| {
            let means = |word: &str| word == *name || Some(word) == *alias || word == STORAGE;
            first_mention(&words, means).unwrap_or(*by_default && words.contains(&"*"))
        };
        let running: BTreeSet<StorageController> = OURS.iter().filter(runs).map(|(ours, ..)| *ours).collect();
        if running.is_empty() {
            return Err(format!(
                "none of mooring's controllers is left by {list:?}; a list with their names switched off belongs to \
                 kube-controller-manager"
            ));
        }
        let is_ours = |word: &str| {
            word == STORAGE || OURS.iter().any(|(_, name, alias, _)| word == *name || Some(word) == *alias)
        };
        let is_passed_over = |word: &&&str| **word != "*" && !word.starts_with('-') && !is_ours(word);
        let passed_over = words.iter().filter(is_passed_over).map(|word| (*word).to_owned()).collect();
        Ok(Self { running, passed_over })
    }
}

/// Whether the first word of a list that means a controller switches it on.
fn first_mention(words: &[&str], means: impl Fn(&str) -> bool) -> Option<bool> {
    words.iter().find_map(|word| match word.strip_prefix('-') {
        Some(off) if means(off) => Some(false),
        None if means(word) => Some(true),
        _ => None,
    })
}

/// Whether KCM runs a controller of ours, given by its name, with this list: all of them are on by default there.
pub fn runs_in_kcm(list: &str, name: &str) -> bool {
    let words: Vec<&str> = list.split(',').map(str::trim).collect();
    let alias = OURS.iter().find(|(_, ours, ..)| *ours == name).and_then(|(_, _, alias, _)| *alias);
    first_mention(&words, |word| word == name || Some(word) == alias).unwrap_or(words.contains(&"*"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_as_kube_controller_manager_reads_it() {
        let off = "*,-persistentvolume-attach-detach-controller,-persistentvolume-binder-controller";
        // the list; attach/detach, binder, protection of claims, of volumes, of VolumeAttributesClasses
        let cases = [
            ("*", [true, true, false, false, false, false, false]),
            (
                "*,bootstrap-signer-controller,token-cleaner-controller",
                [true, true, false, false, false, false, false],
            ),
            ("*,persistentvolumeclaim-protection-controller", [true, true, true, false, false, false, false]),
            ("*,pvc-protection,pv-protection", [true, true, true, true, false, false, false]),
            ("persistentvolume-protection-controller", [false, false, false, true, false, false, false]),
            ("*,-persistentvolume-binder-controller", [true, false, false, false, false, false, false]),
            ("*,-attachdetach", [false, true, false, false, false, false, false]),
            ("-attachdetach,*,attachdetach", [false, true, false, false, false, false, false]),
            ("*, pv-protection ,-pv-protection", [true, true, false, true, false, false, false]),
            ("storage", [true; 7]),
            ("-attachdetach,storage,-pv-protection", [false, true, true, true, true, true, true]),
            ("pv-protection,-storage,*", [false, false, false, true, false, false, false]),
            ("volumeattributesclass-protection-controller", [false, false, false, false, true, false, false]),
            (&format!("{off},pvc-protection"), [false, false, true, false, false, false, false]),
            ("*,ephemeral-volume", [true, true, false, false, false, true, false]),
            (
                "persistentvolume-expander,ephemeral-volume-controller",
                [false, false, false, false, false, true, true],
            ),
        ];
        for (list, expected) in cases {
            let Controllers { running, .. } = Controllers::parse(list).unwrap();
            assert_eq!(OURS.map(|(ours, ..)| running.contains(&ours)), expected, "{list}");
        }
        for list in [off, "", "nodeipam", "*,-attachdetach,-persistentvolume-binder", "*,-storage"] {
            let error = Controllers::parse(list).unwrap_err();
            assert!(error.contains("belongs to kube-controller-manager"), "{list}: {error}");
        }
    }

    #[test]
    fn kube_controller_manager_runs_what_is_not_switched_off() {
        let lists =
            ["*", "*,-pv-protection", "-attachdetach,*", "*,-persistentvolume-attach-detach-controller"];
        let names = ["persistentvolume-attach-detach-controller", "persistentvolume-protection-controller"];
        let found = lists.map(|list| names.map(|name| runs_in_kcm(list, name)));
        assert_eq!(found, [[true, true], [true, false], [false, true], [false, true]]);
        assert!(!runs_in_kcm("nodeipam", names[0]));
    }

    #[test]
    fn a_controller_that_is_not_ours_is_passed_over_by_name() {
        let list = "*,selinux-warning-controller,-nodeipam,storage,ttl";
        let controllers = Controllers::parse(list).unwrap();
        assert_eq!(controllers.passed_over, ["selinux-warning-controller", "ttl"]);
    }

    #[test]
    fn a_name_that_is_no_controllers_is_refused() {
        for (list, name) in [
            ("*,persistentvolume-bider-controller", "persistentvolume-bider-controller"),
            ("*,-attach-detach", "attach-detach"),
            ("*,nodeipam,-", ""),
            ("-*", "*"),
        ] {
            let error = Controllers::parse(list).unwrap_err();
            assert_eq!(error, format!("{name:?} is not in the list of known controllers"), "{list}");
        }
    }
}
