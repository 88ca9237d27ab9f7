//! Keeps a table of volumes up to date, and writes one of them at the revision that was seen.

use std::{error::Error, sync::Arc};

use k8s_openapi::api::core::v1::PersistentVolume as Whole;
use kube::{Api, api::PostParams};
use mooring_apiserver::{
    call::{Caller, Request, Verb},
    connect::ApiServer,
    kinds::{Narrow, PersistentVolume, VolumePhase},
    leadership::{Leadership, Term},
    metrics::{ApiMetrics, WatchMetrics},
    tables::{
        Objects,
        watch::{CatchUps, Fetcher, watch},
    },
};
use serde_json::json;
use telemetry::metrics::Metrics;

async fn makes_available() -> Result<VolumePhase, Box<dyn Error>> {
    let client = testbed::Server::default().client();
    let volume: Whole = serde_json::from_value(json!({
        "metadata": { "name": "v" },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "hostPath": { "path": "/v" },
        },
    }))?;
    Api::all(client.clone()).create(&PostParams::default(), &volume).await?;

    let (metrics, objects) = (Metrics::default(), Arc::new(Objects::default()));
    let requests = Arc::new(ApiMetrics::new(&metrics, "in-process")?);
    let fetcher = Fetcher::new(&ApiServer::in_process(client.clone()), Arc::clone(&requests))?;
    let counts = WatchMetrics::new(&metrics)?.of(PersistentVolume::PLURAL, || 0);
    let catch_up = CatchUps::default().of::<PersistentVolume>();
    let watching = tokio::spawn(watch::<PersistentVolume>(fetcher, Arc::clone(&objects), counts, catch_up));
    while !objects.is_listed::<PersistentVolume>() {
        tokio::task::yield_now().await;
    }

    let seen = objects.get::<PersistentVolume>(&"v".into()).ok_or("not in the table")?;
    let caller = Caller::new(client, Leadership::new(Term::Unlimited), None, requests);
    let body = json!({
        "metadata": { "uid": seen.metadata.uid, "resourceVersion": seen.metadata.resource_version },
        "status": { "phase": "Available" },
    });
    let path = format!("{}/status", PersistentVolume::path(&seen.key()));
    let request = Request { verb: Verb::Patch, path, body: Some(body) };
    let written: PersistentVolume = caller.write(&request).await?;
    objects.observe_response(written);
    watching.abort();
    let seen = objects.get::<PersistentVolume>(&"v".into()).ok_or("not in the table")?;
    Ok(seen.status.phase)
}

#[expect(clippy::print_stdout, reason = "an example")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    println!("{:?}", makes_available().await?);
    Ok(())
}

#[tokio::test]
async fn the_answer_is_in_the_table() -> Result<(), Box<dyn Error>> {
    assert_eq!(makes_available().await?, VolumePhase::Available);
    Ok(())
}
