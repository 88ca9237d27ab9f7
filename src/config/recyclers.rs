//! Which pods recycle volumes, and how long they may take.
//!
//! In: flags, and the files that they name. Out: [`Recyclers`], or what is wrong with a file.

use std::path::Path;

use serde_json::{Value, json};

use super::error::ConfigError;
use crate::{
    cli::RunArgs,
    host_plugins::options::{Recycler, Recyclers},
};

/// The recyclers that the flags ask for.
pub(super) fn recyclers(args: &RunArgs) -> Result<Recyclers, ConfigError> {
    Ok(Recyclers {
        host_path: Recycler {
            template: recycler_pod(
                "pv-recycler-pod-template-filepath-hostpath",
                args.pv_recycler_pod_template_filepath_hostpath.as_deref(),
            )?,
            minimum_timeout: args.pv_recycler_minimum_timeout_hostpath,
            increment_timeout: args.pv_recycler_timeout_increment_hostpath,
        },
        nfs: Recycler {
            template: recycler_pod(
                "pv-recycler-pod-template-filepath-nfs",
                args.pv_recycler_pod_template_filepath_nfs.as_deref(),
            )?,
            minimum_timeout: args.pv_recycler_minimum_timeout_nfs,
            increment_timeout: args.pv_recycler_increment_timeout_nfs,
        },
    })
}

// KCM: cmd/kube-controller-manager/app/plugins.go, AttemptToLoadRecycler.
fn recycler_pod(flag: &'static str, file: Option<&Path>) -> Result<Value, ConfigError> {
    let Some(file) = file.filter(|file| !file.as_os_str().is_empty()) else {
        return Ok(Recycler::default_template());
    };
    let mistake = |problem: String| ConfigError::new(flag, format!("{}: {problem}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| mistake(error.to_string()))?;
    let mut pod: Value = serde_saphyr::from_str(&text)
        .map_err(|error| mistake(error.to_string().lines().next().unwrap_or_default().to_owned()))?;
    if pod.get("kind").and_then(Value::as_str) != Some("Pod") {
        return Err(mistake("is not a Pod".to_owned()));
    }
    let volumes = pod.pointer("/spec/volumes").and_then(Value::as_array);
    if volumes.is_none_or(Vec::is_empty) {
        return Err(mistake("does not contain any volume(s)".to_owned()));
    }
    if pod.pointer("/spec/nodeName").is_some() {
        // The pod must not run before the volume is proven to be released, so it has to be scheduled.
        return Err(mistake("must not set spec.nodeName: use spec.nodeSelector".to_owned()));
    }
    if let Some(pod) = pod.as_object_mut() {
        pod.entry("metadata").or_insert_with(|| json!({}));
    }
    Ok(pod)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::config;

    #[cfg(not(feature = "host-plugins"))]
    #[test]
    fn a_flag_for_what_is_not_compiled_in_is_answered_with_what_to_build() {
        for flag in ["--enable-recycler", "--enable-hostpath-provisioner"] {
            let error = config(&[flag]).unwrap_err().to_string();
            assert_eq!(error, format!("{flag}: {}", crate::host_plugins::ABSENT));
        }
    }

    #[cfg(feature = "host-plugins")]
    #[test]
    fn a_recycler_is_as_kcm_has_it_unless_a_file_says_otherwise() {
        assert_eq!(
            config(&["--pv-recycler-pod-template-filepath-nfs=/nowhere"]).unwrap().host_plugins.recyclers,
            None
        );
        let recyclers = config(&["--enable-recycler"]).unwrap().host_plugins.recyclers.unwrap();
        let of = |minimum_timeout| Recycler {
            template: Recycler::default_template(),
            minimum_timeout,
            increment_timeout: 30,
        };
        assert_eq!(recyclers, Recyclers { host_path: of(60), nfs: of(300) });

        let file = std::env::temp_dir().join(format!("mooring-recycler-{}", std::process::id()));
        let flags = [
            "--enable-recycler".to_owned(),
            format!("--pv-recycler-pod-template-filepath-hostpath={}", file.display()),
            "--pv-recycler-minimum-timeout-hostpath=7".to_owned(),
            "--pv-recycler-timeout-increment-hostpath=0".to_owned(),
        ];
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            config(&flags.each_ref().map(String::as_str)).map(|config| config.host_plugins.recyclers.unwrap())
        };
        let pod = "kind: Pod\nspec: {volumes: [{name: v, emptyDir: {}}], nodeSelector: {disk: here}}";
        let host_path = read(pod).unwrap().host_path.clone();
        assert_eq!((host_path.minimum_timeout, host_path.increment_timeout), (7, 0));
        assert_eq!(host_path.template["spec"]["nodeSelector"], json!({"disk": "here"}));
        assert_eq!(host_path.template["metadata"], json!({}));
        for (text, problem) in [
            ("kind: Pod\nspec: {volumes: []}", "does not contain any volume(s)"),
            ("kind: List", "is not a Pod"),
            ("kind: [", ""),
            ("kind: Pod\nspec: {nodeName: n1, volumes: [{name: v}]}", "must not set spec.nodeName"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.starts_with("--pv-recycler-pod-template-filepath-hostpath: "), "{error}");
            assert!(error.contains(problem) && !error.contains('\n'), "{error}");
        }
        std::fs::remove_file(&file).unwrap();
        let error = config(&flags.each_ref().map(String::as_str)).unwrap_err().to_string();
        assert!(error.contains("mooring-recycler-"), "{error}");
    }
}
