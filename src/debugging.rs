//! What an operator may change, and take, of a daemon that runs: how much it logs, and a profile of its CPU time.
//!
//! Like kube-controller-manager's, these paths are there unless `--profiling=false`. On a standby, too.

use std::time::Duration;

use http::StatusCode;

use crate::{
    http::{Router, Setting, Slow},
    profile::{self, MOST_SECONDS, ProfileError},
    telemetry::filter::Switch,
};

/// Adds the paths.
///
/// KCM: controller-manager's app/serve.go, NewBaseHandler.
#[must_use]
pub fn add(router: Router) -> Router {
    let show = || Switch::of_process().map(Switch::filter);
    let verbosity =
        Setting { show: Box::new(show), set: Box::new(|text| Switch::of_process()?.set_verbosity(text)) };
    let filter =
        Setting { show: Box::new(show), set: Box::new(|text| Switch::of_process()?.set_filter(text)) };
    let profile = Slow {
        longest: Duration::from_secs(MOST_SECONDS),
        make: Box::new(|query| {
            let length = profile::asked(query);
            Box::pin(async move {
                let profile = match length {
                    Ok(length) => profile::take(length).await,
                    Err(error) => Err(error),
                };
                profile.map_err(|error| (status(&error), format!("{error}\n")))
            })
        }),
        content_type: "application/octet-stream",
    };
    router
        .setting("/debug/flags/v", verbosity)
        .setting("/debug/flags/filter", filter)
        .slow("/debug/pprof/profile", profile)
}

fn status(error: &ProfileError) -> StatusCode {
    match error {
        ProfileError::Seconds(_) => StatusCode::BAD_REQUEST,
        ProfileError::Busy(_) | ProfileError::NoRoom => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
