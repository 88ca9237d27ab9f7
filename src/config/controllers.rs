//! Which controllers run, in kube-controller-manager's words: `*` is those that run by default, `name` one more, `-name`
//! one less, and of a name the first word counts.

use super::kcm_controllers::is_known;

/// One of ours: KCM's name, the name before 1.28, and whether it runs by default.
const OURS: [(Name, &str, &str, bool); 4] = [
    (Name::AttachDetach, "persistentvolume-attach-detach-controller", "attachdetach", true),
    (Name::Binder, "persistentvolume-binder-controller", "persistentvolume-binder", true),
    (Name::ClaimProtection, "persistentvolumeclaim-protection-controller", "pvc-protection", false),
    (Name::VolumeProtection, "persistentvolume-protection-controller", "pv-protection", false),
];

/// A controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    AttachDetach,
    Binder,
    ClaimProtection,
    VolumeProtection,
}

/// The controllers that run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is chosen for itself")]
pub struct Controllers {
    /// `persistentvolume-attach-detach-controller`.
    pub attach_detach: bool,
    /// `persistentvolume-binder-controller`.
    pub binder: bool,
    /// `persistentvolumeclaim-protection-controller`.
    pub claim_protection: bool,
    /// `persistentvolume-protection-controller`.
    pub volume_protection: bool,
}

impl Controllers {
    /// Those of a list. Names of KCM's controllers that are not ours say nothing here.
    ///
    /// # Errors
    /// A name is no controller's, or nothing is left to run: a sentence for the operator.
    // KCM: staging/src/k8s.io/controller-manager, app/helper.go, IsControllerEnabled, and options/generic.go, Validate.
    pub fn parse(list: &str) -> Result<Self, String> {
        let words: Vec<&str> = list.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
        let chosen =
            words.iter().filter(|word| **word != "*").map(|word| word.strip_prefix('-').unwrap_or(word));
        if let Some(unknown) = chosen.into_iter().find(|name| !is_known(name)) {
            return Err(format!("{unknown:?} is not in the list of known controllers"));
        }
        let runs = |wanted: Name| {
            let Some((_, name, alias, by_default)) = OURS.iter().find(|(name, ..)| *name == wanted) else {
                return false;
            };
            let named = words.iter().find_map(|word| match word.strip_prefix('-') {
                Some(off) if off == *name || off == *alias => Some(false),
                None if *word == *name || *word == *alias => Some(true),
                _ => None,
            });
            named.unwrap_or(*by_default && words.contains(&"*"))
        };
        let controllers = Self {
            attach_detach: runs(Name::AttachDetach),
            binder: runs(Name::Binder),
            claim_protection: runs(Name::ClaimProtection),
            volume_protection: runs(Name::VolumeProtection),
        };
        let Self { attach_detach, binder, claim_protection, volume_protection } = controllers;
        if attach_detach || binder || claim_protection || volume_protection {
            Ok(controllers)
        } else {
            Err(format!(
                "none of mooring's controllers is left by {list:?}; a list with their names switched off belongs to \
                 kube-controller-manager"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_as_kube_controller_manager_reads_it() {
        let off = "*,-persistentvolume-attach-detach-controller,-persistentvolume-binder-controller";
        // the list; attach/detach, binder, protection of claims, of volumes
        let cases = [
            ("*", [true, true, false, false]),
            ("*,bootstrap-signer-controller,token-cleaner-controller", [true, true, false, false]),
            ("*,persistentvolumeclaim-protection-controller", [true, true, true, false]),
            ("*,pvc-protection,pv-protection", [true, true, true, true]),
            ("persistentvolume-protection-controller", [false, false, false, true]),
            ("*,-persistentvolume-binder-controller", [true, false, false, false]),
            ("*,-attachdetach", [false, true, false, false]),
            ("-attachdetach,*,attachdetach", [false, true, false, false]),
            ("*, pv-protection ,-pv-protection", [true, true, false, true]),
            (&format!("{off},pvc-protection"), [false, false, true, false]),
        ];
        for (list, expected) in cases {
            let Controllers { attach_detach, binder, claim_protection, volume_protection } =
                Controllers::parse(list).unwrap();
            assert_eq!([attach_detach, binder, claim_protection, volume_protection], expected, "{list}");
        }
        for list in [off, "", "nodeipam", "*,-attachdetach,-persistentvolume-binder"] {
            let error = Controllers::parse(list).unwrap_err();
            assert!(error.contains("belongs to kube-controller-manager"), "{list}: {error}");
        }
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
