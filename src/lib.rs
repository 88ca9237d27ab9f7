//! mooring: attach/detach controller and PV binder for Kubernetes.

pub mod app;
pub mod attach_detach;
pub mod cli;
pub mod config;
pub mod http;
pub mod kube_api;
pub mod metrics;
pub mod routes;
pub mod state;
pub mod supervise;
pub mod telemetry;
