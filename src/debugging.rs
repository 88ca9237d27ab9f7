//! What an operator may change, and take, of a daemon that runs: how much it logs, and a profile of its CPU time.
//!
//! Like kube-controller-manager's, these paths are there unless `--profiling=false`. On a standby, too.

use axum::{
    extract::RawQuery,
    response::{IntoResponse, Response},
    routing::get,
};
use http::{StatusCode, header::CONTENT_TYPE};
use serving::{Answer, Router};
use telemetry::profile::{self, ProfileError};

use crate::telemetry::filter::Switch;

/// Adds the paths.
///
/// KCM: controller-manager's app/serve.go, NewBaseHandler.
pub fn add(router: Router) -> Router {
    let show = || Switch::of_process().map(Switch::filter);
    router
        .setting("/debug/flags/v", show, |text| Switch::of_process()?.set_verbosity(text))
        .setting("/debug/flags/filter", show, |text| Switch::of_process()?.set_filter(text))
        .route("/debug/pprof/profile", get(profile))
}

async fn profile(RawQuery(query): RawQuery) -> Response {
    let taken = async { profile::take(profile::asked(query.as_deref())?).await };
    match taken.await {
        Ok(bytes) => ([(CONTENT_TYPE, "application/octet-stream")], bytes).into_response(),
        Err(error) => Answer::text(status(&error), format!("{error}\n")).into_response(),
    }
}

fn status(error: &ProfileError) -> StatusCode {
    match error {
        ProfileError::Seconds(_) => StatusCode::BAD_REQUEST,
        ProfileError::Busy(_) | ProfileError::NoRoom => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
